"""Surrogates that imitate: divergence from a teacher, and likelihood of written (not sampled) tokens."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch, Divergence, NeededMeasure, Surrogate, surrogate

__all__ = ["Distillation", "ShapedLikelihood", "log_likelihood"]


@dataclass(frozen=True, slots=True)
class Distillation(Surrogate):
    """`-divergence(policy, teacher)` at each token, over the whole vocabulary. GKD, arXiv:2306.13649.

    `alpha` 0 is forward and 1 reverse KL; between them the generalised Jensen-Shannon divergence. With a `teacher_view`
    the teacher reads the tokens under that context; tokens without it have no gradient.
    """

    teacher_model: str = "teacher"
    alpha: float = 0.5
    teacher_view: str = ""

    def __post_init__(self) -> None:
        self.divergence()  # refuses alpha outside [0, 1]

    def divergence(self) -> Divergence:
        return Divergence(self.teacher_model, self.alpha, self.teacher_view)

    @property
    def needs(self) -> frozenset[NeededMeasure]:
        return frozenset({self.divergence()})

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        return -torch.nan_to_num(b[self.divergence()])


@dataclass(frozen=True, slots=True)
class ShapedLikelihood(Surrogate):
    """`p / (p + peak_gradient_probability) A` of a token of probability p. The gradient in `log p` is largest at gamma.

    gamma is `peak_gradient_probability`. For written tokens, which have no old policy. LUFFY, arXiv:2504.14945; DaGRPO,
    arXiv:2512.06337.
    """

    peak_gradient_probability: float = 0.1

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        p = b.logp.exp()
        return p / (p + self.peak_gradient_probability) * b.advantage


@surrogate
def log_likelihood(b: Batch) -> Float[Tensor, " n"]:
    """`log pi` of each token, whatever its advantage: supervised learning of written answers."""
    return b.logp
