"""Tests of the live page: what its server refuses, what it answers, and a browser while a run is written."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from groupwise.commands.watch import MOST_CONNECTIONS, PageServer
from groupwise.core import Usage
from groupwise.report.live_page import LivePage
from tests.processes import PATIENCE
from tests.report.fixture_run import CANARIES, write_run
from tests.report.test_report_page import BLANK


@pytest.fixture
def serve() -> Iterator[Any]:
    """Starts the server of some runs on a thread."""
    servers = []

    def serve(*runs: Path) -> PageServer:
        servers.append(PageServer(runs))
        threading.Thread(target=servers[-1].serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return servers[-1]

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def part_of(run: Path, whole: Path, until: int) -> Path:
    """The run `whole` as it was after iteration `until`."""
    (run / "samples").mkdir(parents=True, exist_ok=True)
    for name in ("recipe.toml", "run.json"):
        (run / name).write_bytes((whole / name).read_bytes())
    for path in (whole / "samples").iterdir():
        if int(path.stem) <= until:
            (run / "samples" / path.name).write_bytes(path.read_bytes())
    for name in ("metrics.jsonl", "timings.jsonl"):
        lines = (whole / name).read_text().splitlines(keepends=True)
        (run / name).write_text("".join(line for line in lines if json.loads(line)["iteration"] <= until))
    return run


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "whole", iterations=10, canary=CANARIES[1])


def status(address: str, method: str = "GET", **headers: str) -> int:
    try:
        with urlopen(Request(address, method=method, headers=headers), timeout=PATIENCE) as answer:
            return answer.status
    except HTTPError as error:
        return error.code


def test_it_listens_on_this_machine_only(serve, whole):
    server, other = serve(whole), serve(whole)
    assert server.server_address[0] == "127.0.0.1"
    assert len(server.token) >= 32 and server.token != other.token
    with pytest.raises(Usage, match=f"port {server.server_address[1]} cannot be used"):
        PageServer([whole], server.server_address[1])


def test_requests_without_the_token_or_with_another_host_are_refused(serve, whole):
    address = serve(whole).address
    port = urlsplit(address).port
    assert status(address) == status(address + "changes") == 200
    for wrong in ("", "x/", "x/changes", "changes", "../"):
        assert status(f"http://127.0.0.1:{port}/{wrong}") == 404
    assert status(address[:-2] + "/") == status(address + "run.json") == status(address + "../../etc/passwd") == 404
    for host in (f"evil.example:{port}", "evil.example", f"127.0.0.1.evil.example:{port}", "0.0.0.0:80", ":80"):
        assert status(address, Host=host) == 403
    for host in ("localhost:9999", "localhost", "127.0.0.1", "LOCALHOST:80"):  # tunnels
        assert status(address, Host=host) == 200
    for host in ("localhost:", "localhost:80:evil.example", "localhost.", "evil.localhost"):
        assert status(address, Host=host) == 403
    plain = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    plain.putrequest("GET", urlsplit(address).path, skip_host=True)
    plain.endheaders()
    assert plain.getresponse().status == 403
    plain.close()


def test_idle_connections_keep_nobody_out(serve, whole):
    server = serve(whole)
    idle = [socket.create_connection(server.server_address[:2], timeout=PATIENCE) for _ in range(2 * MOST_CONNECTIONS)]
    assert status(server.address) == 200
    assert idle[0].recv(1) == b"", "the oldest is closed"
    assert len(server.connections) <= MOST_CONNECTIONS
    for connection in idle:
        connection.close()


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "TRACE"])
def test_the_page_is_read_only(serve, whole, method):
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    assert status(serve(whole).address, method) == 405
    assert {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()} == before


def test_the_policy_allows_requests_to_the_same_server_only(serve, whole):
    with urlopen(serve(whole).address, timeout=PATIENCE) as answer:
        text, headers = answer.read().decode(), answer.headers
    policy = text.partition('http-equiv="Content-Security-Policy" content="')[2].partition('"')[0]
    rules = dict(rule.strip().partition(" ")[::2] for rule in policy.split(";"))
    assert rules["default-src"] == "'none'" and rules["connect-src"] == "'self'"
    assert "unsafe" not in policy and rules["script-src"].count("sha256-") == 11
    assert headers["Referrer-Policy"] == "no-referrer" and headers["Cache-Control"] == "no-store"
    assert "Access-Control-Allow-Origin" not in headers and "python" not in headers["Server"].lower()
    assert "</script><script>window" not in text


def test_changes_have_the_whole_data_once(serve, whole, tmp_path):
    run = part_of(tmp_path / "run", whole, 4)
    address = serve(run).address

    def changes(since: str) -> dict[str, Any]:
        with urlopen(f"{address}changes?since={since}", timeout=PATIENCE) as answer:
            return json.load(answer)

    first = changes("")
    assert first["runs"][0]["last"] == 4 and changes(first["version"]) == {"version": first["version"]}
    part_of(run, whole, 5)
    second = changes(first["version"])
    assert second["version"] != first["version"] and second["runs"][0]["last"] == 5
    assert second["runs"][0]["rollouts"]["iterations"] == 5


def test_a_model_that_is_written_changes_the_page(whole, tmp_path):
    """A run that solved its task early writes its model after its last metrics."""
    run = part_of(tmp_path / "run", whole, 4)
    page = LivePage([run])
    version = page.version()
    (run / "model").mkdir()
    assert page.version() != version


def test_a_phase_that_starts_later_is_added(whole, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.toml").write_text('[[phase]]\nname = "a"\n[[phase]]\nname = "b"\n')
    part_of(run / "1-a", whole, 2)
    page = LivePage([run])
    version = page.version()
    assert len(json.loads(page.changes(""))["runs"]) == 1
    part_of(run / "2-b", whole, 1)
    assert [entry["last"] for entry in json.loads(page.changes(version))["runs"]] == [2, 1]


@pytest.mark.browser
def test_new_iterations_appear_without_reloading(browser, serve, whole, tmp_path):
    run, other = part_of(tmp_path / "run", whole, 4), write_run(tmp_path / "other", name="slower", iterations=3)
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    errors, documents = [], []
    page.on("console", lambda m: errors.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: errors.append(str(e)))
    page.on("request", lambda r: documents.append(r.url) if r.resource_type == "document" else None)
    server = serve(run, other)
    page.goto(server.address)
    page.wait_for_selector("html[data-ready]", state="attached")
    assert page.locator("#live").inner_text() == "live, iteration 4"
    name = page.locator("#names .name").first.inner_text()
    reward = page.locator(f"output[data-series=reward][data-run={json.dumps(name)}]")
    rows = {r["iteration"]: r for r in map(json.loads, (whole / "metrics.jsonl").read_text().splitlines())}
    assert float(reward.get_attribute("data-value")) == rows[4]["reward"]
    page.locator("#recipe details").first.locator("summary").click()
    page.locator('[data-field="gap"]').click()
    page.locator(".pickers button", has_text="2").first.click()  # the reader looks at iteration 2
    for until in (5, 10):
        part_of(run, whole, until)
        page.wait_for_selector(f"#live[data-iteration='{until}']", state="attached", timeout=1000 * PATIENCE)
        assert float(reward.get_attribute("data-value")) == rows[until]["reward"]
        assert page.evaluate(BLANK) == 0
        assert page.locator("#rollouts").get_attribute("data-iteration") == "2"
        assert page.locator('[data-field="gap"]').get_attribute("aria-pressed") == "true"
        assert page.locator("#recipe details").first.get_attribute("open") is not None
        assert page.locator("#names .name").count() == 2 and page.locator("nav a").count() == 5
    assert "</script>" in page.locator("#names").inner_text() and page.evaluate("window.__pwn") is None
    page.keyboard.press("j")
    assert page.locator("#rollouts").get_attribute("data-iteration") == "3"
    assert errors == [] and documents == [server.address]
    server.shutdown()
    server.server_close()
    page.wait_for_selector("#live >> text=no connection", timeout=1000 * PATIENCE)
    page.context.close()
