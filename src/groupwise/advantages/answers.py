"""Advantages that compare the answers of a group: how much they agree, and how long the correct ones are."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Advantage, Batch, Outcome, Segments

__all__ = ["LengthShares", "SemanticEntropy"]


@dataclass(frozen=True, slots=True)
class SemanticEntropy(Advantage):
    """`x f(alpha u)`, f falling from 1: scales down the advantage x in groups with many different answers (entropy u).

    Samples with equal `Verdict.answer` agree; a sample without one agrees with none. u is the entropy over `log G`.
    `sampled` is the mean of `-log share` over the distinct answers, `shannon` over the samples. f(y) is `exp(-y)`,
    `1 - y` or `(1 - y)^gamma`. The paper's choice of f, alpha and shares was not obtained: all are our reading.
    """

    not_stored: ClassVar[str] = "the answers that the verifier read"

    alpha: float = 1.0
    form: Literal["exp", "linear", "focal"] = "exp"
    gamma: float = 2.0
    estimate: Literal["sampled", "shannon"] = "sampled"

    def __post_init__(self) -> None:
        if self.alpha < 0 or (self.form != "exp" and self.alpha > 1):
            raise ValueError(f"{self}: needs alpha >= 0, and alpha <= 1 unless form = exp")

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        g, same = b.groups, _clusters(b)
        log_share = (same.spread(same.size(x)) / g.spread(g.size(x))).log()
        if self.estimate == "sampled":
            once = same.spread(1 / same.size(x).clamp(min=1))  # the samples of an answer count as one
            entropy = -g.total(once * log_share) / g.total(once).clamp(min=1)
        else:
            entropy = -g.mean(log_share)
        size = g.size(x)
        u = torch.where(size > 1, entropy / size.clamp(min=2).log(), 0.0)
        return x * g.spread(self._factor(self.alpha * u))

    def _factor(self, x: Float[Tensor, " g"]) -> Float[Tensor, " g"]:
        match self.form:
            case "exp":
                return (-x).exp()
            case "linear":
                return 1 - x
            case "focal":
                return (1 - x) ** self.gamma


def _clusters(b: Batch) -> Segments:
    """The clusters of samples with equal answers, within each group."""
    numbers: dict[Any, int] = {}
    index: list[int] = []
    for i, (sample, group) in enumerate(zip(b.samples, b.groups.index.tolist())):
        answer = sample.verdict.answer if sample.verdict else None
        index.append(numbers.setdefault((group, i if answer is None else answer), len(numbers)))
    return Segments(torch.tensor(index, dtype=torch.long, device=b.groups.index.device), len(numbers))


@dataclass(frozen=True, slots=True)
class LengthShares(Advantage):
    """Weights for `Discriminative`: above 0 for a group's correct answers, larger for short ones, with sum 1; else -1.

    DRPO, arXiv:2510.04474. 0 in groups without both. They are not advantages of a policy gradient.
    """

    compares: ClassVar[bool] = True

    temperature: float = 0.1

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ValueError(f"{self}: needs temperature > 0")

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        g, correct = b.groups, b.outcome == Outcome.correct
        brevity = -b.length.double() / max(b.max_tokens, 1) / self.temperature
        shortest = g.spread(g.largest(torch.where(correct, brevity, -torch.inf)))
        weight = torch.where(correct, (brevity - shortest).exp(), 0.0)  # at most 1, so the sum cannot underflow
        share = weight / g.spread(g.total(weight)).clamp(min=1)
        mixed = (g.total(correct.double()) > 0) & (g.total((~correct).double()) > 0)
        return torch.where(correct, share, -1.0) * g.spread(mixed)
