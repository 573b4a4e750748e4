"""The errors that a user can see: what happened, the evidence, and what to do next."""

from collections.abc import Sequence

from groupwise.core.terminal_escape import visible

__all__ = [
    "BadData",
    "Diverged",
    "EngineLost",
    "GroupwiseError",
    "InvalidValue",
    "Locked",
    "LogprobMismatch",
    "MissingRequirement",
    "NoSignal",
    "Storage",
    "Unverifiable",
    "Usage",
    "WorkerLost",
    "raise_all",
]

LONGEST = 1000
"""The most characters in a line of an error message; a longer line is cut in the middle."""


class GroupwiseError(Exception):
    """An error with a suggested fix. `code` is the exit code of the command line.

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
        """The message for a terminal, with control characters escaped: `what`, then evidence and fix, indented."""
        lines = [_short(visible(self.what))]
        for name, text in (("  seen: ", self.evidence), ("  do:   ", self.fix)):
            if text:
                lines.append(name + "\n        ".join(map(_short, visible(text, lines=True).split("\n"))))
        return "\n".join(lines)


def _short(line: str) -> str:
    half = LONGEST // 2
    return line if len(line) <= LONGEST else f"{line[:half]} ... {line[-half:]}"


class Usage(GroupwiseError):
    """Invalid input from the user: an unknown name, a wrong type, an impossible combination."""

    code = 2


class InvalidValue(Usage, ValueError):
    """Invalid arguments of a constructor: a number out of range, or components that do not fit each other."""


def ends_run(error: Exception) -> bool:
    """Whether an exception of a verifier, tool or environment ends the run, instead of affecting one sample only.

    Errors of groupwise do, for example a lost worker. An invalid value does not: it may come from the answer's text.

    >>> ends_run(WorkerLost("a worker died")), ends_run(InvalidValue("top_p is 2")), ends_run(KeyError("x"))
    (True, False, False)
    """
    return isinstance(error, GroupwiseError) and not isinstance(error, InvalidValue)


class BadData(GroupwiseError):
    """A task, a model directory, a run or a stored file is invalid, missing, or changed since the start of a run."""

    code = 3


class MissingRequirement(GroupwiseError):
    """This machine lacks something that the command requires."""

    code = 4


class Diverged(GroupwiseError):
    """Training cannot continue: skipped steps, nothing to train on, unverifiable answers, or a large log-prob gap."""

    code = 5


class NoSignal(Diverged):
    """Three iterations in a row had nothing to train on: all rollouts were filtered out, unverifiable or empty."""


class Unverifiable(Diverged):
    """Too many answers could not be graded."""


class LogprobMismatch(Diverged):
    """The log-probs of engine and learner for the same token differ by more than `engine.max_logprob_diff`."""


class Storage(GroupwiseError):
    """A file cannot be written or read, is missing or damaged, was changed, or has another format version."""

    code = 6


class WorkerLost(GroupwiseError):
    """A draw exceeded its deadline, or an engine, verifier, environment or worker process failed or hung."""

    code = 7


class EngineLost(WorkerLost):
    """An engine cannot answer: it has no weights, or its process is gone. Another engine can serve the request."""


class Locked(GroupwiseError):
    """Another process is using this run directory."""

    code = 8


def raise_all(problems: Sequence[GroupwiseError]) -> None:
    """Raise all errors as one, of the first error's type (which sets the exit code). No errors: do nothing."""
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise type(problems[0])(f"{len(problems)} errors", evidence="\n".join(map(str, problems)))
