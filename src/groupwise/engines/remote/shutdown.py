"""Graceful shutdown of a serving process on a signal: it removes its socket and its weight files."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

__all__ = ["serve_until_signal"]

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C; the signal of Slurm, Kubernetes and other managers; the signal of a terminal that closes."""
PATIENCE = 10.0
"""Seconds in which connections must have ended after a signal."""


async def serve_until_signal(serving: Coroutine[Any, Any, None]) -> int:
    """Serve until a signal; returns the exit code, 128 and its number. An ignored SIGHUP (`nohup`) stays ignored."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    signals = [signum for signum in SIGNALS if not (ignored and signum == signal.SIGHUP)]
    for signum in signals:
        loop.add_signal_handler(signum, lambda code=128 + signum: ended.done() or ended.set_result(code))
    task = asyncio.create_task(serving)
    try:
        await asyncio.wait({task, ended}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        task.cancel()
        await asyncio.wait({task}, timeout=PATIENCE)
        return await ended
    finally:
        for signum in signals:
            loop.remove_signal_handler(signum)
