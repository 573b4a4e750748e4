"""The loop of engines whose tokens are steps: samples start and finish at any step of one batch."""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Generic, Protocol, TypeVar, runtime_checkable

from torch import Tensor, nn

from groupwise.core import EngineLost, Usage
from groupwise.data import ContextKey, Generation, GenerationRequest, Ids, Picture
from groupwise.engines.native.weight_loading import check_weights, load_weights

__all__ = ["ROWS", "SteppingEngine"]

ROWS = 16
"""Matrix products have a multiple of this many rows, so that a sample depends neither on others nor on their limit."""


@runtime_checkable
class PendingRequest(Protocol):
    """A generation request and the future that its caller awaits."""

    request: GenerationRequest
    future: asyncio.Future[Generation]


R = TypeVar("R", bound=PendingRequest)


class SteppingEngine(Generic[R]):
    """An abstract `Engine` over a policy, whose weights it shares if `load` gets the policy's own tensors.

    At most `max_num_seqs` requests are running; the others are waiting, in order of arrival.
    """

    def __init__(self, policy: nn.Module, *, max_num_seqs: int) -> None:
        self.version = 0
        self._module, self._max_num_seqs = policy, max_num_seqs
        self._waiting: deque[R] = deque()
        self._running: list[R] = []
        self._loop: asyncio.Task[None] | None = None

    def _check(self, request: GenerationRequest) -> None:
        """Raise `Usage` or ValueError for a request that does not fit the policy."""
        raise NotImplementedError

    def _pending_request(self, request: GenerationRequest, future: asyncio.Future[Generation]) -> R:
        """The request before its first step."""
        raise NotImplementedError

    def _interrupt(self, batch: Sequence[R]) -> list[R]:
        """End these requests, or return them to continue, since the weights are about to change."""
        raise NotImplementedError

    def _step(self) -> None:
        """Take one step of every running sample, and remove the finished ones."""
        raise NotImplementedError

    async def sample(self, request: GenerationRequest) -> Generation:
        """Take the next steps of one sample, up to the last one or `limit` of them. `Usage` for an unfit request."""
        if request.limit < 1:
            raise ValueError(f"a generation request asks for {request.limit} tokens: its limit must be at least 1")
        if self.version < 0:
            raise EngineLost("the engine has no complete weights", evidence="its last load failed", fix="load again")
        self._check(request)
        pending = self._pending_request(request, asyncio.get_running_loop().create_future())
        self._waiting.append(pending)
        if self._loop is None or self._loop.done():
            self._loop = asyncio.create_task(self._run())
        return await pending.future

    async def score(
        self, context: Ids, tokens: Ids, *, temperature: float = 1.0, pictures: Sequence[Picture] = ()
    ) -> tuple[float, ...]:
        """`Usage`: a step has a log-prob only together with its action, which a request lacks."""
        raise Usage(
            "a policy of steps cannot score the tokens of a step without the actions of its path",
            fix="use a strategy and an objective that do not score answers under other prompts",
        )

    async def load(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Replace the weights. ValueError for the weights of another model."""
        check_weights(self._module.state_dict(), weights)
        self._running = self._interrupt(self._running)
        self.version = -1  # a failure below leaves a mixture of old and new weights
        load_weights(self._module, weights)
        self.version = version

    def prefill(self, contexts: Sequence[ContextKey]) -> None:
        """Nothing to compute ahead: a prompt is a few embeddings."""

    async def _run(self) -> None:
        """Step by step until no request is left."""
        try:
            while True:
                await asyncio.sleep(0)  # a caller whose request finished may send the next one before the next step
                self._running = [pending for pending in self._running if not pending.future.done()]
                while self._waiting and len(self._running) < self._max_num_seqs:
                    pending = self._waiting.popleft()
                    if not pending.future.done():
                        self._running.append(pending)
                if not self._running:
                    return
                self._step()
        except BaseException as error:
            for pending in (*self._running, *self._waiting):
                if not pending.future.done():
                    if isinstance(error, asyncio.CancelledError):
                        pending.future.cancel()
                    else:
                        pending.future.set_exception(error)
            self._running = []
            self._waiting.clear()
            if not isinstance(error, Exception):
                raise
