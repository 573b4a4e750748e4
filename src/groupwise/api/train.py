"""`train` and `resume`: start or continue a run from Python."""

import hashlib
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from groupwise.api.reward import STEM, Reward, reward_of, write_code
from groupwise.api.rows import rows_in_memory, write_task
from groupwise.api.run import Run
from groupwise.api.threads import run_blocking
from groupwise.config.defaults import starting_point
from groupwise.config.recipe import Recipe
from groupwise.config.settings import WORDS, base_name, recipe_with
from groupwise.config.text import DEFAULT
from groupwise.config.user_code import Use, function_hash, load_use
from groupwise.data import Usage, close_verifier
from groupwise.methods import Method
from groupwise.report.report import existing_run
from groupwise.runs.checkpoints import RunLock, run_directory
from groupwise.runs.disk import storage_errors, write_file
from groupwise.runs.info import RunInfo
from groupwise.runs.layout import RunLayout
from groupwise.training.build import build
from groupwise.training.progress import print_note
from groupwise.training.run import Control, Ending, begin, directory_name, read_checked, reopen, run_from

__all__ = ["resume", "train"]

OnIteration = Callable[[Run, dict[str, Any]], object]
Rows = str | Path | Iterable[Mapping[str, Any]]


def train(
    recipe: Recipe | str | Path | None = None,
    *,
    model: str | Path | None = None,
    data: Rows | None = None,
    reward: Any = None,
    method: Method | str | Mapping[str, Any] | None = None,
    max_tokens: int | None = None,
    use: Sequence[str | Path] = (),
    out: str | Path = "runs",
    name: str | None = None,
    stop_after: float | None = None,
    on_iteration: OnIteration | None = None,
    unsafe_local_exec: bool = False,
    trust_remote_code: bool = False,
    keys: Sequence[str] = (),
    judges: Sequence[str] = (),
    **settings: Any,
) -> Run:
    """Train a model, and return the finished run.

    `model` is a directory, a packaged name or a name on the hub. `data` is a list of dicts with a `prompt`, a
    `datasets.Dataset`, a path or the name of a task. `reward` is a function, the name of a verifier, or a dict of both
    with weights; a function asks by name for `answer`, `prompt`, `gold`, `row` and others (docs/verifiers.md).
    `settings` are fields of `Recipe` by name: `iterations=50`, `optimizer=gw.AdamW(lr=1e-5)`. Without arguments
    `train()` runs the packaged recipe.

    Rows and functions are written to the run's directory, `out/<name>-<time>`. A function that needs nothing outside
    itself runs in worker processes; any other runs in this process, and only `resume(run, reward=...)` continues its
    run. `on_iteration(run, line)` gets each line of metrics. Ctrl-C saves and returns; `stop_after` does it after so
    many seconds. Raises a `GroupwiseError`, before anything is loaded if the settings are wrong.

    >>> run = train(iterations=1, prompts=2, out="runs")                                            # doctest: +SKIP
    >>> run.metrics["reward"]                                                                       # doctest: +SKIP
    {1: 0.40625}
    """
    given = {"model": model, "method": method, "data": data, "reward": reward, "max_tokens": max_tokens}
    fields = fields_of({word: value for word, value in given.items() if value is not None}, settings)
    grades = reward_of(fields.pop("verifier")) if "verifier" in fields else Reward("")
    rows = rows_in_memory(fields["task"]) if "task" in fields else None
    base = DEFAULT if recipe is None and not {"model", "task"} & fields.keys() else recipe
    control = Control()
    permissions: dict[str, Any] = {"keys": keys, "judges": judges}
    permissions |= {"unsafe_local_exec": unsafe_local_exec, "trust_remote_code": trust_remote_code}

    def work() -> Run:
        directory = run_directory(Path(out), name or run_name(base, fields.get("task")))
        layout = RunLayout(directory)
        with RunLock(directory):
            try:
                if rows is not None:
                    write_task(rows, layout.data, fields)
                loaded = load_use([*use, *write_code(grades, layout.code)], **permissions)
                loaded = replace(loaded, in_memory=grades.in_memory)
                if grades.verifier:
                    fields["verifier"] = grades.verifier
                full = recipe_with(*completed(base, fields, loaded), loaded)
                ready = build(full, loaded, read_checked(full, loaded, print_note))
                begin(directory, ready, loaded, base_name(full.method), "gw.train(...)")
            except BaseException:
                if not layout.is_run:  # nothing has started: leave no directory behind
                    shutil.rmtree(directory, ignore_errors=True)
                raise
            run = Run(directory, _stop=control.stop)
            watch(control, run, on_iteration)
            try:
                return ended(run, run_from(directory, ready, stop_after, control=control))
            finally:
                close_verifier(ready.verifier)

    return run_blocking(work, control.stop)


def resume(
    run: Run | str | Path,
    *,
    reward: Any = None,
    use: Sequence[str | Path] = (),
    strict: bool = False,
    changed: bool = False,
    iterations: int | None = None,
    stop_after: float | None = None,
    on_iteration: OnIteration | None = None,
    unsafe_local_exec: bool = False,
    trust_remote_code: bool = False,
    keys: Sequence[str] = (),
    judges: Sequence[str] = (),
) -> Run:
    """Continue a run from its newest checkpoint, and return it. `iterations` is the new total number of iterations.

    `reward` is the reward that the run was started with, if it was a function. `changed` accepts a changed reward,
    recipe, tokenizer or template. The other arguments are those of `train`.
    """
    directory = existing_run(str(run.directory if isinstance(run, Run) else run))
    grades = reward_of(reward) if reward is not None else Reward("")
    control = Control()
    permissions: dict[str, Any] = {"keys": keys, "judges": judges}
    permissions |= {"unsafe_local_exec": unsafe_local_exec, "trust_remote_code": trust_remote_code}

    def work() -> Run:
        with RunLock(directory):
            info = RunInfo.read(directory)
            code = RunLayout(directory).code / f"{STEM}.py"
            own = [code] if grades.source and has_code(grades.source, code, info, changed=changed) else []
            loaded = load_use([*use, *own], info.use, accept=changed, **permissions)
            check_in_memory(info, grades.in_memory, changed=changed)
            ready = reopen(directory, replace(loaded, in_memory=grades.in_memory), iterations)
            handle = Run(directory, _stop=control.stop)
            watch(control, handle, on_iteration)
            how: dict[str, Any] = {"strict": strict, "changed": changed, "control": control}
            try:
                return ended(handle, run_from(directory, ready, stop_after, **how))
            finally:
                close_verifier(ready.verifier)

    return run_blocking(work, control.stop)


def fields_of(given: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe fields that the library's arguments set. Raises `Usage` if two arguments set the same field.

    >>> fields_of({"data": "sums.jsonl", "max_tokens": 9}, {"seed": 1})
    {'seed': 1, 'task': 'sums.jsonl', 'sampling.max_tokens': 9}
    """
    fields = dict(settings)
    for word, value in given.items():
        path = WORDS.get(word, word)
        if path in settings:
            raise Usage(f"{word} and {path} set the same field", fix=f"leave out {path}")
        fields[path] = value
    return fields


def completed(
    base: Recipe | str | Path | None, fields: Mapping[str, Any], use: Use
) -> tuple[Recipe | str | Path, Mapping[str, Any]]:
    """A recipe and its fields, completed by the defaults for its model. A `Recipe` object is complete already."""
    if isinstance(base, Recipe):
        return base, fields
    start = starting_point(base, fields.items(), trust_remote_code=use.trust_remote_code)
    if start.note:
        print_note(start.note)
    return start.source, dict(start.fields)


def run_name(base: Recipe | str | Path | None, task: object) -> str:
    """The name of a run's directory without its time: the recipe's name, else the task's, else `rows`."""
    if isinstance(base, str | Path) and base != DEFAULT and "=" not in str(base):
        return Path(base).stem
    if isinstance(base, Recipe) and task is None:
        return directory_name(base.task)
    return directory_name(str(task)) if isinstance(task, str | Path) else "rows" if task is not None else "calculator"


def has_code(source: str, path: Path, info: RunInfo, *, changed: bool) -> bool:
    """Whether the run was started with a file of reward functions. It must equal `source`; `changed` replaces it."""
    if STEM not in info.use:
        return False
    if changed and source.encode() != path.read_bytes():
        with storage_errors(path.name, path.parent.parent):
            write_file(path, source.encode())
    elif hashlib.sha256(source.encode()).hexdigest() != info.use[STEM]:
        fix = "pass the function that the run was started with, or accept the change: changed=True"
        raise Usage("the reward is not the function that this run was started with", fix=fix)
    return True


def check_in_memory(info: RunInfo, functions: Mapping[str, Callable[..., Any]], *, changed: bool = False) -> None:
    """`Usage` unless the reward functions in memory are those that the run was started with."""
    now = {name: function_hash(function) for name, function in functions.items()}
    if missing := [name for name in info.in_memory if name not in now]:
        raise Usage(
            f"the reward {missing[0]} of this run was an object in memory of its program",
            fix=f"continue it in Python: gw.resume({str(info.name)!r}, reward={missing[0]})",
        )
    for name, digest in now.items():
        if name not in info.in_memory:
            raise Usage(f"this run was started without the reward {name}", fix="leave out the argument reward")
        if digest != info.in_memory[name] and not changed:
            fix = "pass the function that the run was started with, or accept the change: changed=True"
            raise Usage(f"the reward {name} is not the one that this run was started with", fix=fix)


def watch(control: Control, run: Run, on_iteration: OnIteration | None) -> None:
    """Call the user's callback with the run and each line of metrics."""
    if on_iteration is not None:
        control.on_iteration = partial(on_iteration, run)


def ended(run: Run, ending: Ending) -> Run:
    """Print the last message of a run, and return the run with the reason of an early end."""
    for line in ending.message.splitlines():
        print_note(line)
    return replace(run, stopped=ending.stopped)
