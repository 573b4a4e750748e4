"""SPO: Single-stream Policy Optimization."""

from groupwise.advantages import AgainstPart, Whitened
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import DualClip, Objective, token_mean
from groupwise.rewards import Correctness
from groupwise.rollout import SuccessTracker, TrackedAnswers

__all__ = ["spo"]


def spo(
    *,
    group_size: int = 1,
    initial: int = 8,
    explore: float = 0.05,
    least: float = 0.875,
    most: float = 0.96,
    half: float = 0.06,
    minibatches: int = 8,
) -> Method:
    """One answer per prompt; the baseline is the prompt's tracked success rate. Whitened over the batch."""
    return Method(
        group_size=group_size,
        curriculum=SuccessTracker(explore, least, most, half),
        strategy=TrackedAnswers(initial),
        shaping=(Correctness(),),
        advantage=(AgainstPart("baseline"), Whitened()),
        objective=Objective(surrogate=DualClip(0.2, 0.28, 10.0), aggregate=token_mean),
        minibatches=minibatches,
    )


REFERENCE = Reference(
    paper="Single-stream Policy Optimization",
    arxiv="2509.13232",
    label="code read",
    code="verl-project/verl-recipe@48ea0a797fa29867ea0ad92aff7d284eec7d4be3:spo/spo_ray_trainer.py",
    parent="reinforce",
    formula="""\
A_x = (r_x - v_x - mean) / std over the batch,  v_x = a_x / (a_x + b_x) before r_x
a <- rho a + r, b <- rho b + 1 - r,  rho = clip(2^(-D / D_half), rho_min, rho_max)
D = mean over tokens of |log pi_then - log pi_now| on the last answer to x
x is drawn with weight sqrt(v_x (1 - v_x)) + eps;  at first a = (s + 1/2) / ((n + 1) (1 - rho_min)), b alike""",
    differences=(
        Difference("drift D", "a KL divergence", "mean absolute change of log-probs", "the code's"),
        Difference("log-probs of D", "not specified", "after the updates", "when sampled: one update earlier, both"),
        Difference("initial answers", "8 of the start model", "read from a file; 0 possible", "8, at the first draw"),
        Difference("pool of a draw", "the task", "a large batch of it", "the task, without replacement"),
        Difference("bounds of rho, D_half", "not obtained", "0.875 and 0.96, 0.06", "0.875 and 0.96, 0.06"),
        Difference("constant rho", "a variant", "0.875, nothing stored", "least = most"),
        Difference("exploration eps", "not obtained", "0.05", "0.05"),
        Difference("std of the batch", "not specified", "ddof 1, plus 1e-8", "ddof 1, plus 1e-8"),
        Difference("clip range", "0.2 and 0.28", "0.2 and 0.28, dual clip 10", "0.2 and 0.28, dual clip 10"),
        Difference("answers per prompt, minibatches", "1, 8", "1, 8", "1, 8"),
        Difference("state", "last answers of all prompts", "in memory", "in the checkpoint: large for long answers"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[spo]",
        "tests/golden/test_budgets.py::test_tracked_rates",
        "tests/golden/test_budgets.py::test_drift_of_the_last_answer",
    ),
    effect=Effect(
        metric="eval/accuracy_greedy", direction="up", task="hinted_sums", parent="grpo", least=0.02, matched="tokens"
    ),
)
