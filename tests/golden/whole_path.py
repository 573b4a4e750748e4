"""The whole path of a method, from scores to loss and gradient, against a transcription of its paper.

A transcription is NumPy in Python loops and shares no code with the library. Its derivatives are complex steps:
`imag(J(l + ih)) / h` is exact to rounding if comparisons use real parts and `sg` drops the imaginary part.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from groupwise.data import Batch, Divergence, Entropy, Finish, Logp, Rollout, Sample, Value, pack, rollout_of
from groupwise.methods import Method
from groupwise.training.loop import compute_advantages

BUDGET = 8
PARTS = ("chain_true", "exit", "returned", "replay", "diverse")
"""Parts of the verdicts, all with the number `Answer.part`."""


@dataclass
class Answer:
    """One answer as in the papers; `l` may be complex.

    `h` are entropies, `mu` the engine's log-probs and `v` a critic's values. `q` are a teacher's log-probs, `hq` its
    entropies and `d` its divergences from the policy; wrong answers have them under a view. `said` is the answer that
    the verifier read, and `part` a part of its verdict. Each token is two characters of text, and every third token
    ends a sentence. Each sentence is a step with a reward.
    """

    score: float
    cut: bool
    l: np.ndarray
    old: np.ndarray
    ref: np.ndarray
    h: np.ndarray
    mu: np.ndarray
    tokens: list[int]
    said: str
    part: float
    v: np.ndarray
    q: np.ndarray
    d: np.ndarray
    hq: np.ndarray

    @property
    def text(self) -> str:
        return "".join("a." if t % 3 == 2 else "ab" for t in range(len(self.l)))

    @property
    def sentences(self) -> list[range]:
        """The positions of each sentence."""
        return [range(t, min(t + 3, len(self.l))) for t in range(0, len(self.l), 3)]

    @property
    def steps(self) -> dict[int, float]:
        """The reward of each sentence by the position of its last token."""
        return {s[-1]: float(self.tokens[s[-1]] - 3) for s in self.sentences}

    @property
    def r(self) -> np.ndarray:
        return np.exp(self.l - self.old)


Groups = list[list[Answer]]


def sg(x):
    return np.real(x)


def smaller(a, b):
    return np.where(np.real(a) <= np.real(b), a, b)


def clip(x, low, high):
    return np.where(np.real(x) < low, low, np.where(np.real(x) > high, high, x))


def z(rewards: np.ndarray) -> np.ndarray:
    return (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)


def scores(group: list[Answer]) -> np.ndarray:
    return np.array([answer.score for answer in group])


def answers_of(seed: int, spread: float) -> Groups:
    """Four groups of four: mixed, almost all correct, all correct, almost all wrong; lengths up to the budget."""
    rng, more = np.random.default_rng(seed), np.random.default_rng(seed + 1000)
    groups = []
    for right in ([1, 0, 1, 0], [1, 1, 1, 0], [1, 1, 1, 1], [0, 0, 1, 0]):
        group = []
        for score in right:
            n = int(rng.integers(1, BUDGET + 1))
            old = -np.abs(rng.normal(0, 1, n)) - 0.01
            l, ref = old + rng.normal(0, spread, n), old + rng.normal(0, 0.4, n)
            cut = bool(rng.random() < 0.3)
            h, mu = more.uniform(0, 2, n), old + more.normal(0, 0.5, n)
            tokens, said, part = more.integers(3, 5, n).tolist(), str(more.integers(3)), float(more.random())
            v, q, d, hq = more.random(n), old + more.normal(0, 0.5, n), more.random(n), more.random(n)
            group.append(Answer(float(score), cut, l, old, ref, h, mu, tokens, said, part, v, q, d, hq))
        groups.append(group)
    return groups


def batch_of(groups: Groups) -> Batch:
    """The same answers as the library packs them; `logp` is a leaf."""
    rollouts = []
    for group in groups:
        rollout = rollout_of([o.score for o in group], lengths=[len(o.l) for o in group], limit=BUDGET)
        samples = tuple(_written(s, o) for s, o in zip(rollout.samples, group))
        rollouts.append(Rollout(rollout.draw, samples))

    def column(name: str) -> torch.Tensor:
        return torch.from_numpy(np.concatenate([np.real(getattr(o, name)) for group in groups for o in group]))

    batch = pack(rollouts)
    return batch.having(
        logp=column("l").requires_grad_(),
        logp_old=column("old"),
        logp_engine=column("mu"),
        measures={
            Logp("reference"): column("ref"),
            Entropy(): column("h"),
            Value("critic"): column("v"),
            Logp("teacher"): column("q"),
            Divergence("teacher", 0.5): column("d"),
            Divergence("teacher", 0.5, "sibling"): column("d"),
            Entropy("teacher", "sibling"): column("hq"),
        },
    )


def _written(sample: Sample, answer: Answer) -> Sample:
    verdict = replace(sample.verdict, answer=answer.said, parts=dict.fromkeys(PARTS, answer.part))
    return replace(
        sample,
        finish=Finish.length if answer.cut else Finish.stop,
        tokens=tuple(answer.tokens),
        text=answer.text,
        ends=tuple(range(2, 2 * len(answer.l) + 1, 2)),
        verdict=verdict,
        marks={"step": tuple(answer.steps.get(t, math.nan) for t in range(len(answer.l)))},
        views={} if answer.score == 1 else {"sibling": (1, 2, 3)},
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
        memory = {name: part.init() for name, part in method.memory}
        step = compute_advantages(replace(batch_of(groups), memory=memory), method)
        loss = method.objective(method.objective.prepare(step))
        loss.backward()
        slopes = complex_step(paper, groups)
        assert float(loss.detach()) == pytest.approx(-np.real(paper(groups)), rel=1e-12, abs=1e-12)
        np.testing.assert_allclose(step.logp.grad.numpy(), -slopes, rtol=1e-10, atol=1e-12)
        assert np.abs(slopes).max() > 0.001, "the gradient is not 0"
