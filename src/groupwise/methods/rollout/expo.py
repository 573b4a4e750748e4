"""ExPO: the policy learns its own explanation of a known answer."""

from groupwise.advantages import Standardised
from groupwise.learner import InitialPolicy
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import KL, Clip, Objective, Routed, group_mean, log_likelihood, written_tokens
from groupwise.rollout import Explained

__all__ = ["expo"]


def expo(
    *,
    group_size: int = 8,
    always: bool = False,
    words: str = "auto",
    kl: float = 0.04,
    minibatches: int = 1,
) -> Method:
    """GRPO; if no answer is correct, the policy explains the known answer and is trained on its explanation."""
    surrogate = Routed(written_tokens, then=log_likelihood, otherwise=Clip())
    return Method(
        group_size=group_size,
        strategy=Explained(always=always, words=words),
        trains=("answer", "explained"),
        advantage=(Standardised(),),
        models=(("reference", InitialPolicy()),),
        objective=Objective(surrogate=surrogate, penalties=(KL(kl),), aggregate=group_mean),
        minibatches=minibatches,
    )


REFERENCE = Reference(
    paper="ExPO: Unlocking Hard Reasoning with Self-Explanation-Guided Reinforcement Learning",
    arxiv="2507.02834",
    label="our reading",
    parent="grpo",
    formula="""\
J = P / (P + E) (GRPO's objective + 1/P sum over E explanations of mean_t log pi(e_t | q, e_<t)) for P prompts
e from pi_old(. | q, answer), where no answer of the group is correct""",
    differences=(
        Difference(
            "weight of the explanation", "a coefficient, not obtained", "not found", "that of a group (inferred)"
        ),
        Difference("divisor", "prompts P", "not found", "P and explanations E: both terms are times P / (P + E)"),
        Difference("when", "for hard prompts", "not found", "where no answer is correct; always = true (inferred)"),
        Difference("wrong explanations", "not specified", "not found", "left out (inferred)"),
        Difference("KL of the explanation", "not specified", "not found", "as of the others: 0.04"),
        Difference("DPO form", "online pairs", "not found", "not offered"),
        Difference("group size, minibatches", "not obtained", "not found", "8 and 1 (inferred)"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[expo]",
        "tests/golden/test_rollout.py::test_an_explanation_is_learned",
        "tests/golden/test_rollout.py::test_expo_leaves_the_group_alone",
    ),
    effect=Effect(
        metric="eval/accuracy",
        direction="up",
        task="hinted_sums",
        parent="grpo",
        least=0.05,
        matched="steps",
    ),
)
