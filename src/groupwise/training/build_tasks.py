"""Builds the task or mixture of a recipe, its verifiers, templates and demonstrations."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from groupwise.config.recipe import Columns, Recipe
from groupwise.config.task_sources import TaskSource, generates_nothing, held_out_sources, sources
from groupwise.config.user_code import UserCode
from groupwise.core import BadData, Usage
from groupwise.data import Ids, Task, Verifier
from groupwise.models import PromptTemplate, Tokenizer, find_template
from groupwise.rollout import Stored
from groupwise.sandbox import ExecutionLimits, Sandbox
from groupwise.tasks import DataRows, Demonstrations, MixtureVerifier, RowsTask, TaskMixture
from groupwise.tasks.demonstrations import need_environment
from groupwise.training.dummy_flow_answers import made_up_states
from groupwise.verifiers import VerifierContext, grade_function
from groupwise.verifiers.no_verifier import NoVerifier

Templates = Mapping[str, PromptTemplate]
"""The prompt templates of a recipe's tasks, by name."""


def templates(recipe: Recipe, tokenizer: Tokenizer, tools: Sequence[Mapping[str, Any]] = ()) -> Templates:
    """The templates of the recipe's tasks, by name. `tools` are the JSON schemas of the environment's tools."""
    names = dict.fromkeys(s.template for s in (*sources(recipe), *held_out_sources(recipe)))
    settings: dict[str, Any] = {"system": recipe.system, "arguments": recipe.template_arguments, "tools": tools}
    return {name: find_template(name, tokenizer, **settings) for name in names}


def prompt_template(templates: Templates) -> Callable[..., Ids]:
    """The prompt template for prompts that a strategy writes. Its call raises `Usage` if the tasks have several."""
    if len(templates) == 1:
        return next(iter(templates.values()))

    def ambiguous(text: str, **_: Any) -> Ids:
        problem = f"a strategy that writes prompts needs one template; the problems use {', '.join(templates)}"
        raise Usage(problem, fix="use one template for all problems: --template chat")

    return ambiguous


def task_of(recipe: Recipe, templates: Templates) -> Task:
    """The recipe's task, or a mixture of its tasks. Prompts are in their templates, as token ids.

    Rows are trained on entirely where `held_out` names other problems to evaluate on. Problems whose prompts have more
    than `max_prompt_tokens` are left out. `Usage` if no task reads rows.
    """
    training, held_out = (
        [_load_task(source, templates[source.template], recipe) for source in side]
        for side in (sources(recipe), held_out_sources(recipe))
    )
    if (most := recipe.max_prompt_tokens) is not None:
        if not any(isinstance(task, RowsTask) for task in (*training, *held_out)):
            fix = "leave it out of the recipe"
            raise Usage(f"max_prompt_tokens is for rows of data: {recipe.task.label} makes its own problems", fix=fix)
        training, held_out = (
            [task.of_at_most(most) if isinstance(task, RowsTask) else task for task in tasks]
            for tasks in (training, held_out)
        )
    if len(training) == 1 and not held_out:
        return training[0]
    weights = tuple(s.weight for s in sources(recipe))
    if held_out:
        training = [t.entirely_training if isinstance(t, RowsTask) else t for t in training]
    tasks = tuple(t.entirely_held_out if isinstance(t, RowsTask) else t for t in held_out)
    return TaskMixture(tuple(training), weights, tasks)


def demonstrations_of(recipe: Recipe, templates: Templates) -> Task | None:
    """The demonstrations of the warm start, in the prompt template of the first task; None without a warm start."""
    if (phase := recipe.warm_start) is None:
        return None
    encode = templates[sources(recipe)[0].template]
    columns = {"prompt": phase.columns.prompt, "answer": phase.columns.answer}
    try:
        task = phase.task.build(encode, **columns, seed=recipe.seed)
    except BadData as error:
        error.evidence = error.evidence.replace("--columns.", "--warm_start.columns.")
        raise
    if not recipe.environment and need_environment(task):
        what = "the demonstrations contain tool messages, and the recipe names no environment"
        raise Usage(what, fix="name the environment that writes them, such as --environment calculator_tools")
    return task


def _load_task(source: TaskSource, encode: PromptTemplate, recipe: Recipe) -> Task:
    if isinstance(source.task, DataRows):
        rows, strategy = "problems" if recipe.agent is None else "whole", recipe.method.strategy
        if recipe.trains_stored_answers:
            rows = "stored texts" if source.template == "no" else "stored"
        columns: dict[str, Any] = {"prompt": source.columns.prompt, "answer": source.columns.answer}
        if isinstance(strategy, Stored):
            columns |= {"splits_pairs": strategy.splits_pairs, "number_columns": strategy.mark_columns}
        return source.task.build(encode, **columns, rows=rows)
    if isinstance(source.task, Demonstrations):
        columns = {"prompt": source.columns.prompt, "answer": source.columns.answer}
        return source.task.build(encode, **columns, seed=recipe.seed)
    if source.columns != Columns():
        raise Usage(
            f"the columns of the task {source.task.label} cannot be changed",
            evidence=f"the recipe sets {source.columns}",
            fix="leave `columns` out of the recipe",
        )
    return source.task.build(encode)


def verifier_of(recipe: Recipe, task: Task, use: UserCode) -> Verifier:
    """The verifier of a recipe: packaged, from a user's file, or the task's default; for a mixture one per task.

    A method of stored answers needs none.
    """
    if generates_nothing(recipe):
        return NoVerifier()
    each = (*sources(recipe), *held_out_sources(recipe))
    if not isinstance(task, TaskMixture):
        return _verifier(each[0], task, use, recipe)
    return MixtureVerifier(tuple(_verifier(s, t, use, recipe) for s, t in zip(each, task.parts, strict=True)))


def _verifier(source: TaskSource, task: Task, use: UserCode, recipe: Recipe) -> Verifier:
    wall = recipe.machine.verdict_deadline
    if source.verifier is None:
        raise no_verifier(source.task.label)
    made = partial(grade_function, deadline=wall, made_up=partial(made_up_states, recipe))
    sandbox = partial(
        Sandbox, limits=ExecutionLimits(cpu_seconds=wall / 5, wall_seconds=wall), unsafe=use.unsafe_local_exec
    )

    def load(file: str, name: str) -> Verifier:
        return made(use.function(file, name), in_process=not file)

    return VerifierContext(task, sandbox, load, use.judge_access, wall).build(source.verifier)


def no_verifier(task: str, why: str = "") -> Usage:
    """The error for a task whose answers nothing grades."""
    own = "--reward my_file.py:grade"
    judge = "or, for conversations, an environment whose step returns a Verdict: --environment my_file:MyEnvironment"
    return Usage(
        f"{task} has no verifier", evidence=why, fix=f"add --reward last_number, --reward math, or {own};\n{judge}"
    )


def verdict_wait(recipe: Recipe, verifier: Verifier) -> float:
    """Seconds that an answer may wait for its verdict.

    User functions, `Math`, `Code` and `GymScore` limit each call in workers, for which answers wait in a queue.
    All other verifiers have this limit only.
    """
    return recipe.machine.rollout_deadline if verifier.has_own_deadline else recipe.machine.verdict_deadline
