"""Verdicts: the judgements of verifiers, what grade functions return as verdicts, and scores as outcomes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from math import inf, isfinite

from groupwise.core.field_types import check_types

__all__ = ["Outcome", "Verdict"]


class Outcome(IntEnum):
    """The label of a verdict. `malformed` means that no answer was found to grade; it counts as wrong.

    `scored` answers have a score and are neither correct nor wrong, unless a recipe sets a `correct_threshold`.
    """

    wrong = 0
    correct = 1
    malformed = 2
    unverifiable = 3
    scored = 4


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verifier's judgement of one sample.

    `score` is any finite number; an outcome is never derived from it. `cause` is the reason why a sample is
    unverifiable. `answer` is the text that the verifier read as the answer. Equal texts count as equal votes.
    `step_scores` are numbers of the answer's steps, by name: pairs of a step's end in the text, in characters, and a
    number. Each number becomes a mark at the step's last token (see `TokenMark`).

    >>> Verdict(Outcome.correct).value
    1.0
    """

    outcome: Outcome
    score: float | None = None
    subscores: Mapping[str, float] = field(default_factory=dict)
    feedback: str = ""
    cause: str = ""
    answer: str | None = None
    step_scores: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_types(self)

    @property
    def value(self) -> float:
        """The verdict as a number: its `score` if given, else 1 for correct and 0 for others; 0 if unverifiable."""
        if self.outcome is Outcome.unverifiable:
            return 0.0
        return self.score if self.score is not None else float(self.outcome is Outcome.correct)


def as_verdict(grade: object) -> Verdict:
    """Convert a grade function's return value to a verdict; an invalid value gives an unverifiable one.

    A bool sets the outcome. A number, also one of NumPy or torch, is a score, with the outcome `scored`; so is the
    `score` of a dict, whose other numbers are subscores, as reward functions of verl return it.

    >>> as_verdict(True).outcome.name, as_verdict(2.5).outcome.name, as_verdict(float("nan")).cause
    ('correct', 'scored', 'it returned the score nan: expected a finite number')
    """
    if callable(item := getattr(grade, "item", None)):  # a number of NumPy or torch
        try:
            grade = item()
        except Exception as error:  # a foreign `item` may raise anything
            return unverifiable(f"it returned {type(grade).__name__}, which is not one number: {error}")
    if isinstance(grade, bool):
        return Verdict(Outcome(int(grade)))
    if isinstance(grade, int | float):
        return _validated(Verdict(Outcome.scored, score=_as_float(grade)))
    if isinstance(grade, Verdict):
        return _validated(grade)
    if isinstance(grade, Mapping) and isinstance(grade.get("score"), int | float):
        others = {str(name): float(x) for name, x in grade.items() if name != "score" and isinstance(x, int | float)}
        return _validated(Verdict(Outcome.scored, score=_as_float(grade["score"]), subscores=others))
    return unverifiable(f"it returned {type(grade).__name__}: expected True, False, a number or a Verdict")


def invalidity(verdict: Verdict, text: str | None = None) -> str:
    """The error in a verdict; empty for a valid one. With `text`, each step of the verdict must end inside it."""
    if verdict.score is not None and not isfinite(verdict.score):
        return f"the score {verdict.score}: expected a finite number"
    if verdict.score is None and verdict.outcome is Outcome.scored:
        return "the outcome scored without a score"
    infinite = [name for name, value in verdict.subscores.items() if not isfinite(value)]
    if infinite:
        return f"the subscore {infinite[0]}, which is not finite"
    for name, (end, value) in ((name, step) for name, steps in verdict.step_scores.items() for step in steps):
        if not isfinite(value):
            return f"the step {name!r} at {end}, which is not finite"
        if text is not None and not 0 < end <= len(text):
            return f"a step {name!r} that ends at {end} in a text of {len(text)} characters"
    return ""


def with_threshold(verdict: Verdict, threshold: float | None) -> Verdict:
    """The verdict; with a threshold, the outcome `scored` becomes `correct` if `score >= threshold`, else `wrong`.

    >>> [with_threshold(Verdict(Outcome.scored, x), 0.5).outcome.name for x in (0.4, 0.5)]
    ['wrong', 'correct']
    """
    if threshold is None or verdict.outcome is not Outcome.scored or verdict.score is None:
        return verdict
    return replace(verdict, outcome=Outcome.correct if verdict.score >= threshold else Outcome.wrong)


def _validated(verdict: Verdict) -> Verdict:
    return unverifiable(f"it returned {what}") if (what := invalidity(verdict)) else verdict


def _as_float(value: int | float) -> float:
    """The number as a float; infinite for an integer beyond the range of floats."""
    try:
        return float(value)
    except OverflowError:
        return inf


def unverifiable(cause: str) -> Verdict:
    """An unverifiable verdict with its cause, cut to 500 characters."""
    return Verdict(Outcome.unverifiable, cause=cause[:500])
