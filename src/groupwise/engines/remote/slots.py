"""The places of a fleet: each is filled by one engine after the other."""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from time import monotonic

from groupwise.core import EngineLost, GroupwiseError
from groupwise.engines.remote.remote import Remote

WINDOW = 600.0
"""Seconds in which restarts are counted."""
PAUSE = 0.5
"""Seconds before the second restart within the window; doubled for each further one."""


@dataclass(slots=True, eq=False)
class Place:
    """A place for an engine, over all processes that have held it. `address` is empty for a replica of the run."""

    number: int
    address: str = ""
    replica: Remote | None = None
    version: int = -1
    """The version that its replica was admitted with; -1 if it may not get requests."""
    requests: int = 0
    admitted: bool = False
    """Whether one of its replicas has been admitted."""
    gone: bool = False
    """Whether it was given up."""
    starts: deque[float] = field(default_factory=deque)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when its replica is lost, or there are new weights."""
    error: Exception | None = None

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"the engine at {self.address}" if self.address else f"replica {self.number}"

    def dismiss(self) -> None:
        """Send it no more requests until it is admitted again, and wake its keeper."""
        self.version = -1
        self.wake.set()

    def pause(self, restarts: int) -> float | None:
        """Seconds before its next start; None after `restarts` restarts within the window."""
        while self.starts and monotonic() - self.starts[0] > WINDOW:
            self.starts.popleft()
        again = len(self.starts) - 1
        if again >= restarts:
            return None
        return PAUSE * 2 ** (again - 1) if again > 0 else 0.0

    def loss(self, restarts: int) -> str:
        """Why its replica was lost, and what happens next, in one line."""
        again = "connecting again" if self.address else "started again"
        then = "it is given up" if self.gone else f"{again} ({max(len(self.starts), 1)} of {restarts})"
        return f"{self.name} is lost: {self._cause}; {then}"

    @property
    def history(self) -> str:
        """What was tried until it was given up."""
        if self.address and not self.admitted:
            return f"{self.name} was tried {len(self.starts)} times"
        return f"{self.name} was {'connected to' if self.address else 'started'} again {len(self.starts) - 1} times"

    @property
    def _cause(self) -> str:
        if isinstance(self.error, EngineLost) and self.error.evidence:
            return self.error.evidence.partition("\n")[0]
        return self.error.what if isinstance(self.error, GroupwiseError) else repr(self.error)
