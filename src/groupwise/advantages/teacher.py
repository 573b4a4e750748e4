"""Credit from a teacher model: how much likelier it finds each token than the policy. On-policy distillation."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from groupwise.advantages.credit import discounted
from groupwise.data import Batch, Credit, Divergence, Logp, Measure

__all__ = ["EarlyFirst", "TeacherGap"]


@dataclass(frozen=True, slots=True)
class TeacherGap(Credit):
    """`log teacher - log pi_old`, summed with a discount from each token on, plus `task` times the sample's advantage.

    Its mean is minus the reverse KL. With `baseline` that KL is added (vOPD): the same expected gradient with less
    variance. MiniLLM, arXiv:2306.08543; GKD, arXiv:2306.13649. A `view` is the teacher's own context.
    """

    model: str = "teacher"
    discount: float = 0.0
    baseline: bool = False
    task: float = 0.0
    view: str = ""

    def __post_init__(self) -> None:
        if self.baseline and self.discount:
            raise ValueError(f"{self}: the baseline works for single tokens only: set discount to 0")

    @property
    def needs(self) -> frozenset[Measure]:
        whole = {Divergence(self.model, 1.0, self.view)} if self.baseline else set()
        return frozenset({Logp("policy"), Logp(self.model, self.view)} | whole)

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " n"]:
        gap = (b[Logp(self.model, self.view)] - b.logp_old).to(x.dtype)
        if self.baseline:
            gap = gap + b[Divergence(self.model, 1.0, self.view)].to(x.dtype)
        if self.discount:
            gap = discounted(gap, b.sequences.index, self.discount)
        return gap + self.task * b.sequences.spread(x)


@dataclass(frozen=True, slots=True)
class EarlyFirst(Credit):
    """Another credit times a factor that starts at `1 + gamma` and falls towards 1: early tokens weigh most.

    The factor is `1 + gamma (1 - share of the sum of |credit| before the token)`. IW-OPD, arXiv:2606.22600.
    """

    credit: Credit = TeacherGap()
    gamma: float = 0.5

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " n"]:
        a, s = self.credit(x, b), b.sequences
        size = a.abs()
        total = s.spread(s.total(size))
        before = s.prefix(size) - size
        return a * (1 + self.gamma * (1 - before / total.masked_fill(total == 0, 1.0)))
