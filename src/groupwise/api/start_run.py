"""Starts and continues runs, for the library and for the command line."""

import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import tomli_w

from groupwise.api.arguments import CallArguments, own_words
from groupwise.api.options import RunOptions
from groupwise.api.reward import NO_REWARD, Reward
from groupwise.checks.check import check_phases
from groupwise.config.model_dependent_defaults import complete_phases, starting_point, tables_of, task_of
from groupwise.config.phase_recipes import read_phases
from groupwise.config.recipe_toml import read_recipe
from groupwise.config.toml import DEFAULT, base_of, is_toml, read_toml, read_with_overrides, without_command_text
from groupwise.config.train_keyword_arguments import base_name
from groupwise.config.user_code import UserCode, function_hash, load_use
from groupwise.core import BadData, Usage, raise_all
from groupwise.lifecycle.create_or_open_run import begin, directory_name, reach_engines, read_checked, reopen
from groupwise.lifecycle.run import run_from
from groupwise.lifecycle.run_handle import RunControl, RunEnding
from groupwise.lifecycle.run_phases import run_phases
from groupwise.runs.atomic_writes import storage_errors, write_file
from groupwise.runs.checkpoints import RunLock, run_directory
from groupwise.runs.open_run import OpenRun, recipe_text, write_recipe
from groupwise.runs.phase_directories import KEY, phases_of
from groupwise.runs.run_info import RunInfo
from groupwise.runs.run_layout import RunLayout
from groupwise.training.build_run import RunObjects, build
from groupwise.training.progress_output import notify
from groupwise.verifiers.reward_argument_of_verifier import WRITTEN

Finish = Callable[[RunEnding], object]
"""A function that receives the ending of a run, or of each phase of a run."""


def start(
    source: str | Path | None,
    arguments: CallArguments,
    options: RunOptions,
    finish: Finish,
    control: RunControl | None = None,
) -> tuple[RunLayout, RunEnding]:
    """Start a run, or all phases of a recipe, in a new directory. Returns the run's files, and how the run ended.

    `source` is a TOML file or text; None is the packaged recipe, or the defaults for another model or task. A run that
    cannot start leaves no directory.
    """
    with new_run(Path(options.out), options.name or run_name(source, arguments)) as lock, own_words(lock.layout):
        layout = lock.layout
        overrides, use = arguments.write(layout.data, layout.code, options.permissions, source)
        if source and KEY in (data := read_with_overrides(source, overrides)):
            return layout, start_phases(layout, without_command_text(data), use, options, finish, control)
        chosen = starting_point(source, overrides, trust_remote_code=use.trust_remote_code)
        recipe = read_recipe(chosen.source, chosen.overrides, use)
        inputs = read_checked(recipe, use, notify)
        if chosen.defaults_note:
            notify(chosen.defaults_note)
        ready = build(recipe, use, inputs)
        reach_engines(ready)
        base = base_of(read_with_overrides(chosen.source, chosen.overrides)) or base_name(recipe.method)
        run = begin(lock, ready, use, base, options.command_line)
        return layout, train(run, ready, options, finish, control)


def start_phases(
    layout: RunLayout,
    data: Mapping[str, Any],
    use: UserCode,
    options: RunOptions,
    finish: Finish,
    control: RunControl | None,
) -> RunEnding:
    """Check all phases of a recipe, write the recipe to the run's directory, and run the phases."""
    data, notes = complete_phases(data, trust_remote_code=use.trust_remote_code)
    raise_all(check_phases(read_phases(data), use).errors)  # each phase prints its other notes when it starts
    for note in notes:
        notify(note)
    text = tomli_w.dumps(data)
    write_recipe(layout, text)
    how: dict[str, Any] = {"command": options.command_line, "control": control}
    return run_phases(layout, text, use, finish, notify, options.stop_after_seconds, **how)


def proceed(
    layout: RunLayout,
    options: RunOptions,
    finish: Finish,
    control: RunControl | None = None,
    reward: Reward = NO_REWARD,
) -> RunEnding:
    """Continue a run from its newest checkpoint, and run its later phases. Returns how it ended.

    `reward` has the functions that the run was started with.
    """
    with RunLock(layout) as lock:
        text = recipe_text(layout)
        if phases := phases_of(layout, text):
            return proceed_phases(layout, text, phases, options, finish, control, reward)
        run = OpenRun.read(lock, text)
        use = recorded_code(run.code, run.info, reward, options)
        run, ready = reopen(run, use, options.iterations, options.ranks, options.shard, options.launch)
        for line in ready.notices:
            notify(line)
        return train(run, ready, options, finish, control)


def proceed_phases(
    layout: RunLayout, text: str, phases: Sequence[Path], options: RunOptions, finish: Finish,
    control: RunControl | None, reward: Reward,
) -> RunEnding:  # fmt: skip
    """Continue a run of `phases` with its first unfinished one. `text` is its recipe.toml."""
    started = [folder for folder in map(RunLayout, phases) if folder.is_run]
    info = RunInfo.read(started[-1]) if started else None  # it has the files that were accepted last
    use = recorded_code(layout.code, info, reward, options)
    if any(option is not None for option in (options.ranks, options.shard, options.launch)):
        fix = f"continue one phase: groupwise resume {phases[-1]} --ranks {options.ranks or 1}"
        raise Usage(f"{layout.run_directory} has phases, and each has its own number of ranks", fix=fix)
    if (iterations := options.iterations) is not None:
        fix = f"extend one phase, such as: groupwise resume {phases[-1]} --iterations {iterations}"
        raise Usage(f"{layout.run_directory} has phases, and each has its own number of iterations", fix=fix)
    how: dict[str, Any] = {"strict": options.strict_checkpoints, "changed": options.accept_changes, "control": control}
    command = info.command if info else options.command_line
    return run_phases(layout, text, use, finish, notify, options.stop_after_seconds, command=command, **how)


def train(
    run: OpenRun, ready: RunObjects, options: RunOptions, finish: Finish, control: RunControl | None
) -> RunEnding:
    """Train a run from its newest checkpoint or the start, close the verifier, and call `finish` with the ending."""
    how: dict[str, Any] = {"strict": options.strict_checkpoints, "changed": options.accept_changes, "control": control}
    try:
        ending = run_from(run, ready, options.stop_after_seconds, **how)
    finally:
        ready.verifier.close()
    finish(ending)
    return ending


# The directory


@contextmanager
def new_run(out: Path, name: str) -> Iterator[RunLock]:
    """A context with the lock of a new run directory, which is removed if an error occurs before it has a recipe."""
    parents = [path for path in (out, *out.parents) if not path.is_dir()]
    layout = RunLayout(run_directory(out, name))
    with RunLock(layout) as lock:
        try:
            yield lock
        except BaseException:
            if not layout.is_run:
                shutil.rmtree(layout.run_directory, ignore_errors=True)
                for path in parents:
                    with suppress(OSError):  # another run is in it
                        path.rmdir()
            raise


def run_name(source: str | Path | None, arguments: CallArguments) -> str:
    """The name of a new run: from the recipe's file, else the task, or `rows` for data rows in memory."""
    if source is not None and not is_toml(source) and source != DEFAULT:
        return Path(source).stem
    if arguments.rows is not None:
        return "rows"
    tables = read_toml(DEFAULT) | tables_of(source or "", arguments.overrides)
    return directory_name(task_of(tables["task"]).label)


# Code


def recorded_code(folder: Path, info: RunInfo | None, reward: Reward, options: RunOptions) -> UserCode:
    """Load the user's code of a run again. `BadData` if it has changed since the start, unless `options.changed`.

    `folder` has the files that the library wrote. `info` is None for a run of phases none of which has started: no
    code is recorded.
    """
    code, changed = folder / f"{WRITTEN}.py", options.accept_changes
    files = [code] if reward.source_code and has_code(reward.source_code, code, info, changed=changed) else []
    if not files and info is not None and WRITTEN in info.use and code.is_file() and not options.permissions.use:
        fix = f"pass the reward function again, or add --use {code} to the command"
        raise Usage("this run was started with a reward function, which must be named again", fix=fix)
    allowed = replace(options.permissions, use=[*options.permissions.use, *files])
    use = load_use(allowed, info.use if info else None, accept=changed, own=files)
    if info is not None:
        check_in_memory(info, reward.functions_in_memory, changed=changed)
        check_agent_command(info, use.agent_command, changed=changed)
    return replace(use, functions_in_memory=reward.functions_in_memory)


def check_agent_command(info: RunInfo, command: str, *, changed: bool) -> None:
    """`Usage` without the program of a run's agent, `BadData` for another one unless `changed`."""
    recorded = info.agent_command
    if recorded and not command:
        fix = f"add --agent-command {shlex.quote(recorded)} to the command"
        raise Usage("this run was started with a program as its agent, which must be named again", fix=fix)
    if recorded != command and not changed:
        fix = "name the program that the run was started with, or continue with the new one: add --changed"
        raise BadData("the agent's program is not the one of this run", evidence=f"{command}; {recorded}", fix=fix)


def has_code(source: str, path: Path, info: RunInfo | None, *, changed: bool) -> bool:
    """Whether a run has a file of reward functions. If it is not `source`: `BadData`, or replaced if `changed`."""
    if not path.is_file() or (info is not None and WRITTEN not in info.use):
        return False
    code, present = source.encode(), path.read_bytes()
    recorded = info.use[WRITTEN] if info else sha256(present).hexdigest()
    if changed and code != present:
        with storage_errors(path.name, path.parent.parent):
            write_file(path, code)
    elif not changed and sha256(code).hexdigest() != recorded:
        fix = "pass the function that the run was started with, or accept the change: changed=True"
        raise BadData("the reward is not the function that this run was started with", fix=fix)
    return True


def check_in_memory(info: RunInfo, functions: Mapping[str, Callable[..., Any]], *, changed: bool) -> None:
    """`Usage` for a function that the run was started without, `BadData` for a changed one unless `changed`."""
    for name, function in functions.items():
        if name not in info.in_memory:
            raise Usage(f"this run was started without the function {name}", fix="leave out the argument")
        if function_hash(function) != info.in_memory[name] and not changed:
            fix = "pass the function that the run was started with, or accept the change: changed=True"
            raise BadData(f"the function {name} is not the one that this run was started with", fix=fix)
