"""The store in which the ranks of a run find each other, and in which those above 0 wait for rank 0.

A rank above 0 waits without a deadline while rank 0 samples. A connection to a host that vanished, by a power loss or a
partition of the network, stays open, so the rank looks at rank 0's pulse.
"""

import math
import secrets
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from threading import Thread
from typing import TypeVar

import torch.distributed as dist

from groupwise.core import Usage, WorkerLost
from groupwise.learner.rank_pulse import STORE, PulseWatch, SilentRanks, Store

TCPStore, PrefixStore = dist.TCPStore, dist.PrefixStore  # pyright: ignore[reportPrivateImportUsage]
T = TypeVar("T")
IDLE = 60.0
"""The most seconds of one wait for a key, after which the wait begins again."""
RETRY = 0.2
"""Seconds between two attempts to reach rank 0."""
LOOPBACK = "127.0.0.1"
CALL = "called"
"""The key that rank 0 sets when its learner starts, and when it ends."""
STARTS, ENDS = "starts", "ends"
"""Its values."""
ASKS, ANSWER, JOINED = "asks", "answer", "joined"
"""The begins of keys with the name of a rank's process, the start that it joins, and whether it has."""
LOOKS = 4
"""How often a rank that waits for rank 0 looks at its pulse, within the seconds after which it gives up."""


def host_store(size: int, host: str = LOOPBACK, port: int = 0) -> TCPStore:
    """The store that connects `size` ranks, in this process, at an address of this host; port 0 is a free one.

    Only at the default address, other hosts cannot reach it. `Usage` if it cannot listen there.
    """
    try:
        listener = socket.create_server((host, port), backlog=size)
    except OSError as error:
        fix = "rank 0 listens there: name an address of its host, and a free port"
        raise Usage(f"rank 0 cannot listen on {host}:{port}", evidence=error.strerror or str(error), fix=fix) from error
    port = listener.getsockname()[1]
    return TCPStore(host, port, size, True, wait_for_workers=False, master_listen_fd=listener.detach())


def join_store(port: int, size: int, *, deadline: float, host: str = LOOPBACK) -> TCPStore:
    """Connect to the store of rank 0. `WorkerLost` if it does not answer within `deadline` seconds."""
    end = time.monotonic() + deadline

    def joined() -> TCPStore:
        until_open(host, port, end)  # the client of torch begins its wait again, up to three times
        left = timedelta(seconds=max(end - time.monotonic(), RETRY))
        return TCPStore(host, port, size, False, timeout=left, wait_for_workers=False)

    try:
        return within(deadline + RETRY, joined)
    except (dist.DistError, RuntimeError, OSError) as error:
        raise WorkerLost(
            f"rank 0 is not at {host}:{port}, after {deadline:g} s",
            evidence=str(error).partition("\n")[0],
            fix="start rank 0 too, and name its address in MASTER_ADDR and MASTER_PORT",
        ) from error


def within(seconds: float, call: Callable[[], T]) -> T:
    """The result of a call, which runs in a thread. TimeoutError after `seconds`.

    The calls of a store block without end if its host has vanished, whatever their own timeouts say.
    """
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)

    Thread(target=run, daemon=True).start()
    try:
        return result.result(seconds)
    except TimeoutError:
        raise TimeoutError(f"timed out after {seconds:g} s") from None


def until_open(host: str, port: int, end: float) -> None:
    """Wait until something listens at an address. The OSError of the last attempt after `end` (`time.monotonic`)."""
    while True:
        try:
            socket.create_connection((host, port), timeout=max(end - time.monotonic(), RETRY)).close()
            return
        except OSError:
            if time.monotonic() + RETRY > end:
                raise
            time.sleep(RETRY)


def prefix_store(store: Store, name: str) -> Store:
    """A view of a store in which all keys have this prefix."""
    return PrefixStore(name, store)


def late_for_start(store: Store, size: int, start: int) -> list[int]:
    """The ranks above 0 that have yet to join a start of the run, in a store that outlives several. Rank 0 calls it.

    Each process of a rank asks with a random name. So an answer to a process of an earlier start has no reader.
    """
    late = [rank for rank in range(1, size) if not store.check([f"{JOINED}/{start}/{rank}"])]
    for rank in late:
        if store.check([f"{ASKS}/{rank}"]):
            store.set(f"{ANSWER}/{store.get(f'{ASKS}/{rank}').decode()}", str(start))
    return late


def join_start(store: Store, rank: int, patience: float) -> int:
    """The number of the start that this process joins, once rank 0 has answered. `SilentRanks` as in `awaited`."""
    name = secrets.token_hex(16)
    store.set(f"{ASKS}/{rank}", name)
    try:
        start = int(awaited(store, f"{ANSWER}/{name}", patience))
    except dist.DistNetworkError as error:
        what, fix = "torchrun ended before rank 0 started the run", "look at the output of rank 0"
        raise WorkerLost(what, evidence=str(error).partition("\n")[0], fix=fix) from error
    store.set(f"{JOINED}/{start}/{rank}", "")
    return start


def call_ranks(store: Store) -> None:
    """Tell the ranks that wait in `wait_for_call` that the learner starts."""
    store.set(CALL, STARTS)


def release_ranks(store: Store) -> None:
    """End the wait of the ranks in `wait_for_call`: rank 0 ends. The store of torchrun outlives rank 0."""
    with suppress(dist.DistError, RuntimeError):
        store.set(CALL, ENDS)


def wait_for_call(store: Store, patience: float = math.inf) -> bool:
    """Wait until rank 0 starts its learner; False if it ends before. `SilentRanks` as in `awaited`.

    This wait has no deadline: before it, rank 0 reads its data, and may run a warm start.
    """
    try:
        return awaited(store, CALL, patience) == STARTS.encode()
    except dist.DistNetworkError:  # the connection is closed
        return False


def awaited(store: Store, key: str, patience: float) -> bytes:
    """The value of a key, once rank 0 sets it. DistNetworkError if the store's connection closes.

    `SilentRanks` after `patience` seconds without a sign of life: a new pulse, or without any, an answer of the store.
    """
    value: Future[bytes] = Future()
    step, watch = min(patience / LOOKS, IDLE), PulseWatch([0])

    def listen() -> None:
        """The calls of a store block without end if its host has vanished; so they are in a thread."""
        try:
            while not _arrived(store, key, step):
                watch.look(store)
            value.set_result(store.get(key))
        except BaseException as error:
            value.set_exception(error)

    Thread(target=listen, daemon=True).start()
    while True:
        with suppress(TimeoutError):
            return value.result(step)
        if watch.silent_seconds(0) > patience:
            silent = STORE if watch.still_seconds(0) <= 0 else "rank 0"  # the store's last answer had a new pulse
            raise SilentRanks(
                f"{silent} gave no sign of life for {patience:g} s",
                evidence="its process is stopped, its host is down, or the network to it is cut",
                fix="continue from the last checkpoint with groupwise resume, once the host of rank 0 is back",
            )


def _arrived(store: Store, key: str, seconds: float) -> bool:
    try:
        store.wait([key], timedelta(seconds=seconds))
    except dist.DistStoreError:  # not yet
        return False
    return True
