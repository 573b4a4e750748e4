"""What the sides of a comparison do, in words: held-out problems, optimizer steps, answers, and changed settings."""

from functools import cache
from pathlib import Path

from groupwise.certificates.effect_plans import Side, path_of, sides_of
from groupwise.certificates.studies import StudyRun
from groupwise.config.recipe import Recipe
from groupwise.data import TaskSettings
from groupwise.methods import ExpectedEffect
from groupwise.tasks.generated_task import GeneratedTaskSettings
from groupwise.tasks.named_tasks import DataRows

HOME = Path(__file__).parents[2]
USUAL = 512
"""Held-out problems that need no word."""


def sizes(method: str, effect: ExpectedEffect) -> str:
    """The sizes of the runs in a cell: problems where they are not 512, steps and answers where the sides differ."""
    own, parent = map(recipe_of, sides_of(method, effect))
    problems = problems_of(own)
    texts = [f"{problems} problems"] if problems != USUAL else []
    texts.append(f"equal {effect.runs_matched_by}")
    texts += [
        f"{name} {a}, the parent's {b}"
        for name, a, b in (
            ("optimizer steps", steps_of(own), steps_of(parent)),
            ("answers", answers_of(own), answers_of(parent)),
        )
        if a != b and (name != "answers" or effect.runs_matched_by == "iterations")
    ]
    return ", ".join(texts)


def changed(effect: ExpectedEffect) -> str:
    """How a run differs from its parent's where this is the same method."""
    given = {path_of(line): line.partition(" = ")[2] for line in effect.settings}
    lines = ((line, given.get(path_of(line))) for line in effect.own_settings)
    return f"itself: {'; '.join(f'`{line}`' + f', not `{other}`' * (other is not None) for line, other in lines)}"


def steps_of(recipe: Recipe) -> int:
    """The optimizer steps of a run."""
    return recipe.iterations * recipe.method.epochs * recipe.method.minibatches


def answers_of(recipe: Recipe) -> int:
    """The answers of a run: generated ones, or those that its rows store."""
    return recipe.iterations * recipe.prompts * recipe.method.group_size


def recipe_of(side: Side) -> Recipe:
    """The recipe of a side, apart from the choice of its grid."""
    return _recipe(side.run(0, side.choices({})[0]))


@cache
def _recipe(run: StudyRun) -> Recipe:
    return run.recipe()


def problems_of(recipe: Recipe) -> int:
    """The held-out problems of an evaluation: as many as the recipe asks for, as far as the task has them."""
    return min(recipe.evaluate.problems, held_out_problems(recipe.held_out or recipe.task, bool(recipe.held_out)))


@cache
def held_out_problems(task: TaskSettings, is_file: bool) -> int:
    """The held-out problems of a task, or the rows of a file of them."""
    if isinstance(task, DataRows) and is_file:
        return len((HOME / task.source).read_text("utf-8").splitlines())
    assert isinstance(task, GeneratedTaskSettings), task
    return len(task.problems()[1])
