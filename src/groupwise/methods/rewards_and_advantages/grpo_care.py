"""GRPO-CARE: Consistency-Aware Reinforcement Learning."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from groupwise.advantages import Standardised
from groupwise.data import Batch, Logp, NeededMeasure, Shaping
from groupwise.learner import EMA
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Objective, UnclippedSurrogate, group_mean
from groupwise.rewards import Score

__all__ = ["ConsistencyBonus", "grpo_care"]

ROUNDING = 1e-9
"""Differences from a mean up to this are rounding: the float64 mean of six times 0.95 is above 0.95."""


@dataclass(frozen=True, slots=True)
class ConsistencyBonus(Shaping):
    """Adds a bonus to high-scoring answers if another model finds the final answer likely after the reasoning.

    High: a score above `min_score` and not below the group's mean. Likely: the mean probability of the tokens between
    `answer_start` and `answer_end` (empty: the end), at most `max_probability`, is not below the mean of the
    high-scoring answers, less `likelihood_margin`. A number that rounding alone puts below a mean equals it. The bonus
    is `bonus_factor` times the score. GRPO-CARE, arXiv:2506.16141.
    """

    answer_start: str = "<answer>"
    answer_end: str = "</answer>"
    bonus_factor: float = 0.5
    max_probability: float = 0.95
    likelihood_margin: float = 0.0
    min_score: float = 0.1
    reference_model: str = "reference"

    @property
    def needs(self) -> frozenset[NeededMeasure]:
        return frozenset({Logp(self.reference_model)})

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        g, s, inside = b.groups, b.sequences, _between(b, self.answer_start, self.answer_end)
        count = s.total(inside.double()) + 1e-6  # the authors' code; without an answer the probability is 1
        p = (
            (s.total(torch.where(inside, b[Logp(self.reference_model)].double(), 0.0)) / count)
            .exp()
            .clamp(max=self.max_probability)
        )
        good = (b.verdict_score > self.min_score) & (g.away(b.verdict_score) >= -ROUNDING)
        likely = torch.zeros_like(good)
        likely[good] = g.keep(good).away(p[good]) >= -self.likelihood_margin - ROUNDING
        return reward + self.bonus_factor * b.verdict_score * likely


def _between(b: Batch, opens: str, closes: str) -> Bool[Tensor, " n"]:
    """Whether each token is after the last `answer_start` and before the next `answer_end` or the answer's end."""
    inside: list[list[bool]] = []
    for sample in b.samples:
        at = sample.text.rfind(opens)
        first = at + len(opens)
        end = sample.text.find(closes, first) if closes else -1
        last = len(sample.text) if end < 0 else end
        spans = zip((0, *sample.token_ends), sample.token_ends)
        tokens = [at >= 0 and first <= i < j <= last for i, j in spans]
        inside.append(tokens or [False] * len(sample.tokens))
    return b.at_trained(inside, torch.bool)


def grpo_care(
    *,
    group_size: int = 8,
    answer_start: str = "<answer>",
    answer_end: str = "</answer>",
    bonus_factor: float = 0.5,
    likelihood_margin: float = 0.0,
    keep: float = 0.995,
    every: int = 10,
) -> Method:
    """A bonus for correct answers whose final answer an EMA of the policy finds likely after their reasoning. No KL.

    With a reward for the answer alone, the reasoning can stop supporting the answer, and a KL penalty restricts
    exploration. The penalty is removed, and a correct answer gains a bonus if a slow copy of the policy finds it
    relatively likely after its reasoning.

    Args:
        group_size: answers per prompt, G.
        answer_start: text after which the final answer begins.
        answer_end: text before which the final answer ends; empty: the end of the sample.
        bonus_factor: bonus as a fraction of the score, 0.5 in the formula.
        likelihood_margin: distance below the mean probability at which an answer still gets the bonus, from 0 to 1.
        keep: fraction of the copy that an update of the moving average keeps, from 0 to below 1.
        every: optimizer steps between two updates of the copy.
    """
    return Method(
        group_size=group_size,
        shaping=(
            Score(),
            ConsistencyBonus(answer_start, answer_end, bonus_factor, likelihood_margin=likelihood_margin),
        ),
        advantage=(Standardised(eps=1e-4),),
        models=(("reference", EMA(keep, every)),),
        objective=Objective(surrogate=UnclippedSurrogate(), aggregate=group_mean),
    )


REFERENCE = PaperReference(
    paper="GRPO-CARE: Consistency-Aware Reinforcement Learning for Multimodal Reasoning",
    arxiv="2506.16141",
    evidence="code read",
    code=(
        "TencentARC/GRPO-CARE@b0628fcca665042c6812fc65596cbaf7b2fac886:"
        "src/r1-v/src/open_r1/trainer/grpo_trainer_ref_ema.py"
    ),
    parent="grpo",
    formula="""\
R_i = acc_i + 0.5 acc_i 1[acc_i >= mean(acc), p_i >= mean of p over such answers]
p_i = min(exp(mean over the answer's tokens of log pi_ema), 0.95)
J = 1/G sum_i 1/|o_i| sum_t (pi / sg[pi])_it A_i,  A_i = (R_i - mean(R)) / std(R)""",
    differences=(
        PaperDifference(
            "reward of the format", "added", "added", "AddSubscore before the bonus, if the verifier has such a part"
        ),
        PaperDifference(
            "answer's tokens",
            "in the answer tags",
            "from the tag to 3 tokens before the end",
            "between opens and closes",
        ),
        PaperDifference("copy of the policy", "moving average", "0.995, every 10 steps", "0.995, every 10 steps"),
        PaperDifference("several updates per batch", "no", "no", "one"),
        PaperDifference("bonus, margin", "0.5; 0", "0.5; 0, for transfer 0.01", "0.5; 0"),
        PaperDifference("group size", "8", "8", "8"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[grpo_care]",
        "tests/golden/test_reward.py::test_consistency_bonus",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/subscores_of_correct/chain_true",
        direction="up",
        task="calculator",
        parent="grpo",
        min_difference=0.02,
        runs_matched_by="iterations",
        settings=("method.objective.penalties = []",),
        own_settings=("method.shaping.1.answer_start = #",),
    ),
)
