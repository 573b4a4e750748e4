"""Sampling strategies in two rounds: drafts, explanations of a known answer, and corrections by feedback."""

from dataclasses import dataclass
from typing import ClassVar

from groupwise.data import Draw, Role, Rollout, Sampler, Strategy
from groupwise.rollout.attempts import (
    as_written,
    attempts,
    best_of,
    context_of,
    is_correct,
    none_correct,
    score_of,
    with_role,
)
from groupwise.rollout.columns import text_of
from groupwise.rollout.wording import AUTO, Forms, check_wording

__all__ = ["Drafts", "Explained", "Refinement"]

DRAFTED = Forms(
    "{problem}{draft};{problem}",
    "{problem}\n\nHere is a first draft of an answer, which may be wrong:\n\n{draft}\n\n"
    "Improve on the draft: write a complete and correct answer to the problem.",
)
EXPLAINED = Forms(
    "{problem}#{answer};{problem}",
    "{problem}\n\nThe correct final answer is: {answer}\n\n"
    "Explain step by step how to reach this answer. Write a complete solution that ends with this final answer, and do "
    "not mention that you were given it.",
)
CORRECTED = Forms(
    "{problem}{draft};{feedback}{problem}",
    "{problem}\n\nThis is an earlier attempt:\n\n{draft}\n\nFeedback on the attempt:\n\n{feedback}\n\n"
    "Write a corrected and complete answer to the problem.",
)
"""The prompts with a draft, a gold answer, and a failed attempt with its feedback. In the packaged form the problem is
repeated, so that the answer is whole without the rest of the prompt."""


@dataclass(frozen=True, slots=True)
class Drafts(Strategy):
    """Samples `drafts` answers, then `draw.n` answers to a prompt with the best draft. Only the latter are trained.

    Ties go to a draft by a keyed draw. Without room for the draft the prompt stays plain. iGRPO, arXiv:2602.09000.
    """

    roles: ClassVar[tuple[Role, ...]] = (Role("draft", "for each prompt"),)
    forms: ClassVar[dict[str, Forms]] = {"words": DRAFTED}

    drafts: int = 8
    words: str = AUTO

    def __post_init__(self) -> None:
        check_wording(self.words, ("problem", "draft"))

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        prompt = draw.prompt
        drafts = await attempts(sampler, prompt.context, self.drafts, role="draft")
        best = sampler.random(0).choice(best_of(drafts))
        values = {"problem": prompt.text, "draft": best.text}
        answers = await attempts(sampler, context_of(sampler, self.words, values) or prompt.context, draw.n)
        return Rollout(draw, (*drafts, *answers))


@dataclass(frozen=True, slots=True)
class Explained(Strategy):
    """If no answer is correct, the policy explains the gold answer. A correct one is trained under the plain prompt.

    A correct explanation is a group of one, trained as a written answer with the role `explained`. With `always`, the
    policy explains the gold answer of each prompt. A row without a gold answer has no explanation. ExPO,
    arXiv:2507.02834.
    """

    columns_as: ClassVar[str] = "text"
    skips_rows: ClassVar[bool] = True
    forms: ClassVar[dict[str, Forms]] = {"words": EXPLAINED}

    column: str = "answer"
    always: bool = False
    words: str = AUTO

    def __post_init__(self) -> None:
        check_wording(self.words, ("problem", "answer"))

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles of its samples besides answers."""
        when, failed = ("for each prompt", "never") if self.always else ("where no answer is correct", "always")
        explained = Role("explained", when, failed=failed, alone=True, written=True)
        return explained, Role("tried", f"{when}, and the explanation is wrong", failed=failed)

    @property
    def row_columns(self) -> tuple[str, ...]:
        """The columns of the data rows that it reads."""
        return (self.column,)

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        prompt = draw.prompt
        group = await attempts(sampler, prompt.context, draw.n)
        answer = text_of(draw, self.column, self)
        if not (answer and (self.always or none_correct(group))):
            return Rollout(draw, tuple(group))
        values = {"problem": prompt.text, "answer": answer}
        if not (context := context_of(sampler, self.words, values)):
            return Rollout(draw, tuple(group))
        (own,) = await attempts(sampler, context, 1, group=1, role="explained")
        explanation = as_written(own, prompt.context) if is_correct(own) else with_role([own], "tried")[0]
        return Rollout(draw, (*group, explanation))


@dataclass(frozen=True, slots=True)
class Refinement(Strategy):
    """If the best answer scores below `below`, the policy rewrites it once, given the verifier's feedback.

    A rewritten answer with a higher score replaces the worst of the group, and is learned as a written answer after the
    plain prompt. RGR-GRPO, arXiv:2511.12344.
    """

    needs_feedback: ClassVar[bool] = True
    roles: ClassVar[tuple[Role, ...]] = (Role("tried", "where a rewritten answer is not better"),)
    forms: ClassVar[dict[str, Forms]] = {"words": CORRECTED}

    below: float = 1.0
    words: str = AUTO

    def __post_init__(self) -> None:
        check_wording(self.words, ("problem", "draft", "feedback"))

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        prompt = draw.prompt
        group = await attempts(sampler, prompt.context, draw.n)
        best = best_of(group)[0]
        feedback = best.verdict.feedback if best.verdict else ""
        values = {"problem": prompt.text, "draft": best.text, "feedback": feedback}
        context = context_of(sampler, self.words, values)
        if score_of(best) >= self.below or not context:
            return Rollout(draw, tuple(group))
        (again,) = await attempts(sampler, context, 1)
        if score_of(again) <= score_of(best):
            return Rollout(draw, (*group, *with_role([again], "tried")))
        worst = min(range(len(group)), key=lambda i: score_of(group[i]))
        others = [s for i, s in enumerate(group) if i != worst]
        return Rollout(draw, (*others, as_written(again, prompt.context)))
