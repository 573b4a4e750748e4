"""Contrasts: surrogates that compare whole answers of a group, such as a DPO loss over its pairs of answers."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

from groupwise.data import Batch, Couples, Logp, Measure, Outcome, Segments, Surrogate
from groupwise.objective.ratios import bounded

__all__ = [
    "BinaryLabels",
    "Discriminative",
    "GroupPreference",
    "LabelContrast",
    "PositiveOnly",
    "Preference",
    "RatioRegression",
    "SquaredRatio",
]


@dataclass(frozen=True, slots=True)
class SquaredRatio(Surrogate):
    """`-(weight * log-ratio of the answer - A)^2`: fits an answer's weighted log-ratio to its advantage A.

    Its optimum is the step of mirror descent with step size `1 / weight`. MDPO, arXiv:2005.09814; Kimi k1.5,
    arXiv:2501.12599.
    """

    couples: ClassVar[Couples] = "sequence"
    one_per_sequence: ClassVar[bool] = True

    weight: float = 1.0

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        s = b.sequences
        return -s.spread((self.weight * s.total(b.logp - b.logp_old) - s.mean(b.advantage)) ** 2)


@dataclass(frozen=True, slots=True)
class Discriminative(Surrogate):
    """A softmax loss that raises the mean log-prob of a group's correct answers above that of its wrong ones. DRPO.

    An answer's weight w is its advantage if that is above 0; answers with an advantage below 0 are the wrong ones. No
    correct answer is pushed down. DRPO, arXiv:2510.04474; with equal weights DisCO, arXiv:2505.12366.
    """

    couples: ClassVar[Couples] = "group"

    tau: float = 10.0

    def __post_init__(self) -> None:
        if self.tau <= 0:
            raise ValueError(f"{self}: needs tau > 0")

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        g, s, live = b.groups, b.sequences.mean(b.logp), b.sequences.lengths > 0
        w = b.sequences.mean(b.advantage)
        correct, wrong = live & (w > 0), live & (w < 0)
        top = g.largest(torch.where(wrong, s.detach() / self.tau, -torch.inf))
        top = top.masked_fill(top == -torch.inf, 0.0)  # a group without a wrong answer
        total = g.total(torch.where(wrong, s / self.tau - g.spread(top), -torch.inf).exp())
        mean = total / g.total(wrong.to(s.dtype)).clamp(min=1)
        rival = self.tau * (top + mean.masked_fill(mean == 0, 1.0).log())
        gain = g.total(torch.where(correct, w * (s - g.spread(rival)), 0.0))
        mixed = (g.total(correct.to(s.dtype)) > 0) & (g.total(wrong.to(s.dtype)) > 0)
        return b.token_groups.spread(torch.where(mixed, gain, 0.0))


@dataclass(frozen=True, slots=True)
class LabelContrast(Surrogate):
    """A classification loss for groups with correct and wrong answers; the outcomes are labels. REAL, arXiv:2602.05630.

    `-log(1 + sum over wrong exp(s / tau)) - log(1 + sum over correct exp(-s / tau))`, s the mean log-ratio of an
    answer. An answer's weight is at most `1 / tau`. `product` is `-log(1 + the product of both sums)`. 0 in a group
    without both outcomes.
    """

    couples: ClassVar[Couples] = "group"

    tau: float = 0.5
    form: Literal["anchored", "product"] = "anchored"

    def __post_init__(self) -> None:
        if self.tau <= 0:
            raise ValueError(f"{self}: needs tau > 0")

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        g, s, correct = b.groups, bounded(b.sequences.mean(b.logp - b.logp_old)) / self.tau, labels(b)
        wrong_sum = g.total(torch.where(correct == -1, s.exp(), 0.0))
        correct_sum = g.total(torch.where(correct == 1, (-s).exp(), 0.0))
        if self.form == "product":
            loss = (wrong_sum * correct_sum).log1p()
        else:
            loss = wrong_sum.log1p() + correct_sum.log1p()
        return -b.token_groups.spread(loss)


@dataclass(frozen=True, slots=True)
class BinaryLabels(Surrogate):
    """Binary classification by an answer's mean log-ratio s: `log sigmoid(s / tau)`, with -s if it is wrong. REAL.

    0 in a group without both outcomes. For the aggregate `mixed_mean`.
    """

    couples: ClassVar[Couples] = "group"

    tau: float = 0.5

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        s = b.sequences.mean(b.logp - b.logp_old) / self.tau
        label = labels(b)
        return b.sequences.spread(torch.where(label != 0, logsigmoid(label * s), 0.0))


@dataclass(frozen=True, slots=True)
class RatioRegression(Surrogate):
    """`-(A - z)^2`: fits z, the z-score of an answer's log-ratio in its group, to the advantage A. Reg-GRPO.

    `eps` is added to the standard deviation. At the policy before the update all log-ratios are 0; the std there is
    floored, so that its gradient is finite.
    """

    couples: ClassVar[Couples] = "group"

    eps: float = 1e-4

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        s, g = b.sequences, b.groups
        gap = s.total(b.logp - b.logp_old)
        away = gap - g.spread(g.mean(gap))  # Segments.away has no gradient among equal values, where a run starts
        std = g.mean(away**2).clamp(min=1e-12).sqrt() + self.eps
        z = away / g.spread(std)
        return -s.spread((s.mean(b.advantage) - z) ** 2)


@dataclass(frozen=True, slots=True)
class Preference(Surrogate):
    """DPO over a group's pairs: mean `log sigmoid(beta (d_better - d_worse))`, d the log-ratio to the reference.

    The better answer of a pair has the larger reward. d is a mean over tokens or a sum. Where the better answer has the
    reward `best`, beta is multiplied by `kappa`. TRPA, arXiv:2504.04524. With `kappa = 1` and `over = "sum"` it is DPO,
    arXiv:2305.18290. For the aggregate `pair_mean`.
    """

    couples: ClassVar[Couples] = "group"

    beta: float = 0.1
    kappa: float = 1.0
    best: float = 1.0
    over: Literal["mean", "sum"] = "sum"
    model: str = "reference"

    @property
    def needs(self) -> frozenset[Measure]:
        return frozenset({Logp(self.model)})

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        gap = b.logp - b[Logp(self.model)]
        d = b.sequences.mean(gap) if self.over == "mean" else b.sequences.total(gap)
        better, worse = pairs(b)
        k = torch.where(b.reward[better] == self.best, self.kappa, 1.0).to(d.dtype)
        gain = logsigmoid(k * self.beta * (d[better] - d[worse]))
        return b.token_groups.spread(Segments(b.groups.index[better], b.groups.count).mean(gain).to(b.logp.dtype))


@dataclass(frozen=True, slots=True)
class GroupPreference(Surrogate):
    """DPO over a whole group: `log sigmoid(beta sum_i A_i d_i)`, d the log-ratio of an answer to the reference.

    Every answer takes part with its advantage A. Two answers with the advantages 1 and -1 give DPO, arXiv:2305.18290.
    Where the advantages of a group sum to 0, a shift of all d changes nothing. d is a sum over tokens. GDPO-SR,
    arXiv:2603.16769. For the aggregate `group_mean`.
    """

    couples: ClassVar[Couples] = "group"

    beta: float = 5000.0
    model: str = "reference"

    def __post_init__(self) -> None:
        if not self.beta > 0:
            raise ValueError(f"{self}: needs beta > 0")

    @property
    def needs(self) -> frozenset[Measure]:
        return frozenset({Logp(self.model)})

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        d = b.sequences.total(b.logp - b[Logp(self.model)])
        z = self.beta * b.groups.total(b.sequences.mean(b.advantage) * d)
        return b.token_groups.spread(logsigmoid(z))


@dataclass(frozen=True, slots=True)
class PositiveOnly(Surrogate):
    """Weighted mean log-probs of a group's answers; the weights are a softmax of their log-prob gains since sampling.

    POPO, arXiv:2605.06650: for groups of correct answers alone. The weights are our reading. The paper's penalty on
    hidden states is not here.
    """

    couples: ClassVar[Couples] = "group"

    temperature: float = 1.0

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        g, s = b.groups, b.sequences.mean(b.logp)
        drift = bounded((s.detach() - b.sequences.mean(b.logp_old)) / self.temperature)
        w = torch.where(b.sequences.lengths > 0, drift.exp(), 0.0)
        total = g.spread(g.total(w))
        return b.token_groups.spread(g.total(w / total.masked_fill(total == 0, 1.0) * s))


def pairs(b: Batch) -> tuple[Int[Tensor, " p"], Int[Tensor, " p"]]:
    """All pairs (better, worse) of a group's answers with different rewards, among those with trained tokens."""
    r, g, live = b.reward, b.groups.index, b.sequences.lengths > 0
    both = (g[:, None] == g) & (r[:, None] > r) & live[:, None] & live
    better, worse = both.nonzero(as_tuple=True)
    return better, worse


def labels(b: Batch) -> Int[Tensor, " s"]:
    """1 for a correct and -1 for a wrong answer; 0 without trained tokens, or if the group does not have both."""
    live, correct = b.sequences.lengths > 0, b.outcome == Outcome.correct
    both = (b.groups.total((live & correct).double()) > 0) & (b.groups.total((live & ~correct).double()) > 0)
    return torch.where(b.groups.spread(both) & live, torch.where(correct, 1, -1), 0)
