"""Conversion of a grade function's return value to a `Verdict`."""

from math import isfinite

from groupwise.data.sample import Outcome, Verdict


def as_verdict(grade: object) -> Verdict:
    """The verdict for a grade function's return value; an invalid value gives an unverifiable verdict.

    >>> as_verdict(True).outcome.name, as_verdict(0.5).value, as_verdict(float("nan")).cause
    ('correct', 0.5, 'it returned the score nan: expected one in [0, 1]')
    """
    if isinstance(grade, bool):
        return Verdict(Outcome(int(grade)))
    if isinstance(grade, int | float):
        if not 0 <= grade <= 1:
            return unverifiable(f"it returned the score {str(grade)[:40]}: expected one in [0, 1]")
        return Verdict(Outcome(int(grade == 1)), score=float(grade))
    if isinstance(grade, Verdict):
        if grade.score is not None and not 0 <= grade.score <= 1:
            return unverifiable(f"it returned the score {grade.score}: expected one in [0, 1]")
        invalid = [name for name, value in grade.parts.items() if not isfinite(value)]
        return unverifiable(f"its part {invalid[0]} is not finite") if invalid else grade
    return unverifiable(f"it returned {type(grade).__name__}: expected True, False, a score in [0, 1] or a Verdict")


def unverifiable(cause: str) -> Verdict:
    """An unverifiable verdict with its cause, cut to 500 characters."""
    return Verdict(Outcome.unverifiable, cause=cause[:500])
