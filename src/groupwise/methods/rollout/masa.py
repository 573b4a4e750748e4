"""MASA: Meta-Awareness via Self-Alignment."""

from groupwise.advantages import Standardised
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import DualClip, Objective, Routed, log_likelihood, token_mean, written_tokens
from groupwise.rollout import Predictions

__all__ = ["masa"]


def masa(
    *,
    group_size: int = 16,
    count: int = 16,
    words: str = "auto",
    gate: bool = False,
    length_factor: float = 0.0,
    expert: float = 0.0,
    minibatches: int = 1,
) -> Method:
    """GRPO on answers and on predictions about them, which are rewarded for agreement with the answers."""
    clip = DualClip(0.2, 0.28, 10.0)
    surrogate = Routed(written_tokens, then=log_likelihood, otherwise=clip) if expert else clip
    return Method(
        group_size=group_size,
        strategy=Predictions(count, words, gate, length_factor, expert),
        trains=("answer", "prediction", *(("expert",) if expert else ())),
        advantage=(Standardised(),),
        objective=Objective(surrogate=surrogate, aggregate=token_mean),
        minibatches=minibatches,
    )


REFERENCE = Reference(
    paper="Meta-Awareness Enhances Reasoning Models: Self-Alignment Reinforcement Learning",
    arxiv="2510.03259",
    label="code read",
    code="akatigre/MASA-RL@fad5726e5570e6eefdecc35dc7be5db42c909e93:verl/utils/reward_score/meta_cog.py",
    parent="dapo",
    formula="""\
r = 1/3 ( 1[min L < n < max L] + 0.01^|p - d/8| + share of notions in more correct answers than in others )
n, d: predicted length and number of correct answers of 8; L: lengths of correct answers; p: their share
A = z-score among the answers, and among the predictions; one loss over both""",
    differences=(
        Difference("prompt of a prediction", "meta tags, then JSON", "so", "words; JSON or RATE;LENGTH in the answer"),
        Difference("notions of the problem", "dropped", "those of the whole prompt", "those of the problem's text"),
        Difference("case of a notion", "not specified", "counts", "does not count"),
        Difference("experts: when", "interleaved phases", "on a full store", "expert = 0.2: in the step's loss"),
        Difference("experts: length", "the true one", "sum of correct / all answers", "mean of correct answers"),
        Difference("experts: rate", "the true one", "a share", "of 8, as in a prediction; default: 0, no experts"),
        Difference("gate and early end", "not obtained", "not released", "mean rounds to 0 or 8; length_factor = 2"),
        Difference("gate and early end by default", "a variant", "not released", "neither: 0"),
        Difference("notions as hints", "a variant", "one prediction in the prompt", "not offered"),
        Difference("group size, predictions", "16, 16", "16, 16", "16, 16"),
        Difference("clip range", "0.2 and 0.28", "0.2 and 0.28, dual clip 10", "0.2 and 0.28, dual clip 10"),
        Difference("minibatches", "1", "1", "1"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[masa]",
        "tests/golden/test_methods.py::test_whole_path[masa with ratios up to 20]",
        "tests/golden/test_budgets.py::test_agreement",
        "tests/golden/test_budgets.py::test_predictions_are_a_group_of_their_own",
    ),
    effect=Effect(
        metric="eval/accuracy_greedy", direction="up", task="hinted_sums", parent="dapo", least=0.02, matched="steps"
    ),
)
