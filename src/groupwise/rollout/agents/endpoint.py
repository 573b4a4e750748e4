"""The endpoint of the open episodes: requests by path and key, and their replies. It knows no network."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any

from groupwise.rollout.agents.chat_reply import reply_of, stream_of
from groupwise.rollout.agents.chat_request import POLICY, ChatRequest, RequestError, chat_request, text_request
from groupwise.rollout.agents.episode import AnsweredCall, Episode
from groupwise.rollout.agents.responses import response_events, response_of, response_request

__all__ = ["Endpoint", "HttpReply", "OpenEpisode"]

MOST_BYTES = 16 << 20
"""The most bytes of a request's body."""

JSON, EVENTS = "application/json", "text/event-stream"
MODELS = "/v1/models"
PATHS: dict[str, Callable[[Any, Sequence[str]], ChatRequest]] = {
    "/v1/chat/completions": chat_request,
    "/v1/completions": text_request,
    "/v1/responses": response_request,
}


@dataclass(frozen=True, slots=True)
class HttpReply:
    """The status, content type and body of a reply."""

    status: int
    content_type: str
    body: bytes

    @classmethod
    def of(cls, error: RequestError) -> "HttpReply":
        """The reply that is an error, in OpenAI's form."""
        return cls(error.status, JSON, json.dumps(error.body).encode())


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A request that is being answered, with the id of its reply."""

    request: ChatRequest
    reply_id: str
    answers: "asyncio.Task[list[AnsweredCall]]"


@dataclass(slots=True, eq=False)
class OpenEpisode:
    """An episode whose requests are answered. `fatal_error` gets an error that ends the run, such as a lost engine.

    `calls` are the requests that run, `abandoned_calls` those whose client hung up before the reply, and
    `total_call_count` is the number of all so far. Requests are answered in the `contextvars_context` in which the
    episode was opened, so that an engine's tasks are not the agent's.
    """

    episode: Episode
    fatal_error: asyncio.Future[None]
    contextvars_context: Context = field(default_factory=copy_context)
    calls: set[Call] = field(default_factory=set)
    abandoned_calls: list[Call] = field(default_factory=list)
    total_call_count: int = 0

    def call(self, request: ChatRequest) -> Call:
        """The call of a request: a new one, or that of an equal request whose client hung up, which it repeats."""
        repeated = next((call for call in self.abandoned_calls if call.request == request), None)
        if repeated is not None:
            self.abandoned_calls.remove(repeated)
            return repeated
        kind = "resp" if request.is_response else "chatcmpl" if request.completions_prompt is None else "cmpl"
        identity = f"{kind}-{self.episode.draw.id}-{self.episode.episode_index}-{self.total_call_count}"
        self.total_call_count += 1
        answers = asyncio.get_running_loop().create_task(self._answers(request), context=self.contextvars_context)
        call = Call(request, identity, answers)
        self.calls.add(call)
        call.answers.add_done_callback(lambda _: self.calls.discard(call))
        return call

    async def _answers(self, request: ChatRequest) -> list[AnsweredCall]:
        try:
            return await self.episode.answer(request)
        except RequestError:
            raise
        except Exception as error:
            if not self.fatal_error.done():
                self.fatal_error.set_exception(error)
            raise RequestError("the run cannot answer", status=500, code="engine_failed") from error

    async def close(self) -> None:
        """Cancel the requests that run: their answers are in no sample."""
        running = [call.answers for call in self.calls]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, *(call.answers for call in self.abandoned_calls), return_exceptions=True)
        self.fatal_error.cancel()


@dataclass(slots=True, eq=False)
class Endpoint:
    """Answers the requests of the open episodes. The key of a request names its episode, and expires with it.

    Any name in `model_names` is the policy; another one is an error, so that the policy never plays a judge.
    """

    model_names: Sequence[str] = (POLICY,)
    open_episodes: dict[str, OpenEpisode] = field(default_factory=dict)

    @asynccontextmanager
    async def open(self, episode: Episode) -> AsyncIterator[tuple[str, OpenEpisode]]:
        """A context in which an episode is open, with its key."""
        key = f"sk-{secrets.token_hex(24)}"
        opened = self.open_episodes[key] = OpenEpisode(episode, asyncio.get_running_loop().create_future())
        try:
            yield key, opened
        finally:
            del self.open_episodes[key]
            await opened.close()

    async def answer(self, method: str, path: str, authorization: str, body: bytes) -> HttpReply:
        """The reply to a request. All errors are replies, in OpenAI's form.

        If the caller is cancelled, its client has hung up. The answer is generated all the same and stays in the
        episode, and an equal request gets it: the bytes of a run do not depend on a connection.
        """
        try:
            opened = self._opened(authorization)
        except RequestError as error:
            return HttpReply.of(error)
        try:
            self.check(method, path, authorization, len(body))
            if path == MODELS:
                shared = {"object": "model", "created": 0, "owned_by": "groupwise"}
                models = [{"id": name, **shared} for name in self.model_names]
                return HttpReply(200, JSON, json.dumps({"object": "list", "data": models}).encode())
            reply = await self._answer(opened, PATHS[path](_json(body), self.model_names))
            opened.episode.latest_request_error = None
        except RequestError as error:
            opened.episode.latest_request_error = error
            reply = HttpReply.of(error)
        return reply

    def check(self, method: str, path: str, authorization: str, size: int = 0) -> None:
        """Raise the RequestError of a request that is refused whatever its body of `size` bytes is."""
        self._opened(authorization)
        if path not in PATHS and path != MODELS:
            fix = f"this endpoint has {', '.join(known.removeprefix('/v1/') for known in (*PATHS, MODELS))}"
            raise RequestError(f"there is no {path[:80]}", fix=fix, status=404, code="unknown_url")
        allowed = "GET" if path == MODELS else "POST"
        if method != allowed:
            raise RequestError(f"{path} is for {allowed}", status=405, code="method_not_supported")
        if size > MOST_BYTES:
            raise RequestError(f"the body has more than {MOST_BYTES:,} bytes", status=413, code="request_too_large")

    def _opened(self, authorization: str) -> OpenEpisode:
        """The open episode of a request's key."""
        opened = self.open_episodes.get(authorization.removeprefix("Bearer ").strip())
        if opened is None:
            raise RequestError("the key belongs to no running episode", status=401, code="invalid_api_key")
        return opened

    async def _answer(self, opened: OpenEpisode, request: ChatRequest) -> HttpReply:
        call = opened.call(request)
        try:
            answers = await asyncio.shield(call.answers)
        except asyncio.CancelledError:
            if call.answers.cancelled():
                raise RequestError("the episode has ended", status=401, code="invalid_api_key") from None
            opened.abandoned_calls.append(call)
            raise
        reply = reply_of(request, answers, call.reply_id, opened.episode.tokenizer)
        if request.is_response:
            reply = response_of(reply)
        if request.stream:
            events = response_events(reply) if request.is_response else stream_of(request, reply)
            return HttpReply(200, EVENTS, b"".join(events))
        return HttpReply(200, JSON, json.dumps(reply).encode())


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise RequestError("the body is not JSON") from None
