"""Waits for other ranks: a signal ends the wait, whichever thread of the process gets it."""

import signal
from threading import Event, get_ident

import pytest

from groupwise.cluster.rank_work_thread import interruptible


def test_a_signal_that_another_thread_gets_ends_the_wait() -> None:
    """It does not wake the main thread, which runs the handler."""
    release, ended = Event(), Event()

    def stop(number: int, frame: object) -> None:
        raise InterruptedError

    def work() -> None:
        release.wait(0.3)  # the main thread waits by now
        signal.pthread_kill(get_ident(), signal.SIGUSR1)
        release.wait(10)
        ended.set()

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        with pytest.raises(InterruptedError):
            interruptible(work)
        assert not ended.is_set()
    finally:
        release.set()
        signal.signal(signal.SIGUSR1, before)
