"""Format-length surrogate: a reward without labels."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.advantages import Standardised
from groupwise.data import Batch, NeededMeasure, Outcome, Shaping, Subscore
from groupwise.learner import InitialPolicy
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import KL, Objective, token_mean

__all__ = ["FormatLength", "format_length"]


@dataclass(frozen=True, slots=True)
class FormatLength(Shaping):
    """Creates the reward from format and length alone: `(think + answer) / 2 + curve`; if malformed, `min(curve, 0)`.

    No label is read: `answer` is 1 unless the verdict is malformed, and `think_subscore` is a subscore of the verdict
    that is 1 if a thought was found; without a name for it, it equals `answer`. The curve of `length / budget` rises
    from 0 to 1 at `peak_fraction` and falls to -1 at the budget. arXiv:2505.19439.
    """

    peak_fraction: float = 0.5
    think_subscore: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.peak_fraction < 1:
            raise ValueError(f"{self}: needs 0 < peak_fraction < 1: the peak_fraction is a share of the budget")

    @property
    def needs(self) -> frozenset[NeededMeasure]:
        return frozenset({Subscore(self.think_subscore)}) if self.think_subscore else frozenset()

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        answer = (b.outcome != Outcome.malformed).double()
        think = b[Subscore(self.think_subscore)] if self.think_subscore else answer
        x = b.length.double() / max(b.max_new_tokens, 1)
        rising, falling = (
            1 - (1 - x / self.peak_fraction) ** 2,
            1 - 2 * ((x - self.peak_fraction) / (1 - self.peak_fraction)) ** 2,
        )
        curve = torch.where(x <= self.peak_fraction, rising, falling)
        return torch.where(answer > 0, 0.5 * (think + answer) + curve, curve.clamp(max=0))


def format_length(
    *, group_size: int = 8, peak_fraction: float = 0.5, think_subscore: str = "", kl: float = 1e-3
) -> Method:
    """GRPO on a reward for form and length alone: no answer is compared with a label.

    Verified labels are costly, and a reward for the format alone later leads to answers that are too short or too long.
    This reward adds a curve of the answer's length with a single peak, and it reads no label.

    Args:
        group_size: answers per prompt.
        peak_fraction: share of the token budget at which the length reward is largest, p, between 0 and 1.
        think_subscore: name of the subscore that is 1 for an answer with a thought, F_think; empty: equal to F_answer.
        kl: coefficient of the KL penalty to the initial policy.
    """
    return Method(
        group_size=group_size,
        shaping=(FormatLength(peak_fraction, think_subscore),),
        advantage=(Standardised(),),
        models=(("reference", InitialPolicy()),),
        objective=Objective(penalties=(KL(kl),), aggregate=token_mean),
    )


REFERENCE = PaperReference(
    paper=(
        "Surrogate Signals from Format and Length: Reinforcement Learning for Solving Mathematical "
        "Problems without Ground Truth Answers"
    ),
    arxiv="2505.19439",
    evidence="code read",
    code="insightLLM/rl-without-gt@c1e2077c6b1003f1b9e0e998fc34b2edf74d4218:rl/verl/lib/src/rewards/math_reward.py",
    parent="grpo",
    formula="""\
R = (F_think + F_answer) / 2 + f(x) with an answer, min(0, f(x)) without; x = |o| / budget
f(x) = 1 - (1 - x/p)^2 up to p, then 1 - 2 ((x - p) / (1 - p))^2""",
    differences=(
        PaperDifference("an answer", "a mathematical expression", "parsed by sympy", "the verdict is not malformed"),
        PaperDifference(
            "a thought",
            "a closed think block",
            "by a regular expression",
            "a subscore of the verdict; without its name as the answer",
        ),
        PaperDifference("peak, KL, group size", "0.5; not specified; 8", "0.5; 0.001; 8", "0.5; 0.001; 8"),
        PaperDifference("aggregate", "not specified", "verl: token mean", "token_mean"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[format_length]",
        "tests/golden/test_reward.py::test_format_length_table",
    ),
    expected_effect=ExpectedEffect(
        metric="completions/mean_length",
        direction="up",
        task="hinted_sums",
        parent="grpo",
        min_difference=2.0,
        runs_matched_by="iterations",
        settings=("iterations = 10",),
        is_rewarded=True,
    ),
)
