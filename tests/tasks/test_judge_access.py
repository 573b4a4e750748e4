"""A recipe alone gives its judge no key, no other host and no file outside the user's cache."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from groupwise.core import Usage
from groupwise.tasks.judge_access import JudgeAccess
from groupwise.verifiers import Combined, CombinedMember, Exact, Judge
from tests.verifiers.built import built

HERE, AWAY = "http://127.0.0.1:9/v1", "https://judge.example/v1"


def judge(url: str, fields: Mapping[str, str] = {}, keys: tuple[str, ...] = (), hosts: tuple[str, ...] = ()):
    verifier: Any = built(Judge(url=url, model="m", **fields), judge_access=JudgeAccess(keys, hosts))
    verifier.close()
    return verifier


@pytest.mark.parametrize(
    ("url", "fields", "keys", "hosts", "missing"),
    [
        (HERE, {}, (), (), ""),
        ("http://localhost:8000", {}, (), (), ""),
        ("http://[::1]:8000/v1", {}, (), (), ""),
        (HERE, {"key_variable": "MY_KEY"}, (), (), "--key MY_KEY"),
        (HERE, {"key_variable": "MY_KEY"}, ("OTHER",), (), "--key MY_KEY"),
        (HERE, {"key_variable": "MY_KEY"}, ("OTHER", "MY_KEY"), (), ""),
        (AWAY, {}, (), (), "--judge judge.example"),
        (AWAY, {}, (), ("judge.example",), ""),
        (AWAY, {"key_variable": "MY_KEY"}, (), (), "--judge judge.example --key MY_KEY"),
        (AWAY, {"key_variable": "MY_KEY"}, ("MY_KEY",), (), "--judge judge.example"),
        ("https://judge.example.evil/v1", {}, (), ("judge.example",), "--judge judge.example.evil"),
        ("http://localhost.evil/v1", {}, (), (), "--judge localhost.evil"),
        ("http://0.0.0.0/v1", {}, (), (), "--judge 0.0.0.0"),
    ],
)
def test_hosts_of_judges_are_named_on_the_command_line(
    url: str,
    fields: Mapping[str, str],
    keys: tuple[str, ...],
    hosts: tuple[str, ...],
    missing: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_KEY", "hunter2")
    if not missing:
        (line,) = judge(url, fields, keys, hosts).notices
        assert line.startswith(f"judge: {url} gets") and ("MY_KEY" in line) == ("key_variable" in fields)
        return
    with pytest.raises(Usage) as caught:
        judge(url, fields, keys, hosts)
    assert caught.value.fix.endswith(f"add {missing} to the command") and url in caught.value.what


@pytest.mark.parametrize("key", ["MY KEY", "A --judge b", "x\x1b[2J", "sk-secret"])
def test_a_key_is_the_name_of_a_variable(key: str) -> None:
    with pytest.raises(Usage, match="names no environment variable"):
        judge(HERE, {"key_variable": key})
    with pytest.raises(Usage) as caught:
        JudgeAccess((key,))
    assert key not in str(caught.value)  # it may be the secret itself


@pytest.mark.parametrize("cache", ["/tmp/victim.txt", "../victim.txt", "a/b", "..", ".hidden", "~/x", "x" * 200])
def test_a_cache_is_a_plain_name(cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(Usage, match="is not a plain file name"):
        judge(HERE, {"cache_file": cache})
    assert list(tmp_path.iterdir()) == []


def test_a_cache_is_in_the_users_cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert judge(HERE, {"cache_file": "judge.jsonl"})._replies.path == tmp_path / "groupwise/judge/judge.jsonl"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert judge(HERE, {"cache_file": "b"})._replies.path == tmp_path / ".cache/groupwise/judge/b"


def test_judges_within_several_need_permission_and_are_reported() -> None:
    kind = Combined((CombinedMember("a", Exact()), CombinedMember("b", Judge(url=AWAY, model="m"), 0.5)))
    with pytest.raises(Usage, match=r"judge\.example"):
        built(kind)
    both = built(kind, judge_access=JudgeAccess(allowed_hosts=("judge.example",)))
    assert both.notices == [f"judge: {AWAY} gets problems and answers"]  # type: ignore[attr-defined]
    both.close()  # type: ignore[attr-defined]
