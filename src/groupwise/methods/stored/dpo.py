"""DPO: Direct Preference Optimization."""

from groupwise.learner import InitialPolicy
from groupwise.methods.effect_settings import STORED_SUMS
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Objective, PairwisePreference, pair_mean
from groupwise.rollout import ShuffledRows, Stored

__all__ = ["dpo"]


def dpo(*, beta: float = 0.1, minibatches: int = 1) -> Method:
    """A logistic loss on stored pairs: the chosen answer should gain more on the reference than the rejected one.

    The optimum of a KL-constrained reward is known in closed form, so that the policy itself defines a reward, beta
    times its log-ratio to the reference. The loss fits this reward to the preferences. No reward model is trained, and
    nothing is sampled.

    Args:
        beta: factor of the difference of log-ratios, beta.
        minibatches: optimizer steps per iteration.
    """
    return Method(
        group_size=2,
        curriculum=ShuffledRows(),
        strategy=Stored(("chosen", "rejected")),
        models=(("reference", InitialPolicy()),),
        objective=Objective(surrogate=PairwisePreference(beta), aggregate=pair_mean),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper="Direct Preference Optimization: Your Language Model is Secretly a Reward Model",
    arxiv="2305.18290",
    evidence="code read",
    code="huggingface/trl@f2cd57710ae345ea6428ae95363267fcf38a3dc8:trl/trainer/dpo_trainer.py",
    formula="""\
J = mean over pairs of log sigmoid(beta (d_w - d_l))
d = log(pi(y | x) / pi_ref(y | x)), summed over the tokens of y; w is chosen, l is rejected""",
    differences=(
        PaperDifference("beta", "0.1; 0.5 for summaries", "TRL: 0.1", "0.1"),
        PaperDifference("reference", "the supervised model", "TRL: the model at the start", "the model at the start"),
        PaperDifference("length", "not specified", "TRL: prompt and answer cut at 1,024 tokens", "nothing is cut"),
        PaperDifference("end token", "not specified", "TRL: part of the answer", "part of the answer"),
        PaperDifference("minibatches", "not specified", "TRL: 1 step per batch", "1"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[dpo]",
        "tests/golden/test_stored.py::test_the_first_loss_of_pairs",
        "tests/golden/test_contrast.py::test_dpo_is_a_preference",
    ),
    tuned_settings=(("method.objective.surrogate.beta = 0.1",), ("method.objective.surrogate.beta = 0.5",)),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy_greedy",
        direction="up",
        task="hinted_sums",
        parent="sft",
        min_difference=0.03,
        runs_matched_by="iterations",
        settings=(*STORED_SUMS, "iterations = 6"),
    ),
)
