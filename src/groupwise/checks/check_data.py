"""Checks of a recipe's problems, and notes about them."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from groupwise.checks.check_result import CheckResult
from groupwise.config.recipe import Recipe
from groupwise.config.task_sources import held_out_sources, sources
from groupwise.core import BadData, GroupwiseError, counted, first_items
from groupwise.data import Prompt, Task, TaskWithProblemList, all_problems, data_stats
from groupwise.rollout import check_columns
from groupwise.runs.checkpoints import plain_json
from groupwise.tasks import TaskMixture
from groupwise.tasks.row_columns import is_conversation, problem_text
from groupwise.training.build_tasks import Templates
from groupwise.verifiers import OptionChoice, kinds_in


def check_problems(recipe: Recipe, task: Task) -> None:
    """`BadData` for a task without training problems, or with rows that checkpoints cannot hold and must."""
    for source, part in zip(sources(recipe), task.tasks if isinstance(task, TaskMixture) else (task,), strict=True):
        if not len(part):
            fix = "use it as held_out of another task, or evaluate on it: groupwise eval"
            raise BadData(f"{source.task.label} has no training problems", evidence="all are held out", fix=fix)
    if recipe.cluster.max_staleness:
        check_rows(all_problems(task))


def few_problems(recipe: Recipe, task: Task) -> str:
    """A note if an iteration draws problems several times, since it has more prompts than the task has; else empty."""
    count = sum(len(part) for part in (task.tasks if isinstance(task, TaskMixture) else (task,)))
    if not 0 < count < recipe.prompts:
        return ""
    times = -(-recipe.prompts // count)
    drawn = f"{counted(recipe.prompts, 'prompt')} from {counted(count, 'problem')}"
    return f"  note: an iteration draws {drawn}: up to {times} times the same one"


def check_rows(problems: Iterable[Prompt]) -> None:
    """`BadData` for a row that is no JSON. With staleness, checkpoints hold rows of later iterations."""
    for prompt in problems:
        try:
            plain_json(dict(prompt.row))
        except (TypeError, ValueError) as error:
            raise BadData(
                f"the row of problem {prompt.id} cannot be stored in a checkpoint, as cluster.max_staleness needs it",
                evidence=str(error),
                fix="use rows of text, numbers, lists and mappings, or --cluster.max_staleness 0",
            ) from None


def missing_columns(recipe: Recipe, task: Task, *, train: bool) -> CheckResult:
    """An error for each strategy, of training and of evaluation, that reads a column which rows lack.

    Of a task that does not list its training problems, the first one is checked. Notes are about rows that a strategy
    leaves alone.
    """
    errors: list[GroupwiseError] = []
    notes: list[str] = []
    parts = task.tasks if isinstance(task, TaskMixture) else (task,)
    listed = [
        part.training if isinstance(part, TaskWithProblemList) else [part[0]] for part in parts if train and len(part)
    ]
    read = {"method": [prompt for prompts in listed for prompt in prompts], "evaluate": task.held_out}
    for owner, prompts in read.items():
        try:
            found = check_columns(getattr(recipe, owner).strategy, prompts)
            notes += [f"  note: {owner}.strategy: {note}" for note in found]
        except GroupwiseError as error:
            error.what = f"{owner}.strategy: {error.what}"
            errors.append(error)
    return CheckResult(errors, notes)


def data_notes(recipe: Recipe, task: Task, templates: Templates) -> list[str]:
    """Lines about the data that a user should read before a run: sizes, mixture, template warnings."""
    lines = [line for stats in stats_to_show(recipe, task) for line in stats.lines]
    if isinstance(task, TaskMixture) and len(task.tasks) > 1 and len(task):
        parts = ", ".join(f"{share:.0%} {s.task.label}" for share, s in zip(task.shares, sources(recipe), strict=True))
        lines.append(f"mixture: {parts}; an epoch has {len(task)} draws")
    if ended := sum(ends_with_assistant(prompt) for prompt in all_problems(task)):
        prompts = "1 prompt ends" if ended == 1 else f"{ended} prompts end"
        lines.append(f"  note: {prompts} with an assistant's message: the model continues it; its own text is graded")
    prompts = all_problems(task)
    bare = [prompt.id for prompt in prompts if not prompt.pictures]
    if 0 < len(bare) < len(prompts):
        have = "1 prompt has" if len(bare) == 1 else f"{len(bare)} prompts have"
        lines.append(f"  note: {have} no picture, and others have: {first_items(bare)}")
    for name, template in templates.items():
        lines += [f"  warning: {note}" for note in template.warnings]
        if template.ignores_chat_template and not (recipe.template or recipe.agent):
            lines.append("  note: prompts are text as it is, and the model has a chat template: add --template chat")
        if name == "r1" and "</answer>" not in recipe.sampling.stop:
            lines.append("  note: answers with the template r1 end with </answer>: add --sampling.stop '</answer>'")
    return lines


def ends_with_assistant(prompt: Prompt) -> bool:
    """Whether a prompt is a conversation whose last message is the assistant's."""
    messages: Any = prompt.row.get("messages")
    return is_conversation(messages) and problem_text(messages) == prompt.text and messages[-1]["role"] == "assistant"


def stats_to_show(recipe: Recipe, task: Task) -> list[Any]:
    """The statistics of the data. For multiple choice, no prompt counts as containing its answer, which is a letter."""
    parts = task.parts if isinstance(task, TaskMixture) else (task,)
    shown = []
    for source, part in zip((*sources(recipe), *held_out_sources(recipe)), parts, strict=True):
        with_options = any(isinstance(kind, OptionChoice) for kind in kinds_in(source.verifier))
        shown += [replace(stats, answer_in_prompt_rows=()) if with_options else stats for stats in data_stats(part)]
    return shown
