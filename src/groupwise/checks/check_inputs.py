"""Checks the inputs of a recipe: model directory, tokenizer, task and verifier."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from groupwise.checks.check_agent import try_agent
from groupwise.checks.check_by_model_kind import kind_errors, kind_notes, memory_line
from groupwise.checks.check_data import check_problems, data_notes, few_problems, missing_columns
from groupwise.checks.check_flow import unfinished_pictures, unfit_prompts
from groupwise.checks.check_machine import (
    check_batch_invariance,
    check_machine,
    check_place,
    check_scores,
    check_sharding,
)
from groupwise.checks.check_method import method_notes
from groupwise.checks.check_model import check_model, check_side_models
from groupwise.checks.check_needs import need_notes, unmet_needs
from groupwise.checks.check_result import CheckResult
from groupwise.checks.check_stored_answers import (
    equal_pair_notes,
    label_notes,
    longest_demonstration,
    with_stored_budget,
)
from groupwise.config.recipe import Recipe
from groupwise.config.resolve_devices import resolved
from groupwise.config.stored_quantization import with_stored_quantization
from groupwise.config.user_code import UserCode
from groupwise.core import BadData, GroupwiseError, Usage
from groupwise.data import Task, Verifier, all_problems, data_stats, notices_of
from groupwise.engines import Native
from groupwise.evaluation.by_column import check_column
from groupwise.models import find_model, of_hub, read_shape, read_tokenizer, weight_files
from groupwise.models.decoder.decoder import ModelSizes
from groupwise.tasks import MixtureVerifier, RowsTask, TaskMixture, listed_tokens
from groupwise.training.build_agent_runner import agent_of
from groupwise.training.build_environment import check_judge, environment_of, frame_of, tool_schemas
from groupwise.training.build_run import RunInputs
from groupwise.training.build_tasks import demonstrations_of, no_verifier, task_of, templates, verifier_of
from groupwise.training.strategy_default_texts import wording_notes
from groupwise.verifiers.no_verifier import NoVerifier


def check_inputs(
    recipe: Recipe,
    use: UserCode,
    *,
    train: bool = True,
    fetch: bool = True,
    readable: bool = True,
    all_rows: bool = False,
) -> CheckResult:
    """Errors and notes about trackers, environment, model directory and weights, then from `check_task`.

    With `train` the task must have training problems. With `fetch` the weights of a model on the hub are downloaded and
    checked. With `all_rows` no row of the task is one to train on. Of a recipe that is not `readable`, other fields are
    defaults, so that only the model is checked.
    """
    recipe = resolved(recipe)
    weights = fetch or not of_hub(recipe.model)
    machine = check_machine(recipe, use, train=train)
    errors = [*machine.errors, *check_batch_invariance(recipe)]
    errors += [*check_place(recipe), *check_scores(recipe)] if train else ()
    notes = [*machine.notes, *notices_of(recipe.engine), *(method_notes(recipe) if train and readable else ())]
    with collected(errors):
        environment_of(recipe, use)
    try:
        directory = find_model(recipe.model, weights=weights)
    except GroupwiseError as error:
        return CheckResult([*errors, error], notes)
    if not weights:
        notes.append(f"only configuration and tokenizer of {recipe.model} were checked: train downloads its weights")
    with collected(errors):
        recipe = with_stored_quantization(recipe, directory)
    with collected(errors):
        check_model(recipe, directory, use, weights=weights)
    with collected(errors):
        _ = weight_files(directory) if weights else None
    if not readable:
        return CheckResult(errors, notes)
    return CheckResult((), notes) + check_task(
        recipe, use, directory, errors, train=train, fetch=fetch, all_rows=all_rows
    )


def check_task(
    recipe: Recipe,
    use: UserCode,
    directory: Path,
    earlier: Sequence[GroupwiseError],
    *,
    train: bool,
    fetch: bool,
    all_rows: bool,
) -> CheckResult:
    """Errors and notes about tokenizer, task and verifier, after the `earlier` errors; and what was read."""
    errors, notes, inputs = [*earlier], list[str](), None
    with collected(errors):
        tokenizer = read_tokenizer(directory)
        errors += check_side_models(recipe, tokenizer, fetch=fetch) if train else ()
        notes += wording_notes(recipe, tokenizer)
        by_name = templates(recipe, tokenizer, tool_schemas(recipe, use))
        task = task_of(recipe, by_name)
        task = task.entirely_held_out if all_rows and isinstance(task, RowsTask) else task
        frame_of(recipe, by_name)
        agent = agent_of(recipe, use, by_name, notes.append)
        columns = missing_columns(recipe, task, train=train)
        notes += [*data_notes(recipe, task, by_name), *columns.notes]
        errors += columns.errors
        check_column(recipe.evaluate.by_column, task.held_out)
        if train:
            check_problems(recipe, task)
            notes += [*label_notes(recipe, task), *equal_pair_notes(recipe, task)]
        if train and (note := few_problems(recipe, task)):
            notes.append(note)
        demonstrations = demonstrations_of(recipe, by_name) if train else None
        if train and recipe.trains_stored_answers and not errors:
            positions = read_shape(directory, trust_remote_code=use.trust_remote_code).max_positions
            recipe = with_stored_budget(recipe, RunInputs(tokenizer, by_name, task, NoVerifier()), positions)
        longest = longest_request(recipe, task)
        if demonstrations is not None:
            notes += [line for source in data_stats(demonstrations) for line in source.lines]
            shown = RunInputs(tokenizer, by_name, demonstrations, NoVerifier())
            longest = max(longest, longest_demonstration(recipe, shown))
        if not any(isinstance(error, BadData) for error in errors):
            shape = shape_for(recipe, directory, task, longest, use)
            errors += unfit_prompts(shape, all_problems(task))
            errors += unfinished_pictures(recipe, shape, train=train)
            if train:
                errors += kind_errors(recipe, shape)
                notes += kind_notes(recipe, directory, shape)
                prompt = max(len(prompt.token_ids) for prompt in all_problems(task))
                notes += filter(None, [memory_line(recipe, directory, shape, prompt, errors)])
        if isinstance(recipe.engine, Native) and longest > recipe.engine.kv_cache_tokens:
            what = f"engine.kv_cache_tokens is {recipe.engine.kv_cache_tokens}: the longest request does not fit"
            raise Usage(what, fix=f"use --engine.kv_cache_tokens {longest} or more")
        check_judge(recipe, use)
        verifier = verifier_of(recipe, task, use)
        if isinstance(verifier, NoVerifier) and not train:
            raise no_verifier(recipe.task.label, "its method trains stored answers, and grades none")
        notes += check_verifier(verifier, task)
        if train:
            errors += unmet_needs(recipe, verifier)
            notes += need_notes(recipe, task)
        inputs = RunInputs(tokenizer, by_name, task, verifier, demonstrations)
        if agent is not None and not errors:
            tried = try_agent(recipe, agent, inputs)
            errors += tried.errors
            notes += tried.notes
    return CheckResult(errors, notes, inputs)


@contextmanager
def collected(errors: list[GroupwiseError]) -> Iterator[None]:
    """Append an error that is raised in the context, unless one with the same first line is there."""
    try:
        yield
    except GroupwiseError as error:
        if all(error.what != other.what for other in errors):
            errors.append(error)


def longest_request(recipe: Recipe, task: Task) -> int:
    """The most tokens of a prompt with its answer."""
    return max(len(prompt.token_ids) for prompt in all_problems(task)) + recipe.sampling.max_tokens


def shape_for(recipe: Recipe, directory: Path, task: Task, longest: int, use: UserCode) -> ModelSizes:
    """The shape of the model for requests of at most `longest` tokens. Raises an error if the prompts do not fit it."""
    refuse_long_prompts(recipe, read_shape(directory, trust_remote_code=use.trust_remote_code).max_positions, task)
    shape = read_shape(directory, context=longest, trust_remote_code=use.trust_remote_code)
    check_sharding(recipe, shape)
    return shape


def refuse_long_prompts(recipe: Recipe, positions: int, task: Task) -> None:
    """`BadData` with the rows whose prompts leave no room for an answer of `sampling.max_tokens`."""
    answer = recipe.sampling.max_tokens
    long = [prompt for prompt in all_problems(task) if len(prompt.token_ids) + answer > positions]
    if not long:
        return
    longest = max(len(prompt.token_ids) for prompt in long)
    fixes = [f"lower sampling.max_tokens to {positions - longest}"] if longest < positions else []
    if positions > answer and any(isinstance(p, RowsTask) for p in parts_of(task)):
        fixes.append(f"leave such problems out: --max_prompt_tokens {positions - answer}")
    count = "1 prompt leaves" if len(long) == 1 else f"{len(long)} prompts leave"
    raise BadData(
        f"{count} no room for an answer of {answer:,} tokens: the model takes {positions:,} at once",
        evidence=listed_tokens(long),
        fix="; or ".join(fixes) or "lower sampling.max_tokens, or use a model that takes longer texts",
    )


def parts_of(task: Task) -> Sequence[Task]:
    """The tasks of a mixture, or the task itself."""
    return task.parts if isinstance(task, TaskMixture) else (task,)


def check_verifier(verifier: Verifier, task: Task) -> Sequence[str]:
    """Check that each task's verifier can grade its problems, or raise a `GroupwiseError`. Returns its notices."""
    if isinstance(verifier, NoVerifier):
        return ()
    verifiers = verifier.verifiers if isinstance(verifier, MixtureVerifier) else (verifier,)
    for member, part in zip(verifiers, parts_of(task), strict=True):
        member.gate(all_problems(part))
    return verifier.notices
