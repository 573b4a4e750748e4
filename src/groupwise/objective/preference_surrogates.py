"""Contrasts: surrogates that compare whole answers of a group, such as a DPO loss over its pairs of answers."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

from groupwise.data import Batch, Logp, NeededMeasure, Outcome, Segments, Surrogate, UnsplitUnit

__all__ = [
    "ImplicitRewardSurrogate",
    "PairwisePreference",
    "describe_preferences",
    "log_ratio_to",
    "over_pairs",
    "pairs",
]


@runtime_checkable
class ImplicitRewardSurrogate(Protocol):
    """A surrogate that compares answers by a number of the policy for each, and so defines a reward."""

    def implicit_reward(self, b: Batch) -> Float[Tensor, " s"]:
        """The reward of each sample that the policy implies."""
        ...


@dataclass(frozen=True, slots=True)
class PairwisePreference(Surrogate):
    """DPO over a group's pairs: mean `log sigmoid(beta (d_better - d_worse))`, d the log-ratio to the reference.

    The better answer of a pair has the larger reward. d is a mean over tokens or a sum. Where the better answer has the
    reward `best_reward`, beta is multiplied by `best_beta_factor`. TRPA, arXiv:2504.04524. With `best_beta_factor = 1`
    and `token_reduction = "sum"` it is DPO, arXiv:2305.18290. For the aggregate `pair_mean`.
    """

    unsplit_unit: ClassVar[UnsplitUnit] = "group"

    beta: float = 0.1
    best_beta_factor: float = 1.0
    best_reward: float = 1.0
    token_reduction: Literal["mean", "sum"] = "sum"
    reference_model: str = "reference"

    @property
    def needs(self) -> frozenset[NeededMeasure]:
        return frozenset({Logp(self.reference_model)})

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        d = log_ratio_to(b, self.reference_model, self.token_reduction)
        better, worse = pairs(b)
        k = torch.where(b.reward[better] == self.best_reward, self.best_beta_factor, 1.0).to(d.dtype)
        gain = logsigmoid(k * self.beta * (d[better] - d[worse]))
        return over_pairs(b, better, gain)

    def implicit_reward(self, b: Batch) -> Float[Tensor, " s"]:
        return self.beta * log_ratio_to(b, self.reference_model, self.token_reduction)


def log_ratio_to(b: Batch, model: str, token_reduction: Literal["mean", "sum"]) -> Float[Tensor, " s"]:
    """The log-ratio of each answer to a side model: the sum or the mean over its tokens."""
    gap = b.logp - b[Logp(model)]
    return b.sequences.mean(gap) if token_reduction == "mean" else b.sequences.total(gap)


def over_pairs(b: Batch, better: Int[Tensor, " p"], gain: Float[Tensor, " p"]) -> Float[Tensor, " n"]:
    """The mean gain of a group's pairs, at each of its tokens. For the aggregate `pair_mean`."""
    return b.token_groups.spread(Segments(b.groups.index[better], b.groups.count).mean(gain).to(b.logp.dtype))


def pairs(b: Batch) -> tuple[Int[Tensor, " p"], Int[Tensor, " p"]]:
    """All pairs (better, worse) of a group's answers with different rewards, among those with trained tokens."""
    r, g, live = b.reward, b.groups.index, b.sequences.lengths > 0
    both = (g[:, None] == g) & (r[:, None] > r) & live[:, None] & live
    better, worse = both.nonzero(as_tuple=True)
    return better, worse


@torch.no_grad()
def describe_preferences(step: Batch, surrogate: object) -> dict[str, float]:
    """TRL's metrics of implicit rewards: their means, and how often and how far the better answer of a pair leads.

    Empty for a surrogate that implies no reward.
    """
    if not isinstance(surrogate, ImplicitRewardSurrogate) or not step.tokens:
        return {}
    reward, live = surrogate.implicit_reward(step).double(), step.sequences.lengths > 0
    wanted = step.outcome == Outcome.correct
    sides = {"chosen": reward[live & wanted], "rejected": reward[live & ~wanted]}
    metrics = {f"rewards/{side}": x.mean() for side, x in sides.items() if len(x)}
    better, worse = pairs(step)
    if len(better):
        margin = reward[better] - reward[worse]
        metrics |= {"rewards/accuracies": (margin > 0).double().mean(), "rewards/margins": margin.mean()}
    return {name: float(x) for name, x in metrics.items()}
