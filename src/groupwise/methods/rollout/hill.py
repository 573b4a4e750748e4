"""HiLL: the policy also learns to write hints for problems that it fails."""

from typing import Literal

from groupwise.advantages import Standardised
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import Clip, Objective, token_mean
from groupwise.rollout import HintWriter

__all__ = ["hill"]


def hill(
    *,
    group_size: int = 8,
    hints: int = 4,
    temperature: float = 0.3,
    form: Literal["mixed", "variance"] = "mixed",
    asking: str = "auto",
    words: str = "auto",
    low: float = 0.2,
    high: float = 0.28,
    minibatches: int = 2,
) -> Method:
    """GRPO; one policy answers, and writes hints for failed problems. Both are trained, hints by how much they help."""
    return Method(
        group_size=group_size,
        strategy=HintWriter(hints, temperature, form=form, asking=asking, words=words),
        trains=("answer", "hint"),
        advantage=(Standardised(),),
        objective=Objective(surrogate=Clip(low, high), aggregate=token_mean),
        minibatches=minibatches,
    )


REFERENCE = Reference(
    paper="Learning to Hint for Reinforcement Learning",
    arxiv="2604.00698",
    label="code read",
    code="Andree-9/HiLL@195d94ebee446504db6477606914d5c87fc13c30:verl/trainer/ppo/hinter_utils.py",
    parent="grpo",
    formula="""\
for q without a correct answer: hints h_1, ..., h_M from q, its solution and a wrong answer; G answers to q with h_j
R_j = (1 - p^G - (1 - p)^G) exp(min(D, 0) / T) for a pass rate p; 0 if p is 0 or 1; -0.2 for a refused hint
D = mean over correct answers [ mean_t log pi(y_t | q, y_<t) - mean_t log pi(y_t | q, h_j, y_<t) ]
the group of the best hint replaces that of q if R_j > 0; GRPO's objective for answers and for hints""",
    differences=(
        Difference("policies", "two, of 7B and 4B", "two", "one policy in both roles; one loss over both"),
        Difference("hints, temperature", "4; 0.3", "4; 0.3", "4; 0.3"),
        Difference("reward of a hint", "transfer-weighted", "four forms", "that form; form = variance: p (1 - p)"),
        Difference(
            "hint in the text", "in <hint> tags", "in <hint> tags", "in <hint> tags; with packaged models all of it"
        ),
        Difference("stated answer", "not read", "phrases; text of 3 and more characters", "the same, and #ANSWER"),
        Difference("clip range, KL", "not read", "0.2 and 0.28; none", "0.2 and 0.28; none"),
        Difference("minibatches, group size", "not read", "2 and 8", "2 and 8"),
        Difference("log-probs for D", "of the policy", "of the learner", "of the engine, at the sampling temperature"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[hill]",
        "tests/golden/test_trees.py::test_a_hint_is_worth_the_signal_that_transfers",
        "tests/golden/test_trees.py::test_the_best_hint_replaces_the_group",
    ),
    effect=Effect(
        metric="groups/all_wrong",
        direction="down",
        task="hinted_sums",
        parent="grpo",
        least=0.1,
        matched="steps",
        settings=("method.minibatches = 2", "method.objective.penalties = []"),
    ),
)
