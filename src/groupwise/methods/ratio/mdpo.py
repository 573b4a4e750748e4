"""MDPO: Mirror Descent Policy Optimization, for language models."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from jaxtyping import Float
from torch import Tensor

from groupwise.advantages import Whitened, centred
from groupwise.data import Batch, Surrogate, UnsplitUnit
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.methods.schedules import InverseRemaining
from groupwise.objective import KL, Objective, UnclippedSurrogate, sequence_mean, token_mean

__all__ = ["LogRatioAdvantageFit", "mdpo"]


@dataclass(frozen=True, slots=True)
class LogRatioAdvantageFit(Surrogate):
    """`-(inverse_step_size * log-ratio of the answer - A)^2`: fits an answer's weighted log-ratio to its advantage A.

    Its optimum is the step of mirror descent with step size `1 / inverse_step_size`. MDPO, arXiv:2005.09814; Kimi k1.5,
    arXiv:2501.12599.
    """

    unsplit_unit: ClassVar[UnsplitUnit] = "sequence"
    one_per_sequence: ClassVar[bool] = True

    inverse_step_size: float = 1.0

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        s = b.sequences
        return -s.spread((self.inverse_step_size * s.total(b.logp - b.logp_old) - s.mean(b.advantage)) ** 2)


def mdpo(
    *, group_size: int = 8, weight: float = 1.0, epochs: int = 10, form: Literal["on-policy", "squared"] = "on-policy"
) -> Method:
    """Several steps on the return minus a KL to the policy before the update. No clip.

    Trust regions are analysed as mirror descent, but practical methods add constraints or clips that the theory does
    not need. MDPO takes several steps on the mirror descent objective itself; its use for answers to prompts and the
    squared form are our reading.

    Args:
        group_size: answers per prompt, at least 2.
        weight: weight of the KL, 1/t, at the first iteration; it grows over the run, but not in the squared form.
        epochs: gradient steps per iteration.
        form: "on-policy" adds a KL to the old policy; "squared" fits the answer's log-ratio to its advantage.
    """
    if form == "squared":
        objective = Objective(surrogate=LogRatioAdvantageFit(weight), aggregate=sequence_mean)
        return Method(group_size=group_size, advantage=(centred,), objective=objective, epochs=epochs)
    penalty = KL(weight, kl_estimator="corrected", model="policy")
    return Method(
        group_size=group_size,
        advantage=(Whitened(ddof=0),),
        objective=Objective(surrogate=UnclippedSurrogate(), penalties=(penalty,), aggregate=token_mean),
        epochs=epochs,
        schedules=(("objective.penalties.0.coefficient", InverseRemaining(weight)),),
    )


REFERENCE = PaperReference(
    paper="Mirror Descent Policy Optimization",
    arxiv="2005.09814",
    evidence="code read",
    code="manantomar/Mirror-Descent-Policy-Optimization@c9bd3ba080e34f94e104ffe7633167e246dd63c6:mdpo_on/mdpo.py",
    parent="reinforce",
    formula="""\
J = 1/(sum_i |o_i|) sum_i sum_t [ r_it A_i - 1/t_k (r_it log r_it - r_it + 1) ]
t_k = 1 - k/K at iteration k of K; A whitened over the batch
squared: J = - 1/N sum_i (1/t sum_t log r_it - A_i)^2, A_i = R_i - mean(R)""",
    differences=(
        PaperDifference("setting", "continuous control, with a critic", "the same", "answers to prompts (inferred)"),
        PaperDifference("KL(pi || pi_old)", "exact", "exact, of Gaussians", "r log r - r + 1 of the sampled tokens"),
        PaperDifference(
            "log-ratios beyond 20",
            "none: exact",
            "none: exact",
            "ratio clamped, and without gradient; the KL keeps its own",
        ),
        PaperDifference("weight of the KL", "1 / t_k, grows", "1 / (1 - k / K)", "InverseRemaining: the same"),
        PaperDifference("gradient steps per batch", "10", "10", "10 epochs of one minibatch"),
        PaperDifference(
            "squared form", "off-policy form without a critic", "not released", 'form = "squared" (inferred)'
        ),
        PaperDifference("advantages", "GAE, whitened", "GAE, whitened", "the answer's reward, whitened"),
        PaperDifference("group size", "1: control", "1", "8 (inferred)"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[mdpo]",
        "tests/golden/test_methods.py::test_whole_path[mdpo, squared]",
        "tests/golden/test_ratio.py::test_mirror_descent_of_a_bandit",
        "tests/golden/test_ratio.py::test_squared_form_of_a_bandit",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy_greedy",
        direction="up",
        task="calculator",
        parent="reinforce",
        min_difference=0.05,
        runs_matched_by="tokens",
        settings=("method.minibatches = 1", "iterations = 6"),
    ),
    toy_test="tests/golden/test_ratio.py::test_mirror_descent_of_a_bandit",
    our_finding="It learns faster and then degrades: greedy accuracy on the calculator is 0.91 after five iterations, "
    "0.85 after ten and 0.83 after twenty; REINFORCE has 0.53, 0.93 and 0.98. Ten steps without a clip on one "
    "batch lower the entropy from 0.15 to 0.02 in five iterations. The batch has 64 answers here, and 2048 "
    "states in the paper. At equal tokens it is read after ten iterations, since its answers become long "
    "sooner.",
)
