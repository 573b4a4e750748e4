"""`groupwise train` and `groupwise resume`: start or continue a run."""

from collections.abc import Sequence
from pathlib import Path

from groupwise.config.defaults import complete_phases, starting_point
from groupwise.config.packaged import given_recipe
from groupwise.config.phases import read_phases
from groupwise.config.text import base_of, read_recipe
from groupwise.config.toml import read_with_overrides, without_command_text
from groupwise.config.user_code import load_use
from groupwise.data import notices_of, raise_all, visible
from groupwise.models.upload import check_upload, upload
from groupwise.report.report import existing_run
from groupwise.runs.checkpoints import RunLock, run_directory
from groupwise.runs.info import RunInfo
from groupwise.runs.layout import RunLayout
from groupwise.runs.phases import KEY, phase_directories, runs_in
from groupwise.training.build import build
from groupwise.training.check import check_phases
from groupwise.training.phases import begin_phases, run_phases
from groupwise.training.progress import print_note
from groupwise.training.run import Ending, begin, directory_name, read_checked, reopen, run_from


def train(
    recipe_path: str | None,
    overrides: Sequence[tuple[str, str]] = (),
    use: Sequence[str] = (),
    *,
    recipe_name: str | None = None,
    out: str = "runs",
    name: str | None = None,
    stop_after: float | None = None,
    command: str = "",
    push: str = "",
    unsafe_local_exec: bool = False,
    trust_remote_code: bool = False,
    keys: Sequence[str] = (),
    judges: Sequence[str] = (),
) -> int:
    """Start a run of a recipe: a file, a packaged one by its name, or the default one. Returns the exit code.

    The finished model is uploaded to the hub as `push`.
    """
    if push:
        check_upload(push)
    loaded = load_use(
        use, unsafe_local_exec=unsafe_local_exec, trust_remote_code=trust_remote_code, keys=keys, judges=judges
    )
    path = given_recipe(recipe_path, recipe_name)
    if path and KEY in (data := without_command_text(read_with_overrides(path, overrides))):
        data, notes = complete_phases(data, trust_remote_code=trust_remote_code)
        raise_all(check_phases(read_phases(data), loaded))  # each phase prints its other notes when it starts
        for note in notes:
            print_note(note)
        run = run_directory(Path(out), name or path.stem)
        with RunLock(run):
            begin_phases(run, data)
            return pushed(run, run_phases(run, loaded, finish, print_note, stop_after, command=command), push)
    start = starting_point(path, overrides, trust_remote_code=trust_remote_code)
    recipe = read_recipe(start.source, start.fields, loaded)
    inputs = read_checked(recipe, loaded, print_note)
    if start.note:
        print_note(start.note)
    ready = build(recipe, loaded, inputs)
    run = run_directory(Path(out), name or (path.stem if path else directory_name(recipe.task)))
    with RunLock(run):
        begin(run, ready, loaded, base_of(read_with_overrides(start.source, start.fields)), command)
        return pushed(run, finish(run_from(run, ready, stop_after)), push)


def resume(
    run: str,
    use: Sequence[str] = (),
    *,
    strict: bool = False,
    changed: bool = False,
    iterations: int | None = None,
    push: str = "",
    stop_after: float | None = None,
    unsafe_local_exec: bool = False,
    trust_remote_code: bool = False,
    keys: Sequence[str] = (),
    judges: Sequence[str] = (),
) -> int:
    """Continue a run from its newest checkpoint.

    `changed` accepts a changed recipe, tokenizer, template or file of `use`. `iterations` extends the run to so many.
    The finished model is uploaded to the hub as `push`.
    """
    if push:
        check_upload(push)
    directory = existing_run(run)
    with RunLock(directory):
        phases = phase_directories(directory)
        started = [path for path in phases or (directory,) if RunLayout(path).is_run]
        info = RunInfo.read(started[-1]) if started else None  # the newest has the files that were accepted last
        loaded = load_use(
            use,
            recorded=info.use if info else None,
            accept=changed,
            unsafe_local_exec=unsafe_local_exec,
            trust_remote_code=trust_remote_code,
            keys=keys,
            judges=judges,
        )
        if phases and iterations is None:
            command, how = info.command if info else "", {"strict": strict, "changed": changed}
            code = run_phases(directory, loaded, finish, print_note, stop_after, command=command, **how)
            return pushed(directory, code, push)
        ready = reopen(directory, loaded, iterations)
        for line in notices_of(ready.verifier):
            print_note(line)
        ending = run_from(directory, ready, stop_after, strict=strict, changed=changed)
        return pushed(directory, finish(ending), push)


def pushed(run: Path, code: int, name: str) -> int:
    """Upload the model of a finished run as `name` to the hub, if a name is given. Returns the run's exit code."""
    model = RunLayout(runs_in(run)[-1]).model
    if name and code == 0 and model.is_dir():
        print(visible(f"uploaded: {upload(model, name)}"))
    return code


def finish(ending: Ending) -> int:
    """Print the last message of a run, and return its exit code."""
    if ending.message:
        print(visible(ending.message, lines=True))
    return ending.code
