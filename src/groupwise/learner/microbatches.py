"""Plan an iteration: its optimizer steps and their microbatches, by prompts, groups and lengths of the samples."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Literal

from groupwise.data import Batch, ContextKey, UnsplitUnit

__all__ = ["StepPlan", "make_plan", "measure_plan"]

Microbatch = tuple[int, ...]
"""The samples of one forward pass, as indices into the batch."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The plan of one optimizer step: its samples, divided into microbatches. A microbatch may be empty."""

    microbatches: tuple[Microbatch, ...]

    @property
    def samples(self) -> tuple[int, ...]:
        return tuple(i for microbatch in self.microbatches for i in microbatch)


def make_plan(
    batch: Batch,
    *,
    size: int | Fraction,
    shuffle: Literal["prompts", "samples"],
    permutation: Callable[[int], Sequence[int]],
    microbatch_tokens: int,
    unsplit_unit: UnsplitUnit = "token",
    lanes: int = 1,
) -> tuple[StepPlan, ...]:
    """Split an iteration's samples into steps of `size` prompts (or as many samples on average) and into microbatches.

    The size is a whole number unless samples are shuffled. A short iteration has fewer steps, the last possibly
    smaller. `permutation(n)` is the keyed order in which prompts or samples are dealt. A microbatch holds at most
    `microbatch_tokens` tokens, equal contexts counted once; a longer sample is a microbatch alone. If the objective
    couples a group, no microbatch and no step splits a group; if it couples a step, the step is one microbatch. The
    number of microbatches of a step is a multiple of `lanes`; the last ones are empty if the step has too few samples.
    """
    rollouts = batch.rollouts.index[batch.groups.index].tolist()
    members: dict[int, list[int]] = {}
    for sample, rollout in enumerate(rollouts):
        members.setdefault(rollout, []).append(sample)
    if shuffle == "prompts":
        units = list(members.values())
        per_step = int(size)
    else:
        if unsplit_unit == "group":
            raise ValueError("the loss compares the answers of a group: set shuffle to prompts, not samples")
        units = [[i] for i in range(len(batch))]
        # Rounded up, so that rollouts of unequal size add no step.
        per_step = max(1, ceil(Fraction(size) * len(batch) / max(1, batch.rollouts.count)))
    order = permutation(len(units))
    dealt = [[i for u in order[k : k + per_step] for i in units[u]] for k in range(0, len(units), per_step)]
    coupled = {"group": batch.groups.index.tolist(), "step": [0] * len(batch)}
    whole = coupled.get(unsplit_unit, list(range(len(batch))))
    steps = [sorted(samples, key=lambda i: (whole[i], i)) for samples in dealt]
    return tuple(StepPlan(_in_lanes(batch, samples, whole, microbatch_tokens, lanes)) for samples in steps)


def measure_plan(
    steps: Sequence[StepPlan], batch: Batch, *, microbatch_tokens: int, lanes: int = 1
) -> tuple[StepPlan, ...]:
    """The microbatches for old log-probs: the first step's, then new ones for the other samples.

    Only the first step runs at the weights that computed the measures. Its ratio is exactly 1, which needs the same
    microbatches.
    """
    samples = sorted(i for step in steps[1:] for i in step.samples)
    if not samples:
        return tuple(steps[:1])
    return (*steps[:1], StepPlan(_in_lanes(batch, samples, list(range(len(batch))), microbatch_tokens, lanes)))


def _in_lanes(
    batch: Batch, samples: list[int], whole: list[int], microbatch_tokens: int, lanes: int
) -> tuple[Microbatch, ...]:
    """Split a step into a multiple of `lanes` microbatches; with several lanes, they are about equally large."""
    microbatches = _microbatches(batch, samples, whole, microbatch_tokens)
    if lanes == 1:
        return microbatches
    count = -(-len(microbatches) // lanes) * lanes
    budgets = range(1, microbatch_tokens + 1)
    # A larger budget never needs more microbatches, so the smallest one with at most `count` is found by bisection.
    least = bisect_left(budgets, -count, key=lambda budget: -len(_microbatches(batch, samples, whole, budget)))
    even = _microbatches(batch, samples, whole, budgets[min(least, len(budgets) - 1)])
    return (*even, *((),) * (count - len(even)))


def _microbatches(batch: Batch, samples: list[int], whole: list[int], microbatch_tokens: int) -> tuple[Microbatch, ...]:
    """Split samples into microbatches, in order. Neighbours with the same entry in `whole` stay together."""
    microbatches: list[list[int]] = []
    contexts: set[ContextKey] = set()
    tokens = 0
    start = 0
    while start < len(samples):
        end = start + 1
        while end < len(samples) and whole[samples[end]] == whole[samples[start]]:
            end += 1
        block = samples[start:end]
        block_contexts = {batch.samples[i].context_key for i in block}
        answers = sum(len(batch.samples[i].tokens) for i in block)
        cost = answers + sum(len(ids) for _, ids in block_contexts - contexts)
        if not microbatches or tokens + cost > microbatch_tokens:
            microbatches.append([])
            contexts, tokens = set(), 0
            cost = answers + sum(len(ids) for _, ids in block_contexts)
        microbatches[-1].extend(block)
        contexts |= block_contexts
        tokens += cost
        start = end
    return tuple(tuple(microbatch) for microbatch in microbatches)
