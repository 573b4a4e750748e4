"""Tests of runs with an LLM judge: every command needs the key's flag and prints its host; only the name is stored."""

import json
from pathlib import Path

import pytest

from groupwise.__main__ import main
from tests.commands.test_bad_input import error_of
from tests.verifiers import test_llm_judge
from tests.verifiers.test_llm_judge import Server, says

server = test_llm_judge.server
pytestmark = pytest.mark.usefixtures("home")
SMALL = """\
prompts = 1
iterations = 1
sampling.max_tokens = 8
evaluate.problems = 1
method = { base = "gspo", group_size = 2, minibatches = 1 }
"""
KEY = ["--key", "MY_CLOUD_SECRET"]


@pytest.fixture
def recipe(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MY_CLOUD_SECRET", "hunter2")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    server.reply = lambda request, number: (200, says(f"Verdict: {'right' if number % 2 else 'wrong'}"))
    secret = 'key_variable = "MY_CLOUD_SECRET", cache_file = "replies"'
    judge = f'{{ kind = "judge", url = "{server.url}", model = "m", {secret} }}'
    Path("r.toml").write_text(SMALL + f"verifier = {judge}\n")
    return "r.toml"


def test_a_key_is_sent_only_with_the_flag_and_recorded_by_name(
    recipe: str, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["train", recipe], ["eval", "calculator", "--recipe", recipe]):
        assert "add --key MY_CLOUD_SECRET to the command" in error_of(capsys, 2, *words)
    assert main(["check", recipe]) == 2 and server.requests == []
    assert main(["train", recipe, *KEY]) == 0
    line = f"judge: {server.url} gets problems and answers, and the key in MY_CLOUD_SECRET\n"
    assert line in capsys.readouterr().err
    assert {h["Authorization"] for h in server.headers} == {"Bearer hunter2"}
    (run,) = Path("runs").iterdir()
    assert json.loads((run / "run.json").read_text())["keys"] == ["MY_CLOUD_SECRET"]
    assert not [p for p in Path().rglob("*") if p.is_file() and b"hunter2" in p.read_bytes()]
    requests = len(server.requests)
    for words in (["resume", str(run)], ["eval", str(run)]):
        assert main(words) == 2 and "--key MY_CLOUD_SECRET" in capsys.readouterr().err
    assert len(server.requests) == requests
    assert main(["resume", str(run), *KEY]) == 0 and line in capsys.readouterr().err


def test_a_recipe_cannot_allow_a_key(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(recipe).write_text(f'key = "MY_CLOUD_SECRET"\n{Path(recipe).read_text()}')
    assert "key is not a field" in error_of(capsys, 2, "train", recipe)


def test_an_audit_needs_the_key_flag_too(recipe: str, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    Path("cases.jsonl").write_text('{"answer": "4", "gold": 4, "right": true}\n')
    words = [
        "audit",
        f'{{kind = "judge", url = "{server.url}", model = "m", key_variable = "MY_CLOUD_SECRET"}}',
        "--cases",
        "cases.jsonl",
    ]
    assert "--key MY_CLOUD_SECRET" in error_of(capsys, 2, *words)
    assert main([*words, *KEY]) == 0 and "the key in MY_CLOUD_SECRET" in capsys.readouterr().out
