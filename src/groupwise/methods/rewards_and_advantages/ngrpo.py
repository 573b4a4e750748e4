"""NGRPO: Negative-enhanced Group Relative Policy Optimization."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from groupwise.data import Advantage, Batch
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Clip, Objective, token_mean
from groupwise.rewards import not_all_correct

__all__ = ["VirtualBestAnswer", "ngrpo"]


@dataclass(frozen=True, slots=True)
class VirtualBestAnswer(Advantage):
    """Group z-scores, as if the group had `virtual_count` more answers with `virtual_reward`. NGRPO, arXiv:2509.18851.

    A group of wrong answers has negative advantages; a group of correct ones has 0.

    >>> from groupwise.data import rollout_of, pack
    >>> batch = pack([rollout_of([0.0] * 8)])
    >>> round(VirtualBestAnswer()(batch.verdict_score, batch)[0].item(), 4)
    -0.3333
    """

    virtual_reward: float = 1.0
    virtual_count: int = 1
    eps: float = 1e-6

    def __post_init__(self) -> None:
        if self.virtual_count < 1:
            raise ValueError(f"{self}: needs virtual_count >= 1; for no virtual answers use Standardised")

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        g = b.groups
        size = g.size(x) + self.virtual_count
        mean = (g.total(x) + self.virtual_count * self.virtual_reward) / size
        away = x - g.spread(mean)
        variance = (g.total(away**2) + self.virtual_count * (self.virtual_reward - mean) ** 2) / (size - 1).clamp(min=1)
        return away / (g.spread(variance.sqrt()) + self.eps)


def ngrpo(
    *, group_size: int = 8, best: float = 1.0, low: float = 0.16, high: float = 0.24, minibatches: int = 4
) -> Method:
    """Group statistics with one virtual answer of the best reward, so groups of wrong answers are learned too.

    GRPO learns nothing from a group of wrong answers, because all its advantages are 0. One virtual answer with the
    best reward makes them negative, and a tighter lower clip bound limits their updates.

    Args:
        group_size: answers per prompt, G.
        best: reward of the virtual answer, R_max: the largest that the task can give.
        low: distance of the lower clip bound from 1, eps_neg.
        high: distance of the upper clip bound from 1, eps_pos.
        minibatches: optimizer steps per iteration.
    """
    return Method(
        group_size=group_size,
        filter=not_all_correct,
        max_refills=10,
        advantage=(VirtualBestAnswer(best),),
        objective=Objective(surrogate=Clip(low, high), aggregate=token_mean),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper="NGRPO: Negative-enhanced Group Relative Policy Optimization",
    arxiv="2509.18851",
    evidence="code read",
    code="nangongrui-ngr/NGRPO@e7a380415a64cd8ac102504c38a5f86069022f35:verl/trainer/ppo/core_algos.py",
    parent="grpo",
    formula="""\
J = 1/(sum_i |o_i|) sum_i sum_t min[ r_it A_i, clip(r_it, 1 - eps_neg, 1 + eps_pos) A_i ]
A_i = (R_i - m) / s, with m and s over R_1, ..., R_G and one virtual reward R_max""",
    differences=(
        PaperDifference(
            "clip range",
            "by the sign of A: 0.16 and 0.24",
            "clip-low 0.16, clip-high 0.24",
            "0.16 and 0.24, which is equal",
        ),
        PaperDifference(
            "solved groups", "dropped", "dropped, and the batch refilled", "not_all_correct, max_refills = 10"
        ),
        PaperDifference("best reward", "1", "1", "best = 1"),
        PaperDifference("std", "not specified", "ddof 1 over G + 1 values, plus 1e-6", "the same"),
        PaperDifference("group size, minibatches", "8; not specified", "8; 4", "8; 4"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[ngrpo]",
        "tests/golden/test_reward.py::test_virtual_best_table",
        "tests/golden/test_reward.py::test_virtual_best_of_a_wrong_group",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy",
        direction="up",
        task="hinted_sums",
        parent="grpo",
        min_difference=0.05,
        runs_matched_by="tokens",
        settings=("method.minibatches = 4", "method.objective.penalties = []"),
        acted="groups/all_wrong",
        acted_least=0.1,
        acted_in="parent",
    ),
)
