"""What verdicts contain: the named scores and the feedback that a verifier, or a sampling strategy, declares."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

__all__ = ["VerdictContents", "contents_of", "joined_contents", "verdicts_have"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class VerdictContents:
    """The names of the subscores that verdicts may have, and whether the verdict on a wrong answer has feedback."""

    subscore_names: tuple[str, ...] = ()
    has_feedback: bool = False


def verdicts_have(*parts: str, feedback: bool = False) -> Callable[[T], T]:
    """Declare what the verdicts of a verifier contain, or what a strategy adds to them: a decorator.

    >>> @verdicts_have("visible", feedback=True)
    ... async def grade(prompt, sample): ...
    >>> contents_of(grade)
    VerdictContents(subscore_names=('visible',), has_feedback=True)
    """

    def declare(owner: T) -> T:
        setattr(owner, "contents", VerdictContents(parts, feedback))  # noqa: B010 - a function has no such attribute
        return owner

    return declare


def contents_of(verifier: Any) -> VerdictContents | None:
    """The declared contents of a verifier's verdicts; None if it declares none, as a user's function."""
    return getattr(verifier, "contents", None)


def joined_contents(several: Iterable[VerdictContents | None]) -> VerdictContents | None:
    """The contents of verdicts of several kinds: all their subscores. None if one of them is unknown.

    >>> joined_contents([VerdictContents(("a",)), VerdictContents(("a", "b"), has_feedback=True)])
    VerdictContents(subscore_names=('a', 'b'), has_feedback=True)
    """
    known = list(several)
    if None in known:
        return None
    parts = dict.fromkeys(name for contents in known if contents for name in contents.subscore_names)
    return VerdictContents(tuple(parts), any(contents.has_feedback for contents in known if contents))
