"""What the commands do that carry a run: train, resume."""

import asyncio
import contextlib
import json
import platform
import re
import shlex
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from groupwise.data import BadData, GroupwiseError, Storage, visible
from groupwise.methods import Method, published, reference_of
from groupwise.models import commit_of, find_model, own_code
from groupwise.tasks import Mixture, Problems
from groupwise.train.check import doors, rehearse
from groupwise.train.differences import diff
from groupwise.train.journal import Answers
from groupwise.train.logbook import Logbook
from groupwise.train.loop import run as loop
from groupwise.train.place import Place, place
from groupwise.train.progress import Progress
from groupwise.train.recipe import Recipe
from groupwise.train.record import Record, read_lines
from groupwise.train.report import existing_run, write_report
from groupwise.train.sources import templates
from groupwise.train.store import DISK, Disk, RunLock, newest_checkpoint, run_directory, storing
from groupwise.train.text import base_of, read_recipe, write
from groupwise.train.use import Use, load_use
from groupwise.train.warm_start import forget, warm_start
from groupwise.train.watchdog import CODES, Stuck, Watchdog

DEFAULT = Path(__file__).with_name("default.toml")


def train(
    recipe_path: str | None,
    overrides: Sequence[tuple[str, str]] = (),
    use: Sequence[str] = (),
    *,
    out: str = "runs",
    name: str | None = None,
    stop_after: float | None = None,
    command: str = "",
    unsafe_local_exec: bool = False,
    trust_remote_code: bool = False,
    keys: Sequence[str] = (),
    judges: Sequence[str] = (),
) -> int:
    """A new run of a recipe (the packaged one where none is named)."""
    loaded = load_use(
        use, unsafe_local_exec=unsafe_local_exec, trust_remote_code=trust_remote_code, keys=keys, judges=judges
    )
    path = Path(recipe_path) if recipe_path else DEFAULT
    recipe = read_recipe(path, overrides, loaded)
    seen: list[str] = []
    refuse([*rehearse(recipe), *doors(recipe, loaded, seen.append)])
    tell(seen)
    ready = place(recipe, loaded)
    run = run_directory(Path(out), name or (path.stem if recipe_path else plain_name(recipe.task)))
    with RunLock(run):
        with storing("what the run is", run):
            (run / "run.json").write_text(
                json.dumps(
                    about(run, recipe, base_of(path, overrides), loaded, command) | asked(ready) | ready.adapter,
                    indent=2,
                )
                + "\n"
            )
            draft = run / ".recipe.toml"
            draft.write_text(write(recipe))
            draft.replace(run / "recipe.toml")  # the last: a directory that has it is a run
        return carry_on(run, ready, stop_after)


def plain_name(task: str) -> str:
    """A task's name as a directory can have it.

    >>> plain_name("datasets:openai/gsm8k:main@train"), plain_name("data/sums.v2.jsonl")
    ('gsm8k-main', 'sums.v2')
    """
    return re.sub(r"[^\w.-]+", "-", Path(task.partition("@")[0]).stem).strip("-")


def tell(lines: Sequence[str]) -> None:
    """Lines for the person who watches, where the run's progress goes too."""
    for line in lines:
        print(visible(line), file=sys.stderr, flush=True)


def refuse(problems: Sequence[GroupwiseError]) -> None:
    """Raise what was found, if anything: all of it at once, under the first one's exit code."""
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise type(problems[0])(f"{len(problems)} things are wrong", evidence="\n".join(map(str, problems)))


def resume(
    run: str,
    use: Sequence[str] = (),
    *,
    strict: bool = False,
    stop_after: float | None = None,
    unsafe_local_exec: bool = False,
    trust_remote_code: bool = False,
    keys: Sequence[str] = (),
    judges: Sequence[str] = (),
) -> int:
    """Go on with a run from its newest whole checkpoint."""
    directory = existing_run(run)
    with RunLock(directory):
        loaded = load_use(
            use,
            recorded=remembered(directory),
            unsafe_local_exec=unsafe_local_exec,
            trust_remote_code=trust_remote_code,
            keys=keys,
            judges=judges,
        )
        recipe = read_recipe(directory / "recipe.toml", (), loaded)
        same_code(directory, recipe, loaded)
        ready = place(recipe, loaded)
        tell(getattr(ready.verifier, "notices", ()))
        same_data(directory, ready)
        same_base(directory, ready)
        return carry_on(directory, ready, stop_after, strict=strict)


def same_data(run: Path, ready: Place) -> None:
    """`BadData` where the data are not those that the run began with: it would not end as one never stopped."""
    began, now = recorded(run, "data"), asked(ready)["data"]
    for then, here in zip(began, now):
        if then["sha256"] != here["sha256"]:
            what = f"{here['source']} is not what this run was started with"
            seen = f"{here['rows']} rows, sha256 {here['sha256'][:12]}; then {then['rows']}, {then['sha256'][:12]}"
            raise BadData(what, evidence=seen, fix="bring the old data back, or start a new run with these")


def same_base(run: Path, ready: Place) -> None:
    """`BadData` where the weights beside an adapter are not those that the run began on."""
    then, here = str(recorded(run, "base_sha256") or ""), ready.adapter.get("base_sha256", "")
    if then != here:
        what, seen = f"the weights of {ready.recipe.model} are others now", f"sha256 {here[:12]}; then {then[:12]}"
        raise BadData(what, evidence=seen, fix="bring the old weights back, or start a new run on these")


def same_code(run: Path, recipe: Recipe, use: Use) -> None:
    """`BadData` where the code that the model brings is not what the run began with; asked before any of it runs."""
    then, here = recorded(run, "trust_remote_code") or {}, own_code(find_model(recipe.model))
    if use.trust_remote_code and then != here:
        odd = [name for name in sorted(then | here) if then.get(name) != here.get(name)]
        what, seen = f"the code of {recipe.model} is not what this run was started with", ", ".join(odd[:4])
        raise BadData(what, evidence=seen, fix="bring the old files back, or start a new run with these")


def remembered(run: Path) -> dict[str, str]:
    """The used files of a run with their hashes, as its run.json has them."""
    return dict(recorded(run, "use") or {})


def recorded(run: Path, key: str) -> Any:
    """What a run's run.json says under a key; an empty list where it says nothing."""
    try:
        return json.loads((run / "run.json").read_text()).get(key, [])
    except (OSError, ValueError, AttributeError) as error:
        fix = "bring the file back from a copy, or start the run again"
        raise Storage(f"{run / 'run.json'} cannot be read", evidence=str(error), fix=fix) from error


def carry_on(
    run: Path, ready: Place, stop_after: float | None = None, *, strict: bool = False, disk: Disk = DISK
) -> int:
    """The loop from wherever the directory stands, then the model and the report."""
    recipe = ready.recipe
    checkpoint = newest_checkpoint(run, strict=strict)
    sizes, done = (checkpoint.state["sizes"], checkpoint.iteration) if checkpoint else ({}, 0)
    record = Record.resume(run, sizes, done, sinks=recipe.sinks, disk=disk)
    progress = Progress(recipe.iterations, done)
    progress.say(f"run: {run}")
    logbook = Logbook(run, record, keep=recipe.save.keep, told=progress, warn=progress.say, disk=disk)
    ready.buffer.journal = Answers(run, lambda: logbook.done, progress.say, disk=disk)
    if checkpoint:
        for warning in checkpoint.warnings:
            progress.say(f"warning: {warning}")
        logbook.restore(checkpoint, ready.learner, ready.buffer, ready.guards)
        if logbook.done >= recipe.iterations:
            progress.say(f"nothing is left to do: {logbook.done} of {recipe.iterations} iterations are done")
    try:
        begin = partial(warm_start, run, ready, lambda: logbook.stopping, progress.say, disk=disk)
        asyncio.run(guided(logbook, ready, stop_after, begin, progress.say))
    except (GroupwiseError, KeyboardInterrupt) as error:
        if isinstance(error, Stuck) and error.phase == "sample":  # a take that was given up has changed nothing
            logbook.save(ready.learner, ready.buffer, ready.guards, last=True)
        if not isinstance(error, Storage):
            with contextlib.suppress(OSError):
                progress.say(f"report: {write_report([run])}")
            if logbook.done >= 0:
                progress.say(f"go on from the last checkpoint: groupwise resume {run}")
        if isinstance(error, Stuck):
            return CODES[error.why]
        raise
    finally:
        progress.end()
        record.close()
        for warning in record.warnings:
            progress.say(f"warning: {warning}")
    if logbook.done >= 0:
        forget(run, disk)
    if not logbook.stopping:
        with storing("the model", run):
            ready.write(run / "model")
    with storing("the report", run):
        report = write_report([run])
    print(visible(ending(run, report, logbook, recipe), lines=True))
    return CODES.get(logbook.stopping, 0)


async def guided(
    logbook: Logbook,
    ready: Place,
    stop_after: float | None,
    begin: Callable[[], Awaitable[bool]],
    say: Callable[[str], None],
) -> None:
    """The loop after what it begins with, ended early by a signal or by the clock; a second signal ends it at once."""
    if stop_after is not None:
        asyncio.get_running_loop().call_later(stop_after, logbook.stop, "out of time")
    with Watchdog(logbook.stop, say, lambda: logbook.doing, ready.recipe.machine.verdict_deadline):
        if logbook.done < 0 and not await begin():
            return
        await loop(ready.recipe, ready.buffer, ready.engine, ready.learner, logbook, ready.guards, ready.evaluate)
        logbook.save(ready.learner, ready.buffer, ready.guards, last=True)


def ending(run: Path, report: Path, logbook: Logbook, recipe: Recipe) -> str:
    """The last words of a run: what it reached, where things lie, and how to go on."""
    if logbook.stopping:
        where = f"{logbook.stopping} after {logbook.done} of {recipe.iterations} iterations; saved."
        if logbook.done < 0:
            where = f"{logbook.stopping} during the warm start; saved."
        return f"{where}{reached(run)}\n  report: {report}\n  go on:  groupwise resume {shlex.quote(str(run))}"
    model, name = run / "model", shlex.quote(str(run))
    return (
        f"done: {recipe.iterations} iterations{reached(run)}\n  report: {report}\n  model:  {model}\n"
        f"  try:    groupwise eval {name} --samples 8\n          groupwise report {name} ANOTHER_RUN"
    )


def reached(run: Path) -> str:
    """The first and the last held-out greedy accuracy that a run wrote, as a line."""
    told = [line for line in read_lines(run / "metrics.jsonl") if "eval/accuracy_greedy" in line]
    if not told:
        return ""
    first, last = (line["eval/accuracy_greedy"] for line in (told[0], told[-1]))
    interval = f"95 % interval {told[-1]['eval/low_greedy']:.3f} .. {told[-1]['eval/high_greedy']:.3f}"
    before = f"{first:.3f} -> " if len(told) > 1 else ""
    return f"\n  held-out greedy {before}{last:.3f}  ({interval})"


def about(run: Path, recipe: Recipe, base: str, use: Use, command: str) -> dict[str, Any]:
    """What the report tells of a run besides its numbers."""
    from importlib.metadata import version

    packages = ("groupwise", "torch", "transformers", "tokenizers", "numpy", "safetensors")
    return {
        "name": run.name,
        "command": command,
        "versions": {"python": platform.python_version(), **{p: version(p) for p in packages}},
        "model": recipe.model,
        **({"model_commit": commit} if (commit := commit_of(recipe.model)) else {}),
        "task": recipe.task,
        "method": origin(recipe.method, base),
        "seed": recipe.seed,
        "iterations": recipe.iterations,
        "use": use.hashes,
        **({"keys": list(use.judges.keys)} if use.judges.keys else {}),
        **({"judges": list(use.judges.hosts)} if use.judges.hosts else {}),
        **({"unsafe_local_exec": True} if use.unsafe_local_exec else {}),
        **({"trust_remote_code": own_code(find_model(recipe.model))} if use.trust_remote_code else {}),
    }


def asked(ready: Place) -> dict[str, Any]:
    """What exactly a run asks: the content of its data, and the templates that stand around a problem."""
    facts = ready.task.facts if isinstance(ready.task, Problems | Mixture) else ()
    facts = (*facts, *ready.demonstrations[1])
    found = templates(ready.recipe, ready.tokenizer)
    return {"data": [f.record for f in facts], "templates": {name: t.digest for name, t in found.items()}}


def origin(method: Method, base: str) -> dict[str, Any]:
    """The published method that a run began with: its formula, its paper, and what the recipe changed."""
    named = next((m for m in published if m.__name__ == base), None)
    if named is None:
        return {"name": "a method of its own"}
    reference, changes = reference_of(named), diff(named(), method)
    source = f"{reference.paper}, arXiv:{reference.arxiv}"
    return {"name": base, "formula": reference.formula, "reference": source, "changed": changes}
