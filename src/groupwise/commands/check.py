"""`groupwise check`: print all errors of a recipe, in seconds, without loading weights."""

from collections.abc import Sequence

from groupwise.checks import check as checks
from groupwise.commands.unknown_options import unknown_options
from groupwise.config.command_line_advice import spell_options
from groupwise.config.packaged import named_recipe
from groupwise.config.user_code import Permissions, load_use
from groupwise.core import GroupwiseError, counted, visible


def check(
    file: str | None,
    overrides: Sequence[tuple[str, str]] = (),
    allowed: Permissions = Permissions(),  # noqa: B008
    *,
    recipe_name: str | None = None,
) -> int:
    """Print the errors of a recipe: a file, a packaged one by its name, or the default one. Returns the exit code.

    Notes, such as the memory that the run needs, are printed only for a recipe without errors.
    """
    loaded = load_use(allowed)
    path = named_recipe(file, recipe_name)
    unknown = unknown_options("check", overrides, file)
    checked = checks.check(path, [field for field in overrides if field[0] not in unknown], loaded)
    errors = [*unknown.values(), *checked.errors]
    for error in errors:
        spell_options(error, [file or "", *(f"--{name}" for name, _ in overrides)])
    for line in () if errors else checked.notes:
        print(visible(line))
    print(visible(errors_text(file or recipe_name or "recipe", errors), lines=True))
    return errors[0].code if errors else 0


def errors_text(name: str, problems: Sequence[GroupwiseError]) -> str:
    """The errors that `check` found as text, with their number; `ok` if there are none."""
    if not problems:
        return f"{visible(name)}: ok"
    return "\n".join(map(str, problems)) + f"\n{visible(name)}: {counted(len(problems), 'error')}"
