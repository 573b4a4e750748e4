"""Format-length surrogate: a reward without labels."""

from groupwise.advantages import Standardised
from groupwise.learner import InitialPolicy
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import KL, Objective, token_mean
from groupwise.rewards import FormatLength

__all__ = ["format_length"]


def format_length(*, group_size: int = 8, peak: float = 0.5, think: str = "", kl: float = 1e-3) -> Method:
    """GRPO on a reward for form and length alone: no answer is compared with a label."""
    return Method(
        group_size=group_size,
        shaping=(FormatLength(peak, think),),
        advantage=(Standardised(),),
        models=(("reference", InitialPolicy()),),
        objective=Objective(penalties=(KL(kl),), aggregate=token_mean),
    )


REFERENCE = Reference(
    paper=(
        "Surrogate Signals from Format and Length: Reinforcement Learning for Solving Mathematical "
        "Problems without Ground Truth Answers"
    ),
    arxiv="2505.19439",
    label="code read",
    code="insightLLM/rl-without-gt@c1e2077c6b1003f1b9e0e998fc34b2edf74d4218:rl/verl/lib/src/rewards/math_reward.py",
    parent="grpo",
    formula="""\
R = (F_think + F_answer) / 2 + f(x) with an answer, min(0, f(x)) without; x = |o| / budget
f(x) = 1 - (1 - x/p)^2 up to p, then 1 - 2 ((x - p) / (1 - p))^2""",
    differences=(
        Difference("an answer", "a mathematical expression", "parsed by sympy", "the verdict is not malformed"),
        Difference(
            "a thought",
            "a closed think block",
            "by a regular expression",
            "a part of the verdict; without its name as the answer",
        ),
        Difference("peak, KL, group size", "0.5; not specified; 8", "0.5; 0.001; 8", "0.5; 0.001; 8"),
        Difference("aggregate", "not specified", "verl: token mean", "token_mean"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[format_length]",
        "tests/golden/test_reward.py::test_format_length_table",
    ),
    effect=Effect(
        metric="completions/mean_length",
        direction="up",
        task="hinted_sums",
        parent="grpo",
        least=2.0,
        matched="steps",
        settings=("iterations = 10", "evaluate.problems = 16"),
    ),
)
