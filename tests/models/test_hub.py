"""Models on the hub: a local test hub, its cache, and every kind of failure."""

import errno
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

import pytest

from groupwise.core import MissingRequirement, Storage
from groupwise.models import base_name, commit_of, find_model, read_model
from groupwise.models.hub import fetch, fetch_error, is_hub_name
from tests.models.directories import directory

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ASK = """
import json, sys
from groupwise.core import GroupwiseError
from groupwise.models import base_name, commit_of, find_model
for name in sys.argv[1:]:
    try:
        found = find_model(name)
        facts = {"path": str(found), "base": base_name(name), "commit": commit_of(name)}
    except GroupwiseError as error:
        facts = {"kind": type(error).__name__, "what": error.what, "fix": error.fix}
    print(json.dumps(facts))
"""

FETCH = """
import shlex, subprocess, sys
from pathlib import Path
from groupwise.core import MissingRequirement
from groupwise.models import commit_of, find_model
try:
    find_model("tiny/model@main")
except MissingRequirement as error:
    assert "does not have its parts" in error.what
    command = shlex.split(error.fix.partition("same name: ")[2])
assert command[0] == "hf"
subprocess.run([str(Path(sys.executable).with_name("hf")), *command[1:]], check=True, stdout=subprocess.DEVNULL)
print(find_model("tiny/model@main"), commit_of("tiny/model@main"), sep="\\n")
"""


class Hub(ThreadingHTTPServer):
    """A minimal hub: `tiny/model` with one commit, `tiny/gated`, and nothing else."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.files = files
        self.asked: list[str] = []


class Answer(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append(f"{self.command} {path}")
        if "tiny/gated" in path:
            self.reply(403, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted."})
        elif "tiny/model" not in path:
            self.reply(404, b"{}", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        elif "nowhere" in path:
            self.reply(404, b"{}", {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"})
        elif "/tree/" in path:
            tree = [
                {"type": "file", "path": n, "size": len(x), "oid": name_of(x)} for n, x in self.server.files.items()
            ]
            self.reply(200, json.dumps(tree).encode())
        elif "/api/models/" in path:
            siblings = [{"rfilename": name} for name in self.server.files]
            self.reply(200, json.dumps({"id": "tiny/model", "sha": COMMIT, "siblings": siblings}).encode())
        else:
            content = self.server.files[path.partition(f"/resolve/{COMMIT}/")[2]]
            self.reply(200, content, {"ETag": f'"{name_of(content)}"', "X-Repo-Commit": COMMIT})

    do_HEAD = do_GET

    def reply(self, code: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def name_of(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    made = directory(tmp_path / "made")
    files = {path.name: path.read_bytes() for path in made.iterdir()}
    files |= {"original/model.safetensors": b"again", "pytorch_model.bin": b"pickle", "README.md": b"words"}
    files["modeling_tiny.py"] = b"raise SystemExit('executed')"
    server = Hub(files)
    Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def settings(cache: Path, endpoint: str, *, offline: bool = False) -> dict[str, str]:
    """Environment variables of a process that uses this hub."""
    ours = {"HF_HOME": str(cache), "HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": str(int(offline)), "HF_TOKEN": ""}
    return {**os.environ, **ours, "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


def answers_of(cache: Path, endpoint: str, *names: str, offline: bool = False) -> list[dict[str, str]]:
    """The result of `find_model` for each name, in a new process with this cache."""
    words, env = [sys.executable, "-c", ASK, *names], settings(cache, endpoint, offline=offline)
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_model_is_fetched_once_and_then_found_in_the_cache(hub: Hub, tmp_path: Path) -> None:
    cache, endpoint = tmp_path / "cache", f"http://127.0.0.1:{hub.server_port}"
    names = ("tiny/model", f"tiny/model@{COMMIT}", "tiny/gated", "tiny/modle", "tiny/model@nowhere")
    found, pinned, gated, misspelt, lost = answers_of(cache, endpoint, *names)
    assert read_model(Path(found["path"])).shape.vocabulary_size == 40
    assert COMMIT in found["path"] and found["base"] == "tiny/model"
    assert found["commit"] == COMMIT
    assert pinned["path"] == found["path"] and pinned["base"] == f"tiny/model@{COMMIT}"
    assert sorted(os.listdir(found["path"])) == sorted([*os.listdir(tmp_path / "made"), "modeling_tiny.py"])
    assert not any("pytorch_model.bin" in line or "original" in line for line in hub.asked)
    assert gated["kind"] == "MissingRequirement" and "is gated" in gated["what"] and "hf auth login" in gated["fix"]
    assert misspelt["kind"] == "BadData" and "there is no model at tiny/modle" in misspelt["what"]
    assert "check the spelling" in misspelt["fix"]
    assert lost["kind"] == "BadData" and "has no revision 'nowhere'" in lost["what"] and "leave @nowhere" in lost["fix"]
    before = len(hub.asked)
    again, other = answers_of(cache, endpoint, "tiny/model", "tiny/other", offline=True)
    assert len(hub.asked) == before and again == found
    assert other["kind"] == "MissingRequirement" and "the hub cannot be reached" in other["what"]
    assert "hf download tiny/other --local-dir DIR" in other["fix"]
    hub.shutdown()
    hub.server_close()
    silent, gone = answers_of(cache, endpoint, "tiny/model", "tiny/other")
    assert silent == found and "the hub cannot be reached" in gone["what"]


def test_check_fetches_no_weights(hub: Hub, tmp_path: Path) -> None:
    endpoint, recipe = f"http://127.0.0.1:{hub.server_port}", tmp_path / "r.toml"
    recipe.write_text('model = "tiny/model"\nmethod = "grpo"\nsampling.max_tokens = 16\n')
    words = [sys.executable, "-m", "groupwise", "check", str(recipe)]
    done = subprocess.run(
        words, env=settings(tmp_path / "cache", endpoint), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "were checked: train downloads its weights" in done.stdout
    assert any("/config.json" in line for line in hub.asked) and not any("safetensors" in line for line in hub.asked)
    (found,) = answers_of(tmp_path / "cache", endpoint, "tiny/model")
    assert read_model(Path(found["path"])).shape.vocabulary_size == 40
    assert any("model.safetensors" in line for line in hub.asked)


def test_a_pipeline_is_found_by_name_once_its_parts_are_in_the_cache(tmp_path: Path) -> None:
    """The error's own command fetches them, and never the second copy of the weights beside the index."""
    parts = {
        "model_index.json": b"{}",
        "transformer/config.json": b"{}",
        "vae/diffusion_pytorch_model.safetensors": b"x",
    }
    server = Hub(parts | {"flux1-dev.safetensors": b"the same weights in another layout"})
    Thread(target=server.serve_forever, daemon=True).start()
    env = settings(tmp_path / "cache", f"http://127.0.0.1:{server.server_port}")
    done = subprocess.run(
        [sys.executable, "-c", FETCH], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    server.shutdown()
    server.server_close()
    assert done.returncode == 0, done.stderr
    found, commit = done.stdout.splitlines()
    assert commit == COMMIT and {path.name for path in Path(found).iterdir()} == {
        "model_index.json",
        "transformer",
        "vae",
    }
    assert not any("flux1-dev" in line for line in server.asked)


def test_a_local_directory_takes_precedence(home: Path) -> None:
    made = directory(Path("tiny/model"))
    assert find_model("tiny/model") == made and base_name("tiny/model") == str(made.resolve())
    assert commit_of("tiny/model") == commit_of("calculator") == commit_of(made.resolve()) == ""


def test_an_offline_hub_is_reported() -> None:
    fetch.cache_clear()
    with pytest.raises(MissingRequirement, match="neither a directory nor in the cache") as error:
        find_model("nobody/nothing")
    assert "hf download nobody/nothing" in error.value.fix


def test_a_full_disk_is_reported_as_such() -> None:
    error = fetch_error("a/b", "", OSError(errno.ENOSPC, "No space left on device"))
    assert isinstance(error, Storage) and "HF_HOME" in error.fix


def test_the_form_of_hub_names() -> None:
    for name in ("Qwen/Qwen2.5-0.5B", "a/b@main", "a/b@refs/pr/1", "runs/x-20260131-120000"):
        assert is_hub_name(name)
    for name in ("calculator", "/a/b", "./a/b", "../b", "a/b/c", "a/.b", "a/", "a b/c", "a/b@", "a/b\n"):
        assert not is_hub_name(name)
