"""What the commands do that ask a model: eval, sample."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from groupwise.commands.check import check_inputs
from groupwise.commands.terminal import told_sample
from groupwise.commands.train import DEFAULT, raise_all, tell
from groupwise.config.reading import together
from groupwise.config.recipe import Recipe
from groupwise.config.text import attempt, read_over
from groupwise.config.user_code import Use, load_use
from groupwise.data import BadData, Outcome, Prompt, Rollout, Sample, Sampling, Usage, Verdict, visible
from groupwise.evaluation.presets import find_published
from groupwise.evaluation.result import FOLDER, evaluation_text, file_name, mean_of, number, write
from groupwise.models import Purpose, find_model, read_model, read_tokenizer
from groupwise.rollout import NativeEngine, answers
from groupwise.training.build import DTYPES, build, prepare
from groupwise.training.environments import environment_of, frame_of
from groupwise.training.protocols import protocol
from groupwise.training.sources import templates

Take = tuple[Recipe, list[tuple[int, Sampling]]]
"""One task to be asked: its recipe, and for each number how many answers there are and by which law."""
SAMPLES = 4
ALL = 1 << 30


def evaluate(
    model_or_run: str,
    overrides: Sequence[tuple[str, str]] = (),
    use: Sequence[str] = (),
    *,
    samples: int | None = None,
    problems: int | None = None,
    recipe_path: str | None = None,
    preset: str | None = None,
    data: str | None = None,
    out: str | None = None,
    unsafe_local_exec: bool = False,
    trust_remote_code: bool = False,
    keys: Sequence[str] = (),
    judges: Sequence[str] = (),
) -> int:
    """Held-out accuracy of a model directory or of a run's model: told, and written with the protocol of each number.

    Greedily once and `samples` times at the recipe's law; with a `preset` as its paper did, on the problems in `data`.
    """
    directory = run_of(model_or_run)
    if data and not preset:
        raise Usage("--data says where the problems of a preset are", fix="add --preset NAME, or say --task PATH")
    loaded = load_use(
        use, unsafe_local_exec=unsafe_local_exec, trust_remote_code=trust_remote_code, keys=keys, judges=judges
    )
    source = directory / "recipe.toml" if directory else Path(recipe_path) if recipe_path else DEFAULT
    said = model_of(model_or_run, directory)
    published = find_published(preset) if preset else None
    n = samples or (published.samples if published else SAMPLES)
    takes: list[Take] = []
    for words in published.recipes(overrides, data) if published else [overrides]:
        recipe, law = asked_of(source, [*said, *words], loaded)
        most = problems or (ALL if published else recipe.evaluate.problems)
        recipe = replace(recipe, evaluate=replace(recipe.evaluate, samples=n, problems=most))
        takes.append((recipe, [(n, law)] if published else [(1, greedy(law)), (n, law)]))
    seen: list[str] = []
    raise_all([error for recipe, _ in takes for error in check_inputs(recipe, loaded, seen.append, train=False)])
    tell(seen)
    numbers = [number for take in takes for number in taken(*take, loaded)]
    evaluation: dict[str, Any] = {"preset": preset, "numbers": numbers}
    if published:
        evaluation["departures"] = published.departures(overrides, numbers)
        tell([f"not as published: {line}" for line in evaluation["departures"]])
    if len(takes) > 1:
        evaluation["mean"] = mean_of(numbers)
    print(visible(evaluation_text(evaluation), lines=True))
    path = Path(out) if out else (directory or Path()) / FOLDER / file_name(evaluation)
    write(path, evaluation)
    print(visible(f"written: {path}"))
    return 0


def greedy(law: Sampling) -> Sampling:
    """The same law at temperature 0, where truncation says nothing."""
    return replace(law, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0)


def taken(recipe: Recipe, laws: Sequence[tuple[int, Sampling]], use: Use) -> list[dict[str, Any]]:
    """The numbers of one task: each law's, from so many answers to every problem that the recipe evaluates on."""
    ready = build(recipe, use)

    async def ask() -> list[list[Rollout]]:
        return [await ready.ask(n, law) for n, law in laws]

    answered = asyncio.run(ask())
    return [number(rollouts, protocol(ready, law, n, use)) for rollouts, (n, law) in zip(answered, laws)]


def run_of(model_or_run: str) -> Path | None:
    """The directory of a run that has its model; None where this is no run."""
    directory = Path(model_or_run)
    if not (directory / "recipe.toml").is_file():
        return None
    if not (directory / "model").is_dir():
        raise BadData(f"{directory} has no model yet", fix=f"finish it with: groupwise resume {directory}")
    return directory


def model_of(name: str, run: Path | None) -> list[tuple[str, str]]:
    """The model that is asked, as a recipe says it. That of a run has the adapter already."""
    return [("model", str(run / "model")), ("lora", "none")] if run else [("model", name)]


def asked_of(source: Path, overrides: Sequence[tuple[str, str]], use: Use | None) -> tuple[Recipe, Sampling]:
    """A recipe, and the law to answer by: `--sampling.*` may say here what a recipe may not, truncation and greed.

    Without `use`, code of one's own that it names is not asked for until it is needed.
    """
    laws = [(path, value) for path, value in overrides if path.startswith("sampling.")]
    recipe, problems = attempt(source, [pair for pair in overrides if pair not in laws], use)
    if problems or recipe is None:
        raise together(problems)
    law = read_over(recipe.sampling, "recipe.sampling", [(p.partition(".")[2], v) for p, v in laws])
    return replace(recipe, sampling=replace(recipe.sampling, max_tokens=law.max_tokens, stop=law.stop)), law


def sample(
    model_or_run: str,
    prompt: str,
    overrides: Sequence[tuple[str, str]] = (),
    use: Sequence[str] = (),
    *,
    n: int = 1,
    answer: str | None = None,
    unsafe_local_exec: bool = False,
    trust_remote_code: bool = False,
) -> int:
    """Answers of a model directory, or of a run's model as its recipe asks it, to one prompt; nobody judges them.

    With an environment they are conversations; `answer` is what it finds as the prompt's gold answer.
    """
    run = run_of(model_or_run)
    loaded = load_use(use, unsafe_local_exec=unsafe_local_exec, trust_remote_code=trust_remote_code)
    said = [*model_of(model_or_run, run), *overrides]
    recipe, law = asked_of(run / "recipe.toml" if run else DEFAULT, said, loaded if use else None)
    device = prepare(recipe.machine)
    home = find_model(recipe.model)
    tokenizer = read_tokenizer(home)
    trusted, dtype = loaded.trust_remote_code, DTYPES[recipe.machine.dtype]
    decoder = read_model(home, dtype=dtype, device=device, seed=recipe.seed, trust_remote_code=trusted)
    engine = NativeEngine(decoder, tokenizer=tokenizer, seed=recipe.seed)
    context = next(iter(templates(recipe, tokenizer).values()))(prompt)
    if not context:
        raise Usage("the prompt is empty in this model's alphabet", evidence=repr(prompt), fix="say something else")
    asked = Prompt("asked", context, prompt, {} if answer is None else {"answer": answer})

    async def ask() -> list[Rollout]:
        await engine.load(0, dict(decoder.state_dict()))
        return await answers(
            [asked], n, engine, unjudged, law, tokenizer, seed=recipe.seed, purpose=Purpose.SAMPLE,
            strategy=recipe.evaluate.strategy, deadline=recipe.machine.deadline,
            environment=environment_of(recipe, loaded), frame=frame_of(recipe, tokenizer),
        )  # fmt: skip

    (rollout,) = asyncio.run(ask())
    for i, one in enumerate(rollout.samples, 1):
        if one.counts and n > 1:
            print(visible(f"-- {i} of {n}"))
        judged = replace(one, verdict=None) if one.verdict is UNJUDGED else one
        print(visible(told_sample(judged), lines=True))
    return 0


UNJUDGED = Verdict(Outcome.unverifiable, cause="nobody judges what is only looked at")


async def unjudged(prompt: Prompt, sample: Sample) -> Verdict:
    """No verdict: there is no gold answer to a prompt that somebody typed."""
    return UNJUDGED
