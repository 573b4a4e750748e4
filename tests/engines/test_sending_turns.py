"""Who sends weights to whom: rounds, hosts that cannot pass weights on, and hosts that are lost."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise.core import EngineLost, GroupwiseError, Storage, Usage
from groupwise.engines.remote import host_uploads
from groupwise.engines.remote.host_uploads import Destination, HostUploads
from groupwise.engines.remote.weights_file import WeightsFile
from groupwise.engines.remote.wire import MOST_RECEIVERS
from groupwise.planning.send_rounds import send_rounds
from tests.engines.lines import run

FILE, NEXT = WeightsFile(1, Path(__file__), "1" * 64), WeightsFile(2, Path(__file__), "2" * 64)
SIZE = FILE.path.stat().st_size
TRAINER = "the trainer"


@dataclass(eq=False)
class Network:
    """The copies that are under way, each with its sender and receiver, until a test lets them arrive or fail."""

    copies: list[tuple[str, str, asyncio.Future[None]]] = field(default_factory=list)

    async def send(self, sender: str, receiver: str) -> None:
        self.copies.append(entry := (sender, receiver, asyncio.get_running_loop().create_future()))
        try:
            await entry[2]
        except asyncio.CancelledError:
            self.copies.remove(entry)
            raise

    async def settle(self) -> list[tuple[str, str]]:
        """The senders and receivers of all copies, once no further one begins."""
        for _ in range(50):
            await asyncio.sleep(0)
        return [(sender, receiver) for sender, receiver, _ in self.copies]

    def end(self, failed: Callable[[str, str], GroupwiseError | None] = lambda sender, receiver: None) -> None:
        """Let all copies arrive, but those for which `failed` has an error."""
        copies, self.copies = self.copies, []
        for sender, receiver, copy in copies:
            if error := failed(sender, receiver):
                copy.set_exception(error)
            else:
                copy.set_result(None)


@dataclass(eq=False)
class PretendedEngine:
    """An engine on a host of its own."""

    host: str
    network: Network
    cause: str = ""

    @property
    def name(self) -> str:
        return f"the engine of {self.host}"

    @property
    def destination(self) -> Destination:
        return Destination(f"address of {self.host}", self.host, "one")

    async def receive(self, file: WeightsFile) -> None:
        await self.network.send(TRAINER, self.host)

    async def pass_on(self, file: WeightsFile, to: Destination) -> None:
        await self.network.send(self.host, to.host)


def engines(network: Network, count: int) -> list[PretendedEngine]:
    return [PretendedEngine(f"host {i}", network) for i in range(count)]


def begin(uploads: HostUploads, file: WeightsFile, fleet: list[PretendedEngine]) -> list[asyncio.Task[None]]:
    return [asyncio.create_task(uploads.once(file, each)) for each in fleet]


@settings(max_examples=30)
@given(hosts=st.integers(1, 130))
def test_hosts_that_have_the_weights_send_them_in_the_rounds_that_a_plan_counts(hosts: int) -> None:
    """Each host gets them once, and nobody sends to more than a few at a time."""

    async def go() -> None:
        network, uploads = Network(), HostUploads()
        tasks, rounds, received, passed = begin(uploads, FILE, engines(network, hosts)), [], Counter[str](), 0
        while copies := await network.settle():
            busiest = max(Counter(sender for sender, _ in copies).values())
            assert busiest <= MOST_RECEIVERS and {sender for sender, _ in copies} <= {TRAINER, *received}
            rounds.append(busiest)
            received.update(receiver for _, receiver in copies)
            passed += sum(sender != TRAINER for sender, _ in copies)
            network.end()
        await asyncio.gather(*tasks)
        assert tuple(rounds) == send_rounds(hosts) and [*received.values()] == [1] * hosts
        assert (passed > 0) == (hosts > MOST_RECEIVERS)
        figures = uploads.figures()
        assert (figures["engine/sent_bytes"], figures["engine/passed_bytes"]) == (hosts * SIZE, passed * SIZE)
        assert uploads.figures() == {}

    run(go())


def test_few_hosts_need_not_reach_each_other() -> None:
    """The trainer sends all copies, also to hosts that come later; the fifth host is one of many."""

    async def go() -> None:
        network, uploads = Network(), HostUploads()
        fleet = engines(network, MOST_RECEIVERS + 1)
        tasks = begin(uploads, FILE, fleet[:1])
        await network.settle()
        network.end()
        tasks += begin(uploads, FILE, fleet[1:-1])
        assert {sender for sender, _ in await network.settle()} == {TRAINER}
        tasks += begin(uploads, FILE, fleet[-1:])
        assert (await network.settle())[-1] == ("host 0", "host 4")
        network.end()
        await asyncio.gather(*tasks)

    run(go())


def test_two_hosts_that_cannot_reach_each_other_are_tried_once_and_named_once() -> None:
    """The trainer sends in the place of the one. Nothing that failed is counted as sent."""
    lines: list[str] = []

    def unreachable(sender: str, receiver: str) -> GroupwiseError | None:
        refused = Usage(f"{receiver} is not there", evidence="Connection refused\nof more lines")
        return refused if receiver == "host 6" and sender != TRAINER else None

    async def go() -> None:
        network, uploads = Network(), HostUploads(lines.append)
        fleet = engines(network, 7)
        pairs: list[set[tuple[str, str]]] = []
        for file in (FILE, NEXT):
            tasks = begin(uploads, file, fleet)
            pairs.append(set())
            while copies := await network.settle():
                pairs[-1].update(copies)
                network.end(unreachable)
            await asyncio.gather(*tasks)
            assert uploads.figures()["engine/sent_bytes"] == 7 * SIZE
        (failed,) = {pair for pair in pairs[0] if pair[1] == "host 6" and pair[0] != TRAINER}
        assert (TRAINER, "host 6") in pairs[0]
        again = {pair for pair in pairs[1] if pair[1] == "host 6" and pair[0] != TRAINER}
        assert failed not in pairs[1] and len(lines) == 1 + len(again)
        what = f"the engine of {failed[0]} cannot pass weights on to the engine of host 6"
        assert lines[0].startswith(f"{what}: host 6 is not there (Connection refused); the trainer sends")
        assert lines[0].endswith(f"let the engine of {failed[0]} connect to the engine of host 6, and resume the run")

    run(go())


def test_a_host_whose_receiver_is_lost_is_not_blamed() -> None:
    """The receiver is lost to the trainer, too; the next engine of its host gets the weights from the same host."""
    lines: list[str] = []

    async def go() -> None:
        network, uploads = Network(), HostUploads(lines.append)
        fleet = engines(network, 6)
        tasks = begin(uploads, FILE, fleet[:5])
        while await network.settle():
            network.end()
        await asyncio.gather(*tasks)
        busy = begin(uploads, NEXT, fleet[:4])
        await network.settle()
        lost = begin(uploads, FILE, fleet[5:])
        copies = [pair for pair in await network.settle() if pair[1] == "host 5"]
        assert [sender for sender, _ in copies] == ["host 4"]
        network.end(lambda _, receiver: EngineLost("it died") if receiver == "host 5" else None)
        await asyncio.gather(*busy)
        assert [pair for pair in await network.settle() if pair[1] == "host 5"] == [(TRAINER, "host 5")]
        network.end(lambda _, receiver: EngineLost("it died"))
        with pytest.raises(EngineLost, match="it died"):
            await lost[0]
        assert not lines and not uploads._failed

    run(go())


def test_only_hosts_with_these_weights_and_an_engine_that_runs_send_them() -> None:
    async def go() -> None:
        network, uploads = Network(), HostUploads()
        fleet = engines(network, 8)
        tasks = begin(uploads, FILE, fleet[:6])
        while await network.settle():
            network.end()
        await asyncio.gather(*tasks)
        fleet[0].cause = "killed by the test"
        tasks = begin(uploads, NEXT, fleet[1:5])  # they have deleted the first file
        assert await network.settle() == [(TRAINER, f"host {i}") for i in range(1, 5)]
        tasks += begin(uploads, FILE, fleet[6:])
        copies = await network.settle()
        assert copies[4:] == [("host 5", "host 6")]  # host 7 waits: it may soon get them from host 6
        while await network.settle():
            network.end()
        await asyncio.gather(*tasks)

    run(go())


async def all_arrive(network: Network, tasks: list[asyncio.Task[None]]) -> None:
    while await network.settle():
        network.end()
    await asyncio.gather(*tasks)


def test_a_host_without_the_file_any_more_is_not_told_to_connect() -> None:
    """Nobody asks it for this file again, and for the next one as before."""
    lines: list[str] = []

    async def go() -> None:
        network, uploads = Network(), HostUploads(lines.append)
        fleet = engines(network, 8)
        await all_arrive(network, begin(uploads, FILE, fleet[:5]))
        busy = begin(uploads, NEXT, fleet[:4])
        await network.settle()
        tasks = begin(uploads, FILE, fleet[5:6])
        assert ("host 4", "host 5") in await network.settle()
        network.end(lambda _, receiver: Storage("it has no weights") if receiver == "host 5" else None)
        await asyncio.gather(*busy)
        await network.settle()
        assert "host 4" not in uploads._senders(FILE, fleet[6])
        await all_arrive(network, tasks)
        assert "host 5" in uploads._senders(FILE, fleet[6])
        await all_arrive(network, begin(uploads, NEXT, fleet[4:6]))
        assert "host 4" in uploads._senders(NEXT, fleet[5])

    run(go())
    what = "the engine of host 4 cannot pass weights on to the engine of host 5"
    assert lines == [f"{what}: it has no weights; the trainer sends them this time"]


def test_a_host_whose_engine_comes_back_passes_weights_on() -> None:
    """Its host had the weights, so the trainer sends them again: they are those of the engine that runs now."""

    async def go() -> None:
        network, uploads = Network(), HostUploads()
        fleet = engines(network, 6)
        await all_arrive(network, begin(uploads, FILE, fleet))
        fleet[0].cause = "killed by the test"
        assert "host 0" not in uploads._senders(FILE, fleet[1])
        back = PretendedEngine("host 0", network)
        await uploads.once(FILE, back)
        again = asyncio.create_task(uploads.again(FILE, back))
        assert await network.settle() == [(TRAINER, "host 0")]
        await all_arrive(network, [again])
        assert uploads._senders(FILE, fleet[1])["host 0"] is back

    run(go())


def test_hosts_whose_engines_are_lost_do_not_count() -> None:
    """A host that is started again has another name: four hosts are still few."""

    async def go() -> None:
        network, uploads = Network(), HostUploads()
        fleet = engines(network, MOST_RECEIVERS)
        await all_arrive(network, begin(uploads, FILE, fleet))
        fleet[0].cause = "killed by the test"
        tasks = begin(uploads, FILE, [PretendedEngine("host 0 started again", network)])
        assert await network.settle() == [(TRAINER, "host 0 started again")]
        await all_arrive(network, tasks)
        assert [*uploads._senders(FILE, fleet[1])] == [host_uploads.TRAINER]
        fleet[0].cause = ""
        assert len(uploads._senders(FILE, fleet[1])) > 1

    run(go())


def test_a_host_that_waits_and_gives_up_takes_nobodys_turn() -> None:
    async def go() -> None:
        network, uploads = Network(), HostUploads()
        tasks = begin(uploads, FILE, engines(network, 6))
        await network.settle()
        tasks[4].cancel()
        tasks[0].cancel()
        assert (TRAINER, "host 5") in await network.settle()  # in the place of host 0
        network.end()
        await asyncio.gather(*tasks[1:4], tasks[5])
        assert uploads._turns._lacking == 0 and uploads._turns._under_way.total() == 0

    run(go())
