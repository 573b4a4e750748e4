"""`FeedbackTree`: failed attempts are refined given their feedback, and get credit for successful refinements."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pstdev
from typing import ClassVar, Literal, NamedTuple

from groupwise.data import Draw, Ids, Outcome, Role, Rollout, Sample, Sampler, Strategy, verdicts_have
from groupwise.rollout.attempts import attempts, context_of, is_correct, score_of
from groupwise.rollout.drafts import CORRECTED
from groupwise.rollout.together import together
from groupwise.rollout.wording import AUTO, Forms, check_wording, fill

__all__ = ["FeedbackTree"]


class Retry(NamedTuple):
    """A prompt that contains a failed attempt and its feedback. `parent` is the attempt's index in the tree."""

    parent: int
    text: str
    context: Ids


@verdicts_have("returned")
@dataclass(frozen=True, slots=True)
class FeedbackTree(Strategy):
    """Attempts, and `draw.n` refinements of each failed one: answers to a prompt with it and its feedback. MURPHY.

    The refinements of an attempt are a group with the role `refinement`. The part `returned` is the score of an attempt
    after credit: the best score of its subtree (`best`, MaRS), or `(score + gamma * mean over refinements) / turns
    left` (`mean`, MeRS). After credit, `widest` selects so many groups of refinements, those with the largest std
    (InterP), and `extremes` so many members of each group, the lowest and the highest (IntraP); 0 selects all.
    arXiv:2511.07833.
    """

    needs_feedback: ClassVar[bool] = True
    forms: ClassVar[dict[str, Forms]] = {"words": CORRECTED}
    roles: ClassVar[tuple[Role, ...]] = (Role("refinement", "of a failed attempt"),)

    turns: int = 2
    back: Literal["best", "mean"] = "best"
    gamma: float = 0.9
    widest: int = 0
    extremes: int = 0
    words: str = AUTO

    def __post_init__(self) -> None:
        check_wording(self.words, ("problem", "draft", "feedback"))
        if self.turns < 1 or min(self.widest, self.extremes) < 0:
            raise ValueError(f"{self}: needs turns >= 1, widest >= 0 and extremes >= 0")

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        tree = await attempts(sampler, draw.prompt.context, draw.n)
        texts, level = [draw.prompt.text] * len(tree), range(len(tree))
        for _ in range(self.turns - 1):
            retries = [r for i in level if (r := self._retry(sampler, i, tree[i], texts[i]))]
            groups = await together(
                attempts(sampler, r.context, draw.n, group=r.parent + 1, role="refinement") for r in retries
            )
            level = range(len(tree), len(tree) + draw.n * len(retries))
            tree += [replace(s, parent=r.parent) for r, group in zip(retries, groups) for s in group]
            texts += [r.text for r in retries for _ in range(draw.n)]
        scores = self._returned(tree)
        credited = tuple(s.add_parts({"returned": score}) for s, score in zip(tree, scores))
        return Rollout(draw, credited, selected=self._selected(tree, scores))

    def _retry(self, sampler: Sampler, i: int, attempt: Sample, text: str) -> Retry | None:
        """The prompt that refines an attempt; None for a solved or unverifiable one, and without room for an answer."""
        verdict = attempt.verdict
        if verdict is None or verdict.outcome is Outcome.unverifiable or is_correct(attempt) or verdict.value >= 1:
            return None
        values = {"problem": text, "draft": attempt.text, "feedback": verdict.feedback}
        context = context_of(sampler, self.words, values)
        return Retry(i, fill(self.words, values), context) if context else None

    def _returned(self, tree: Sequence[Sample]) -> list[float]:
        """Each attempt's score, with credit for its refinements, which come after it in the tree."""
        turn: list[int] = []
        for s in tree:
            turn.append(1 if s.parent is None else turn[s.parent] + 1)
        scores = [score_of(s) for s in tree]
        later: defaultdict[int, list[float]] = defaultdict(list)
        for i in reversed(range(len(tree))):
            if refined := later[i]:
                mean = (scores[i] + self.gamma * fmean(refined)) / (self.turns - turn[i] + 1)
                scores[i] = max(scores[i], *refined) if self.back == "best" else mean
            if (parent := tree[i].parent) is not None:
                later[parent].append(scores[i])
        return scores

    def _selected(self, tree: Sequence[Sample], scores: Sequence[float]) -> tuple[bool, ...] | None:
        """Which attempts to train on; None for all. `widest` never drops the group of first attempts."""
        if not (self.widest or self.extremes):
            return None
        groups: defaultdict[int, list[int]] = defaultdict(list)
        for i, s in enumerate(tree):
            groups[s.group].append(i)
        first, *refined = groups.values()
        if self.widest:
            refined.sort(key=lambda group: -pstdev(scores[i] for i in group))
            refined = refined[: self.widest]
        chosen = {i for group in (first, *refined) for i in self._ends(group, scores)}
        return tuple(i in chosen for i in range(len(tree)))

    def _ends(self, group: list[int], scores: Sequence[float]) -> list[int]:
        """The `extremes` members with the lowest and highest scores (if odd, one more of the highest); all for 0."""
        if not self.extremes or len(group) <= self.extremes:
            return group
        order, low = sorted(group, key=lambda i: scores[i]), self.extremes // 2
        return [*order[:low], *order[len(order) - (self.extremes - low) :]]
