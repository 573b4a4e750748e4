"""The OpenAI clients that agents get: of async ones, over a transport without a socket; of plain ones, over HTTP."""

from collections.abc import Callable
from typing import Any

import httpx2

from groupwise.core import MissingRequirement
from groupwise.rollout.agents.endpoint import Endpoint

__all__ = ["EpisodeTransport", "openai_clients", "plain_clients"]

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
    http = httpx2.AsyncClient(transport=EpisodeTransport(endpoint))
    client = _openai().AsyncOpenAI(base_url=URL, api_key="none", max_retries=0, timeout=None, http_client=http)
    return lambda key: client.with_options(api_key=key)


def plain_clients() -> Callable[[str, str], Any]:
    """A function that returns an `openai.OpenAI` for a base URL and an episode's key. All share one HTTP client.

    `MissingRequirement` without the package openai.
    """
    http = httpx2.Client(trust_env=False, timeout=None)  # no proxy of the environment is between them
    client = _openai().OpenAI(base_url=URL, api_key="none", max_retries=0, timeout=None, http_client=http)
    return lambda url, key: client.with_options(base_url=url, api_key=key)


def _openai() -> Any:
    try:
        import openai  # pyright: ignore[reportMissingImports]
    except ImportError:
        fix = "pip install 'groupwise[agents]'"
        raise MissingRequirement("an agent gets a client of the package openai, which is missing", fix=fix) from None
    return openai
