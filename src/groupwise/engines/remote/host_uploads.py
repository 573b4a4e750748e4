"""Sends a weights file to other hosts, once to each: from the trainer, and from hosts that have it already."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Protocol, TypeVar, runtime_checkable

from groupwise.core import EngineLost, GroupwiseError, Usage
from groupwise.data import PASSED_BYTES, SEND_SECONDS, SENT_BYTES
from groupwise.engines.remote.sending_turns import SendingTurns
from groupwise.engines.remote.weights_file import WeightsFile
from groupwise.engines.remote.wire import MOST_RECEIVERS

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Destination:
    """An engine that another one may send weights to: its address, and the name of its host.

    `trainer` is the name with which its trainer loads weights.
    """

    address: str
    host: str
    trainer: str


@runtime_checkable
class HostEngine(Protocol):
    """An engine on the host `host`. `cause` is why it is lost; empty while it is not."""

    name: str
    host: str
    cause: str

    @property
    def destination(self) -> Destination: ...

    async def receive(self, file: WeightsFile) -> None:
        """Send it a weights file from here. `EngineLost` if it is lost meanwhile."""
        ...

    async def pass_on(self, file: WeightsFile, to: Destination) -> None:
        """Make it send its host's copy of a weights file to another one. `GroupwiseError` or ValueError if it fails."""
        ...


@dataclass(frozen=True, slots=True)
class HostCopy:
    """The newest weights of a host, and the engine that received them."""

    sha256: str
    engine: HostEngine


NOT_REACHED = (EngineLost, Usage)
"""The errors of a host that does not reach another one. After any other error it has no good file."""
TRAINER = ""
"""The trainer's name among the hosts that send. No host has it."""


class HostUploads:
    """The hosts with the newest weights file, and the bytes and seconds of sending it to them.

    The trainer sends it to a few hosts; if there are more, each host that has it sends it, too. If a host cannot, the
    trainer sends in its place; a pair of hosts that do not reach each other is not tried again. `notify` gets a line.

    The engines report the names of their hosts. One that reports another's name can only make the trainer send a file
    twice: an engine that does not find the file on its host gets it, too.
    """

    def __init__(self, notify: Callable[[str], None] = lambda line: None) -> None:
        self._notify = notify
        self._engines: dict[str, HostEngine] = {}
        """The engine of each host that asked last."""
        self._newest: dict[str, HostCopy] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._turns = SendingTurns()
        self._failed: set[tuple[str, str]] = set()
        """The hosts that could not pass weights on, each with the one that it could not send to."""
        self._bytes, self._passed, self._seconds = 0, 0, 0.0

    async def once(self, file: WeightsFile, engine: HostEngine) -> None:
        """Send a file to an engine's host, unless it has been sent there. Others wait; if it fails, the next one sends.

        `EngineLost` if the engine is lost meanwhile.
        """
        self._engines[engine.host] = engine
        async with self._locks[engine.host]:
            copy = self._newest.get(engine.host)
            if copy is None or copy.sha256 != file.sha256:
                await self._renew(file, engine, self._send)

    async def again(self, file: WeightsFile, engine: HostEngine) -> None:
        """Send a file to an engine's host from the trainer, in any case."""
        async with self._locks[engine.host]:
            await self._renew(file, engine, self._send_from_trainer)

    async def counted(self, size: int, sending: Awaitable[T]) -> T:
        """Wait until `size` bytes of weights are sent, and count them and the seconds."""
        start = monotonic()
        result = await sending
        self._bytes, self._seconds = self._bytes + size, self._seconds + monotonic() - start
        return result

    def figures(self) -> dict[str, float]:
        """The bytes sent since the last call, those that hosts passed on, and the seconds of these uploads, added up.

        Empty if there was none.
        """
        sent, passed, seconds = self._bytes, self._passed, self._seconds
        self._bytes, self._passed, self._seconds = 0, 0, 0.0
        return {SENT_BYTES: float(sent), PASSED_BYTES: float(passed), SEND_SECONDS: seconds} if sent else {}

    async def _renew(
        self, file: WeightsFile, engine: HostEngine, send: Callable[[WeightsFile, HostEngine], Awaitable[None]]
    ) -> None:
        """Send a file to an engine's host; from then on this engine may pass it on."""
        self._newest.pop(engine.host, None)  # the engine deletes it before it receives another one
        await send(file, engine)
        self._newest[engine.host] = HostCopy(file.sha256, engine)
        self._turns.wake()

    async def _send_from_trainer(self, file: WeightsFile, engine: HostEngine) -> None:
        async with self._turns.turn(lambda: {TRAINER: None}):
            await self.counted(file.path.stat().st_size, engine.receive(file))

    async def _send(self, file: WeightsFile, engine: HostEngine) -> None:
        """Send a file to an engine's host, from a host that has it or from the trainer."""
        size = file.path.stat().st_size
        async with self._turns.turn(partial(self._senders, file, engine)) as holder:
            if holder is None:
                await self.counted(size, engine.receive(file))
                return
            try:
                await self.counted(size, holder.pass_on(file, engine.destination))
                self._passed += size
                return
            except (GroupwiseError, ValueError) as error:
                failure = error
        if not isinstance(failure, NOT_REACHED) and self._newest.get(holder.host) == HostCopy(file.sha256, holder):
            del self._newest[holder.host]  # others need not ask for it
        await self._send_from_trainer(file, engine)
        self._blame(holder, engine, failure)  # not if the receiver is lost, as it would be without the holder

    def _senders(self, file: WeightsFile, receiver: HostEngine) -> dict[str, HostEngine | None]:
        """Who may send a file to a host: the trainer, and by their hosts the engines that have it.

        So few hosts that the trainer sends to all at a time need not reach each other.
        """
        if sum(not engine.cause for engine in self._engines.values()) <= MOST_RECEIVERS:
            return {TRAINER: None}
        engines = {
            host: copy.engine
            for host, copy in self._newest.items()
            if copy.sha256 == file.sha256 and not copy.engine.cause and (host, receiver.host) not in self._failed
        }
        return {TRAINER: None, **engines}

    def _blame(self, holder: HostEngine, receiver: HostEngine, error: Exception) -> None:
        """Say that a host could not pass weights on. If it does not reach the other one, try this pair no more."""
        what = f"{holder.name} cannot pass weights on to {receiver.name}: {_in_a_line(error)}; the trainer sends them"
        if not isinstance(error, NOT_REACHED):
            self._notify(f"{what} this time")
            return
        self._failed.add((holder.host, receiver.host))
        fix = f"; to spare its network, let {holder.name} connect to {receiver.name}, and resume the run"
        self._notify(f"{what} from now on{'' if holder.cause else fix}")


def _in_a_line(error: Exception) -> str:
    """An error, with the first line of its evidence."""
    if not isinstance(error, GroupwiseError):
        return str(error)
    evidence = error.evidence.partition("\n")[0]
    return f"{error.what} ({evidence})" if evidence else error.what
