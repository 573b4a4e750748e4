"""iGRPO: the best of several drafts is in the prompt."""

from dataclasses import dataclass
from typing import ClassVar

from groupwise.advantages import Standardised
from groupwise.data import Draw, Role, Rollout, Sampler, Strategy
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Objective, group_mean
from groupwise.rollout import AUTO, ModelDependentDefault, check_wording
from groupwise.rollout.strategies.multi_round import attempts, best_of, context_of

__all__ = ["DraftAndRefine", "igrpo"]

DRAFTED = ModelDependentDefault(
    "{problem}{draft};{problem}",
    "{problem}\n\nHere is a first draft of an answer, which may be wrong:\n\n{draft}\n\n"
    "Improve on the draft: write a complete and correct answer to the problem.",
)


@dataclass(frozen=True, slots=True)
class DraftAndRefine(Strategy):
    """Samples `draft_count` answers, then `draw.n` answers to a prompt with the best draft.

    Only the latter are trained.

    Ties go to a draft by a keyed draw. Without room for the draft the prompt stays plain. iGRPO, arXiv:2602.09000.
    """

    roles: ClassVar[tuple[Role, ...]] = (Role("draft", "for each prompt"),)
    model_dependent_defaults: ClassVar[dict[str, ModelDependentDefault]] = {"refinement_prompt_template": DRAFTED}

    draft_count: int = 8
    refinement_prompt_template: str = AUTO

    def __post_init__(self) -> None:
        check_wording(self.refinement_prompt_template, ("problem", "draft"))

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        prompt = draw.prompt
        drafts = await attempts(sampler, prompt.token_ids, self.draft_count, role="draft")
        best = sampler.random(0).choice(best_of(drafts))
        values = {"problem": prompt.text, "draft": best.text}
        answers = await attempts(
            sampler, context_of(sampler, self.refinement_prompt_template, values) or prompt.token_ids, draw.n
        )
        return Rollout(draw, (*drafts, *answers))


def igrpo(
    *, group_size: int = 8, draft_count: int = 8, refinement_prompt_template: str = "auto", minibatches: int = 1
) -> Method:
    """GRPO on answers that follow the best of several drafts in their prompt. Drafts are not trained.

    GRPO treats each answer as a separate attempt, and discards a good draft after its score. iGRPO puts the draft with
    the highest reward into the prompt, and trains only on answers to this prompt. The numbers of drafts and answers,
    and a random choice among equal drafts, are our reading.

    Args:
        group_size: answers to the prompt with the best draft, G.
        draft_count: drafts per prompt, N.
        refinement_prompt_template: prompt for a better answer, with `{problem}` and `{draft}`; `auto`: by the model.
        minibatches: optimizer steps per iteration.
    """
    return Method(
        group_size=group_size,
        strategy=DraftAndRefine(draft_count, refinement_prompt_template),
        advantage=(Standardised(),),
        objective=Objective(aggregate=group_mean),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper="iGRPO: Self-Feedback-Driven LLM Reasoning",
    arxiv="2602.09000",
    evidence="our reading",
    parent="grpo",
    formula="""\
d* = the draft with the highest reward of d_1, ..., d_N from pi_old(. | q)
o_1, ..., o_G from pi_old(. | q, d*); GRPO's objective under the prompt with d*""",
    differences=(
        PaperDifference("drafts, group size", "not obtained", "not found", "8 and 8 (inferred)"),
        PaperDifference("ties of the drafts", "not specified", "not found", "a keyed draw (inferred)"),
        PaperDifference("template", "question, draft, request", "not found", "words"),
        PaperDifference("a draft that leaves no room", "not specified", "not found", "the plain prompt (inferred)"),
        PaperDifference("minibatches", "not obtained", "not found", "1 (inferred)"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[igrpo]",
        "tests/golden/test_rollout.py::test_drafts_and_refinements",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy_greedy",
        direction="up",
        task="hinted_sums",
        parent="grpo",
        min_difference=0.05,
        runs_matched_by="tokens",
        settings=("method.objective.penalties = []",),
        acted="rollout/other_prompt",
        acted_least=1.0,
    ),
    our_finding="Plain prompts are evaluated, and only answers to prompts with a draft are trained: the form of the "
    "evaluation is never trained. In a pilot that evaluated with drafts, greedy accuracy was 0.99 at the start, so "
    "that there the method had no room either.",
)
