"""`groupwise train` and `groupwise resume`: start or continue a run."""

from collections.abc import Sequence

from groupwise.api import external_ranks, start_run
from groupwise.api.arguments import CallArguments
from groupwise.api.options import RunOptions
from groupwise.config.packaged import named_recipe
from groupwise.core import visible
from groupwise.lifecycle.run_handle import RunEnding
from groupwise.models.upload import check_upload, upload
from groupwise.report.report import existing_run
from groupwise.runs.phase_directories import runs_in
from groupwise.runs.run_layout import RunLayout


def train(
    file: str | None,
    overrides: Sequence[tuple[str, str]] = (),
    options: RunOptions = RunOptions(),  # noqa: B008
    *,
    recipe_name: str | None = None,
    push: str = "",
) -> int:
    """Start a run of a recipe: a file, a packaged one by its name, or the default one. Returns the exit code.

    The finished model is uploaded to the hub as `push`.
    """
    if push:
        check_upload(push)
    source = named_recipe(file, recipe_name)
    if external_ranks.follows(source, overrides, options):
        return 0
    if begun := external_ranks.restarted(source, overrides, options):
        layout = RunLayout(begun)
        return pushed(layout, start_run.proceed(layout, options, print_ending).exit_code, push)
    layout, ending = start_run.start(source, CallArguments(tuple(overrides)), options, print_ending)
    return pushed(layout, ending.exit_code, push)


def resume(run: str, options: RunOptions = RunOptions(), *, push: str = "") -> int:  # noqa: B008
    """Continue a run from its newest checkpoint. Returns the exit code.

    The finished model is uploaded to the hub as `push`.
    """
    if push:
        check_upload(push)
    layout = existing_run(run)
    if external_ranks.follows_again(layout, options):
        return 0
    return pushed(layout, start_run.proceed(layout, options, print_ending).exit_code, push)


def pushed(layout: RunLayout, code: int, name: str) -> int:
    """Upload a finished run's model to the hub as `name`, if a name is given. Returns the run's exit code."""
    if name and code == 0 and (model := RunLayout(runs_in(layout.run_directory)[-1]).model).is_dir():
        print(visible(f"uploaded: {upload(model, name)}"))
    return code


def print_ending(ending: RunEnding) -> None:
    """Print the last message of a run."""
    if ending.message:
        print(visible(ending.message, lines=True))
