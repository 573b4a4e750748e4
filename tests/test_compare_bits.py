"""tools/compare_bits.py: renamed keys and metrics, and the first difference of two runs."""

from pathlib import Path

import pytest
from tools import compare_bits
from tools.compare_bits import RUNS, Difference, digest, first_difference, metrics, renamed, renamed_metric


@pytest.fixture(autouse=True)
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_bits, "OLD_KEYS", {"a.old": "a.new"})
    monkeypatch.setattr(compare_bits, "OLD_VALUES", {("a.old", "x"): ("a.new", "y")})
    monkeypatch.setattr(compare_bits, "OLD_METRICS", {"parts/": "scores/", "lag/mean": "age", "lag/": "ages/"})


def test_keys_and_values_are_renamed() -> None:
    assert [renamed(word) for word in ("a.old=1", "a.old=x", "a.older=x", "b=a.old", "recipes/a.old.toml")] == [
        "a.new=1", "a.new=y", "a.older=x", "b=a.old", "recipes/a.old.toml",
    ]  # fmt: skip


def test_metrics_are_renamed_alone_and_by_their_beginning() -> None:
    assert [renamed_metric(name) for name in ("parts/colour", "lag/mean", "lag/max", "reward", "eval/parts/x")] == [
        "scores/colour", "age", "ages/max", "reward", "eval/parts/x",
    ]  # fmt: skip


def test_the_first_difference_is_by_line_and_then_by_name() -> None:
    old = {"m:1": {"loss": float("nan"), "lag/mean": 1}, "m:2": {"loss": 2.0, "kl": 0.5}}
    same = {"m:1": {"age": 1, "loss": float("nan")}, "m:2": {"kl": 0.5, "loss": 2.0}}
    assert first_difference(old, same) is None
    assert first_difference(old, same | {"m:2": {"loss": 2.5}}) == Difference("m:2", "loss", 2.0, 2.5)
    assert first_difference(old, same | {"m:2": {"loss": 2.0}}) == Difference("m:2", "kl", 0.5, None)
    assert first_difference(old, same | {"m:3": {"loss": 1}}) == Difference("m:3", "loss", None, 1)
    assert first_difference({"m:1": {"a": 1}}, {"m:1": {"a": 1.0}}) == Difference("m:1", "a", 1, 1.0)


def test_models_and_metrics_of_phases_are_found(tmp_path: Path) -> None:
    for name in (
        "model/a.safetensors",
        "models/critic/a.safetensors",
        "1-search/model/a.safetensors",
        "samples/1.safetensors",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "1-search" / "metrics.jsonl").write_text('{"loss": 1}\n{"loss": 2}\n')
    assert set(digest(tmp_path)) == {
        "model/a.safetensors", "models/critic/a.safetensors", "1-search/model/a.safetensors",
    }  # fmt: skip
    assert metrics(tmp_path) == {"1-search/metrics.jsonl:1": {"loss": 1}, "1-search/metrics.jsonl:2": {"loss": 2}}


def test_of_a_warm_start_only_old_metrics_are_compared(tmp_path: Path) -> None:
    """By step: the old commit has no line for step 0, and few metrics of a step."""
    for name, text in (
        ("old", '{"step": 1, "loss": 2.0}\n'),
        ("new", '{"iteration": 0, "step": 0}\n{"iteration": 1, "step": 1, "loss": 2.0, "kl": 1}\n'),
    ):
        (tmp_path / name / "warm_start").mkdir(parents=True)
        (tmp_path / name / "warm_start" / "metrics.jsonl").write_text(text)
    old, new = metrics(tmp_path / "old"), metrics(tmp_path / "new")
    assert first_difference(old, new) is None
    line = "warm_start/metrics.jsonl:1"
    assert first_difference(old, new | {line: {"step": 1, "loss": 3.0}}) == Difference(line, "loss", 2.0, 3.0)
    assert first_difference(old, {}) == Difference(line, "step", 1, None)


def test_recipe_files_of_runs_exist() -> None:
    files = [word for words in RUNS.values() for word in words if word.endswith(".toml")]
    assert len(files) > 4 and all((compare_bits.ROOT / file).is_file() for file in files)
