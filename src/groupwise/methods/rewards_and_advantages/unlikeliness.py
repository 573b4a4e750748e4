"""Unlikeliness reward: rare correct answers gain most."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from groupwise.advantages import Standardised
from groupwise.data import Batch, Logp, NeededMeasure, Shaping
from groupwise.learner import InitialPolicy
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import KL, Objective, token_mean
from groupwise.rewards import Correctness, mixed_outcomes

__all__ = ["Unlikeliness", "unlikeliness"]


@dataclass(frozen=True, slots=True)
class Unlikeliness(Shaping):
    """`reward (1 - beta k / G)`: k is the rank of an answer's mean log-prob in its group of G; 0 is the least likely.

    Rare correct answers gain most. An answer without a token is the least likely. arXiv:2506.02355.
    """

    needs: ClassVar[frozenset[NeededMeasure]] = frozenset({Logp("policy")})

    beta: float = 0.25

    def __post_init__(self) -> None:
        if not 0 <= self.beta <= 1:
            raise ValueError(f"{self}: needs 0 <= beta <= 1, so that correct answers stay above wrong ones")

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        return reward * (1 - self.beta * _rank(b).to(reward.dtype) / b.groups.spread(b.groups.size(reward)))


def _rank(b: Batch) -> Int[Tensor, " s"]:
    """The rank of each sample in its group by mean log-prob, from 0 for the lowest."""
    s, g = b.sequences, b.groups
    mean = torch.where(s.lengths > 0, s.mean(b.logp_old).double(), -torch.inf)
    order = mean.argsort(stable=True)
    order = order[g.index[order].argsort(stable=True)]  # by group, and within it by likelihood
    first = (g.lengths.cumsum(0) - g.lengths)[g.index[order]]
    return torch.empty_like(order).index_copy(0, order, torch.arange(len(order), device=order.device) - first)


def unlikeliness(*, group_size: int = 32, beta: float = 0.25, kl: float = 0.1, epochs: int = 2) -> Method:
    """GRPO that rewards a correct answer more, the less likely it is in its group. Dynamic sampling, two epochs.

    GRPO reinforces those correct answers most that are already likely: pass@1 rises, but pass@N for a large N can fall.
    Here a correct answer gets more reward the less likely it is, and a second epoch also favours unlikely answers.

    Args:
        group_size: answers per prompt, G.
        beta: strength of the discount for likely answers, beta, from 0 to 1.
        kl: coefficient of the KL penalty to the initial policy.
        epochs: passes over the answers of an iteration.
    """
    return Method(
        group_size=group_size,
        filter=mixed_outcomes,
        max_refills=10,
        shaping=(Correctness(), Unlikeliness(beta)),
        advantage=(Standardised(),),
        models=(("reference", InitialPolicy()),),
        objective=Objective(penalties=(KL(kl),), aggregate=token_mean),
        epochs=epochs,
    )


REFERENCE = PaperReference(
    paper="Rewarding the Unlikely: Lifting GRPO Beyond Distribution Sharpening",
    arxiv="2506.02355",
    evidence="code read",
    code=(
        "AndreHe02/rewarding-unlikely-release@ca1cff05ebdf2cfe9737fd416897da838a93e11a:"
        "verl/trainer/ppo/ray_lean_trainer.py"
    ),
    parent="grpo",
    formula="""\
R_i = y_i (1 - beta k_i / G), k_i the rank of the answer's mean log-prob in its group, 0 for the least likely
A_i = (R_i - mean(R)) / std(R), PPO's clip, KL to the reference in the loss""",
    differences=(
        PaperDifference("likelihood", "of the sequence", "mean over its tokens", "mean over its tokens"),
        PaperDifference("beta", "0.25", "0.25", "0.25"),
        PaperDifference("mixed groups only", "yes", "yes", "yes, max_refills = 10"),
        PaperDifference("epochs, KL", "2; 0.1", "2; 0.1", "2; 0.1"),
        PaperDifference(
            "guard of the optimizer",
            "not specified",
            "steps with a gradient norm above 20 are skipped",
            "optimizer.max_grad_norm clips",
        ),
        PaperDifference("empty answer", "not specified", "not specified", "the least likely (inferred)"),
        PaperDifference("group size", "32", "32", "32"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[unlikeliness]",
        "tests/golden/test_reward.py::test_unlikeliness_table",
    ),
    expected_effect=ExpectedEffect(
        metric="entropy",
        direction="up",
        task="tiny_countdown",
        parent="grpo",
        min_difference=0.02,
        runs_matched_by="tokens",
        settings=("iterations = 10", "method.epochs = 1", "method.objective.penalties.0.coefficient = 0.1"),
    ),
)
