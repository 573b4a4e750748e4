"""What a recipe trains and evaluates on: its task or mixture in the model's ids, and the verifiers that go with it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from groupwise.config.recipe import Columns, Recipe
from groupwise.config.user_code import Use
from groupwise.data import Task, Usage, Verifier
from groupwise.models import Template, Tokenizer, conversation_turn, encode_answer, find_template
from groupwise.sandbox import Limits, Sandbox
from groupwise.tasks import (
    Demonstration,
    Each,
    Mixture,
    Problems,
    SourceStats,
    find_task,
    read_demonstrations,
    takes_columns,
    usual_template,
    usual_verifier,
)
from groupwise.verifiers import find_verifier, grade_function


@dataclass(frozen=True, slots=True)
class Source:
    """One task that a recipe names, with what the recipe or the task itself says goes with it."""

    task: str
    columns: Columns
    verifier: str
    template: str
    weight: float = 1.0


def sources(recipe: Recipe) -> tuple[Source, ...]:
    """The recipe's own task, and those that it mixes in."""
    own = _source(recipe, recipe.task, recipe.columns, recipe.verifier or usual_verifier(recipe.task))
    others = (
        _source(recipe, a.task, a.columns, a.verifier or usual_verifier(a.task) or recipe.verifier, a.weight)
        for a in recipe.also
    )
    return (own, *others)


def held_out_sources(recipe: Recipe) -> tuple[Source, ...]:
    """What the recipe evaluates on instead, if it names something: in the columns of its task, where it has any."""
    if not (name := recipe.held_out):
        return ()
    columns = recipe.columns if takes_columns(name) else Columns()
    return (_source(recipe, name, columns, recipe.verifier or usual_verifier(name)),)


def _source(recipe: Recipe, task: str, columns: Columns, verifier: str, weight: float = 1.0) -> Source:
    return Source(task, columns, verifier, recipe.template or usual_template(task), weight)


def templates(recipe: Recipe, tokenizer: Tokenizer) -> dict[str, Template]:
    """Every template that stands around some problem of the recipe, by its name in the recipe."""
    names = dict.fromkeys(s.template for s in (*sources(recipe), *held_out_sources(recipe)))
    return {name: find_template(name, tokenizer) for name in names}


def task_of(recipe: Recipe, tokenizer: Tokenizer) -> Task:
    """The recipe's task, or its mixture, in the tokenizer's ids; each prompt stands in its template."""
    encoders = templates(recipe, tokenizer)
    drawn, held = (
        [_found(s, encoders[s.template]) for s in some] for some in (sources(recipe), held_out_sources(recipe))
    )
    if len(drawn) == 1 and not held:
        return drawn[0]
    weights = tuple(s.weight for s in sources(recipe))
    return Mixture(tuple(drawn), weights, tuple(t.entirely_held_out if isinstance(t, Problems) else t for t in held))


def demonstrations_of(recipe: Recipe, tokenizer: Tokenizer) -> tuple[list[Demonstration], tuple[SourceStats, ...]]:
    """What the recipe's warm start teaches, each prompt in the template of the recipe's task; nothing without one."""
    if (phase := recipe.warm_start) is None:
        return [], ()
    ask = find_template(sources(recipe)[0].template, tokenizer)
    columns = {"prompt": phase.columns.prompt, "answer": phase.columns.answer}
    reply = partial(conversation_turn, tokenizer, ask.turn_frame()) if recipe.environment else None
    found, facts = read_demonstrations(
        phase.demonstrations, ask, partial(encode_answer, tokenizer), encode_reply=reply, **columns
    )
    return found, (facts,)


def _found(source: Source, encode: Callable[[Any], tuple[int, ...]]) -> Task:
    if takes_columns(source.task):
        return find_task(source.task, encode, prompt=source.columns.prompt, answer=source.columns.answer)
    if source.columns != Columns():
        raise Usage(f"{source.task} knows its columns", evidence=str(source.columns), fix="leave out columns")
    return find_task(source.task, encode)


def verifier_of(recipe: Recipe, task: Task, use: Use) -> Verifier:
    """The verifier that the recipe names, one's own function among them, or the task's own; of a mixture, one each."""
    if not isinstance(task, Mixture):
        return _verifier(sources(recipe)[0], task, use, recipe)
    named = (*sources(recipe), *held_out_sources(recipe))
    return Each(tuple(_verifier(s, t, use, recipe) for s, t in zip(named, task.parts, strict=True)))


def _verifier(source: Source, task: Task, use: Use, recipe: Recipe) -> Verifier:
    name, wall = source.verifier, recipe.machine.verdict_deadline
    if not name:
        raise Usage(
            f"nothing says what is right in {source.task}",
            fix="add --verifier last_number, --verifier math, or --verifier my_file:grade with --use my_file.py",
        )
    sandbox = partial(Sandbox, limits=Limits(cpu=wall / 5, wall=wall), unsafe=use.unsafe_local_exec)
    return find_verifier(
        name,
        task,
        sandbox,
        own=lambda named: grade_function(use.find(named), deadline=wall),
        judges=use.judges,
        deadline=wall,
    )


def verdict_wait(recipe: Recipe, verifier: Verifier) -> float:
    """Seconds that an answer may wait for its verdict. One's own function, `math`, `code` and `reasoning_gym`
    keep their own time, call by call, in workers that answers queue for; any other verifier has none but this."""
    keeps_time = getattr(verifier, "keeps_time", False)
    return recipe.machine.deadline if keeps_time else recipe.machine.verdict_deadline
