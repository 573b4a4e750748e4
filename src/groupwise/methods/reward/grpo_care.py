"""GRPO-CARE: Consistency-Aware Reinforcement Learning."""

from groupwise.advantages import Standardised
from groupwise.learner import EMA
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import Objective, Unclipped, group_mean
from groupwise.rewards import ConsistencyBonus, Score

__all__ = ["grpo_care"]


def grpo_care(
    *,
    group_size: int = 8,
    opens: str = "<answer>",
    closes: str = "</answer>",
    bonus: float = 0.5,
    margin: float = 0.0,
    keep: float = 0.995,
    every: int = 10,
) -> Method:
    """A bonus for correct answers whose final answer an EMA of the policy finds likely after their reasoning. No KL."""
    return Method(
        group_size=group_size,
        shaping=(Score(), ConsistencyBonus(opens, closes, bonus, margin=margin)),
        advantage=(Standardised(eps=1e-4),),
        models=(("reference", EMA(keep, every)),),
        objective=Objective(surrogate=Unclipped(), aggregate=group_mean),
    )


REFERENCE = Reference(
    paper="GRPO-CARE: Consistency-Aware Reinforcement Learning for Multimodal Reasoning",
    arxiv="2506.16141",
    label="code read",
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
        Difference(
            "reward of the format", "added", "added", "AddPart before the bonus, if the verifier has such a part"
        ),
        Difference(
            "answer's tokens",
            "in the answer tags",
            "from the tag to 3 tokens before the end",
            "between opens and closes",
        ),
        Difference("copy of the policy", "moving average", "0.995, every 10 steps", "0.995, every 10 steps"),
        Difference("several updates per batch", "no", "no", "one"),
        Difference("bonus, margin", "0.5; 0", "0.5; 0, for transfer 0.01", "0.5; 0"),
        Difference("group size", "8", "8", "8"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[grpo_care]",
        "tests/golden/test_reward.py::test_consistency_bonus",
    ),
    effect=Effect(
        metric="eval/parts_of_correct/chain_true",
        direction="up",
        task="calculator",
        parent="grpo",
        least=0.02,
        matched="steps",
        settings=("method.objective.penalties = []",),
        own_settings=("method.shaping.1.opens = #",),
    ),
)
