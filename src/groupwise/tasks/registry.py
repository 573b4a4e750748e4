"""Finds tasks by the names in a recipe."""

import os
import shlex
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from groupwise.core import Usage, looks_like_path, or_near
from groupwise.data import Ids, Task
from groupwise.tasks.beads import Beads
from groupwise.tasks.big_sums import BigSums
from groupwise.tasks.calculator import Calculator
from groupwise.tasks.coin import CoinGuesses
from groupwise.tasks.deduction import Deduction
from groupwise.tasks.delegated_sums import delegated_sums
from groupwise.tasks.edges import Edges
from groupwise.tasks.glyphs import Glyphs
from groupwise.tasks.gym import GYM, gym_task
from groupwise.tasks.hinted_sums import hinted_sums
from groupwise.tasks.largest import Largest
from groupwise.tasks.mixed_sums import mixed_sums
from groupwise.tasks.presets import PRESETS
from groupwise.tasks.problems import Problems
from groupwise.tasks.programs import Programs
from groupwise.tasks.proposals import proposals
from groupwise.tasks.quilts import Quilts
from groupwise.tasks.rings import Rings
from groupwise.tasks.rows import is_source
from groupwise.tasks.tiny_countdown import TinyCountdown
from groupwise.tasks.wordy_sums import wordy_sums

__all__ = ["find_task", "takes_columns", "usual_template"]

PACKAGED: dict[str, Callable[[Callable[[Any], Ids]], Task]] = {
    "calculator": Calculator,
    "beads": Beads,
    "big_sums": BigSums,
    "coin": CoinGuesses,
    "deduction": Deduction,
    "delegated_sums": delegated_sums,
    "edges": Edges,
    "glyphs": Glyphs,
    "hinted_sums": hinted_sums,
    "largest": Largest,
    "mixed_sums": mixed_sums,
    "programs": Programs,
    "proposals": proposals,
    "quilts": Quilts,
    "rings": Rings,
    "tiny_countdown": TinyCountdown,
    "wordy_sums": wordy_sums,
}
"""Tasks that generate their problems."""
CONVERSIONS = {
    ".csv": "import csv, json, sys; [print(json.dumps(row)) for row in csv.DictReader(open(sys.argv[1]))]",
    ".json": "import json, sys; [print(json.dumps(row)) for row in json.load(open(sys.argv[1]))]",
    ".txt": 'import json, sys; [print(json.dumps({"prompt": x.strip()})) for x in open(sys.argv[1])]',
}
"""Commands, shown as advice, that convert other files to JSON lines. In a text file each line is a prompt."""


def find_task(name: str, encode: Callable[[Any], Ids], **options: Any) -> Task:
    """Find a task by its name in a recipe. `encode` converts a problem's text or messages to prompt ids.

    The name is a packaged task (`calculator`, but not `./calculator`), a preset (`gsm8k` from the hub, `gsm8k:PATH`
    from disk), `reasoning_gym:NAME`, or a source of rows (`.jsonl`, `.parquet`, a directory, `datasets:NAME`). A source
    of rows has the options `prompt` and `answer` (columns), and `held_out`.
    """
    kind, _, path = name.partition(":")
    if kind in PRESETS:
        _known_options(name, options, ())
        return PRESETS[kind].read(kind, path, encode)
    if name.startswith(GYM):
        _known_options(name, options, ())
        return gym_task(name, encode)
    if takes_columns(name):
        _known_options(name, options, ("prompt", "answer", "held_out"))
        return Problems.read(name, encode, **options)
    if name in PACKAGED:
        _known_options(name, options, ())
        return PACKAGED[name](encode)
    if (path := Path(name)).is_file():
        code = CONVERSIONS.get(path.suffix, CONVERSIONS[".txt"])
        convert = f"{shlex.join(['python', '-c', code, path.name])} > {shlex.quote(path.stem + '.jsonl')}"
        what = f"{name} is a file of a type that is not read: data rows are .jsonl or .parquet"
        raise Usage(what, fix=f"convert it in its folder:\n{convert}")
    own_rows = "for your own rows, give the path of a .jsonl or .parquet file"
    if Path(f"{name}.jsonl").is_file():
        raise Usage(f"no task is called {name!r}", fix=f"write {name}.jsonl\n{own_rows}")
    if os.path.exists(name):  # a directory or a source of rows was found above
        raise Usage(f"{name} is neither a regular file nor a directory", fix=own_rows)
    if looks_like_path(name):
        raise Usage(f"there is no file or directory {name}", fix=or_near(name, own_rows))
    raise Usage(f"no task is called {name!r}", fix=f"{nearest(name, [*PACKAGED, *PRESETS])}\n{own_rows}")


def takes_columns(task: str) -> bool:
    """Whether a task is a source of rows, for which a recipe names the columns. Packaged names win over folders."""
    return task.partition(":")[0] not in {*PRESETS, *PACKAGED} and is_source(task)


def usual_template(task: str) -> str:
    """The name of the default prompt template of a packaged or published task."""
    kind = task.partition(":")[0]
    return PRESETS[kind].template if kind in PRESETS else "no"


def _known_options(name: str, options: dict[str, Any], known: tuple[str, ...]) -> None:
    for option in options.keys() - set(known):
        fix = nearest(option, known) if known else "leave it out"
        raise Usage(f"the task {name} has no option {option!r}", fix=fix)


def nearest(name: str, known: Any) -> str:
    """The advice for an unknown name: the nearest known name, or all of them."""
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"take {' or '.join(known)}"
