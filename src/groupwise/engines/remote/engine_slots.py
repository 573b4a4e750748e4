"""The slots of a fleet: each is filled by one engine after the other."""

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic

from groupwise.core import EngineLost, GroupwiseError
from groupwise.engines.remote.remote_engine import RemoteEngine

WINDOW = 600.0
"""Seconds in which restarts are counted."""
PAUSE = 0.5
"""Seconds before the second restart within the window; doubled for each further one."""


@dataclass(frozen=True, slots=True, eq=False)
class SlotStarting:
    """Its replica is not connected yet, or waits for its next start."""


@dataclass(frozen=True, slots=True, eq=False)
class SlotLoading:
    """Its replica is connected, and gets no requests: it lacks the present weights, or sleeps."""

    replica: RemoteEngine


@dataclass(frozen=True, slots=True, eq=False)
class SlotServing:
    """Its replica was admitted with the weights of this version, and gets requests."""

    replica: RemoteEngine
    weights_version: int


@dataclass(frozen=True, slots=True, eq=False)
class SlotLost:
    """Its replica was lost, or could not be started."""

    error: Exception


@dataclass(frozen=True, slots=True, eq=False)
class SlotGivenUp:
    """It gets no further replica."""


State = SlotStarting | SlotLoading | SlotServing | SlotLost | SlotGivenUp
CHANGES: Mapping[type[State], tuple[type[State], ...]] = {
    SlotStarting: (SlotLoading, SlotLost, SlotGivenUp),
    SlotLoading: (SlotServing, SlotLost, SlotGivenUp),
    SlotServing: (SlotLoading, SlotLost, SlotGivenUp),
    SlotLost: (SlotStarting, SlotGivenUp),
    SlotGivenUp: (),
}
"""The states that may follow each state. When the fleet's event loop ends, any slot is given up."""


@dataclass(slots=True, eq=False)
class Slot:
    """A slot for an engine, over all processes that have held it. `address` is empty for a replica of the run."""

    index: int
    address: str = ""
    state: State = field(default_factory=SlotStarting)
    """Changed by `become` only."""
    active_request_count: int = 0
    was_admitted: bool = False
    """Whether one of its replicas has been admitted."""
    last_error: Exception | None = None
    """Why its last replica was lost."""
    start_times: deque[float] = field(default_factory=deque)
    wake_event: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when its replica is lost, or there are new weights."""

    def become(self, state: State) -> None:
        """Change the state. AssertionError for a change that is not in `CHANGES`."""
        before, after = type(self.state), type(state)
        assert after in CHANGES[before], f"a slot never goes from {before.__name__} to {after.__name__}"
        self.state = state
        self.was_admitted |= after is SlotServing
        if isinstance(state, SlotLost):
            self.last_error = state.error

    @property
    def replica(self) -> RemoteEngine | None:
        """Its connected replica, if there is one."""
        return self.state.replica if isinstance(self.state, SlotLoading | SlotServing) else None

    @property
    def version(self) -> int:
        """The version that its replica was admitted with; -1 if it may not get requests."""
        return self.state.weights_version if isinstance(self.state, SlotServing) else -1

    @property
    def given_up(self) -> bool:
        """Whether it gets no further replica."""
        return isinstance(self.state, SlotGivenUp)

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"the engine at {self.address}" if self.address else f"replica {self.index}"

    def suspend(self) -> None:
        """Send it no more requests until it is admitted again."""
        if isinstance(self.state, SlotServing):
            self.become(SlotLoading(self.state.replica))

    def dismiss(self) -> None:
        """Send it no more requests until it is admitted again, and wake its keeper."""
        self.suspend()
        self.wake_event.set()

    def pause(self, restarts: int) -> float | None:
        """Seconds before its next start; None after `restarts` restarts within the window."""
        while self.start_times and monotonic() - self.start_times[0] > WINDOW:
            self.start_times.popleft()
        again = len(self.start_times) - 1
        if again >= restarts:
            return None
        return PAUSE * 2 ** (again - 1) if again > 0 else 0.0

    def loss(self, restarts: int) -> str:
        """Why its replica was lost, and what happens next, in one line."""
        again = "connecting again" if self.address else "started again"
        then = "it is given up" if self.given_up else f"{again} ({max(len(self.start_times), 1)} of {restarts})"
        return f"{self.name} is lost: {self._cause}; {then}"

    @property
    def history(self) -> str:
        """What was tried until it was given up."""
        if self.address and not self.was_admitted:
            return f"{self.name} was tried {len(self.start_times)} times"
        return (
            f"{self.name} was {'connected to' if self.address else 'started'} again {len(self.start_times) - 1} times"
        )

    @property
    def _cause(self) -> str:
        if isinstance(self.last_error, EngineLost) and self.last_error.evidence:
            return self.last_error.evidence.partition("\n")[0]
        return self.last_error.what if isinstance(self.last_error, GroupwiseError) else repr(self.last_error)
