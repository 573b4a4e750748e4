"""DHPO: Dynamic Hybrid Policy Optimization."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.advantages import Standardised
from groupwise.data import Batch, Surrogate
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import (
    Clip,
    ClipScale,
    MaxNormalisedEntropyScale,
    Objective,
    group_mean,
    sequence_ratio_per_token,
)
from groupwise.objective.surrogates import Clipped

__all__ = ["MixedClip", "dhpo"]


@dataclass(frozen=True, slots=True)
class MixedClip(Surrogate):
    """PPO's clip with a mix of the token ratio r and the sequence ratio s: `w clip(r) + (1 - w) clip(s)`.

    `joint` takes the minimum of the mixes, `min(m A, m^ A)`; `separate` mixes the two minima. They differ where one
    ratio is above its range and the other below. `token_clip_weight` is w, a number or a `ClipScale`. DHPO,
    arXiv:2601.05607; that the minimum is joint is our reading.
    """

    token_clip: Clip = Clip()  # noqa: RUF009
    sequence_clip: Clip = Clip(3e-4, 4e-4, sequence_ratio_per_token)  # noqa: RUF009
    token_clip_weight: float | ClipScale = 0.5
    joint_or_separate_minimum: Literal["joint", "separate"] = "joint"

    def __post_init__(self) -> None:
        if isinstance(self.token_clip_weight, float | int) and not 0 <= self.token_clip_weight <= 1:
            raise ValueError(f"{self}: needs 0 <= token_clip_weight <= 1")

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        w = (
            self.token_clip_weight
            if isinstance(self.token_clip_weight, float | int)
            else self.token_clip_weight(b).detach()
        )
        if self.joint_or_separate_minimum == "separate":
            return w * self.token_clip(b) + (1 - w) * self.sequence_clip(b)
        r, s = self.token_clip.ratio(b), self.sequence_clip.ratio(b)
        near = w * _near(r, self.token_clip) + (1 - w) * _near(s, self.sequence_clip)
        return torch.minimum((w * r + (1 - w) * s) * b.advantage, near * b.advantage)

    def clipped(self, b: Batch) -> Clipped:
        """The tokens without a gradient: all ratios in the mix are outside their ranges, and the minimum is clipped."""
        w = (
            self.token_clip_weight
            if isinstance(self.token_clip_weight, float | int)
            else self.token_clip_weight(b).detach()
        )
        if self.joint_or_separate_minimum == "separate":
            (low, high), (sequence_low, sequence_high) = self.token_clip.clipped(b), self.sequence_clip.clipped(b)
            no_token, no_sequence = w == 0, w == 1
            return (low | no_token) & (sequence_low | no_sequence), (high | no_token) & (sequence_high | no_sequence)
        r, s, a = self.token_clip.ratio(b), self.sequence_clip.ratio(b), b.advantage
        near_r, near_s = _near(r, self.token_clip), _near(s, self.sequence_clip)
        change = w * (near_r - r) + (1 - w) * (near_s - s)
        outside = ((near_r != r) | (w == 0)) & ((near_s != s) | (w == 1))
        return outside & (a < 0) & (change > 0), outside & (a > 0) & (change < 0)


def _near(ratio: Tensor, clip: Clip) -> Tensor:
    return ratio.clamp(1 - clip.low, 1 + clip.high)


def dhpo(
    *,
    group_size: int = 16,
    token: tuple[float, float] = (0.2, 0.28),
    sequence: tuple[float, float] = (3e-4, 4e-4),
    entropy_guided: bool = False,
    minibatches: int = 4,
) -> Method:
    """Mixes GRPO's token ratio and GSPO's sequence ratio, each clipped in a separate range before the mix.

    GRPO's token ratios have a high variance, and GSPO's sequence ratio gives all tokens of an answer the same weight.
    DHPO mixes both and clips each first, so that outliers of one cannot dominate; the joint minimum and all constants
    are our reading.

    Args:
        group_size: answers per prompt, G, at least 2.
        token: distances of the token ratio's clip bounds from 1, eps_tok_low and eps_tok_high.
        sequence: distances of the sequence ratio's clip bounds from 1, eps_seq_low and eps_seq_high.
        entropy_guided: whether the token ratio's weight w grows with the token's entropy (our reading), or is 1/2.
        minibatches: optimizer steps per iteration.
    """
    mix = MaxNormalisedEntropyScale() if entropy_guided else 0.5
    surrogate = MixedClip(Clip(*token), Clip(*sequence, ratio=sequence_ratio_per_token), mix)
    return Method(
        group_size=group_size,
        advantage=(Standardised(),),
        objective=Objective(surrogate=surrogate, aggregate=group_mean),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper="Orchestrating Tokens and Sequences: Dynamic Hybrid Policy Optimization for RLVR",
    arxiv="2601.05607",
    evidence="our reading",
    parent="gspo_token",
    formula="""\
J = 1/G sum_i 1/|o_i| sum_t min[ m_it A_i, m^_it A_i ]
m_it = w r_it + (1 - w) s_it
m^_it = w clip(r_it, 1 - eps_tok_low, 1 + eps_tok_high) + (1 - w) clip(s_it, 1 - eps_seq_low, 1 + eps_seq_high)
w = 1/2, or the entropy of the token over the largest of its answer
A_i = (R_i - mean(R)) / std(R)""",
    differences=(
        PaperDifference("minimum", "one clipped objective of the mix", "not found", 'of the mixes; form = "separate"'),
        PaperDifference("entropy guide", "in words", "not found", "H / max H of the answer (inferred)"),
        PaperDifference("entropy", "not obtained", "not found", "of the policy before the update"),
        PaperDifference("clip ranges", "not obtained", "not found", "0.2 and 0.28; 3e-4 and 4e-4 (inferred)"),
        PaperDifference("group size, minibatches", "not obtained", "not found", "16 and 4, as GSPO (inferred)"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[dhpo]",
        "tests/golden/test_methods.py::test_whole_path[dhpo, by entropy]",
        "tests/golden/test_ratio.py::test_worked_numbers[dhpo, 0.2]",
        "tests/golden/test_ratio.py::test_dhpo_ends_are_grpo_and_gspo_token",
        "tests/golden/test_ratio.py::test_dhpo_forms_differ",
    ),
    expected_effect=ExpectedEffect(
        metric="clip_ratio/region_mean",
        direction="down",
        task="hinted_sums",
        parent="gspo_token",
        min_difference=0.05,
        runs_matched_by="iterations",
        settings=("iterations = 10", "method.minibatches = 8", "method.objective.penalties = []"),
    ),
)
