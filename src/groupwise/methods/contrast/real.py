"""REAL: rewards as labels of a classification."""

from typing import Literal

from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import BinaryLabels, LabelContrast, Objective, group_token_mean, mixed_mean

__all__ = ["real"]


def real(
    *,
    group_size: int = 8,
    tau: float = 0.5,
    form: Literal["anchored", "product", "binary"] = "anchored",
    minibatches: int = 4,
) -> Method:
    """A classification loss of each group: outcomes are labels, mean log-ratios are logits. No advantage, no clip."""
    if form == "binary":
        objective = Objective(surrogate=BinaryLabels(tau), aggregate=mixed_mean)
    else:
        objective = Objective(surrogate=LabelContrast(tau, form), aggregate=group_token_mean)
    return Method(group_size=group_size, objective=objective, minibatches=minibatches)


REFERENCE = Reference(
    paper="Rewards as Labels: Revisiting RLVR from a Classification Perspective",
    arxiv="2602.05630",
    label="code read",
    code="Red-RL/REAL@1c30726a1c7606e717091b4b8cf1fc156a06039f:verl/verl/trainer/ppo/core_algos.py",
    parent="grpo",
    formula="""\
J = - mean over groups of [ log(1 + sum_(k wrong) exp(s_k / tau)) + log(1 + sum_(k correct) exp(-s_k / tau)) ]
s_k = 1/|o_k| sum_t log(pi / pi_old); groups without both outcomes have no term and count in the mean
binary: mean over answers of such groups of log sigmoid(+- s_k / tau)""",
    differences=(
        Difference("tau", "0.5", "0.5", "0.5"),
        Difference("groups without both outcomes", "no term", "no term, in the divisor", "no term, in the divisor"),
        Difference(
            "a group in several microbatches", "not specified", "its contrast is cut", "never: a group is one unit"
        ),
        Difference("answer without a token", "not specified", "divided by 0", "in neither set"),
        Difference("group size, minibatches", "8; 4", "8; 4", "8; 4"),
        Difference("ablations", "binary; product", "bce; circle loss", "form"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[real]",
        "tests/golden/test_methods.py::test_whole_path[real, product]",
        "tests/golden/test_methods.py::test_whole_path[real, binary]",
        "tests/golden/test_contrast.py::test_worked_numbers[real]",
        "tests/golden/test_contrast.py::test_worked_numbers[real, product]",
        "tests/golden/test_contrast.py::test_worked_numbers[real, binary]",
        "tests/golden/test_contrast.py::test_label_weights_are_bounded",
    ),
    effect=Effect(
        metric="eval/accuracy",
        direction="up",
        task="hinted_sums",
        parent="grpo",
        least=0.05,
        matched="steps",
        settings=("method.minibatches = 4", "method.objective.penalties = []"),
    ),
    toy="tests/golden/test_contrast.py::test_label_weights_are_bounded",
)
