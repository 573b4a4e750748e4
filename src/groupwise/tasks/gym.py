"""Generated problems of the package reasoning-gym, by `reasoning_gym:NAME`."""

from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from groupwise.data import BadData, Ids, MissingRequirement, Prompt, Usage
from groupwise.tasks.problems import Problems, key_of
from groupwise.tasks.source_stats import ContentHash, SourceStats, counted

GYM = "reasoning_gym:"
SEED, SIZE = 0, 4096
"""All runs meet the same problems: so many at most, fewer where some come twice."""


def gym_task(name: str, encode: Callable[[Any], Ids]) -> Problems:
    """The problems of one generator, a tenth held out. Each question once; what the scorer needs is its number."""
    data_set = name.removeprefix(GYM)
    made = generator(data_set)
    prompts: list[Prompt] = []
    content, seen = ContentHash(), set()
    for index in range(SIZE):
        entry = made[index]
        question, answer = str(entry["question"]), entry["answer"]
        if key_of(question) in seen:
            continue
        seen.add(key_of(question))
        content.add(question, str(answer))
        where = {"data_set": data_set, "seed": SEED, "size": SIZE, "index": index}
        given = {"answer": answer if isinstance(answer, str | int | float) else str(answer), "entry": where}
        prompts.append(Prompt(f"{data_set}/{index + 1}", encode(question), question, given))
    return Problems.split(
        prompts, SourceStats(source=name, sha256=content.digest, rows=len(prompts), training=0, held_out=0)
    )


def generator(data_set: str) -> Any:
    try:
        gym, known = import_module("reasoning_gym"), import_module("reasoning_gym.factory").DATASETS
    except ImportError:
        fix = "pip install 'groupwise[reasoning-gym]'"
        what = f"{GYM}{data_set} needs the package reasoning-gym"
        raise MissingRequirement(what, evidence="it is not installed", fix=fix) from None
    if data_set not in known:
        near = get_close_matches(data_set, known, n=3, cutoff=0.4) or sorted(known)[:5]
        fix = f"it has {counted(len(known), 'generator')}, such as {', '.join(near)}"
        raise Usage(f"reasoning-gym has no generator called {data_set!r}", fix=fix)
    try:
        return gym.create_dataset(data_set, seed=SEED, size=SIZE)
    except Exception as error:  # a generator may raise anything
        seen = f"{type(error).__name__}: {error}"[:300]
        raise BadData(f"the generator {data_set} cannot start", evidence=seen, fix="take another one") from error
