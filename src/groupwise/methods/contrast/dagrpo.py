"""DaGRPO: distinctiveness-aware GRPO, with anchors for hard prompts."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor

from groupwise.advantages import Standardised
from groupwise.data import WRITTEN, Batch, Draw, Filter, NeededMeasure, Outcome, Rollout, Sampler, Strategy, Subscore
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Clip, GatedSurrogate, Objective, ShapedLikelihood, token_mean, written_tokens
from groupwise.rewards import Correctness
from groupwise.rollout import text_of
from groupwise.rollout.strategies.multi_round import attempts, is_correct

__all__ = ["DistinctFromOtherOutcomeFilter", "WithSolutionAnchor", "dagrpo"]


@dataclass(frozen=True, slots=True)
class DistinctFromOtherOutcomeFilter(Filter):
    """Selects answers whose `compared_subscore` differs by `min_distance` or more from an answer of the other outcome.

    Written answers stay, and every answer of the other outcome is distinct from them. DaGRPO, arXiv:2512.06337; the
    measure of distinctness is our reading.
    """

    compared_subscore: str
    min_distance: float = 0.2

    @property
    def needs(self) -> frozenset[NeededMeasure]:
        return frozenset({Subscore(self.compared_subscore)})

    def __call__(self, rollout: Batch) -> Bool[Tensor, " s"]:
        subscore, correct = rollout[Subscore(self.compared_subscore)], rollout.outcome == Outcome.correct
        written = [WRITTEN in s.origin for s in rollout.samples]
        anchor = torch.tensor(written, dtype=torch.bool, device=correct.device)
        far = ((subscore[:, None] - subscore).abs() >= self.min_distance) | anchor[:, None] | anchor
        same_group = rollout.groups.index[:, None] == rollout.groups.index
        return anchor | (same_group & (correct[:, None] != correct) & far).any(1)


@dataclass(frozen=True, slots=True)
class WithSolutionAnchor(Strategy):
    """Samples answers, and adds the data row's solution as an anchor where the pass rate is at most `max_pass_rate`.

    The solution is the column `solution_column` of the row; it is graded as an answer is, and trained with the origin
    WRITTEN. A group whose row has no solution stays as it is. DaGRPO, arXiv:2512.06337; that one solution joins groups
    without a correct answer is our reading.
    """

    column_type: ClassVar[str] = "text"
    column_optional: ClassVar[bool] = True

    solution_column: str = "solution"
    max_pass_rate: float = 0.0

    @property
    def row_columns(self) -> tuple[str, ...]:
        """The columns of the data rows that it reads."""
        return (self.solution_column,)

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        solution = text_of(draw, self.solution_column, self)
        answers = await attempts(sampler, draw.prompt.token_ids, draw.n)
        if not solution or sum(map(is_correct, answers)) > self.max_pass_rate * draw.n:
            return Rollout(draw, tuple(answers))
        (empty,) = sampler.start(draw.prompt.token_ids)
        (anchor,) = await sampler.verify([sampler.write(empty, solution)])
        return Rollout(draw, (*answers, anchor))


def dagrpo(
    *,
    group_size: int = 8,
    compared_subscore: str = "chain_true",
    distance: float = 0.2,
    column: str = "solution",
    gamma: float = 0.1,
    minibatches: int = 4,
) -> Method:
    """GRPO without answers that resemble the other outcome's. Groups without a correct answer get a solution.

    Similar answers with opposite outcomes have conflicting gradients, and groups without a correct answer give no
    signal. The first are removed, and the second get a written solution; the measure of similarity and all formulas are
    our reading.

    Args:
        group_size: sampled answers per prompt.
        compared_subscore: name of the subscore by which answers are compared.
        distance: least difference of the subscore from an answer of the other outcome, at least 0.
        column: column of the data row with the written solution.
        gamma: constant in the weight of a solution's tokens, gamma, above 0.
        minibatches: optimizer steps per iteration.
    """
    return Method(
        group_size=group_size,
        strategy=WithSolutionAnchor(column),
        filter=DistinctFromOtherOutcomeFilter(compared_subscore, distance),
        shaping=(Correctness(),),
        advantage=(Standardised(),),
        objective=Objective(
            surrogate=GatedSurrogate(written_tokens, ShapedLikelihood(gamma), Clip()), aggregate=token_mean
        ),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper=(
        "DaGRPO: Rectifying Gradient Conflict in Reasoning via Distinctiveness-Aware Group Relative Policy Optimization"
    ),
    arxiv="2512.06337",
    evidence="our reading",
    parent="grpo",
    formula="""\
J = 1/Z [ sum over kept answers and tokens of min(r A, clip(r) A) + sum over anchors' tokens of p / (p + gamma) A ]
kept: an answer whose score differs by 0.2 from one of the other outcome; anchors: written solutions of hard groups""",
    differences=(
        PaperDifference(
            "distinctiveness",
            "a fine score of an LLM",
            "not found",
            "difference of a subscore of the verdict (inferred)",
        ),
        PaperDifference(
            "anchors", "expert solutions for hard prompts", "not found", "one, where no answer is correct (inferred)"
        ),
        PaperDifference("anchors' tokens", "off-policy", "not found", "p / (p + 0.1), as LUFFY (inferred)"),
        PaperDifference("statistics", "of the group", "not found", "of the kept answers (inferred)"),
        PaperDifference("constants", "not obtained", "not found", "0.2, 0.1, 8 (inferred)"),
        PaperDifference("minibatches", "not obtained", "not found", "4 (inferred)"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[dagrpo]",
        "tests/golden/test_contrast.py::test_distinct_answers",
        "tests/golden/test_contrast.py::test_an_anchor_joins_a_hard_group",
        "tests/golden/test_contrast.py::test_shaped_likelihood",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy",
        direction="up",
        task="hinted_sums",
        parent="grpo",
        min_difference=0.05,
        runs_matched_by="iterations",
        settings=("iterations = 10", "method.objective.penalties = []"),
        own_settings=("method.filter.compared_subscore = progress",),
        acted="groups/all_wrong",
        acted_least=0.05,
        acted_in="parent",
        first_seed=200,
    ),
    toy_test="tests/golden/test_contrast.py::test_an_anchor_joins_a_hard_group",
    our_finding="The effect was first a smaller share of groups without a signal. A written solution joins each group "
    "that is all wrong, so that this holds by construction, in every run.",
)
