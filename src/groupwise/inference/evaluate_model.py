"""Evaluates a model or a run on held-out problems, and answers single prompts."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from groupwise.checks.check_flow import unfinished_pictures
from groupwise.checks.check_inputs import check_inputs
from groupwise.config.model_dependent_defaults import RecipeSource, starting_point
from groupwise.config.packaged import find_recipe
from groupwise.config.recipe import Recipe
from groupwise.config.recipe_errors import one_error
from groupwise.config.recipe_toml import read_over, read_with_problems
from groupwise.config.resolve_devices import resolved
from groupwise.config.user_code import UserCode
from groupwise.core import Usage, raise_all
from groupwise.data import Outcome, Picture, Prompt, Rollout, Sample, Sampling, Strategy, Verdict, Verifier
from groupwise.data.pictures import MOST_PICTURES
from groupwise.engines import Fleet, Native
from groupwise.evaluation.evaluation_files import file_name, mean_of, task_result
from groupwise.evaluation.published_protocols import find_published
from groupwise.inference.models_of_run import BEST, At, RunModelLocation, find_run_model, model_directory
from groupwise.models import Messages, PromptTemplate, RandomPurpose, find_model, read_shape, read_tokenizer
from groupwise.planning.evaluation_memory import evaluation_plan
from groupwise.planning.process_memory import host_memory
from groupwise.rollout import Independent, RolloutSetting, answers
from groupwise.runs.next_command import name_code
from groupwise.runs.run_layout import RunLayout
from groupwise.training.build_agent_runner import agent_of, draw_deadline
from groupwise.training.build_environment import environment_of, frame_of, tool_schemas
from groupwise.training.build_run import RunInputs, build, prepare, read_stored
from groupwise.training.build_tasks import prompt_template, templates
from groupwise.training.evaluation_protocol import protocol
from groupwise.training.progress_output import notify
from groupwise.training.strategy_default_texts import with_wording

EvaluationTask = tuple[Recipe, list[tuple[int, Sampling]]]
"""One task of an evaluation: its recipe, and the pairs (answers per problem, sampling) to evaluate."""
SAMPLES = 4
"""Answers per problem by default."""
OTHER_TASKS = (("extra_tasks", "[]"), ("held_out", "none"))
"""Overrides that leave a recipe one task."""
ALL = 1 << 30
"""Stands for all problems of a task: no task has more."""


def evaluate(
    model_or_run: str,
    overrides: Sequence[tuple[str, Any]],
    use: UserCode,
    *,
    at: At = None,
    before: Callable[[Path], None] = lambda folder: None,
    samples: int | None = None,
    problems: int | None = None,
    recipe_path: str | None = None,
    preset: str | None = None,
    preset_data: str | None = None,
) -> tuple[dict[str, Any], Path]:
    """Evaluate a model directory or a run's model. Returns results and protocol as JSON, and a path to write them to.

    Each problem is answered once greedily and `samples` times with the recipe's sampling. With a `preset` the settings
    are as in a paper, on the problems in `preset_data`. Of a task that the overrides name, all rows count, or all
    held-out problems if it makes its own, and no other task; else up to `evaluate.problems` held-out problems of the
    recipe's tasks. `at` chooses a checkpoint of a run. `before` receives the folder of the file before an answer is
    computed.
    """
    of_run = find_model_of(model_or_run, at)
    if preset_data and not preset:
        what = "--preset-data names the directory of a preset's problems, and there is no --preset"
        raise Usage(what, fix="add --preset NAME, or use --data PATH")
    evaluations = (of_run.run_layout if of_run else RunLayout(Path())).evaluations
    source = of_run.run_layout.recipe if of_run else find_recipe(recipe_path) if recipe_path else None
    model = model_overrides(model_or_run, of_run, use)
    published = find_published(preset) if preset else None
    named = not published and any(f"{path}.".startswith("task.") for path, _ in overrides)
    if named:
        overrides = [*(pair for pair in OTHER_TASKS if pair[0] not in dict(overrides)), *overrides]
    whole = published or (named and "evaluate.problems" not in dict(overrides))
    n = samples or (published.samples_per_problem if published else SAMPLES)
    tasks: list[EvaluationTask] = []
    notes: list[str] = []
    for task_overrides in published.recipes(overrides, preset_data) if published else [overrides]:
        start = starting_point(source, [*model, *task_overrides], trust_remote_code=use.trust_remote_code, train=False)
        notes.append(start.defaults_note)
        recipe, sampling = recipe_and_sampling(start, use)
        most = problems or (ALL if whole else recipe.evaluate.problems)
        recipe = replace(recipe, evaluate=replace(recipe.evaluate, samples=n, problems=most))
        tasks.append((recipe, [(n, sampling)] if published else [(1, greedy(sampling)), (n, sampling)]))
    checks = [check_inputs(recipe, use, train=False, all_rows=named) for recipe, _ in tasks]
    raise_all([error for checked in checks for error in checked.errors])
    for note in dict.fromkeys(filter(None, [*notes, *(note for checked in checks for note in checked.notes)])):
        notify(note)
    inputs = [checked.inputs for checked in checks if checked.inputs]
    for line in (*unused(overrides), *plans(tasks, inputs)):
        notify(line)
    before(evaluations)
    results = [result for task, read in zip(tasks, inputs) for result in results_of_task(*task, use, read)]
    evaluation: dict[str, Any] = {"preset": preset, "results": results}
    if published:
        evaluation["departures"] = published.departures(overrides, results)
        for line in evaluation["departures"]:
            notify(f"not as published: {line}")
    if len(tasks) > 1 and (mean := mean_of(results)):
        evaluation["mean"] = mean
    if at == BEST:
        notify("this checkpoint was selected by a held-out figure: a figure on the same problems is optimistic")
    return evaluation, evaluations / file_name(evaluation, of_run.iteration if of_run else None)


UNUSED = (
    "iterations", "prompts", "max_unverifiable", "method", "optimizer", "warm_start", "save", "trackers",
    "evaluate.every",
    "evaluate.best_metric",
)  # fmt: skip
"""Fields of a recipe that matter in training only."""


def unused(overrides: Sequence[tuple[str, Any]]) -> list[str]:
    """A note that names the overrides that affect training only; none if there are no such overrides.

    >>> unused([("iterations", "3"), ("seed", "1"), ("optimizer.lr", "1")])
    ['note: without effect here, since they matter in training only: iterations, optimizer.lr']
    """
    names = [path for path, _ in overrides if any(f"{path}.".startswith(f"{name}.") for name in UNUSED)]
    return [f"note: without effect here, since they matter in training only: {', '.join(names)}"] if names else []


def plans(tasks: Sequence[EvaluationTask], inputs: Sequence[RunInputs]) -> list[str]:
    """One line with the expected size of each large task. `Usage` if a task's answers do not fit in memory."""
    lines = []
    for (recipe, samplings), read in zip(tasks, inputs, strict=True):
        problems = min(recipe.evaluate.problems, len(read.task.held_out))
        answers, longest = sum(n for n, _ in samplings), max(sampling.max_tokens for _, sampling in samplings)
        lines += filter(None, [evaluation_plan(problems, answers, longest, host_memory())])
    return lines


def greedy(sampling: Sampling) -> Sampling:
    """The same sampling at temperature 0, without top-p and the like, which have no effect there."""
    return replace(sampling, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0)


def results_of_task(
    recipe: Recipe, samplings: Sequence[tuple[int, Sampling]], use: UserCode, inputs: RunInputs
) -> list[dict[str, Any]]:
    """The results on one task: one for each pair (answers per problem, sampling)."""
    recipe = replace(recipe, cluster=replace(recipe.cluster, shard="none"))  # this process publishes a whole model
    ready = build(recipe, use, inputs)
    if isinstance(ready.engine, Fleet):
        ready.engine.notify = notify

    async def answer() -> list[list[Rollout]]:
        await ready.engine.load(0, dict(ready.model.state_dict()))  # an engine in another process has no weights yet
        return [await ready.answers(ready.rollout_setting, n, sampling) for n, sampling in samplings]

    answered = asyncio.run(answer())
    return [
        task_result(rollouts, protocol(ready, sampling, n, use), by=recipe.evaluate.by_column)
        for rollouts, (n, sampling) in zip(answered, samplings)
    ]


def find_model_of(model_or_run: str, at: At = None) -> RunModelLocation | None:
    """A run's model, of the checkpoint `at`, if the path is a run; else None, or `Usage` if `at` is given."""
    directory = Path(model_or_run)
    if RunLayout(directory).is_run:
        return find_run_model(directory, at)
    if at is not None:
        what = f"--at names a checkpoint of a run, and {model_or_run} is not a run"
        raise Usage(what, fix="leave out --at, or name a run")
    return None


def model_overrides(name: str, of_run: RunModelLocation | None, use: UserCode) -> list[tuple[str, str]]:
    """Overrides that select the model. A run's final model directory includes its adapter, so `lora` becomes none."""
    if of_run is None:
        return [("model", name)]
    return [("model", str(model_directory(of_run, use, notify))), ("lora", "none")]


def recipe_and_sampling(start: RecipeSource, use: UserCode | None) -> tuple[Recipe, Sampling]:
    """The recipe, and separately the sampling of the answers, which may be greedy or truncated, unlike the recipe's.

    Without `use`, code in the user's files is not loaded.
    """
    changes = [(path, value) for path, value in start.overrides if path.startswith("sampling.")]
    recipe, problems = read_with_problems(start.source, [pair for pair in start.overrides if pair not in changes], use)
    if problems or recipe is None:
        error = one_error(problems)
        if isinstance(start.source, Path) and RunLayout(run := start.source.parent).is_run:
            name_code(error, run)
        raise error
    sampling = read_over(recipe.sampling, "recipe.sampling", [(p.partition(".")[2], v) for p, v in changes])
    limits = replace(recipe.sampling, max_tokens=sampling.max_tokens, stop=sampling.stop)
    return replace(recipe, sampling=limits), sampling


GREEDY = [("sampling.temperature", "0")]
"""Recipe overrides for greedy decoding: temperature 0."""
RANDOM = ("sampling.temperature", "sampling.top_p", "sampling.top_k", "sampling.min_p")


def for_one_answer(overrides: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """The overrides to generate a single answer: greedy, unless they set temperature, top_p, top_k or min_p.

    >>> for_one_answer([("sampling.max_tokens", "9")])
    [('sampling.temperature', '0'), ('sampling.max_tokens', '9')]
    """
    return [*overrides] if any(path in RANDOM for path, _ in overrides) else [*GREEDY, *overrides]


@dataclass(frozen=True, slots=True, eq=False)
class OpenModel:
    """A model that is loaded to answer prompts, without grading. All its answers need the same event loop."""

    recipe: Recipe
    template: PromptTemplate
    rollout_setting: RolloutSetting

    async def answers(
        self, prompt: str | Messages, n: int = 1, *, strategy: Strategy | None = None, answer: str | None = None,
        pictures: Sequence[Picture] = (),
    ) -> tuple[Sample, ...]:  # fmt: skip
        """`n` answers to a prompt or to a conversation, independent ones unless there is a `strategy`.

        `answer` is the prompt's gold answer for an environment. `pictures` are before a prompt that is a text.
        """
        text = prompt if isinstance(prompt, str) else str(prompt[-1].get("content", ""))
        if not (context := self.template(prompt, pictures=pictures)):
            raise Usage("the prompt is empty: it has no tokens", evidence=repr(text), fix="use another prompt")
        row = {} if answer is None else {"answer": answer}
        problem = Prompt("prompt", context, text, row, pictures=tuple(pictures))
        (rollout,) = await answers(
            [problem], n, self.rollout_setting, purpose=RandomPurpose.SAMPLE, strategy=strategy or Independent()
        )
        return tuple(replace(s, verdict=None) if s.verdict is UNGRADED else s for s in rollout.samples)


async def open_model(
    model_or_run: str, overrides: Sequence[tuple[str, Any]], use: UserCode, at: At = None
) -> OpenModel:
    """Load a model directory or a run's model with the run's recipe, or else with the packaged one."""
    of_run = find_model_of(model_or_run, at)
    changes = [*model_overrides(model_or_run, of_run, use), *overrides]
    user_code = use if use.modules or use.functions_in_memory else None
    source = of_run.run_layout.recipe if of_run else None
    start = starting_point(source, changes, trust_remote_code=use.trust_remote_code, train=False)
    recipe, sampling = recipe_and_sampling(start, user_code)
    recipe = resolved(recipe)
    device = prepare(recipe.machine)
    directory = find_model(recipe.model)
    shape = read_shape(directory, trust_remote_code=use.trust_remote_code)
    limits = replace(recipe.sampling, max_tokens=sampling.max_tokens)  # a recipe refuses temperature 0
    raise_all(unfinished_pictures(replace(recipe, sampling=limits), shape, train=False))
    tokenizer = read_tokenizer(directory)
    recipe = with_wording(recipe, tokenizer)
    model = read_stored(directory, recipe, use, device)
    engine = Native().build(model, tokenizer, seed=recipe.seed, experts=None)
    by_name = templates(recipe, tokenizer, tool_schemas(recipe, use))
    agent = agent_of(recipe, use, by_name, notify)
    setting = RolloutSetting(
        engine=engine,
        verifier=UngradedVerifier(),
        tokenizer=tokenizer,
        sampling=sampling,
        seed=recipe.seed,
        rollout_deadline=draw_deadline(recipe, agent),
        create_environment=environment_of(recipe, use),
        agent_runner=agent,
        observation_frame_ids=frame_of(recipe, by_name),
        encode_prompt=prompt_template(by_name),
        denoising_steps=recipe.evaluate.denoising_steps,
    )
    await engine.load(0, dict(model.state_dict()))
    return OpenModel(recipe, next(iter(by_name.values())), setting)


def sample(
    model_or_run: str,
    prompt: str,
    overrides: Sequence[tuple[str, Any]],
    use: UserCode,
    *,
    at: At = None,
    n: int = 1,
    answer: str | None = None,
    pictures: Sequence[Picture] = (),
) -> tuple[Sample, ...]:
    """`n` ungraded answers of a model directory or of a run's model to one prompt, which may have `pictures`.

    With an environment they are conversations; `answer` is the prompt's gold answer for the environment. `at` chooses a
    checkpoint of a run.
    """

    if len(pictures) > MOST_PICTURES:
        raise Usage(f"the prompt has {len(pictures)} pictures", fix=f"name at most {MOST_PICTURES}")
    for line in unused(overrides):
        notify(line)

    async def generate() -> tuple[Sample, ...]:
        model = await open_model(model_or_run, overrides, use, at)
        strategy = model.recipe.evaluate.strategy
        return await model.answers(prompt, n, strategy=strategy, answer=answer, pictures=pictures)

    return asyncio.run(generate())


UNGRADED = Verdict(Outcome.unverifiable, cause="the command sample does not grade answers")


class UngradedVerifier(Verifier):
    """The verifier of the command `sample`, which grades nothing: its prompt has no gold answer."""

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        return UNGRADED
