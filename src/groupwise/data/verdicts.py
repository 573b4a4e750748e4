"""Verdicts from the return value of a user's function."""

from math import isfinite

from groupwise.data.sample import Outcome, Verdict


def as_verdict(said: object) -> Verdict:
    """What a grade function returned, as a verdict; unverifiable where it says nothing.

    >>> ruled(True).outcome.name, ruled(0.5).value, ruled(float("nan")).cause
    ('correct', 0.5, 'it returned the score nan: expected one in [0, 1]')
    """
    if isinstance(said, bool):
        return Verdict(Outcome(int(said)))
    if isinstance(said, int | float):
        if not 0 <= said <= 1:
            return unverifiable(f"it returned the score {str(said)[:40]}: expected one in [0, 1]")
        return Verdict(Outcome(int(said == 1)), score=float(said))
    if isinstance(said, Verdict):
        if said.score is not None and not 0 <= said.score <= 1:
            return unverifiable(f"it returned the score {said.score}: expected one in [0, 1]")
        strange = [name for name, value in said.parts.items() if not isfinite(value)]
        return unverifiable(f"its part {strange[0]} is not finite") if strange else said
    return unverifiable(f"it returned {type(said).__name__}: expected True, False, a score in [0, 1] or a Verdict")


def unverifiable(cause: str) -> Verdict:
    return Verdict(Outcome.unverifiable, cause=cause[:500])
