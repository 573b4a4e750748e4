"""The benchmark against an earlier commit: equal work on both sides, and ratios of CPU seconds per token."""

import sys
from pathlib import Path

import pytest
from benchmarks.earlier_commit import HOME, Comparison, Measured, Side, Work, compare, page, ratios, row, shape

from benchmarks import earlier_commit

TINY = Work(
    title="tiny", shape=shape(64, 32, 1, 2, 1, 64), prompts=2, group=2, prompt_tokens=4, max_tokens=4, mean=8,
    method=earlier_commit.GRPO, iterations=(1, 2),
)  # fmt: skip


def side(commit: str, home: Path) -> Side:
    """This checkout as a side, with the interpreter of the tests."""
    (home / ".venv" / "bin").mkdir(parents=True)
    python = home / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={HOME / "src"} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return Side(commit, home)


def work_of(home: Path) -> list[dict[str, bytes]]:
    """The runs of a side by the length of their metrics: metrics, samples and weights.

    Calls and CPU seconds vary with the load of a machine; these files do not, if both sides do the same work.
    """
    kinds = ("metrics.jsonl", "samples/*", "model/*.safetensors")
    runs = [
        {str(path.relative_to(run)): path.read_bytes() for kind in kinds for path in run.glob(kind)}
        for run in (home / "runs").iterdir()
    ]
    return sorted(runs, key=lambda files: len(files["metrics.jsonl"]))


@pytest.mark.slow
def test_both_sides_do_the_same_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earlier_commit, "ROOT", tmp_path)
    monkeypatch.setitem(earlier_commit.WORKS, "tiny", TINY)
    compared = compare("tiny", side("earlier", tmp_path / "a"), side("now", tmp_path / "b"), pairs=1)
    ((earlier, now),) = compared.pairs
    assert earlier.tokens == pytest.approx(now.tokens) and 4 <= now.tokens <= 16
    assert earlier.memory > 100 and now.cpu != 0
    assert "| tiny |" in row("tiny", compared)
    assert min(compared.calls) > 1000
    runs = work_of(tmp_path / "a")
    assert runs == work_of(tmp_path / "b")
    assert [len(files["metrics.jsonl"].splitlines()) for files in runs] == [2, 2, 3, 3], "iterations, and 0"
    assert all("model/model.safetensors" in files and any("samples/" in name for name in files) for files in runs)


def test_a_commit_that_refuses_the_recipe_ends_the_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earlier_commit, "ROOT", tmp_path)
    work = Work(title="", shape=TINY.shape, method={"base": "no_such_method"}, iterations=(1, 2), prompts=1)
    earlier_commit.prepare(work, "refused")
    with pytest.raises(SystemExit, match="no_such_method"):
        side("now", tmp_path / "a").arguments(work, "refused")


def test_a_ratio_above_1_means_that_this_commit_is_faster() -> None:
    short, long = Measured(2.0, 100, 50), Measured(5.0, 400, 80)
    assert long.less(short) == Measured(3.0, 300, 80)
    pairs = [(Measured(6.0, 300, 80), long.less(short)), (Measured(9.0, 300, 90), long.less(short))]
    assert ratios(pairs) == [2.0, 3.0]
    line = row("packaged", Comparison(pairs, (600, 900)))
    assert "**2.50** [2.00 .. 3.00] | 25,000 / 10,000 | - / - | 2.0 / 3.0 | 85 / 80 | 2 |" in line
    assert "Earlier: aa. This commit: bb." in page("aa", "bb", [])


def test_instructions_are_those_of_the_iterations_and_per_token() -> None:
    long = Measured(5.0, 400, 80, 9_000_000).less(Measured(2.0, 100, 50, 3_000_000))
    assert long.instructions == 6_000_000
    assert Measured(5.0, 400, 80).less(Measured(2.0, 100, 50)).instructions is None
    assert "| 0.02 / 0.02 |" in row("packaged", Comparison([(long, long)], (1, 1)))
