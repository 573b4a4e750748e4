"""Every failure that a user can meet: what happened, the evidence, and what to do next."""

from groupwise.data.visible import visible

__all__ = [
    "BadData",
    "Diverged",
    "GroupwiseError",
    "Locked",
    "Mismatch",
    "MissingRequirement",
    "NoSignal",
    "Storage",
    "Unverifiable",
    "Usage",
    "WorkerLost",
]

LONGEST = 1000
"""Characters of one line of an error's text; a longer line is cut in its middle."""


class GroupwiseError(Exception):
    """A failure with a way out. `code` is the exit code of the command line.

    >>> print(Usage("no task is called 'calculater'", evidence="task = 'calculater'", fix="did you mean calculator?"))
    no task is called 'calculater'
      seen: task = 'calculater'
      do:   did you mean calculator?
    """

    code = 1

    def __init__(self, what: str, *, evidence: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what, self.evidence, self.fix = what, evidence, fix

    def __str__(self) -> str:
        """The text for a terminal: `visible`, `what` on one line, the lines of evidence and fix indented."""
        lines = [_short(visible(self.what))]
        for name, text in (("  seen: ", self.evidence), ("  do:   ", self.fix)):
            if text:
                lines.append(name + "\n        ".join(map(_short, visible(text, lines=True).split("\n"))))
        return "\n".join(lines)


def _short(line: str) -> str:
    half = LONGEST // 2
    return line if len(line) <= LONGEST else f"{line[:half]} ... {line[-half:]}"


class Usage(GroupwiseError):
    """What was asked for cannot be: an unknown name, a wrong type, an impossible combination."""

    code = 2


class BadData(GroupwiseError):
    """A task, a model directory or a stored file that cannot be used as it is."""

    code = 3


class MissingRequirement(GroupwiseError):
    """This machine lacks something that the command needs."""

    code = 4


class Diverged(GroupwiseError):
    """Training cannot go on: gradients are not finite, verifiers fail, engine and learner differ."""

    code = 5


class NoSignal(Diverged):
    """Three iterations in a row brought no group to learn from."""


class Unverifiable(Diverged):
    """Too many answers could not be judged."""


class Mismatch(Diverged):
    """Engine and learner give one token two probabilities."""


class Storage(GroupwiseError):
    """The disk is full, or a stored file is damaged."""

    code = 6


class WorkerLost(GroupwiseError):
    """An engine or verifier died or hung and could not be replaced."""

    code = 7


class Locked(GroupwiseError):
    """Another process works in this run directory."""

    code = 8
