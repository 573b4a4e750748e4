"""The command, or the line of Python, that evaluates or continues a run, with the options that its code needs."""

import json
import shlex
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

from groupwise.data import Storage
from groupwise.runs.info import RunInfo
from groupwise.runs.layout import RunLayout
from groupwise.runs.permissions import arguments_of_permissions, words_of_permissions
from groupwise.runs.phases import whole_run


def evaluate_command(run: Path, options: str = "", in_memory: Collection[str] = ()) -> str:
    """The command or Python call that evaluates a run. `in_memory` are names of reward functions without a file.

    `options` are the command-line options for the run's code.

    >>> evaluate_command(Path("runs/a"), " --use grade.py")
    'groupwise eval runs/a --samples 8 --use grade.py'
    >>> evaluate_command(Path("runs/a"), in_memory=["short"])
    'gw.evaluate("runs/a", samples=8, reward=short)'
    """
    if in_memory:
        return library_call("evaluate", run, in_memory, samples=8)
    return f"groupwise eval {shlex.quote(str(run))} --samples 8{options}"


def resume_command(run: Path, options: str = "", in_memory: Collection[str] = ()) -> str:
    """The command or Python call that continues a run, or the whole run if `run` is a phase."""
    if in_memory:
        return library_call("resume", whole_run(run), in_memory)
    return f"groupwise resume {shlex.quote(str(whole_run(run)))}{options}"


def extend_command(run: Path, iterations: int, options: str = "", in_memory: Collection[str] = ()) -> str:
    """The command or Python call that continues a run to a larger number of iterations."""
    if in_memory:
        return library_call("resume", run, in_memory, iterations=iterations)
    return f"groupwise resume {shlex.quote(str(run))}{options} --iterations {iterations}"


def resume_call(run: Path) -> str:
    """The Python call `gw.resume(...)` that continues a run, with the user's files and functions named in run.json."""
    return library_call("resume", whole_run(run), recorded_code(run)[1])


def library_call(name: str, run: Path, in_memory: Collection[str], **settings: int) -> str:
    """A call of the library for a run, with the files and permissions of its run.json and the functions in memory.

    The argument `reward` is the function's name, or `...` for several functions.
    """
    arguments = [json.dumps(str(run)), *(f"{key}={value}" for key, value in settings.items())]
    with suppress(Storage):  # without a readable run.json
        info = RunInfo.read(run)
        arguments += [f"use={json.dumps(files)}"] if (files := code_files(run, info)) else []
        arguments += arguments_of_permissions(asdict(info))
    if in_memory:
        arguments.append(f"reward={next(iter(in_memory)) if len(in_memory) == 1 else '...'}")
    return f"gw.{name}({', '.join(arguments)})"


def recorded_code(run: Path) -> tuple[str, tuple[str, ...]]:
    """The command-line options for the code of a run, with a leading space, and its functions in memory.

    They come from run.json. Without a readable run.json there are none.
    """
    try:
        info = RunInfo.read(run)
    except Storage:
        return "", ()
    words = [word for path in code_files(run, info) for word in ("--use", path)]
    words += words_of_permissions(asdict(info))
    return "".join(f" {shlex.quote(word)}" for word in words), tuple(info.in_memory)


def code_files(run: Path, info: RunInfo) -> list[str]:
    """The paths of a run's code: as in its command, else in its folder `code`, else the name of the file."""
    try:
        words = shlex.split(info.command)
    except ValueError:  # of a damaged run.json
        words = []
    given = {Path(path).stem: path for option, path in pairwise(words) if option == "--use"}
    written = {path.stem: str(path) for path in RunLayout(whole_run(run)).code.glob("*.py")}
    paths = written | given
    return [paths.get(stem, f"{stem}.py") for stem in info.use if "/" not in stem]
