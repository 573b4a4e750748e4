"""Checks that an engine in another process is alive and makes progress."""

from collections.abc import Collection
from dataclasses import dataclass

BEATS = 4
"""How often the deadline is divided: an engine that owes an answer gets a `hello` this often."""
PACE = 20e6
"""Bytes per second at which an engine must at least read new weights. It may make no other progress meanwhile."""


@dataclass(slots=True, eq=False)
class UnansweredRequest:
    """A request without an answer: its verb, and the seconds that it may take beyond the deadline."""

    verb: str
    allowed_extra_seconds: float = 0.0


class HeartbeatMonitor:
    """Monitors an engine once per beat, while it owes answers: it must not be silent, and its work must move on.

    Any message is a sign of life. Work is the steps that the engine counts, and its answers: an engine that replies to
    `hello` and never ends a request is lost, too. While it owes only answers to parts of weights, steps do not count:
    it may sample for others while its disk hangs. Beats are counted, not seconds: this process may itself be busy for
    long, while messages wait to be read.
    """

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.heard, self.steps, self.answers = True, 0, 0
        self._silent = self._still = 0
        self._work = (0, 0)

    @property
    def seconds(self) -> float:
        """The seconds between two beats."""
        return self.deadline / BEATS

    def beat(self, owed: Collection[UnansweredRequest]) -> str:
        """Why the engine is lost after this beat; empty if it is not."""
        uploading = all(call.verb == "upload" for call in owed)
        work = (self._work[0] if uploading else self.steps, self.answers)
        self._silent = 0 if self.heard or not owed else self._silent + 1
        self._still = 0 if work != self._work or not owed else self._still + 1
        self.heard, self._work = False, work
        waited = f"while {len(owed)} requests waited: {', '.join(sorted({call.verb for call in owed}))}"
        if self._silent >= BEATS:
            return f"it sent nothing for {self.deadline:g} s, {waited}"
        limit = self.deadline + max((call.allowed_extra_seconds for call in owed), default=0.0)
        if (self._still - 1) * self.seconds >= limit:  # the count of steps is a beat old
            return f"it replies, but did no work for {limit:g} s, {waited}"
        return ""
