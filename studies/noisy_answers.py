"""Answers whose log-ratios are noisy, and whose exact gradient is known. There is no model.

An answer has L tokens, a tenth of them *critical*: each is right with the probability p, and the answer is right if all
are, which half of the answers are. The others, *fillers*, are one of four equally likely words and have no effect. The
parameters are a logit for all critical tokens, and one for each word of eight kinds of fillers. So the gradient of the
share of right answers is known: it points along the first parameter.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.floating]
GROUPS, GROUP = 16, 16
"""A batch: the number of groups, and the answers of each."""
WORDS, KINDS = 4, 8
CHURN, CALM = 2.0, 0.02
"""The standard deviation of the logits of a token whose experts changed, and of the others."""


@dataclass(frozen=True, slots=True)
class Noise:
    """The reason that the log-ratio of a token differs from 0.

    *recorded*: the recorded log-prob is off by a normal number of standard deviation `size`. *engine*: the engine
    samples from other logits, each off by such a number. *churn*: as the engine, with a standard deviation of 2 in a
    share `size` of the tokens, whose experts changed, and of 0.02 in the others.
    """

    kind: Literal["none", "recorded", "engine", "churn"]
    size: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.kind} {self.size:g}"

    def of_logits(self, rng: np.random.Generator, shape: tuple[int, int]) -> Numbers | float:
        """The standard deviation of the logits of each token."""
        if self.kind == "churn":
            return np.where(rng.random(shape, np.float32) < self.size, np.float32(CHURN), np.float32(CALM))
        return self.size if self.kind == "engine" else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """A batch: the log-ratio of each token, critical ones first; which of these are right; the fillers' words."""

    log_ratio: Numbers
    right: NDArray[np.bool_]
    words: NDArray[np.integer]
    chance: float
    """The probability p of a right critical token."""


def draw(length: int, noise: Noise, rng: np.random.Generator) -> Answers:
    """A batch of answers. The engine samples them, and the learner's log-prob minus the old one is the log-ratio."""
    critical, n = max(1, round(length / 10)), GROUPS * GROUP
    chance = 0.5 ** (1 / critical)
    goal, spread = math.log(chance / (1 - chance)), noise.of_logits(rng, (n, length))
    of_critical, of_fillers = (spread, spread) if isinstance(spread, float) else np.split(spread, [critical], 1)
    logit = goal + of_critical * math.sqrt(2) * rng.standard_normal((n, critical), np.float32)
    right = rng.random((n, critical), np.float32) < 1 / (1 + np.exp(-logit))
    ratio = np.zeros(right.shape)
    if not is_exact(spread):
        old = -np.logaddexp(0, np.where(right, -logit, logit))
        ratio = np.where(right, math.log(chance), math.log(1 - chance)) - old
    words, of_words = fillers((n, length - critical), of_fillers, rng)
    log_ratio = np.concatenate([ratio, of_words], 1, dtype=np.float32)
    if noise.kind == "recorded":
        log_ratio = log_ratio + np.float32(noise.size) * rng.standard_normal(log_ratio.shape, np.float32)
    return Answers(log_ratio, right, words, chance)


def is_exact(spread: Numbers | float) -> bool:
    """Whether the engine samples from the learner's probabilities."""
    return isinstance(spread, float) and spread == 0


def fillers(shape: tuple[int, int], spread: Numbers | float, rng: np.random.Generator) -> tuple[NDArray, Numbers]:
    """The words of the fillers, and their log-ratios: the learner finds all words equally likely."""
    if is_exact(spread):
        return rng.integers(0, WORDS, shape, np.int8), np.zeros(shape, np.float32)
    width = spread if isinstance(spread, float) else spread[..., None]
    logits = width * rng.standard_normal((*shape, WORDS), np.float32)
    total = np.cumsum(np.exp(logits), -1)
    words = (total[..., :-1] < rng.random(shape, np.float32)[..., None] * total[..., -1:]).sum(-1)
    chosen = np.take_along_axis(logits, words[..., None], -1)[..., 0]
    return words, -math.log(WORDS) - chosen + np.log(total[..., -1])


def advantages(right: NDArray[np.bool_]) -> Numbers:
    """GRPO's: `(reward - mean) / (std + 1e-6)` within each group, by answer."""
    reward = right.all(1).reshape(GROUPS, GROUP).astype(float)
    std = reward.std(1, ddof=1, keepdims=True)
    return ((reward - reward.mean(1, keepdims=True)) / (std + 1e-6)).reshape(-1)


def scores(answers: Answers, weight: Numbers | None = None) -> Numbers:
    """The derivative of the sum of `weight` times the log-prob, by answer and parameter."""
    critical = answers.right - np.float32(answers.chance)
    kinds = np.eye(KINDS, dtype=np.float32)[np.arange(answers.words.shape[1]) % KINDS]
    of_fillers = np.float32(1)
    if weight is not None:
        critical, of_fillers = critical * weight[:, : critical.shape[1]], weight[:, critical.shape[1] :]
    by_word = np.stack([(of_fillers * (answers.words == word)) @ kinds for word in range(WORDS)], -1)
    by_word = by_word - by_word.mean(-1, keepdims=True)
    return np.concatenate([critical.sum(1, keepdims=True), by_word.reshape(len(by_word), -1)], 1, dtype=float)
