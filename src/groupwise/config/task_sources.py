"""The tasks of a recipe, each with its columns, verifier and template."""

from dataclasses import dataclass

from groupwise.config.recipe import Columns, Recipe
from groupwise.data import TaskSettings, VerifierSettings
from groupwise.tasks import DataRows
from groupwise.verifiers import EnvironmentVerdictVerifier, usual_verifier


@dataclass(frozen=True, slots=True)
class TaskSource:
    """One task of a recipe with its columns, verifier and template: from the recipe, else the task's defaults."""

    task: TaskSettings
    columns: Columns
    verifier: VerifierSettings | None
    template: str
    weight: float = 1.0


def sources(recipe: Recipe) -> tuple[TaskSource, ...]:
    """The recipe's task, followed by the tasks in `extra_tasks`."""
    first = _source(recipe, recipe.task, recipe.columns, _kind(recipe, recipe.task))
    others = (
        _source(recipe, a.task, a.columns, a.verifier or usual_verifier(a.task) or _kind(recipe), a.weight)
        for a in recipe.extra_tasks
    )
    return (first, *others)


def held_out_sources(recipe: Recipe) -> tuple[TaskSource, ...]:
    """The task of the recipe's field `held_out`, whose problems are only evaluated; empty without one."""
    if (task := recipe.held_out) is None:
        return ()
    columns = recipe.columns if isinstance(task, DataRows) else Columns()
    return (_source(recipe, task, columns, _kind(recipe, task)),)


def _kind(recipe: Recipe, task: TaskSettings | None = None) -> VerifierSettings | None:
    """The recipe's verifier, else the task's default, else the environment's, which gives verdicts itself."""
    usual = None if task is None else usual_verifier(task)
    judge = EnvironmentVerdictVerifier() if recipe.environment or recipe.agent else None
    return recipe.verifier or usual or judge


def _source(
    recipe: Recipe, task: TaskSettings, columns: Columns, verifier: VerifierSettings | None, weight: float = 1.0
) -> TaskSource:
    return TaskSource(task, columns, verifier, recipe.template or task.template, weight)


def generates_nothing(recipe: Recipe) -> bool:
    """Whether a run generates no answer: it trains stored ones, and no verifier grades others in evaluations.

    A reward model generates none.
    """
    if recipe.trains_reward_model:
        return True
    each = (*sources(recipe), *held_out_sources(recipe))
    return recipe.trains_stored_answers and all(source.verifier is None for source in each)
