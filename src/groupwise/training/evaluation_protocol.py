"""The protocol of an evaluation: all settings, code and versions on which its results depend."""

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, fields, is_dataclass
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import groupwise
from groupwise.config.diff import label
from groupwise.config.registry import definition_of
from groupwise.config.resolve_devices import device_of
from groupwise.config.task_sources import TaskSource, held_out_sources, sources
from groupwise.config.user_code import PREFIX, UserCode
from groupwise.data import Prompt, Sampling, data_stats, name_of
from groupwise.evaluation.interval import LEVEL, RESAMPLES, RULE
from groupwise.models import RandomPurpose, find_model, kind_of
from groupwise.training.build_run import RunObjects
from groupwise.verifiers.classifier_grader import ClassifierSettings
from groupwise.verifiers.user_function import functions_in, kinds_in

PACKAGES = ("groupwise", "torch", "transformers", "tokenizers", "numpy", "safetensors")
PACKAGE = Path(groupwise.__file__).parent
VERIFIER_ROOMS = ("verifiers", "sandbox", "tasks")
"""Subpackages whose code is hashed as the version of the packaged verifiers."""
SEED_RULE = f"Philox4x32-10: key (seed, {int(RandomPurpose.EVALUATE)}), counter (problem, answer, token)"


def protocol(objects: RunObjects, sampling: Sampling, n: int, use: UserCode) -> dict[str, Any]:
    """The protocol of one result as JSON: all settings that it depends on. The command `compare` compares them.

    The hash of the problems covers questions and gold answers, without the template, which has its own hash. A
    verifier's version is the hash of the code of all packaged verifiers, and of the user's files that it uses.
    """
    recipe, machine = objects.recipe, objects.recipe.machine
    evaluated = held_out_sources(recipe) or sources(recipe)
    by_name = objects.inputs.templates
    stats = data_stats(objects.task)
    return {
        "model": {"name": recipe.model, "sha256": model_hash(find_model(recipe.model))},
        "task": {
            "name": " + ".join(s.task.label for s in evaluated),
            "data_sha256": [f.sha256 for f in stats if f.held_out_count],
            "problems": len(objects.held_out),
            "sha256": digest([problem(p) for p in objects.held_out]),
        },
        "template": {s.template: by_name[s.template].digest for s in evaluated},
        "sampling": {**asdict(sampling), "stop": list(sampling.stop)},
        **(
            {}
            if (denoise := recipe.method.denoise) is None
            else {"steps": recipe.evaluate.denoising_steps or denoise.steps}
        ),
        "strategy": strategy_record(recipe.evaluate.strategy, use),
        **({"environment": environment_record(recipe.environment, use)} if recipe.environment else {}),
        "verifier": {
            "name": " + ".join(label(s.verifier) for s in evaluated),
            "sha256": verifiers_hash(evaluated, use),
            "packages": versions(objects.verifier.packages),
            "deadline": machine.verdict_deadline,
            **({"reward_models": hashes} if (hashes := reward_model_hashes(evaluated)) else {}),
            **({} if recipe.correct_threshold is None else {"correct_threshold": recipe.correct_threshold}),
        },
        "dtype": machine.dtype,
        "n": n,
        "seed": recipe.seed,
        "seed_rule": SEED_RULE,
        "engine": {"name": "native", "device": device_of(machine.device), "threads": machine.threads},
        "interval": {"rule": RULE, "level": LEVEL, "resamples": RESAMPLES},
        "versions": {"python": platform.python_version(), **versions(PACKAGES)},
    }


def environment_record(name: str, use: UserCode) -> dict[str, Any]:
    """The environment's name, and the hash of its file if it is the user's, for the protocol."""
    return {"name": name, "sha256": use.digest(name.partition(":")[0])}


def problem(prompt: Prompt) -> list[Any]:
    """A problem as hashed for the protocol: its text, and its data row with the gold answer."""
    return [prompt.text, dict(prompt.row)]


def verifiers_hash(evaluated: Sequence[TaskSource], use: UserCode) -> str:
    """One hash of the code of all packaged verifiers and of the user's files that these sources use."""
    packaged = [path for room in VERIFIER_ROOMS for path in sorted((PACKAGE / room).rglob("*.py"))]
    stems = {Path(f.file).stem for s in evaluated for f in functions_in(s.verifier) if f.file}
    stems |= {definition_of(kind).__module__.removeprefix(PREFIX) for s in evaluated for kind in kinds_in(s.verifier)}
    return digest(
        [
            [file_hash(path) for path in packaged],
            {stem: use.digest(stem) for stem in sorted(stems) if stem in use.modules},
        ]
    )


def reward_model_hashes(graded: Sequence[TaskSource]) -> list[str]:
    """The SHA-256 of the files of each reward model in the verifiers of these sources, in their order."""
    kinds = (kind for source in graded for kind in kinds_in(source.verifier))
    return [model_hash(find_model(kind.path)) for kind in kinds if isinstance(kind, ClassifierSettings)]


def versions(packages: Sequence[str]) -> dict[str, str]:
    """The installed version of each of these packages, by name; packages that are not installed are left out."""
    installed = {}
    for package in packages:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            continue
    return installed


def model_hash(directory: Path) -> str:
    """SHA-256 over configuration, tokenizer, weights and code of a model, by file name and content."""
    files = kind_of(directory).part_files(directory, ".json", ".safetensors", ".model", ".txt") or [
        p
        for p in directory.iterdir()
        if p.suffix in (".json", ".safetensors", ".jinja", ".model", ".py") and p.is_file()
    ]
    return digest([[str(path.relative_to(directory)), file_hash(path)] for path in sorted(files)])


def file_hash(path: Path) -> str:
    """SHA-256 of a file."""
    content = sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            content.update(chunk)
    return content.hexdigest()


def strategy_record(strategy: Any, use: UserCode) -> Any:
    """A sampling strategy's name and constants, and the hash of its file if it is the user's, for the protocol."""
    stem = definition_of(strategy).__module__.removeprefix(PREFIX)
    return {"part": part(strategy), "sha256": use.digest(stem)} if stem in use.hashes else part(strategy)


def part(value: Any) -> Any:
    """A method's component as JSON: its name, with its constants if it has any.

    >>> from groupwise.rollout import Independent
    >>> part(Independent())
    'Independent'
    """
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, tuple | list):
        return [part(item) for item in value]
    if not is_dataclass(value) or isinstance(value, type):
        return name_of(value)
    constants = {f.name: part(getattr(value, f.name)) for f in fields(value)}
    return {"name": name_of(value), **constants} if constants else name_of(value)


def digest(value: Any) -> str:
    """The SHA-256 of a value, encoded as JSON with sorted keys.

    >>> digest({"b": 1, "a": 2}) == digest({"a": 2, "b": 1})
    True
    """
    return sha256(json.dumps(value, sort_keys=True, default=repr).encode()).hexdigest()
