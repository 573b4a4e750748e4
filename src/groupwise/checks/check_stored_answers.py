"""Checks of stored answers: each can be encoded, and fits the model with its prompt."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from groupwise.config.recipe import Recipe
from groupwise.config.task_sources import generates_nothing
from groupwise.core import BadData, GroupwiseError, first_items, first_lines
from groupwise.data import Draw, Prompt, Task, all_problems
from groupwise.engines.no_engine import NoEngine
from groupwise.rollout import RolloutSetting, SinglePromptSampler, Stored
from groupwise.tasks.row_columns import COMPLETION
from groupwise.tasks.stored_rows import ASSISTANT, LABEL, turns_of
from groupwise.training.build_environment import frame_of
from groupwise.training.build_run import RunInputs
from groupwise.training.build_tasks import prompt_template
from groupwise.training.warm_start import warm_start_phase


def stored_lengths(recipe: Recipe, inputs: RunInputs, prompts: Sequence[Prompt]) -> list[tuple[Prompt, int]]:
    """The prompts, each with the most tokens of one of its stored answers. `BadData` for answers without tokens."""
    lengths, faults = asyncio.run(written_lengths(recipe, inputs, prompts))
    if faults:
        what = f"{len(faults)} of {len(prompts):,} rows have a stored answer that cannot be read"
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
        if not isinstance(label := prompt.row.get(LABEL, True), bool):  # of a task in Python: files were read so
            faults.append(f"{prompt.id}: the column {LABEL!r} is {label!r:.40}: it must be true or false")
    return lengths, faults


def label_notes(recipe: Recipe, task: Task) -> list[str]:
    """Notes for a method of labels whose answers have one label only, or whose equal answers have both. Else none."""
    strategy = recipe.method.strategy
    if not (isinstance(strategy, Stored) and strategy.splits_pairs):
        return []
    problems, labels = all_problems(task), defaultdict[Any, set[bool]](set)
    for prompt in problems:
        answer = prompt.content_hash, prompt.token_ids, repr(prompt.row.get(COMPLETION))
        labels[answer].add(bool(prompt.row.get(LABEL, True)))
    if len(found := set[bool]().union(*labels.values())) == 1:
        kind = "wanted, and none is unwanted" if found.pop() else "unwanted, and none is wanted"
        return [f"  note: all {len(problems):,} answers are {kind}: check the column {LABEL!r}"]
    if not (count := sum(len(kinds) == 2 for kinds in labels.values())):
        return []
    both = "1 answer is" if count == 1 else f"{count:,} answers are"
    return [f"  note: {both} both wanted and unwanted for the same prompt, which teaches no preference"]


def equal_pair_notes(recipe: Recipe, task: Task) -> list[str]:
    """A note with the rows of pairs whose two answers are equal. Else no note."""
    strategy = recipe.method.strategy
    if not isinstance(strategy, Stored) or len(strategy.columns) != 2:
        return []
    first, second = strategy.columns
    equal = [prompt.id for prompt in all_problems(task) if prompt.row.get(first, 0) == prompt.row.get(second, 1)]
    if not equal:
        return []
    pairs = "1 pair has" if len(equal) == 1 else f"{len(equal)} pairs have"
    return [f"  note: {pairs} equal answers, which teach no preference and count in all means: {first_items(equal)}"]


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
    """The most tokens of a demonstration of the warm start, with its prompt. `inputs.task` has them.

    A demonstration is written as a sample only if it may be the longest: writing takes several times as long as
    encoding.
    """
    phase = warm_start_phase(recipe)
    assert phase is not None, "there are demonstrations"
    inputs = replace(inputs, templates={phase.template: inputs.templates[phase.template]})
    prompts, longest = all_problems(inputs.task), 0
    for most, prompt in sorted(zip(most_tokens(phase, inputs, prompts), prompts, strict=True), key=lambda x: -x[0]):
        if most <= longest:
            break
        ((_, n),) = stored_lengths(phase, inputs, [prompt])
        longest = max(longest, len(prompt.token_ids) + n)
    return longest


def most_tokens(phase: Recipe, inputs: RunInputs, prompts: Sequence[Prompt]) -> list[int]:
    """Upper bounds on the tokens of demonstrations with their prompts. `BadData` for answers without tokens.

    An answer has the tokens of its texts, an end token after each of the assistant's, and at most the whole frame
    around each other text.
    """
    frame, bounds = sum(map(len, frame_of(phase, inputs.templates))), list[int]()
    try:
        for prompt in prompts:
            turns = turns_of(prompt.row[COMPLETION])
            texts = [len(inputs.tokenizer.encode(text)) for _, text in turns]
            around = [1 if role == ASSISTANT else frame for role, _ in turns]
            bounds.append(len(prompt.token_ids) + sum(texts) + sum(around))
    except BadData:
        stored_lengths(phase, inputs, prompts)  # names the rows
        raise
    return bounds
