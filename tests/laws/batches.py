"""Ragged batches: groups of unequal size, answers of unequal length, some without a trained token."""

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from groupwise.data import Batch, Entropy, Finish, Logp, Rollout, pack, rollout_of


def rollouts(
    layout: Sequence[Sequence[int]], *, seed: int = 0, limit: int = 16, subscores: Sequence[str] = ()
) -> list[Rollout]:
    """One rollout per group: `layout[g][i]` is the length of answer i of group g. Scores, finishes and parts vary."""
    rng, other = np.random.default_rng(seed), np.random.default_rng(seed + 2)
    result = []
    for lengths in layout:
        scores = rng.choice([0.0, 0.25, 1.0], size=len(lengths)).tolist()
        columns = {name: other.random(len(lengths)).tolist() for name in subscores}
        rollout = rollout_of(scores, lengths=list(lengths), limit=limit, subscores=columns)
        samples = tuple(
            replace(s, finish=Finish.length if rng.random() < 0.25 else Finish.stop, logp=tuple(-rng.random(n)))
            for s, n in zip(rollout.samples, lengths)
        )
        result.append(Rollout(rollout.draw, samples))
    return result


def step_of(
    layout: Sequence[Sequence[int]],
    *,
    seed: int = 0,
    limit: int = 16,
    per_token: bool = False,
    spread: float = 0.3,
    subscores: Sequence[str] = (),
) -> Batch:
    """A whole step with every column that an objective reads, in float64. `logp` is a leaf with a gradient.

    The run's budget is `limit`; long prompts leave every second sample just the room for its tokens. `spread` is the
    standard deviation of the log-ratios; `per_token` lets the advantage vary within a sequence.
    """
    rng = np.random.default_rng(seed + 1)
    batch = pack(rollouts(layout, seed=seed, limit=limit, subscores=subscores))
    n, s = batch.tokens, len(batch)

    def normal(size: int, scale: float = 1.0) -> Tensor:
        return torch.from_numpy(rng.normal(0, scale, size))

    logp = -normal(n).abs() - 0.01
    room = torch.where(torch.arange(s) % 2 == 0, batch.length_limit, batch.length)
    advantage = normal(n) if per_token else batch.sequences.spread(normal(s))
    return batch.having(
        logp=logp.clone().requires_grad_(),
        logp_old=logp + normal(n, spread),
        logp_engine=logp + normal(n, spread),
        advantage=advantage,
        length_limit=room,
        reward=batch.verdict_score + normal(s, 0.5),
        measures={Logp("reference"): logp + normal(n, 0.5), Entropy(): normal(n).abs()},
    )


layouts = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=4)


@st.composite
def steps(draw: st.DrawFn, *, per_token: bool = False) -> Batch:
    """A whole step of any shape, including a step without tokens."""
    layout, seed = draw(layouts), draw(st.integers(0, 2**20))
    state = random.getstate()  # the type checker draws from `random`, which Hypothesis would count as this test's
    step = step_of(layout, seed=seed, per_token=per_token)
    random.setstate(state)
    return step


@st.composite
def cuts(draw: st.DrawFn, samples: int, *, ranks: int = 4, microbatches: int = 3) -> list[list[list[int]]]:
    """Samples distributed over ranks and microbatches, in any order; ranks and microbatches may be empty."""
    order = draw(st.permutations(range(samples)))
    bins = draw(st.lists(st.integers(0, ranks * microbatches - 1), min_size=samples, max_size=samples))
    dealt: list[list[int]] = [[] for _ in range(ranks * microbatches)]
    for sample, i in zip(order, bins):
        dealt[i].append(sample)
    return [dealt[rank * microbatches : (rank + 1) * microbatches] for rank in range(ranks)]
