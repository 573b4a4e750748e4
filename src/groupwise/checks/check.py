"""`groupwise check`: all errors of a recipe, in seconds; no weights are loaded, no engine starts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from groupwise.checks.check_inputs import check_inputs
from groupwise.checks.check_method import dry_run, inactive_parts
from groupwise.checks.check_model import other_ids
from groupwise.checks.check_phase_models import model_errors, with_future_reward_models
from groupwise.checks.check_result import CheckResult
from groupwise.config.model_dependent_defaults import complete_phases, starting_point
from groupwise.config.phase_recipes import Phase, read_phases
from groupwise.config.recipe import Recipe
from groupwise.config.recipe_toml import read_with_problems
from groupwise.config.toml import read_with_overrides, without_command_text
from groupwise.config.user_code import UserCode
from groupwise.core import GroupwiseError, Usage
from groupwise.models import find_model, weight_files
from groupwise.runs.phase_directories import KEY

MODEL_FIELDS = ("model", "lora", "warm_start", "environment", "agent")
"""Recipe fields about the model and the user's code. They can be checked even if others are invalid.

Rows cannot: the method says how they are read, and the columns which ones.
"""


def check(
    source: str | Path | None, overrides: Sequence[tuple[str, Any]] = (), use: UserCode | None = None
) -> CheckResult:
    """All errors of a recipe: in its text, its model directory, its task, and its method's formulas; and its notes.

    Without a source, it is the recipe of `train` without one.
    """
    use = use or UserCode()
    try:
        if source is not None and KEY in (data := without_command_text(read_with_overrides(source, overrides))):
            data, notes = complete_phases(data, trust_remote_code=use.trust_remote_code)
            return CheckResult((), notes) + check_phases(read_phases(data), use)
        start = starting_point(source, overrides, trust_remote_code=use.trust_remote_code)
    except Usage as error:
        return CheckResult([error])
    recipe, problems = read_with_problems(start.source, start.overrides, use)
    checked = CheckResult(problems, [start.defaults_note] if start.defaults_note else [])
    if readable := recipe is not None:
        checked += CheckResult(dry_run(recipe), inactive_parts(recipe.method))
    else:
        recipe, _ = read_with_problems(start.source, start.overrides, use, only=MODEL_FIELDS)
    if recipe is None:
        return checked
    found = check_inputs(recipe, use, fetch=False, readable=readable)
    new = [error for error in found.errors if not any(e.what.endswith(error.what) for e in checked.errors)]
    differences = other_ids(recipe, found.inputs) if found.inputs else []
    return checked + CheckResult(new, [*found.notes, *differences], found.inputs)


def check_phases(phases: Sequence[Phase], use: UserCode) -> CheckResult:
    """All errors and notes of a recipe with phases that can be found before the first phase starts.

    In place of the model of an earlier phase, a phase is checked with the model that the earlier phase starts from.
    The inputs of a phase with other references are read only when it starts.
    """
    errors: dict[str, GroupwiseError] = {}
    notes: list[str] = []
    recipes: dict[str, Recipe] = {}
    for phase in phases:
        others: set[str] = set()

        def locate(name: str, path: str, others: set[str] = others) -> str:
            if path == "model":
                return recipes[name].model
            others.add(f"@{name}/{path}")
            return f"@{name}/{path}"

        recipe, problems = phase.recipe(locate, use)
        found = CheckResult(problems, [f"phase {phase.name}:"])
        if recipe is not None:
            chain = [*second_adapter(phase, recipe, recipes), *model_errors(phase, use, recipes)]
            found += CheckResult([*dry_run(recipe), *chain, *external_ranks(recipe)], inactive_parts(recipe.method))
            if others:
                found += CheckResult(
                    (), [f"  note: its inputs are checked when it starts: {', '.join(sorted(others))}"]
                )
            elif not found.errors:
                stand_in = with_future_reward_models(phase, standing_in(phase, recipe), use, recipes)
                found += check_inputs(stand_in, use, fetch=False)
        notes += found.notes
        for error in found.errors:
            if error.what not in errors:  # an error in the recipe above the phases is reported once
                errors[error.what] = error
                error.what = f"phase {phase.name}: {error.what}"
        if recipe is None:  # later phases may refer to it
            break
        recipes[phase.name] = recipe
    return CheckResult([*errors.values()], notes)


def standing_in(phase: Phase, recipe: Recipe) -> Recipe:
    """The recipe with which a phase is checked before it starts: without LoRA if its model has no weights yet."""
    try:
        bare = bool(phase.starts_from) and not weight_files(find_model(recipe.model, weights=False))
    except GroupwiseError:  # `check_inputs` reports it
        return recipe
    return replace(recipe, lora=None) if bare else recipe


def second_adapter(phase: Phase, recipe: Recipe, earlier: Mapping[str, Recipe]) -> list[Usage]:
    """An error if a phase adds LoRA to a model that is itself a LoRA adapter of an earlier phase; else no error."""
    source = earlier.get(phase.starts_from)
    if recipe.lora is None or source is None or source.lora is None or source.trains_reward_model:
        return []
    what = f"the phase adds LoRA, but the model of phase {phase.starts_from} is already an adapter"
    return [Usage(what, fix="remove lora from this phase to train that adapter")]


def external_ranks(recipe: Recipe) -> list[Usage]:
    """An error if others start the ranks of a phase: they follow one run to its end. Else no error."""
    if recipe.cluster.launch != "external" or recipe.cluster.ranks == 1:
        return []
    fix = "run the phases one by one, or use --cluster.launch local"
    return [Usage("external ranks follow one run, and this recipe has phases", fix=fix)]
