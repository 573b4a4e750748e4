"""SRPO: correct answers learn by GRPO, wrong ones by self-distillation."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from groupwise.advantages import centred
from groupwise.data import (
    Batch,
    Draw,
    Entropy,
    Mask,
    NeededMeasure,
    Outcome,
    Rollout,
    Sample,
    Sampler,
    Strategy,
    Weight,
)
from groupwise.learner import EMA
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Clip, Distillation, GatedSurrogate, Objective, token_mean
from groupwise.rollout import AUTO, ModelDependentDefault, check_wording
from groupwise.rollout.strategies.multi_round import attempts, context_of, is_correct

__all__ = ["SiblingViewStrategy", "TeacherCertainty", "ViewMask", "srpo"]


@dataclass(frozen=True, slots=True)
class ViewMask(Mask):
    """Selects the tokens of answers that have a view: a second prompt for the same tokens, such as one with a hint."""

    unstored_input: ClassVar[str] = "the other prompts of a sample"

    view: str

    def __call__(self, b: Batch) -> Bool[Tensor, " n"]:
        has = torch.tensor(
            [self.view in s.prompt_views for s in b.samples], dtype=torch.bool, device=b.index_in_sample.device
        )
        return b.sequences.spread(has)


@dataclass(frozen=True, slots=True)
class TeacherCertainty(Weight):
    """Weight `exp(-beta H) / mean`, H the entropy of a teacher that reads the prompt `view`; 1 for answers without it.

    SRPO, arXiv:2604.02288, equation 9.
    """

    beta: float = 1.0
    model: str = "teacher"
    view: str = "sibling"

    @property
    def needs(self) -> frozenset[NeededMeasure]:
        return frozenset({Entropy(self.model, self.view)})

    def __call__(self, step: Batch) -> Float[Tensor, " n"]:
        has = ViewMask(self.view)(step)
        w = torch.where(has, (-self.beta * step[Entropy(self.model, self.view)]).exp(), 0.0)
        mean = w.sum() / has.sum().clamp(min=1)
        return torch.where(has, w / mean.masked_fill(mean == 0, 1.0), 1.0)


@dataclass(frozen=True, slots=True)
class SiblingViewStrategy(Strategy):
    """Samples answers. If any is correct, each wrong one gets a second prompt with a correct one, for a teacher.

    The wrong answer's own tokens are then scored by a teacher under the view. SDPO, arXiv:2601.20802. The first correct
    answer is the solution. An answer for which the view leaves no room has none.
    """

    model_dependent_defaults: ClassVar[dict[str, ModelDependentDefault]] = {
        "prompt_template": ModelDependentDefault(
            "{problem}{solution}{problem}",
            "{problem}\nCorrect solution:\n\n{solution}\n\nCorrectly solve the original question.",
            "lasgroup/SDPO, verl/trainer/config/actor/actor.yaml, 0736c78",
        )
    }

    view: str = "sibling"
    prompt_template: str = AUTO

    def __post_init__(self) -> None:
        check_wording(self.prompt_template, ("problem", "solution"))

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        answers = await attempts(sampler, draw.prompt.token_ids, draw.n)
        solution = next((s for s in answers if is_correct(s)), None)
        if solution is None:
            return Rollout(draw, tuple(answers))
        context = context_of(sampler, self.prompt_template, {"problem": draw.prompt.text, "solution": solution.text})
        room = sampler.room(context) if context else -1

        def viewed(s: Sample) -> Sample:
            wrong = s.verdict is not None and s.verdict.outcome in (Outcome.wrong, Outcome.malformed)
            return replace(s, prompt_views={self.view: context}) if wrong and len(s.tokens) <= room else s

        return Rollout(draw, tuple(map(viewed, answers)))


def srpo(
    *,
    group_size: int = 8,
    alpha: float = 0.5,
    beta: float = 1.0,
    keep: float = 0.95,
    low: float = 0.2,
    high: float = 0.28,
    prompt_template: str = "auto",
) -> Method:
    """Correct answers learn by GRPO. Wrong ones are distilled from an EMA of the policy that sees a correct answer.

    GRPO lowers all tokens of a wrong answer alike, and self-distillation on correct answers is ambiguous and can
    collapse. Here correct answers learn by GRPO, and wrong ones from a teacher that reads a correct answer, weighted by
    its certainty.

    Args:
        group_size: answers per prompt.
        alpha: divergence from the teacher: 0 is forward KL, 1 reverse KL, between them the generalised JSD.
        beta: decrease of a token's log-weight per nat of the teacher's entropy, beta, at least 0.
        keep: fraction of the teacher that each step of the moving average keeps, from 0 to below 1.
        low: distance of the lower clip bound from 1.
        high: distance of the upper clip bound from 1.
        prompt_template: the teacher's prompt, with {problem} and {solution}; "auto" selects the form for the model.
    """
    view = "sibling"
    surrogate = GatedSurrogate(ViewMask(view), Distillation("teacher", alpha, view), Clip(low, high))
    return Method(
        group_size=group_size,
        strategy=SiblingViewStrategy(view, prompt_template),
        advantage=(centred,),
        models=(("teacher", EMA(keep)),),
        objective=Objective(
            surrogate=surrogate, weights=(TeacherCertainty(beta, "teacher", view),), aggregate=token_mean
        ),
    )


REFERENCE = PaperReference(
    paper="Unifying Group-Relative and Self-Distillation Policy Optimization via Sample Routing",
    arxiv="2604.02288",
    evidence="paper read",
    parent="grpo",
    formula="""\
J = 1/N [ sum over tokens of correct answers of min(r A, clip(r) A) - sum over tokens of wrong ones of w JSD(pi, q) ]
q = the teacher's distribution after problem, a correct answer of the group, problem
w = exp(-beta H(q)) over its mean; A_i = R_i - mean(R); wrong answers without a correct sibling learn by GRPO""",
    differences=(
        PaperDifference("advantage", "mean and std", "baseline without std", "without std"),
        PaperDifference(
            "divergence", "generalised JSD, alpha 0.5", "SDPO: top 100 tokens and a rest", "whole distributions, 0.5"
        ),
        PaperDifference("teacher", "EMA of the policy, 0.95", "SDPO: 0.95", "EMA(0.95)"),
        PaperDifference(
            "prompt of the teacher",
            "question, solution, instruction",
            "SDPO: the same",
            "words; without prose by default",
        ),
        PaperDifference("feedback of an environment", "optional", "SDPO: optional", "none"),
        PaperDifference("sampled-token form", "none", "SDPO: an option", "not offered: it collapsed in our trial"),
        PaperDifference("beta", "1", "none", "1"),
        PaperDifference("group size", "8", "none", "8"),
        PaperDifference("clip range", "0.2 and 0.28", "none", "0.2 and 0.28"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[srpo]",
        "tests/golden/test_contrast.py::test_certainty_weights",
        "tests/golden/test_contrast.py::test_siblings_become_views",
        "tests/golden/test_contrast.py::test_srpo_routes",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy",
        direction="up",
        task="hinted_sums",
        parent="grpo",
        min_difference=0.05,
        runs_matched_by="iterations",
        settings=("method.objective.penalties = []",),
    ),
)
