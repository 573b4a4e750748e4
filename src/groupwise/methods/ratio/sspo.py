"""SSPO: Subsentence-level Policy Optimization."""

from groupwise.advantages import Standardised
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import (
    Objective,
    ScaledClip,
    SentenceEntropyClipScale,
    SentenceRatio,
    SentenceSplitter,
    group_mean,
)

__all__ = ["sspo"]


def sspo(
    *, group_size: int = 8, low: float = 0.05, high: float = 0.05, at: str = ".!?;\n", minibatches: int = 8
) -> Method:
    """One ratio per sentence. The clip range of a sentence grows with its entropy.

    One outlier token can collapse GRPO, and in GSPO's mean it either removes the whole answer or has almost no effect.
    SSPO limits an outlier's effect to its sentence; the ends of sentences, and the formula from entropy to clip range,
    are our reading.

    Args:
        group_size: answers per prompt, G, at least 2.
        low: distance of the lower clip bound from 1 at k_c = 1, eps_low.
        high: distance of the upper clip bound from 1 at k_c = 1, eps_high.
        at: characters after which a sentence ends.
        minibatches: optimizer steps per iteration.
    """
    sentences = SentenceSplitter(at)
    surrogate = ScaledClip(low, high, SentenceEntropyClipScale(sentence_splitter=sentences), SentenceRatio(sentences))
    return Method(
        group_size=group_size,
        advantage=(Standardised(),),
        objective=Objective(surrogate=surrogate, aggregate=group_mean),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper="SSPO: Subsentence-level Policy Optimization",
    arxiv="2511.04256",
    evidence="our reading",
    parent="gspo_token",
    formula="""\
J = 1/G sum_i 1/|o_i| sum_t min[ s_it A_i, clip(s_it, 1 - k_c eps_low, 1 + k_c eps_high) A_i ]
s_it = sg[ exp(mean over the sentence c of log r) ] pi / sg[pi]
k_c = clip(mean entropy of the sentence / mean entropy of the answer, 1/2, 3/2)
A_i = (R_i - mean(R)) / std(R)""",
    differences=(
        PaperDifference("where a sentence ends", "not obtained", "not found", "after . ! ? ; or a new line (inferred)"),
        PaperDifference("subsentences", "version 2", "not found", 'at = ".!?;,:\\n"'),
        PaperDifference("gradient", "not obtained", "not found", "through each token alone, as GSPO-token (inferred)"),
        PaperDifference("entropy to range", "in words", "not found", "k_c above (inferred)"),
        PaperDifference("entropy", "not obtained", "not found", "of the policy before the update"),
        PaperDifference("clip range", "not obtained", "not found", "0.05, between GSPO's and GRPO's (inferred)"),
        PaperDifference("group size, minibatches", "not obtained", "not found", "8 and 8 (inferred)"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[sspo]",
        "tests/golden/test_ratio.py::test_sentence_ratios",
        "tests/golden/test_ratio.py::test_sentence_entropy_sets_the_range",
        "tests/golden/test_ratio.py::test_an_outlier_changes_its_own_sentence_only",
    ),
    expected_effect=ExpectedEffect(
        metric="clip_ratio/region_mean",
        direction="down",
        task="hinted_sums",
        parent="gspo_token",
        min_difference=0.05,
        runs_matched_by="iterations",
        settings=("iterations = 10", "method.minibatches = 8", "method.objective.penalties = []"),
    ),
    toy_test="tests/golden/test_ratio.py::test_an_outlier_changes_its_own_sentence_only",
    our_finding="On hinted_sums it clips 2 % of the tokens; GSPO-token clips 46 % at the paper's window.",
)
