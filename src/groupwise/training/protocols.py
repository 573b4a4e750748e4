"""How a number was taken: the record that every number of an evaluation carries."""

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, fields, is_dataclass
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import groupwise.tasks
from groupwise.config.registry import definition_of
from groupwise.config.user_code import PREFIX, Use
from groupwise.data import Prompt, Sampling, Verifier, name_of
from groupwise.evaluation.interval import LEVEL, RESAMPLES, RULE
from groupwise.models import Purpose, find_model
from groupwise.tasks import Each, Mixture, Problems
from groupwise.training.build import Runtime
from groupwise.training.sources import Source, held_out_sources, sources, templates
from groupwise.verifiers import own_names

PACKAGES = ("groupwise", "torch", "transformers", "tokenizers", "numpy", "safetensors")
SEED_RULE = f"Philox4x32-10: key (seed, {int(Purpose.EVALUATE)}), counter (problem, answer, token)"


def protocol(ready: Runtime, law: Sampling, n: int, use: Use) -> dict[str, Any]:
    """The record of one number: everything that it depends on, as JSON. What may not differ, `compare` says.

    The problems are told by a hash of what is asked and what is right, without how it is written to a model: the
    template has a hash of its own. A verifier's version is the hash of all code that ours are written in, or of the
    file that one's own stands in.
    """
    recipe, machine = ready.recipe, ready.recipe.machine
    asking = held_out_sources(recipe) or sources(recipe)
    around = templates(recipe, ready.tokenizer)
    facts = ready.task.stats if isinstance(ready.task, Problems | Mixture) else ()
    return {
        "model": {"name": recipe.model, "sha256": model_hash(find_model(recipe.model))},
        "task": {
            "name": " + ".join(s.task for s in asking),
            "data_sha256": [f.sha256 for f in facts if f.held_out],
            "problems": len(ready.asked),
            "sha256": digest([problem(p) for p in ready.asked]),
        },
        "template": {s.template: around[s.template].digest for s in asking},
        "sampling": {**asdict(law), "stop": list(law.stop)},
        "strategy": strategy_of(recipe.evaluate.strategy, use),
        **({"environment": environment_record(recipe.environment, use)} if recipe.environment else {}),
        "verifier": {
            "name": " + ".join(s.verifier for s in asking),
            "sha256": judges_hash(asking, use),
            "packages": versions(judge_packages(ready.verifier)),
            "deadline": machine.verdict_deadline,
        },
        "dtype": machine.dtype,
        "n": n,
        "seed": recipe.seed,
        "seed_rule": SEED_RULE,
        "engine": {"name": "native", "device": machine.device, "threads": machine.threads},
        "interval": {"rule": RULE, "level": LEVEL, "resamples": RESAMPLES},
        "versions": {"python": platform.python_version(), **versions(PACKAGES)},
    }


def environment_record(name: str, use: Use) -> dict[str, Any]:
    """Whom a conversation is with, and the hash of one's own file."""
    return {"name": name, "sha256": use.hashes.get(name.partition(":")[0])}


def problem(prompt: Prompt) -> list[Any]:
    """What is asked and what is right, but for whose it is in a mixture."""
    return [prompt.text, {k: v for k, v in prompt.given.items() if k != "of"}]


def judges_hash(asking: Sequence[Source], use: Use) -> str:
    """One hash of the code behind the verifiers of these sources, those of one's own files among them."""
    ours = sorted(Path(str(groupwise.tasks.__file__)).parent.rglob("*.py"))
    own = {name.partition(":")[0] for s in asking for name in own_names(s.verifier)}
    return digest([[file_hash(path) for path in ours], {stem: use.hashes.get(stem) for stem in sorted(own)}])


def judge_packages(verifier: Verifier) -> list[str]:
    """The packages that a verifier says its verdicts come from."""
    judges = verifier.verifiers if isinstance(verifier, Each) else (verifier,)
    return sorted({name for judge in judges for name in getattr(judge, "packages", ())})


def versions(packages: Sequence[str]) -> dict[str, str]:
    """The version of each package that is here."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def model_hash(home: Path) -> str:
    """SHA-256 over what answers depend on: configuration, tokenizer and weights, by name and content."""
    files = [
        p for p in home.iterdir() if p.suffix in (".json", ".safetensors", ".jinja", ".model", ".py") and p.is_file()
    ]
    return digest([[path.name, file_hash(path)] for path in sorted(files)])


def file_hash(path: Path) -> str:
    whole = sha256()
    with path.open("rb") as file:
        while microbatch := file.read(1 << 20):
            whole.update(microbatch)
    return whole.hexdigest()


def strategy_of(strategy: Any, use: Use) -> Any:
    """How answers come about: the strategy with its constants, and the hash of one's own file that it stands in."""
    stem = definition_of(strategy).__module__.removeprefix(PREFIX)
    return {"part": part(strategy), "sha256": use.hashes[stem]} if stem in use.hashes else part(strategy)


def part(value: Any) -> Any:
    """A part by its name, with its constants if it has any, as JSON.

    >>> from groupwise.rollout import Independent
    >>> part(Independent())
    'Independent'
    """
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, tuple | list):
        return [part(one) for one in value]
    if not is_dataclass(value) or isinstance(value, type):
        return name_of(value)
    constants = {f.name: part(getattr(value, f.name)) for f in fields(value)}
    return {"name": name_of(value), **constants} if constants else name_of(value)


def digest(value: Any) -> str:
    """SHA-256 of a value's JSON.

    >>> digest({"b": 1, "a": 2}) == digest({"a": 2, "b": 1})
    True
    """
    return sha256(json.dumps(value, sort_keys=True, default=repr).encode()).hexdigest()
