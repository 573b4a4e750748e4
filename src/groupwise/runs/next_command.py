"""The command, or the line of Python, that evaluates or continues a run, with the options that its code needs."""

import json
import re
import shlex
import tomllib
from collections.abc import Collection
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from groupwise.core import GroupwiseError, Storage
from groupwise.runs.permission_options import argument_of_permissions, words_of_permissions
from groupwise.runs.phase_directories import whole_run
from groupwise.runs.run_info import RunInfo
from groupwise.runs.run_layout import RunLayout
from groupwise.verifiers.reward_argument_of_verifier import python_reward


def evaluate_command(run: Path, options: str = "", in_memory: Collection[str] = ()) -> str:
    """The command or Python call that evaluates a run. `in_memory` are names of reward functions without a file.

    `options` are the command-line options for the run's code.

    >>> evaluate_command(Path("runs/a"), " --use grade.py")
    'groupwise eval runs/a --samples 8 --use grade.py'
    >>> evaluate_command(Path("runs/a"), in_memory=["short"])
    'gw.evaluate("runs/a", samples=8, reward=...)'
    """
    if in_memory:
        return library_call("evaluate", run, samples=8)
    return f"groupwise eval {shlex.quote(str(run))} --samples 8{options}"


def resume_command(run: Path, options: str = "", in_memory: Collection[str] = ()) -> str:
    """The command or Python call that continues a run, or the whole run if `run` is a phase."""
    if in_memory:
        return resume_call(run)
    return f"groupwise resume {shlex.quote(str(whole_run(run)))}{options}"


def extend_command(run: Path, iterations: int, options: str = "", in_memory: Collection[str] = ()) -> str:
    """The command or Python call that continues a run to a larger number of iterations."""
    if in_memory:
        return library_call("resume", run, iterations=iterations)
    return f"groupwise resume {shlex.quote(str(run))}{options} --iterations {iterations}"


def resume_call(run: Path) -> str:
    """The Python call `gw.resume(...)` that continues a run, or the whole run if `run` is a phase."""
    return library_call("resume", run, named=whole_run(run))


def library_call(name: str, run: Path, *, named: Path | None = None, **settings: int) -> str:
    """A call of the library that grades as the run did, with the code and permissions that run.json names.

    Functions that the program passed to `gw.train` are in the argument `reward`: all of them, with their weights. The
    call is for the run `named`, or for `run` itself.
    """
    try:
        info = RunInfo.read(RunLayout(run))
    except Storage:
        info = None
    agent = agent_of_run(run)
    agent = agent if info and agent in info.in_memory else ""
    reward = reward_of_run(run, info) if not agent or (info and len(info.in_memory) > 1) else ""
    arguments = [json.dumps(str(named or run))]
    arguments += [f"{key}={value}" for key, value in settings.items()]
    if info:
        written = {str(path) for path in written_files(run)} if reward else set()
        files = [path for path in code_files(run, info) if path not in written]
        arguments += argument_of_permissions(files, asdict(info))
    arguments += [f"{key}={value}" for key, value in (("reward", reward), ("agent", agent)) if value]
    return f"gw.{name}({', '.join(arguments)})"


def reward_of_run(run: Path, info: RunInfo | None) -> str:
    """The argument `reward` of a call for a run, as Python; `...` if its recipe cannot be read.

    Empty for a run without functions in memory: its files are enough.
    """
    if info and not info.in_memory:
        return ""
    data = verifier_of_run(run)
    return python_reward(data, [path.stem for path in written_files(run)]) if data else "..."


def verifier_of_run(run: Path) -> Any:
    """The TOML data of the field `verifier` in a run's recipe; empty if it has none, or cannot be read."""
    try:
        data = tomllib.loads(RunLayout(run).recipe.read_text(encoding="utf-8")).get("verifier", "")
        return "" if data == "none" else data
    except (OSError, ValueError, RecursionError):  # invalid TOML and invalid UTF-8 are ValueErrors
        return ""


def agent_of_run(run: Path) -> str:
    """The function of a run's agent, as its recipe names it; empty without one."""
    try:
        agent = tomllib.loads(RunLayout(run).recipe.read_text(encoding="utf-8")).get("agent", "")
    except (OSError, ValueError, RecursionError):
        return ""
    return str(agent.get("file", "") if isinstance(agent, dict) else agent)


def written_files(run: Path) -> list[Path]:
    """The files with reward functions that the library wrote for a run."""
    return sorted(RunLayout(whole_run(run)).code.glob("*.py"))


def recorded_code(run: Path) -> tuple[str, tuple[str, ...]]:
    """The command-line options for the code of a run, with a leading space, and its functions in memory.

    They come from run.json. Without a readable run.json there are none.
    """
    try:
        info = RunInfo.read(RunLayout(run))
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
    used = {Path(path).stem: path for option, path in pairwise(words) if option == "--use"}
    written = {path.stem: str(path) for path in written_files(run)}
    paths = written | used
    return [paths.get(stem, f"{stem}.py") for stem in info.use if "/" not in stem]


def name_code(error: GroupwiseError, run: Path) -> None:
    """Write the paths of a run's code into an error's advice: its recipe names the library's file `code/reward.py`."""
    try:
        files = code_files(run, RunInfo.read(RunLayout(run)))
    except Storage:
        return
    for path in files:
        name = re.compile(rf"(?<=--use )(?:[^\s,;]*/)?{re.escape(Path(path).name)}(?![^\s,;])")
        quoted = shlex.quote(path).replace("\\", r"\\")
        error.evidence, error.fix = (name.sub(quoted, text) for text in (error.evidence, error.fix))
