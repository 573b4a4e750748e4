"""An environment whose tools are those of a local MCP server.

groupwise train recipes/big_sums.toml --environment mcp_tools:mcp_tools --use examples/mcp_tools/mcp_tools.py
"""

import asyncio
import atexit
import sys
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from mcp import Client, StdioServerParameters

from groupwise.environments import HermesFormat, Tools, ToolUnavailable

START, CALL, STOP = 30.0, 5.0, 5.0
"""Seconds: for a server to start and list its tools, for a call, and for a server to end."""


class ToolServer:
    """A server process, shared by all conversations. It starts at the first use, and again after it was lost.

    Its client lives in a thread with an event loop, so that every event loop of the program can call it.
    """

    def __init__(self, command: str, *arguments: str) -> None:
        self._parameters = StdioServerParameters(command=command, args=list(arguments))
        self._lock = Lock()
        self._tools: list[Any] = []
        self._connection: tuple[asyncio.AbstractEventLoop, Client, asyncio.Event, Thread] | None = None
        atexit.register(self.close)

    @property
    def tools(self) -> Sequence[Any]:
        """The server's tools: name, description, input_schema."""
        self._connected()
        return self._tools

    async def call(self, tool: str, /, **arguments: Any) -> str:
        """The text of a tool's result. ValueError, which the model sees, if the tool fails; else `ToolUnavailable`."""
        loop, client, _, _ = await asyncio.to_thread(self._connected)
        try:
            async with asyncio.timeout(CALL):
                result = await asyncio.wrap_future(_submit(client.call_tool(tool, arguments), loop))
        except TimeoutError:
            raise ToolUnavailable(f"{tool}: no answer within {CALL:g} s") from None
        except Exception as error:  # the server ended, or broke the protocol
            await asyncio.to_thread(self.close)
            raise ToolUnavailable(f"{tool}: {type(error).__name__}: {error}") from error
        text = "\n".join(getattr(block, "text", f"({block.type})") for block in result.content)
        if result.is_error:
            raise ValueError(text)
        return text

    def close(self) -> None:
        """End the server process, within STOP seconds."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            loop, _, stop, thread = connection
            if not loop.is_closed():
                loop.call_soon_threadsafe(stop.set)
            thread.join(STOP)

    def _connected(self) -> tuple[asyncio.AbstractEventLoop, Client, asyncio.Event, Thread]:
        with self._lock:
            if self._connection is None or not self._connection[3].is_alive():
                started: Future[Any] = Future()
                thread = Thread(target=lambda: asyncio.run(self._serve(started)), daemon=True)
                thread.start()
                loop, client, stop, self._tools = started.result(START)
                self._connection = loop, client, stop, thread
            return self._connection

    async def _serve(self, started: "Future[Any]") -> None:
        """In the thread: start the server, pass its client to `started`, and keep it until `stop` is set."""
        stop = asyncio.Event()
        try:
            async with asyncio.timeout(START) as deadline, Client(self._parameters) as client:
                tools = (await client.list_tools()).tools
                deadline.reschedule(None)
                started.set_result((asyncio.get_running_loop(), client, stop, tools))
                await stop.wait()
        except Exception as error:  # after the start, the calls report it
            if not started.done():
                started.set_exception(error)


def _submit(work: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> "Future[Any]":
    try:
        return asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError:  # the loop is closed
        work.close()
        raise


class McpTools(Tools):
    """The tools of a server in the call format of Hermes and Qwen. The chat template gets the server's own schemas."""

    def __init__(self, server: ToolServer) -> None:
        super().__init__(HermesFormat(), {tool.name: partial(server.call, tool.name) for tool in server.tools})
        self._server = server

    @property
    def schemas(self) -> Sequence[Mapping[str, Any]]:
        return [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
            }
            for tool in self._server.tools
        ]


SERVER = ToolServer(sys.executable, str(Path(__file__).with_name("server.py")))


def mcp_tools() -> McpTools:
    """One environment per conversation; all of them share the server."""
    return McpTools(SERVER)
