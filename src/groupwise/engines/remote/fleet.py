"""Several engines as one: requests go to the least loaded one, and a lost one is replaced."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TypeVar

from torch import Tensor

from groupwise.core import EngineLost, GroupwiseError, Usage, WorkerLost
from groupwise.data import ContextKey, Generation, GenerationRequest, Ids, Picture
from groupwise.engines.remote.engine_slots import Slot, SlotGivenUp, SlotLoading, SlotLost, SlotServing, SlotStarting
from groupwise.engines.remote.host_uploads import HostUploads
from groupwise.engines.remote.occupancy import OccupancyMeter
from groupwise.engines.remote.remote_engine import RemoteEngine
from groupwise.engines.remote.weights_file import (
    WeightsFile,
    WeightsFilesDirectory,
    keep_on_gpu,
    seal_weights,
    write_weights,
)
from groupwise.engines.remote.weights_probe import ProbeScores, WeightsProbe

__all__ = ["Fleet"]

T = TypeVar("T")
StartReplica = Callable[[int], Awaitable[RemoteEngine]]
"""Starts the replica of this number, or connects to it. It gets weights before requests."""
Publish = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
"""The weights that the engines load, from the learner's."""
ATTEMPTS = 2
"""The fewest engines that fail in a request until its error ends the run; more engines are asked once each."""


@dataclass(frozen=True, slots=True)
class PublishedWeights:
    """The published weights: their file, and the scores that the probe must get from them."""

    weights_file: WeightsFile
    probe_scores: ProbeScores


class Fleet:
    """An `Engine` over `count` replicas. An answer does not depend on the replica, since random numbers are keyed.

    A request goes to the admitted replica with the fewest requests, at most `max_num_seqs` each; the others wait in
    order of arrival. If a replica is lost, or fails in a request, its requests are sent again elsewhere, and a new one
    is started. It is admitted with the current weights, once the `probe` has compared its scores. A slot that needs
    more than `restarts` new replicas in ten minutes is given up; when all are, requests raise the last cause,
    `WorkerLost` for a lost process. A request in which each of the engines fails raises `WorkerLost`, too.

    The last slots are for the engines at `addresses`. The engines load `publish` of the learner's weights, from a file
    of the `exchange`, which is sent once to each other host, by the trainer or a host that has it; or `in_memory` if
    all of them are processes on this host, or `on_gpu` (`GpuWeights`). `notify` gets a line for each loss, and for two
    hosts of which one cannot pass weights on. The replicas belong to the event loop of the first `load`, and end with
    it.
    """

    def __init__(
        self, start: StartReplica, count: int, *, exchange: WeightsFilesDirectory, probe: WeightsProbe,
        max_num_seqs: int,
        restarts: int, addresses: Sequence[str] = (), publish: Publish = dict, in_memory: bool = False,
        on_gpu: bool = False,
    ) -> None:  # fmt: skip
        self._publish, self._in_memory, self._on_gpu = publish, in_memory, on_gpu
        self._start, self._count, self._exchange, self._probe = start, count, exchange, probe
        self._max_num_seqs, self._restarts = max_num_seqs, restarts
        self._addresses = [""] * (count - len(addresses)) + list(addresses)
        self.notify: Callable[[str], None] = lambda line: None
        self._occupancy, self._restarted = OccupancyMeter(count), 0
        self._slots: list[Slot] = []
        self._keepers: list[asyncio.Task[None]] = []
        self._published: PublishedWeights | None = None
        self._uploads = HostUploads(lambda line: self.notify(line))
        self._waiting: deque[asyncio.Future[Slot]] = deque()
        self._changed = asyncio.Condition()

    @property
    def version(self) -> int:
        """The version of the current weights; -1 before the first load."""
        return self._published.weights_file.version if self._published else -1

    def keep_logs(self, folder: Path) -> None:
        """Write the output of replicas that start from now on to files in this folder."""
        self._exchange.engine_log_directory = folder

    @property
    def weights_way(self) -> str:
        """A line with the way by which weights travel to the engines."""
        far = any(address.rpartition(":")[2].isdecimal() for address in self._addresses)  # or a socket of this host
        if self._on_gpu:
            way = "from the learner's GPU" + (", to other hosts by NCCL, which encrypts nothing" if far else "")
        else:
            way = "in shared memory" if self._in_memory else "in a file" + (", to other hosts by TLS" if far else "")
        return f"engines load weights {way}"

    @property
    def replicas(self) -> Sequence[RemoteEngine]:
        """The replicas that are connected now."""
        return [slot.replica for slot in self._slots if slot.replica and not slot.replica.cause]

    async def sample(self, request: GenerationRequest) -> Generation:
        """The next tokens of one sample. `WorkerLost` if no replica is left."""

        async def ask(slot: Slot, replica: RemoteEngine) -> Generation:
            admitted = slot.version
            generation = await replica.sample(request)
            versions = {admitted, *generation.versions}
            if min(versions) < admitted or max(versions) > self.version:
                raise replica.fail(f"its tokens are of versions {sorted(set(generation.versions))}, not {admitted}")
            if max(versions) > admitted:
                await self._admitted(slot, replica, max(versions))
            return generation

        return await self._ask(ask)

    async def score(
        self, context: Ids, tokens: Ids, *, temperature: float = 1.0, pictures: Sequence[Picture] = ()
    ) -> tuple[float, ...]:
        """The log-prob of each token given all tokens before it. `WorkerLost` if no replica is left."""
        return await self._ask(
            lambda slot, replica: replica.score(context, tokens, temperature=temperature, pictures=pictures)
        )

    async def load(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Publish the weights, and wait until every running replica has them or is lost, and one has them."""
        file = await asyncio.to_thread(self._write, version, weights)
        before = self._published
        expected = await self._probe.expect(version, weights, before.probe_scores if before else None)
        self._published = PublishedWeights(file, expected)
        self._open()
        for slot in self._slots:
            slot.dismiss()
        async with self._changed:
            await self._changed.wait_for(self._settled)
        if before and before.weights_file.path != file.path:
            before.weights_file.remove()
        if all(slot.given_up for slot in self._slots):
            raise self._lost()
        for slot in self._slots:
            if (
                isinstance(slot.last_error, Usage) and not slot.was_admitted
            ):  # otherwise the run continues with the others
                raise slot.last_error

    def _write(self, version: int, weights: Mapping[str, Tensor]) -> WeightsFile:
        published = self._publish(weights)
        if self._on_gpu:
            return keep_on_gpu(version, published)
        if self._in_memory:
            return seal_weights(version, published)
        return write_weights(self._exchange.path, version, published)

    def figures(self) -> dict[str, float]:
        """The restarts of engines, the mean number of requests in each, and the weights sent, since the last call."""
        restarted, self._restarted = self._restarted, 0
        rows = {f"engine/{index}/rows": mean for index, mean in enumerate(self._occupancy.take())}
        return {"engine/restarts": float(restarted), **rows, **self._uploads.figures()}

    async def reach(self) -> None:
        """Connect once to each engine at an address, before a run begins.

        `Usage` for an engine that is another one than the run needs, or that has another secret. `EngineLost` if no
        engine can be reached, and the run starts none itself.
        """
        reached, lost = not all(self._addresses), None
        for index, address in enumerate(self._addresses):
            if address:
                try:
                    (await self._start(index)).end()
                    reached = True
                except EngineLost as error:
                    lost = error
        if lost is not None and not reached:
            raise lost

    def prefill(self, contexts: Sequence[ContextKey]) -> None:
        """Cache these prompts in every admitted replica: each serves samples of most groups."""
        for slot in self._slots:
            if isinstance(slot.state, SlotServing):
                slot.state.replica.prefill(contexts)

    async def _admitted(self, slot: Slot, replica: RemoteEngine, version: int) -> None:
        """Wait until the probe has checked this version: an engine may use it before. `EngineLost` if it fails."""
        async with self._changed:
            await self._changed.wait_for(lambda: slot.version >= version or slot.replica is not replica)
        replica.check()

    def _settled(self) -> bool:
        """Whether every running replica (at least one) has the current weights, or all slots are given up."""
        states = {type(slot.state) for slot in self._slots}
        return states <= {SlotGivenUp} or (SlotLoading not in states and SlotServing in states)

    # Requests

    async def _ask(self, call: Callable[[Slot, RemoteEngine], Awaitable[T]]) -> T:
        """The result of a call by the first replica that returns one."""
        failures = 0
        while True:
            slot = await self._turn()
            replica = slot.replica
            assert replica is not None, "an admitted slot has a replica"
            try:
                return await call(slot, replica)
            except EngineLost as error:
                replica.fail(error.what)  # also one that runs but has no weights
            except WorkerLost as error:
                replica.fail(f"it failed in a request: {error.evidence or error.what}")
                failures += 1
                if failures >= max(self._count, ATTEMPTS):
                    raise
            finally:
                self._count_requests(slot, -1)
                self._dispatch()

    def _count_requests(self, slot: Slot, change: int) -> None:
        slot.active_request_count += change
        self._occupancy.change(slot.index, change)

    async def _turn(self) -> Slot:
        """Wait for an admitted slot with a free row; the request counts there from now on."""
        if self._published is None:
            raise EngineLost("the engines have no weights yet", fix="load weights first")
        if all(slot.given_up for slot in self._slots):
            raise self._lost()
        turn: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._dispatch()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._count_requests(turn.result(), -1)
                self._dispatch()
            raise

    def _dispatch(self) -> None:
        """Give waiting requests, in order, to the admitted slots with the fewest requests."""
        while self._waiting:
            if self._waiting[0].done():  # cancelled
                self._waiting.popleft()
                continue
            free = [
                slot
                for slot in self._slots
                if isinstance(slot.state, SlotServing) and slot.active_request_count < self._max_num_seqs
            ]
            if not free:
                return
            slot = min(free, key=lambda slot: (slot.active_request_count, slot.index))
            self._count_requests(slot, 1)
            self._waiting.popleft().set_result(slot)

    def _lost(self) -> GroupwiseError:
        """The error for a fleet without replicas, with the cause of a lost one."""
        error = next((slot.last_error for slot in self._slots if slot.last_error is not None), None)
        if isinstance(error, Usage):
            return error
        tried = f"each of {self._count} was started again {self._restarts} times"
        if any(self._addresses):
            tried = "; ".join(slot.history for slot in self._slots)
        kind, evidence, fix = WorkerLost, repr(error), ""
        if isinstance(error, GroupwiseError):
            evidence, fix = f"{error.what}\n{error.evidence}".strip(), error.fix
            kind = WorkerLost if isinstance(error, EngineLost) else type(error)
        fix = fix or "continue from the last checkpoint, with engine.kind = 'Native'"
        return kind(f"no engine is left: {tried}", evidence=evidence, fix=fix)

    # Replicas

    def _open(self) -> None:
        """Start all slots, at the first load in an event loop."""
        if any(not keeper.done() for keeper in self._keepers):
            return
        self._slots = [Slot(index, address) for index, address in enumerate(self._addresses)]
        self._keepers = [asyncio.create_task(self._keep(slot)) for slot in self._slots]

    async def _keep(self, slot: Slot) -> None:
        """Keep a slot filled until it is given up: start a replica, and another one when it is lost."""
        try:
            while (pause := slot.pause(self._restarts)) is not None:
                if isinstance(slot.state, SlotLost):
                    self.notify(slot.loss(self._restarts))
                    self._restarted += 1
                    slot.become(SlotStarting())
                await asyncio.sleep(pause)
                slot.start_times.append(monotonic())
                await self._fill(slot)
                await self._notify()
                if isinstance(slot.last_error, Usage):  # another attempt would fail in the same way
                    break
        finally:
            slot.become(SlotGivenUp())
            if all(slot.given_up for slot in self._slots):
                self._abandon()
        self.notify(slot.loss(self._restarts))
        await self._notify()

    async def _fill(self, slot: Slot) -> None:
        """Start a replica and keep it loaded until it is lost. Its process is ended in every case."""
        replica: RemoteEngine | None = None
        try:
            replica = await self._start(slot.index)
            slot.become(SlotLoading(replica))
            replica.on_loss, replica.uploads = slot.dismiss, self._uploads
            await self._keep_loaded(slot, replica)
        except EngineLost as error:
            ending = replica.end() if replica else error.evidence
            slot.become(SlotLost(EngineLost(error.what, evidence=ending, fix="" if replica else error.fix)))
        except Exception as error:  # after any failure of a replica, the run continues with the others
            slot.become(SlotLost(error))
        finally:
            if replica:
                replica.end()

    def _abandon(self) -> None:
        """Fail the waiting requests, and free the weights: no replica is left."""
        for turn in self._waiting:
            if not turn.done():
                turn.set_exception(self._lost())
        if self._published:
            self._published.weights_file.remove()

    async def _keep_loaded(self, slot: Slot, replica: RemoteEngine) -> None:
        """Load the current weights into a replica, then each later version, until loading raises."""
        admitted: PublishedWeights | None = None
        while True:
            if (published := self._published) is not admitted and published is not None:
                await replica.fetch(published.weights_file)
                if replica.version != published.weights_file.version:
                    raise replica.fail(
                        f"it has version {replica.version} after loading {published.weights_file.version}"
                    )
                await self._probe.check(replica, published.probe_scores)
                admitted = published
                if published is self._published:
                    slot.become(SlotServing(replica, published.weights_file.version))
                    self._dispatch()
                    await self._notify()
                continue
            await slot.wake_event.wait()
            slot.wake_event.clear()
            replica.check()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
