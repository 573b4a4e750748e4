"""DAPO: Decoupled Clip and Dynamic sAmpling Policy Optimization."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from groupwise.advantages import Standardised
from groupwise.core import Usage
from groupwise.data import Batch, Shaping
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Clip, Objective, token_mean
from groupwise.rewards import Correctness, mixed_outcomes

__all__ = ["OverlongPenalty", "dapo"]


@dataclass(frozen=True, slots=True)
class OverlongPenalty(Shaping):
    """Length penalty: 0 up to `limit - buffer_length` tokens, then linearly up to `penalty_factor` at the limit.

    Soft overlong punishment, DAPO, arXiv:2503.14476, equation 13. `limit` is the sample's budget. `buffer_length` is in
    tokens, or below 1 a share of `max_tokens`: DAPO's 4096 of 20480 is 0.2. A sample whose long prompt leaves it a
    budget below the buffer loses reward from its first token on.

    >>> from groupwise.data import rollout_of, pack
    >>> batch = pack([rollout_of([1.0, 1.0, 1.0], lengths=[12, 14, 16], limit=16)])
    >>> OverlongPenalty(4)(batch.verdict_score, batch).tolist()
    [1.0, 0.5, 0.0]
    """

    buffer_length: float
    penalty_factor: float = 1.0

    def __post_init__(self) -> None:
        if not self.buffer_length > 0 or (self.buffer_length > 1 and self.buffer_length % 1):
            raise ValueError(
                f"OverlongPenalty(buffer_length={self.buffer_length:g}): "
                "needs a whole number of tokens, or a share: 0 < buffer_length < 1\n"
                "write tokens, such as 4096, or a share of the generation budget, such as 0.2"
            )

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        budget = b.max_new_tokens
        buffer = int(self.buffer_length) if self.buffer_length >= 1 else max(1, round(self.buffer_length * budget))
        if len(b) and buffer > budget:
            raise Usage(
                "the overlong buffer is larger than the generation budget",
                evidence=f"OverlongPenalty(buffer_length={buffer}), sampling.max_tokens = {budget}",
                fix="write the buffer as a share of the generation budget, such as OverlongPenalty(0.2)",
            )
        over = (b.length - (b.length_limit - buffer)).to(reward.dtype) / buffer
        return reward - self.penalty_factor * over.clamp(0, 1)


def dapo(
    *, group_size: int = 16, low: float = 0.2, high: float = 0.28, buffer_length: float = 0.2, minibatches: int = 16
) -> Method:
    """GRPO without KL, with clip-higher, token mean, overlong shaping and dynamic sampling.

    With GRPO, the paper argues, entropy collapses, solved groups give no gradient, tokens of long answers weigh too
    little, and truncated answers make the reward noisy. DAPO changes one part for each: a higher upper clip bound, new
    prompts for groups with equal outcomes, a mean over all tokens, and a length penalty.

    Args:
        group_size: answers per prompt, G, at least 2.
        low: distance of the lower clip bound from 1, eps_low.
        high: distance of the upper clip bound from 1, eps_high.
        buffer_length: tokens before the limit in which the penalty grows, L_cache; below 1, a share of `max_tokens`.
        minibatches: optimizer steps per iteration.
    """
    return Method(
        group_size=group_size,
        filter=mixed_outcomes,
        max_refills=10,
        shaping=(Correctness(correct_reward=1.0, wrong_reward=-1.0), OverlongPenalty(buffer_length)),
        advantage=(Standardised(),),
        objective=Objective(surrogate=Clip(low, high), aggregate=token_mean),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper="DAPO: An Open-Source LLM Reinforcement Learning System at Scale",
    arxiv="2503.14476",
    evidence="code read",
    code="verl-project/verl-recipe@48ea0a797fa29867ea0ad92aff7d284eec7d4be3:dapo/dapo_ray_trainer.py",
    parent="grpo",
    formula="""\
J = 1/(sum_i |o_i|) sum_i sum_t min[ r_it A_it, clip(r_it, 1 - eps_low, 1 + eps_high) A_it ]
    subject to 0 < #{o_i is right} < G
A_it = (R_i - mean(R)) / std(R),  R_i = (+1 if right else -1) + R_length(o_i)
R_length = 0                                 if |o| <= L_max - L_cache
         = ((L_max - L_cache) - |o|)/L_cache if L_max - L_cache < |o| <= L_max
         = -1                                if |o| > L_max""",
    differences=(
        PaperDifference("group size", "16", "16", "16"),
        PaperDifference("clip range", "0.2 and 0.28", "0.2 and 0.28", "0.2 and 0.28"),
        PaperDifference("dual clip", "none", "c = 10", "none"),
        PaperDifference("token mean over", "the tokens of a group", "the global minibatch", "the whole step"),
        PaperDifference("minibatches", "16 of 512 responses", "16 of 32 prompts", "16 of prompts / 16"),
        PaperDifference(
            "rounds of sampling",
            "until the batch is full",
            "10, then an error",
            "max_refills = 10, then it trains on the mixed groups",
        ),
        PaperDifference(
            "prompts of a round", "not specified", "three times the number; surplus dropped", "the missing prompts only"
        ),
        PaperDifference(
            "groups are selected by", "number of right answers", "accuracy, not the shaped reward", "outcomes"
        ),
        PaperDifference(
            "graded rewards",
            "none: an answer is right or wrong",
            "groups whose chosen metric varies",
            "groups whose scores differ; 2 score - 1",
        ),
        PaperDifference("overlong buffer", "4096 of 20480", "4096 of 20480", "0.2: a fifth of max_tokens"),
        PaperDifference(
            "overlong filtering", "in the ablation", "not in the code, on purpose", 'none; mask = ["complete"]'
        ),
        PaperDifference("std of a group", "not specified", "ddof 1, plus 1e-6", "ddof 1, plus 1e-6"),
        PaperDifference("warm-up", "20 rollout steps", "10 optimizer steps", "the recipe's: optimizer.warmup_steps"),
        PaperDifference("weight decay", "none", "0.1", "the recipe's: optimizer.weight_decay"),
        PaperDifference("learning rate", "1e-6", "1e-6", "the recipe's: optimizer.lr"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[dapo]",
        "tests/golden/test_methods.py::test_whole_path[dapo, complete answers]",
        "tests/golden/test_methods.py::test_worked_numbers[dapo]",
        "tests/golden/test_methods.py::test_overlong_table",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy",
        direction="up",
        task="hinted_sums",
        parent="grpo",
        min_difference=0.03,
        runs_matched_by="tokens",
        settings=("method.minibatches = 8", "method.epochs = 2", "method.objective.penalties = []"),
        acted="clip_ratio/region_mean",
        acted_least=0.01,
        acted_in="parent",
        plan="whole",
    ),
)
