"""The six examples of the gallery train an iteration of a tiny model of random weights."""

import json
import runpy
from collections.abc import Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import copytree, rmtree
from threading import Thread

import pytest

import groupwise as gw
from groupwise.models import read_model, read_tokenizer, write_model
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


def test_the_page_has_six_examples_and_a_notebook() -> None:
    assert list(commands()) == ["own_reward", "math", "lora", "code", "tools", "judge"]
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
