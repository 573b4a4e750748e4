"""On-policy distillation: a teacher scores the student's own tokens."""

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from groupwise.advantages.credit import discounted
from groupwise.data import Batch, Credit, Divergence, Logp, NeededMeasure
from groupwise.learner import FromDirectory
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Distillation, Objective, UnclippedSurrogate, token_mean

__all__ = ["EarlyTokenCredit", "TeacherGap", "on_policy_distillation"]


@dataclass(frozen=True, slots=True)
class TeacherGap(Credit):
    """`log teacher - log pi_old`, summed with a discount from each token on, plus a weight times the advantage.

    Its mean is minus the reverse KL. With `use_kl_baseline` that KL is added (vOPD): the same expected gradient with
    less variance. MiniLLM, arXiv:2306.08543; GKD, arXiv:2306.13649. A `teacher_view` is the teacher's own context.
    """

    teacher_model: str = "teacher"
    discount: float = 0.0
    use_kl_baseline: bool = False
    advantage_weight: float = 0.0
    teacher_view: str = ""

    def __post_init__(self) -> None:
        if self.use_kl_baseline and self.discount:
            raise ValueError(f"{self}: the baseline works for single tokens only: set discount to 0")

    @property
    def needs(self) -> frozenset[NeededMeasure]:
        whole = {Divergence(self.teacher_model, 1.0, self.teacher_view)} if self.use_kl_baseline else set()
        return frozenset({Logp("policy"), Logp(self.teacher_model, self.teacher_view)} | whole)

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " n"]:
        gap = (b[Logp(self.teacher_model, self.teacher_view)] - b.logp_old).to(x.dtype)
        if self.use_kl_baseline:
            gap = gap + b[Divergence(self.teacher_model, 1.0, self.teacher_view)].to(x.dtype)
        if self.discount:
            gap = discounted(gap, b.sequences.index, self.discount)
        return gap + self.advantage_weight * b.sequences.spread(x)


@dataclass(frozen=True, slots=True)
class EarlyTokenCredit(Credit):
    """Another credit times a factor that starts at `1 + early_boost` and falls towards 1: early tokens weigh most.

    The factor is `1 + early_boost (1 - share of the sum of |base_credit| before the token)`. IW-OPD, arXiv:2606.22600.
    """

    base_credit: Credit = TeacherGap()
    early_boost: float = 0.5

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " n"]:
        a, s = self.base_credit(x, b), b.sequences
        size = a.abs()
        total = s.spread(s.total(size))
        before = s.prefix(size) - size
        return a * (1 + self.early_boost * (1 - before / total.masked_fill(total == 0, 1.0)))


def on_policy_distillation(
    *,
    teacher: str = "calculator",
    group_size: int = 1,
    form: Literal["sampled", "vopd", "iw-opd", "gkd"] = "sampled",
    discount: float = 0.0,
    alpha: float = 0.5,
) -> Method:
    """A token's advantage is the teacher's log-prob minus the policy's. `form = "gkd"` compares whole distributions.

    Supervised training on a teacher's text covers prefixes that the student never writes, and a verifier scores whole
    answers only. Here the student samples, and the teacher scores each token of the student's answers.

    Args:
        teacher: directory, packaged model or hub name of the teacher, q.
        group_size: answers per prompt.
        form: "sampled", "vopd" (KL as baseline), "iw-opd" (early tokens weigh more) or "gkd" (whole distributions).
        discount: discount per token of later advantages, from 0 (none are added) to 1; 0 with "vopd", unused by "gkd".
        alpha: divergence of "gkd": 0 is forward KL, 1 reverse KL, between them the generalised JSD.
    """
    models = (("teacher", FromDirectory(teacher)),)
    if form == "gkd":
        objective = Objective(surrogate=Distillation("teacher", alpha), aggregate=token_mean)
        return Method(group_size=group_size, models=models, objective=objective)
    credit = TeacherGap("teacher", discount, use_kl_baseline=form == "vopd")
    return Method(
        group_size=group_size,
        credit=EarlyTokenCredit(credit) if form == "iw-opd" else credit,
        models=models,
        objective=Objective(surrogate=UnclippedSurrogate(), aggregate=token_mean),
    )


REFERENCE = PaperReference(
    paper="On-Policy Distillation of Language Models: Learning from Self-Generated Mistakes",
    arxiv="2306.13649",
    evidence="code read",
    code="holi-lab/vOPD@c77a0788300fc9a0dc90176d97e4fe1ee942bc43:src/opd_trainer.py",
    parent="reinforce",
    formula="""\
A_t = log q(y_t) - log pi_old(y_t); J = mean over tokens of (pi / pi_old)_t A_t; y sampled from the student
vopd: A_t + KL(pi || q) at the token; iw-opd: A_t (1 + 1/2 (1 - share of |A| before t))
gkd: J = - mean over tokens of JSD(pi, q), through the whole distributions""",
    differences=(
        PaperDifference("teacher", "a larger model", "any", "the directory, packaged model or hub name `teacher`"),
        PaperDifference("discount", "none", "tinker-cookbook 0, TRL's MiniLLM 1", "0"),
        PaperDifference("mixture with the teacher's own text", "lambda", "TRL 0.5", "none: on-policy alone"),
        PaperDifference("top tokens", "all", "verl, SDPO: top k", "all"),
        PaperDifference("clamps", "none", "verl: log-probs at least -10, loss within 10", "none"),
        PaperDifference("group size", "1", "1", "1"),
        PaperDifference("alpha of gkd", "0.5", "TRL 0.5", "0.5"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[on_policy_distillation]",
        "tests/golden/test_methods.py::test_whole_path[iw-opd]",
        "tests/golden/test_contrast.py::test_teacher_gap_example",
        "tests/golden/test_contrast.py::test_early_tokens_weigh_most",
        "tests/golden/test_contrast.py::test_baseline_keeps_the_expected_gradient",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy_greedy",
        direction="up",
        task="calculator",
        parent="reinforce",
        min_difference=0.05,
        runs_matched_by="tokens",
        settings=("prompts = 64", "method.group_size = 1", "method.minibatches = 1", "iterations = 6"),
        own_settings=("method.models.teacher.directory = @grpo",),
    ),
    toy_test="tests/golden/test_contrast.py::test_baseline_keeps_the_expected_gradient",
)
