"""RGR-GRPO: a failed group's best answer is corrected by feedback, and learned."""

from dataclasses import dataclass
from typing import ClassVar

from groupwise.advantages import Standardised
from groupwise.data import Draw, Role, Rollout, Sampler, Strategy
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Clip, GatedSurrogate, Objective, ShapedLikelihood, token_mean, written_tokens
from groupwise.rollout import AUTO, ModelDependentDefault, check_wording
from groupwise.rollout.strategies.multi_round import as_written, attempts, best_of, context_of, score_of, with_role
from groupwise.rollout.strategies.two_round_strategies import CORRECTED

__all__ = ["BestAnswerRefinement", "rgr_grpo"]


@dataclass(frozen=True, slots=True)
class BestAnswerRefinement(Strategy):
    """If the best answer scores below `score_below`, the policy rewrites it once, given the verifier's feedback.

    A rewritten answer with a higher score replaces the worst of the group, and is learned as a written answer after the
    plain prompt. RGR-GRPO, arXiv:2511.12344.
    """

    needs_feedback: ClassVar[bool] = True
    roles: ClassVar[tuple[Role, ...]] = (Role("tried", "where a rewritten answer is not better"),)
    model_dependent_defaults: ClassVar[dict[str, ModelDependentDefault]] = {"prompt_template": CORRECTED}

    score_below: float = 1.0
    prompt_template: str = AUTO

    def __post_init__(self) -> None:
        check_wording(self.prompt_template, ("problem", "draft", "feedback"))

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        prompt = draw.prompt
        group = await attempts(sampler, prompt.token_ids, draw.n)
        best = best_of(group)[0]
        feedback = best.verdict.feedback if best.verdict else ""
        values = {"problem": prompt.text, "draft": best.text, "feedback": feedback}
        context = context_of(sampler, self.prompt_template, values)
        if score_of(best) >= self.score_below or not context:
            return Rollout(draw, tuple(group))
        (again,) = await attempts(sampler, context, 1)
        if score_of(again) <= score_of(best):
            return Rollout(draw, (*group, *with_role([again], "tried")))
        worst = min(range(len(group)), key=lambda i: score_of(group[i]))
        others = [s for i, s in enumerate(group) if i != worst]
        return Rollout(draw, (*others, as_written(again, prompt.token_ids)))


def rgr_grpo(
    *,
    group_size: int = 8,
    score_below: float = 1.0,
    gamma: float = 0.1,
    prompt_template: str = "auto",
    minibatches: int = 1,
) -> Method:
    """GRPO whose groups without a good answer get one that the policy corrected with the verifier's feedback.

    Rewards for a right or wrong answer are sparse, and the paper argues that on-policy GRPO stops exploring. RGR-GRPO
    lets the policy rewrite the best answer with feedback, and mixes the better result into the group as an off-policy
    answer. The verifier's feedback in place of rubrics, and the loss of the rewritten answer, are our reading.

    Args:
        group_size: answers per prompt.
        score_below: score of the best answer below which it is rewritten, theta.
        gamma: probability at which the gradient of a rewritten token is largest, above 0, gamma.
        prompt_template: prompt for a correction, with `{problem}`, `{draft}` and `{feedback}`; `auto`: by the model.
        minibatches: optimizer steps per iteration.
    """
    surrogate = GatedSurrogate(written_tokens, selected_surrogate=ShapedLikelihood(gamma), other_surrogate=Clip())
    return Method(
        group_size=group_size,
        strategy=BestAnswerRefinement(score_below, prompt_template),
        advantage=(Standardised(),),
        objective=Objective(surrogate=surrogate, aggregate=token_mean),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper="Reward and Guidance through Rubrics: Promoting Exploration to Improve Multi-Domain Reasoning",
    arxiv="2511.12344",
    evidence="our reading",
    parent="grpo",
    formula="""\
if max R < theta: y' from pi_old(. | q, best answer, feedback); if R(y') > max R it replaces the worst of the group
J = PPO's clip for sampled tokens, p / (p + gamma) A for those of y'; A over the mixed group""",
    differences=(
        PaperDifference("feedback", "failed criteria of a rubric", "not found", "the verdict's feedback"),
        PaperDifference("threshold theta", "not obtained", "not found", "1: any group without a full score (inferred)"),
        PaperDifference("rewritten answers", "one or more", "not found", "one (inferred)"),
        PaperDifference("off-policy surrogate", "shaped likelihood", "not found", "p / (p + 0.1) (inferred)"),
        PaperDifference("group size, minibatches", "not obtained", "not found", "8 and 1 (inferred)"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[rgr_grpo]",
        "tests/golden/test_rollout.py::test_refinement_replaces_the_worst",
    ),
    expected_effect=ExpectedEffect(
        metric="frac_reward_zero_std",
        direction="down",
        task="hinted_sums",
        parent="grpo",
        min_difference=0.05,
        runs_matched_by="iterations",
        settings=("iterations = 10", "method.objective.penalties = []"),
        acted="rollout/other_prompt",
        acted_least=1.0,
    ),
)
