"""The task `reasoning_gym:NAME`: generated problems of the package reasoning-gym."""

from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from groupwise.core import BadData, MissingRequirement, Usage
from groupwise.data import Ids, Prompt
from groupwise.tasks.problems import Problems, key_of
from groupwise.tasks.source_stats import ContentHash, SourceStats, counted

GYM = "reasoning_gym:"
SEED, SIZE = 0, 4096
"""Seed and size of each data set. All runs get the same problems: `SIZE` at most, fewer if some repeat."""


def gym_task(name: str, encode: Callable[[Any], Ids]) -> Problems:
    """The problems of one generator, each question once, a tenth of them held out.

    `row["entry"]` identifies the generated problem; the scorer generates it again from that.
    """
    data_set = name.removeprefix(GYM)
    entries = generator(data_set)
    prompts: list[Prompt] = []
    content, keys = ContentHash(), set()
    for index in range(SIZE):
        entry = entries[index]
        question, answer = str(entry["question"]), entry["answer"]
        if key_of(question) in keys:
            continue
        keys.add(key_of(question))
        content.add(question, str(answer))
        identity = {"data_set": data_set, "seed": SEED, "size": SIZE, "index": index}
        row = {"answer": answer if isinstance(answer, str | int | float) else str(answer), "entry": identity}
        prompts.append(Prompt(f"{data_set}/{index + 1}", encode(question), question, row))
    return Problems.split(
        prompts, SourceStats(source=name, sha256=content.digest, rows=len(prompts), training=0, held_out=0)
    )


def generator(data_set: str) -> Any:
    """Create the data set of a reasoning-gym generator, by name. `Usage` for an unknown name."""
    try:
        gym, known = import_module("reasoning_gym"), import_module("reasoning_gym.factory").DATASETS
    except ImportError:
        fix = "pip install 'groupwise[reasoning-gym]'"
        what = f"{GYM}{data_set} needs the package reasoning-gym"
        raise MissingRequirement(what, evidence="it is not installed", fix=fix) from None
    if data_set not in known:
        near = get_close_matches(data_set, known, n=3, cutoff=0.4) or sorted(known)[:5]
        fix = f"take one of its {counted(len(known), 'generator')}, such as {', '.join(near)}"
        raise Usage(f"reasoning-gym has no generator called {data_set!r}", fix=fix)
    try:
        return gym.create_dataset(data_set, seed=SEED, size=SIZE)
    except Exception as error:  # a generator may raise anything
        evidence = f"{type(error).__name__}: {error}"[:300]
        raise BadData(
            f"the problem generator {data_set} cannot start",
            evidence=evidence,
            fix=f"take another one: --task {GYM}NAME",
        ) from error
