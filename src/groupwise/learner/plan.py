"""Which samples make a step, and which microbatches of it fit in memory: decided once, from lengths alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from groupwise.data import Batch, Couples

__all__ = ["StepPlan", "make_plan", "measure_plan"]

Microbatch = tuple[int, ...]
"""Numbers of samples, in the batch that was cut."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One optimizer step: its microbatches together hold each of its samples once."""

    microbatches: tuple[Microbatch, ...]

    @property
    def samples(self) -> tuple[int, ...]:
        return tuple(i for microbatch in self.microbatches for i in microbatch)


def make_plan(
    batch: Batch,
    *,
    size: int,
    shuffle: Literal["prompts", "samples"],
    permutation: Callable[[int], Sequence[int]],
    microbatch_tokens: int,
    couples: Couples = "token",
) -> tuple[StepPlan, ...]:
    """An iteration cut into steps of `size` prompts (or as many samples as these have), and each into microbatches.

    A short iteration has fewer steps, the last possibly smaller. `permutation(n)` is the keyed order in which prompts
    or samples are dealt. A microbatch holds at most `microbatch_tokens` tokens, equal contexts counted once; a longer
    sample is a microbatch alone. Where the objective couples a group, no microbatch and no step splits a group.
    """
    rollout = batch.rollouts.index[batch.groups.index].tolist()
    members: dict[int, list[int]] = {}
    for sample, number in enumerate(rollout):
        members.setdefault(number, []).append(sample)
    if shuffle == "prompts":
        units = list(members.values())
        per_step = size
    else:
        if couples == "group":
            raise ValueError("the objective couples whole groups: shuffle prompts, not samples")
        units = [[i] for i in range(len(batch))]
        per_step = max(1, -(-size * len(batch) // max(1, batch.rollouts.count)))  # up: unequal prompts add no step
    order = permutation(len(units))
    dealt = [[i for u in order[k : k + per_step] for i in units[u]] for k in range(0, len(units), per_step)]
    whole = batch.groups.index.tolist() if couples == "group" else list(range(len(batch)))
    steps = [sorted(samples, key=lambda i: (whole[i], i)) for samples in dealt]
    return tuple(StepPlan(_microbatches(batch, samples, whole, microbatch_tokens)) for samples in steps)


def measure_plan(steps: Sequence[StepPlan], batch: Batch, *, microbatch_tokens: int) -> tuple[StepPlan, ...]:
    """The plan of an epoch's measures: the first step as planned, all others in as few microbatches as fit.

    Only the first step meets the weights that were read, and there a ratio must be 1 to the bit.
    """
    later = sorted(i for step in steps[1:] for i in step.samples)
    rest = _microbatches(batch, later, list(range(len(batch))), microbatch_tokens)
    return (*steps[:1], *([StepPlan(rest)] if rest else []))


def _microbatches(batch: Batch, samples: list[int], whole: list[int], microbatch_tokens: int) -> tuple[Microbatch, ...]:
    """The samples of a step dealt into microbatches in order, so that those with equal contexts stay side by side."""
    microbatches: list[list[int]] = []
    contexts: set[tuple[int, ...]] = set()
    held = 0
    start = 0
    while start < len(samples):
        end = start + 1
        while end < len(samples) and whole[samples[end]] == whole[samples[start]]:
            end += 1
        block = samples[start:end]
        fresh = {batch.samples[i].context for i in block}
        own = sum(len(batch.samples[i].tokens) for i in block)
        cost = own + sum(len(c) for c in fresh - contexts)
        if not microbatches or held + cost > microbatch_tokens:
            microbatches.append([])
            contexts, held = set(), 0
            cost = own + sum(len(c) for c in fresh)
        microbatches[-1].extend(block)
        contexts |= fresh
        held += cost
        start = end
    return tuple(tuple(microbatch) for microbatch in microbatches)
