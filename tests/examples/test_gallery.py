"""The eight examples of the gallery train an iteration of a tiny model of random weights."""

import asyncio
import json
import runpy
import shlex
from collections.abc import Callable, Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import copytree, rmtree
from threading import Thread
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

import groupwise as gw
from groupwise.__main__ import main
from groupwise.models import read_model, read_tokenizer, write_model
from groupwise.rollout.agents import runner as runner_file
from groupwise.rollout.agents.endpoint import Endpoint
from groupwise.rollout.agents.openai_clients import URL, EpisodeTransport
from tests.docs.test_pages import HOME, blocks
from tests.docs.warm_shell import run
from tests.sandbox.boxes import needed

TINY = "--iterations 1 --prompts 4 --method.group_size 2 --sampling.max_tokens 6 --evaluate.problems 2"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with the examples, and a chat model `tiny` of random weights that takes long conversations."""
    (tmp_path / "examples").symlink_to(HOME / "examples")
    copytree(HOME / "src" / "groupwise" / "models" / "blank", tmp_path / "tiny")
    template = "{% for m in messages %}{{ m.content }} {% endfor %}{{ tools | tojson if tools }}"
    for name, change in (
        ("tokenizer_config", {"chat_template": template}),
        ("config", {"max_position_embeddings": 2048}),
    ):
        path = tmp_path / "tiny" / f"{name}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    return tmp_path


@cache
def commands() -> dict[str, str]:
    """The commands of the page, by the name of the example."""
    lines = [line for block in blocks("docs/gallery.md") for line in block.text.splitlines() if "examples/" in line]
    lines = [line for line in lines if " plan " not in line]
    return {Path(line.split("examples/")[1].split()[0]).stem: line for line in lines if not line.startswith("#")}


def test_the_page_has_eight_examples_and_a_notebook() -> None:
    assert list(commands()) == [
        "own_reward",
        "math",
        "lora",
        "code",
        "tools",
        "solver_and_checker",
        "judge",
        "pipeline",
    ]
    assert "examples/notebook.ipynb" in (HOME / "docs" / "gallery.md").read_text()


def test_own_reward(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    example = runpy.run_path(str(HOME / "examples" / "own_reward.py"))
    assert commands()["own_reward"] == "python examples/own_reward.py"
    for answer, right, shape in (
        ('{"a": 2, "b": 3}', True, 1.0),
        ('{"a": 2, "b": 2}', False, 1.0),
        ("a=2", False, 0.0),
    ):
        assert example["right"](answer, 5) is right and example["shape"](answer) == shape
    tiny = {"prompts": 2, "iterations": 1, "max_tokens": 6, "evaluate": {"problems": 2}}
    trained = example["train"]("tiny", method=gw.grpo(group_size=2), **tiny)
    assert trained.done == 1 and {"subscores/right", "subscores/shape"} <= trained.metrics.keys()


@pytest.mark.parametrize("name", ["math", "lora", "code", "tools"])
def test_a_recipe(name: str, folder: Path) -> None:
    if name == "code":
        needed()
    if name == "lora":
        pytest.importorskip("peft", reason="needs groupwise[lora]")
        # An adapter is refused on weights that no file has.
        model, tokenizer = read_model(folder / "tiny"), read_tokenizer(folder / "tiny")
        rmtree(folder / "tiny")
        write_model(model, folder / "tiny", tokenizer=tokenizer)
    if name in ("math", "lora"):
        pytest.importorskip("mpmath", reason="needs groupwise[math]")
    run(f"{commands()[name]} --model tiny {TINY}", folder)
    (directory,) = (folder / "runs").iterdir()
    assert (directory / "report.html").is_file() and (directory / "model").is_dir()


def test_the_pipeline(folder: Path) -> None:
    """One iteration of each phase: the epochs of the first two have fewer rows than prompts."""
    pytest.importorskip("mpmath", reason="needs groupwise[math]")
    small = "--model tiny --sampling.max_tokens 6 --evaluate.problems 2 --phase.0.epochs 1 --phase.2.prompts 2"
    run(f"{commands()['pipeline']} {small} --phase.2.iterations 1 --phase.2.method.group_size 2", folder)
    (directory,) = (folder / "runs").iterdir()
    phases = [path for path in sorted(directory.iterdir()) if path.is_dir() and path.name[0].isdigit()]
    assert [path.name for path in phases] == ["1-imitate", "2-prefer", "3-verify"]
    assert all((path / "model").is_dir() for path in phases) and (directory / "report.html").is_file()
    metrics = [[json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()] for path in phases]
    assert all("eval/loss" in lines[-1] for lines in metrics[:2]) and "reward" in metrics[2][-1]


class Client:
    """The method of `openai.AsyncOpenAI` that the agent calls; the replies have attributes for keys."""

    def __init__(self, create: Callable[..., Any]) -> None:
        self.chat = self.completions = self
        self.create = create


def reply(body: dict[str, Any]) -> Any:
    return json.loads(json.dumps(body), object_hook=lambda fields: SimpleNamespace(**fields))


@pytest.mark.parametrize(
    ("turns", "reward"),
    [
        (("7*5", "35+2", "#37", "7*5", "35+2", "#37"), True),
        (("#37", "#37"), True),
        (("7*5", "#35", "7*5", "35+2", "#37"), False),
        (("#37", "7*5*2"), False),
        (("#36", "#36"), False),
    ],
)
def test_the_rewards_and_tools_of_an_agent(turns: tuple[str, ...], reward: bool) -> None:
    remaining, tools, prompts = list(turns), list[str](), list[str]()

    async def create(model: str, messages: list[dict[str, str]], stop: str) -> Any:
        tools.extend(m["content"] for m in messages[-1:] if m["role"] == "tool")
        prompts.extend(m["content"] for m in messages if len(messages) == 1)
        return reply({"choices": [{"message": {"content": remaining.pop(0)}}]})

    agent = runpy.run_path(str(HOME / "examples" / "solver_and_checker.py"))["agent"]
    assert asyncio.run(agent({"prompt": "7*5+2=", "answer": 37}, Client(create))) is reward and remaining == []
    assert set(tools) <= {"35;", "37;"} and tools[:1] == ["35;"] * (turns[0] == "7*5")
    solved = turns[["#" in turn for turn in turns].index(True)]
    assert prompts == ["7*5+2=", f"7*5+2={solved};7*5+2="]


def test_an_agent_with_two_conversations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def client_of(endpoint: Endpoint, key: str) -> Client:
        http = httpx2.AsyncClient(transport=EpisodeTransport(endpoint), base_url=URL)

        async def create(**body: Any) -> Any:
            answer = await http.post("/chat/completions", json=body, headers={"authorization": f"Bearer {key}"})
            assert answer.status_code == 200, answer.text
            return reply(answer.json())

        return Client(create)

    monkeypatch.setattr(runner_file, "openai_clients", lambda endpoint: lambda key: client_of(endpoint, key))
    monkeypatch.chdir(tmp_path)
    agent = HOME / "examples" / "solver_and_checker.py"
    command = commands()["solver_and_checker"].replace("examples/", f"{agent.parent}/").removeprefix("groupwise ")
    tiny = "--iterations 1 --prompts 2 --method.group_size 2 --evaluate.problems 2 --evaluate.every 0"
    assert main(shlex.split(f"{command} {tiny}")) == 0
    (samples,) = tmp_path.glob("runs/*/samples/*.jsonl")
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    assert sorted(row["role"] for row in rows) == ["answer"] * 4 + ["thread"] * 4
    first = [row["requests"][0]["messages"][0]["text"] for row in rows]
    assert all(row["prompt"] == text for row, text in zip(rows, first, strict=True) if row["role"] == "thread")


class Judge(BaseHTTPRequestHandler):
    """Says that every answer is right."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(asked)  # type: ignore[attr-defined]
        message = {"role": "assistant", "content": "Good.\nVerdict: right"}
        body = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


@pytest.fixture
def judge() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Judge)
    server.asked = []  # type: ignore[attr-defined]
    Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_a_judge_with_a_rubric(folder: Path, judge: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    url = f"--verifier.url http://127.0.0.1:{judge.server_port}/v1"
    run(f"{commands()['judge']} --model tiny {url} {TINY}", folder)
    asked = judge.asked  # type: ignore[attr-defined]
    assert asked and all("a child of ten understands" in request["messages"][-1]["content"] for request in asked)
