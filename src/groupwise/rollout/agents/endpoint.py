"""The endpoint of the open episodes: requests by path and key, and their replies. It knows no network."""

import asyncio
import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from groupwise.rollout.agents.chat_reply import reply_of, stream_of
from groupwise.rollout.agents.chat_request import POLICY, ChatRequest, RequestError, chat_request, text_request
from groupwise.rollout.agents.episode import Episode

__all__ = ["Endpoint", "HttpReply", "OpenEpisode"]

MOST_BYTES = 16 << 20
"""The most bytes of a request's body."""

JSON, EVENTS = "application/json", "text/event-stream"
PATHS: dict[str, Callable[[Any, Sequence[str]], ChatRequest]] = {
    "/v1/chat/completions": chat_request,
    "/v1/completions": text_request,
}


@dataclass(frozen=True, slots=True)
class HttpReply:
    """The status, content type and body of a reply."""

    status: int
    content_type: str
    body: bytes


@dataclass(slots=True, eq=False)
class OpenEpisode:
    """An episode whose requests are answered. `failure` gets an error that ends the run, such as a lost engine."""

    episode: Episode
    failure: asyncio.Future[None]


@dataclass(slots=True, eq=False)
class Endpoint:
    """Answers the requests of the open episodes. The key of a request names its episode, and expires with it.

    Any name in `model_names` is the policy; another one is an error, so that the policy never plays a judge.
    """

    model_names: Sequence[str] = (POLICY,)
    open_episodes: dict[str, OpenEpisode] = field(default_factory=dict)

    @contextmanager
    def open(self, episode: Episode) -> Iterator[tuple[str, OpenEpisode]]:
        """A context in which an episode is open, with its key."""
        key = f"sk-{secrets.token_hex(24)}"
        opened = self.open_episodes[key] = OpenEpisode(episode, asyncio.get_running_loop().create_future())
        try:
            yield key, opened
        finally:
            del self.open_episodes[key]
            opened.failure.cancel()

    async def answer(self, method: str, path: str, authorization: str, body: bytes) -> HttpReply:
        """The reply to a request. All errors are replies, in OpenAI's form."""
        try:
            return await self._answer(method, path, authorization, body)
        except RequestError as error:
            return HttpReply(error.status, JSON, json.dumps(error.body).encode())

    async def _answer(self, method: str, path: str, authorization: str, body: bytes) -> HttpReply:
        opened = self.open_episodes.get(authorization.removeprefix("Bearer ").strip())
        if opened is None:
            raise RequestError("the key belongs to no running episode", status=401, code="invalid_api_key")
        if path == "/v1/models" and method == "GET":
            models = [
                {"id": name, "object": "model", "created": 0, "owned_by": "groupwise"} for name in self.model_names
            ]
            return HttpReply(200, JSON, json.dumps({"object": "list", "data": models}).encode())
        if (read := PATHS.get(path)) is None:
            raise RequestError(f"there is no {path[:80]}", status=404, code="unknown_url")
        if method != "POST":
            raise RequestError(f"{path} is for POST", status=405, code="method_not_supported")
        request = read(_json(body), self.model_names)
        episode = opened.episode
        identity = f"{'chatcmpl' if request.text is None else 'cmpl'}-{episode.draw.id}-{episode.episode_index}"
        identity += f"-{episode.request_count}"
        try:
            answers = await episode.answer(request)
        except RequestError:
            raise
        except Exception as error:
            if not opened.failure.done():
                opened.failure.set_exception(error)
            raise RequestError("the run cannot answer", status=500, code="engine_failed") from error
        reply = reply_of(request, answers, identity, episode.tokenizer)
        if request.stream:
            return HttpReply(200, EVENTS, b"".join(stream_of(request, reply)))
        return HttpReply(200, JSON, json.dumps(reply).encode())


def _json(body: bytes) -> Any:
    if len(body) > MOST_BYTES:
        raise RequestError(f"the body has more than {MOST_BYTES:,} bytes", status=413, code="request_too_large")
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise RequestError("the body is not JSON") from None
