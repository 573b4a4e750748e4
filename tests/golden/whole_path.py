"""The whole path of a method, from scores to loss and gradient, against a transcription of its paper.

A transcription is NumPy in Python loops and shares no code with the library. Its derivatives are complex steps:
`imag(J(l + ih)) / h` is exact to rounding if comparisons use real parts and `sg` drops the imaginary part.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from groupwise.data import Batch, Finish, Logp, Rollout, pack, rollout_of
from groupwise.methods import Method
from groupwise.training.loop import compute_advantages

BUDGET = 8


@dataclass
class Answer:
    """One answer as in the papers. `l` may be complex; `cut` says that it ended at the budget."""

    score: float
    cut: bool
    l: np.ndarray
    old: np.ndarray
    ref: np.ndarray

    @property
    def r(self) -> np.ndarray:
        return np.exp(self.l - self.old)


Groups = list[list[Answer]]


def sg(x):
    """Stop-gradient."""
    return np.real(x)


def smaller(a, b):
    return np.where(np.real(a) <= np.real(b), a, b)


def clip(x, low, high):
    return np.where(np.real(x) < low, low, np.where(np.real(x) > high, high, x))


def z(rewards: np.ndarray) -> np.ndarray:
    """The z-scores of a group."""
    return (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)


def scores(group: list[Answer]) -> np.ndarray:
    return np.array([answer.score for answer in group])


def answers_of(seed: int, spread: float) -> Groups:
    """Four groups of four: mixed, almost all correct, all correct, almost all wrong; lengths up to the budget."""
    rng = np.random.default_rng(seed)
    groups = []
    for right in ([1, 0, 1, 0], [1, 1, 1, 0], [1, 1, 1, 1], [0, 0, 1, 0]):
        group = []
        for score in right:
            n = int(rng.integers(1, BUDGET + 1))
            old = -np.abs(rng.normal(0, 1, n)) - 0.01
            l, ref = old + rng.normal(0, spread, n), old + rng.normal(0, 0.4, n)
            group.append(Answer(float(score), bool(rng.random() < 0.3), l, old, ref))
        groups.append(group)
    return groups


def batch_of(groups: Groups) -> Batch:
    """The same answers as the library packs them; `logp` is a leaf."""
    rollouts = []
    for group in groups:
        rollout = rollout_of([o.score for o in group], lengths=[len(o.l) for o in group], limit=BUDGET)
        samples = tuple(
            replace(s, finish=Finish.length if o.cut else Finish.stop) for s, o in zip(rollout.samples, group)
        )
        rollouts.append(Rollout(rollout.draw, samples))

    def column(name: str) -> torch.Tensor:
        return torch.from_numpy(np.concatenate([np.real(getattr(o, name)) for group in groups for o in group]))

    batch = pack(rollouts)
    return batch.having(
        logp=column("l").requires_grad_(), logp_old=column("old"), measures={Logp("reference"): column("ref")}
    )


def complex_step(paper: Callable[[Groups], complex], groups: Groups) -> np.ndarray:
    slopes = []
    for group in groups:
        for o in group:
            original = o.l
            for t in range(len(original)):
                o.l = original.astype(complex)
                o.l[t] += 1e-30j
                slopes.append(np.imag(paper(groups)) / 1e-30)
            o.l = original
    return np.array(slopes)


def check_whole_path(paper: Callable[[Groups], complex], method: Method, spread: float) -> None:
    """Loss and gradient of a method equal those of its transcription, which has the sign of an objective to maximise.

    `spread` is that of the log-ratios: the bounds of the method should be active on some tokens only.
    """
    for seed in range(4):
        groups = answers_of(seed, spread)
        step = compute_advantages(batch_of(groups), method)
        loss = method.objective(method.objective.prepare(step))
        loss.backward()
        slopes = complex_step(paper, groups)
        assert float(loss.detach()) == pytest.approx(-np.real(paper(groups)), rel=1e-12, abs=1e-12)
        np.testing.assert_allclose(step.logp.grad.numpy(), -slopes, rtol=1e-10, atol=1e-12)
        assert np.abs(slopes).max() > 0.001, "the gradient is not 0"
