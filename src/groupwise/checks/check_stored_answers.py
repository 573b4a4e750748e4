"""Checks of stored answers: each can be encoded, and fits the model with its prompt."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from groupwise.config.recipe import Recipe
from groupwise.core import BadData, GroupwiseError, first_lines
from groupwise.data import Draw, Prompt, all_problems
from groupwise.engines.no_engine import NoEngine
from groupwise.rollout import RolloutSetting, SinglePromptSampler
from groupwise.training.build_environment import frame_of
from groupwise.training.build_run import RunInputs
from groupwise.training.build_tasks import generates_nothing, prompt_template
from groupwise.training.warm_start import warm_start_phase


def stored_lengths(recipe: Recipe, inputs: RunInputs, prompts: Sequence[Prompt]) -> list[tuple[Prompt, int]]:
    """The prompts, each with the most tokens of one of its stored answers. `BadData` for answers without tokens."""
    lengths, faults = asyncio.run(written_lengths(recipe, inputs, prompts))
    if faults:
        what = f"{len(faults)} of {len(prompts):,} rows have an answer that the tokenizer cannot read"
        raise BadData(what, evidence=first_lines(faults), fix="correct or remove these rows")
    return lengths


async def written_lengths(
    recipe: Recipe, inputs: RunInputs, prompts: Sequence[Prompt]
) -> tuple[list[tuple[Prompt, int]], list[str]]:
    """The lengths of all stored answers, and a line for each row with an answer that cannot be encoded."""
    method, lengths, faults = recipe.method, list[tuple[Prompt, int]](), list[str]()
    setting = RolloutSetting(
        engine=NoEngine(), verifier=inputs.verifier, tokenizer=inputs.tokenizer, sampling=recipe.sampling,
        seed=recipe.seed, observation_frame_ids=frame_of(recipe, inputs.templates),
        encode_prompt=prompt_template(inputs.templates),
    )  # fmt: skip
    for i, prompt in enumerate(prompts):
        draw = Draw(i, prompt, method.group_size)
        try:
            rollout = await method.strategy(draw, SinglePromptSampler(draw=draw, rollout_setting=setting))
            lengths.append((prompt, max(len(sample.tokens) for sample in rollout.samples)))
        except GroupwiseError as error:
            faults.append(f"{prompt.id}: {error.what}")
    return lengths, faults


def with_stored_budget(recipe: Recipe, inputs: RunInputs, positions: int) -> Recipe:
    """The recipe for further checks: if it generates nothing, the longest stored answer is its `sampling.max_tokens`.

    `BadData` with the rows that are longer than the model's positions.
    """
    lengths = stored_lengths(recipe, inputs, all_problems(inputs.task))
    long = [(prompt, n) for prompt, n in lengths if len(prompt.token_ids) + n > positions]
    if long:
        lines = [f"{p.id}: {len(p.token_ids):,} + {n:,} tokens, {p.text.strip()[:40]!r}" for p, n in long]
        count = "1 row is" if len(long) == 1 else f"{len(long)} rows are"
        what = f"{count} longer than the model's {positions:,} positions"
        raise BadData(what, evidence=first_lines(lines), fix="shorten or remove these rows: nothing is cut")
    longest = max((n for _, n in lengths), default=1)
    return (
        replace(recipe, sampling=replace(recipe.sampling, max_tokens=longest)) if generates_nothing(recipe) else recipe
    )


def longest_demonstration(recipe: Recipe, inputs: RunInputs) -> int:
    """The most tokens of a demonstration of the warm start, with its prompt. `inputs.task` has them."""
    phase = warm_start_phase(recipe)
    assert phase is not None, "there are demonstrations"
    inputs = replace(inputs, templates={phase.template: inputs.templates[phase.template]})
    return max(len(p.token_ids) + n for p, n in stored_lengths(phase, inputs, all_problems(inputs.task)))
