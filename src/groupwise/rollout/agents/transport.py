"""The endpoint in this process: a transport of the HTTP client, without a socket."""

from collections.abc import Callable
from typing import Any

import httpx2

from groupwise.core import MissingRequirement
from groupwise.rollout.agents.endpoint import Endpoint

__all__ = ["EpisodeTransport", "openai_clients"]

URL = "http://policy.invalid/v1"
"""The base URL of clients in this process. No request leaves it."""


class EpisodeTransport(httpx2.AsyncBaseTransport):
    """Passes the requests of an HTTP client to an endpoint in this process."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        body = await request.aread()
        authorization = request.headers.get("authorization", "")
        reply = await self._endpoint.answer(request.method, request.url.path, authorization, body)
        headers = {"content-type": reply.content_type}
        return httpx2.Response(reply.status, headers=headers, content=reply.body, request=request)


def openai_clients(endpoint: Endpoint) -> Callable[[str], Any]:
    """A function that returns an `openai.AsyncOpenAI` for an episode's key. All share one HTTP client.

    `MissingRequirement` without the package openai.
    """
    try:
        import openai  # pyright: ignore[reportMissingImports]
    except ImportError:
        fix = "pip install 'groupwise[agents]'"
        raise MissingRequirement("an agent gets a client of the package openai, which is missing", fix=fix) from None
    http = httpx2.AsyncClient(transport=EpisodeTransport(endpoint))
    client = openai.AsyncOpenAI(base_url=URL, api_key="none", max_retries=0, timeout=None, http_client=http)
    return lambda key: client.with_options(api_key=key)
