"""`groupwise watch`: the report as a live page, served to this machine only.

The server listens on 127.0.0.1 and answers GET alone. A random token in the address keeps other users of the machine
out; the check of the `Host` header keeps out web pages whose host name resolves to 127.0.0.1 (DNS rebinding).
"""

import hmac
import re
import secrets
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from groupwise.core import Usage
from groupwise.report.live_page import LivePage
from groupwise.report.report import existing_run

ADDRESS = "127.0.0.1"
HOST = re.compile(r"(127\.0\.0\.1|localhost)(:\d+)?", re.IGNORECASE)
"""The values that the server accepts in the HTTP header `Host`: any port or none, since `ssh -L` changes it."""
MOST_CONNECTIONS = 64
"""Connections at a time. A browser opens six; for another one, the oldest is closed."""
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",  # the rest of the policy is in the page
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class PageServer(ThreadingHTTPServer):
    """Serves the live page of some runs at `address`, until `shutdown`. Port 0 takes a free port."""

    daemon_threads = True

    def __init__(self, runs: Sequence[Path], port: int = 0) -> None:
        try:
            super().__init__((ADDRESS, port), PageRequestHandler)
        except OSError as error:
            fix = "take another port, or leave --port out for a free one"
            raise Usage(f"port {port} cannot be used", evidence=str(error.strerror), fix=fix) from error
        self.page = LivePage(runs)
        self.token = secrets.token_urlsafe(24)
        self.connections: deque[socket.socket] = deque()
        """The open connections, the oldest first."""
        self.reading = threading.Lock()
        """A lock, held while files are read, so that several browser tabs do not read at the same time."""

    def process_request(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, request: socket.socket, client_address: object
    ) -> None:
        """Answer a connection in a thread. Idle ones, such as of another user, keep no browser out."""
        self.connections.append(request)
        if len(self.connections) > MOST_CONNECTIONS:
            with suppress(OSError):  # it is closed already
                self.connections.popleft().shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: socket.socket) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Close a connection, at its end."""
        with suppress(ValueError):  # the oldest ones are forgotten
            self.connections.remove(request)
        super().shutdown_request(request)

    @property
    def address(self) -> str:
        """The address of the page, with its token."""
        return f"http://{ADDRESS}:{self.server_address[1]}/{self.token}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing about a failed request, such as one that the browser closed early."""


class PageRequestHandler(BaseHTTPRequestHandler):
    """Answers one HTTP request: the page, its changes, or a refusal."""

    server: PageServer  # pyright: ignore[reportIncompatibleVariableOverride]
    server_version, sys_version = "groupwise", ""
    timeout = 30.0

    def do_GET(self) -> None:
        """Answer a request: `/TOKEN/` is the page, `/TOKEN/changes?since=VERSION` its newer data."""
        url = urlsplit(self.path)
        _, token, name = path if len(path := url.path.split("/")) == 3 else ("", "", "")
        if not HOST.fullmatch(self.headers.get("Host", "")):
            return self.refuse(HTTPStatus.FORBIDDEN)
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            return self.refuse(HTTPStatus.NOT_FOUND)
        if name == "":
            return self.reply("text/html", self.server.page.html)
        if name == "changes":
            since = parse_qs(url.query).get("since", [""])[0]
            return self.reply("application/json", lambda: self.server.page.changes(since))
        return self.refuse(HTTPStatus.NOT_FOUND)

    def refuse_method(self) -> None:
        """Refuse a method other than GET: the page is read only."""
        self.refuse(HTTPStatus.METHOD_NOT_ALLOWED)

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = refuse_method

    def reply(self, kind: str, text: Callable[[], str]) -> None:
        """Send a text. If files cannot be read at this moment, send an error; the page will ask again."""
        try:
            with self.server.reading:
                body = text().encode()
        except OSError:
            return self.refuse(HTTPStatus.SERVICE_UNAVAILABLE)
        return self.send(HTTPStatus.OK, f"{kind}; charset=utf-8", body)

    def refuse(self, status: HTTPStatus) -> None:
        """Send an HTTP error status, without details."""
        self.close_connection = True
        self.send(status, "text/plain; charset=utf-8", f"{status.phrase}\n".encode())

    def send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        """Send an HTTP response: headers and body."""
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the addresses of requests contain the token."""


def watch(runs: Sequence[str], port: int = 0) -> int:
    """Serve the live page of one run or several until Ctrl-C. Prints its address."""
    with PageServer([existing_run(run).run_directory for run in runs], port) as server:
        print(f"{server.address}\nopen it in a browser on this machine; Ctrl-C ends", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0
