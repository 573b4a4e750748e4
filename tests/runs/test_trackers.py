"""Trackers receive numbers, recipe and samples; text of a model stays text; a failing tracker does not stop a run."""

import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from groupwise.core import MissingRequirement, Usage
from groupwise.runs.json_lines import read_lines
from groupwise.runs.run_layout import RunLayout
from groupwise.runs.run_logs import RunLogs
from groupwise.runs.sample_table import CHARACTERS, COLUMNS, SAMPLES, SampleTable
from groupwise.runs.trackers import NamedTrackers

LINE = {"iteration": 4, "step": 8, "loss": 0.5, "reward": math.nan, "key": "SECRET", "nested": {"a": 1}, "none": None}


class Calls:
    """A package that records its calls."""

    def __init__(self, fails: str = "") -> None:
        self.calls: list[tuple[str, tuple, dict[str, Any]]] = []
        self.fails = fails

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            self.calls.append((name, args, options))
            if name == self.fails:
                raise ConnectionError("Authorization: SECRET")
            return self if name == "SummaryWriter" else SimpleNamespace(**options)

        return call


@pytest.mark.parametrize(
    ("name", "module", "write"),
    [("tensorboard", "tensorboardX", "add_scalar"), ("wandb", "wandb", "log"), ("trackio", "trackio", "log")],
)
def test_a_sink_receives_the_finite_numbers_of_an_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str, write: str
) -> None:
    package = Calls()
    monkeypatch.setitem(sys.modules, module, package)
    logs = RunLogs(RunLayout(tmp_path), trackers=(name,))
    logs.metrics(LINE)
    logs.close()
    written = [(args, options) for call, args, options in package.calls if call == write]
    if name == "tensorboard":
        assert written == [(("step", 8.0, 4), {}), (("loss", 0.5, 4), {})]
    else:
        assert written == [(({"step": 8.0, "loss": 0.5},), {"step": 4})]
    assert package.calls[-1][0] in ("close", "finish")
    assert "SECRET" not in repr(package.calls)
    assert len(read_lines(tmp_path / "metrics.jsonl")) == 1


@pytest.mark.parametrize(
    ("name", "module"), [("tensorboard", "tensorboardX"), ("wandb", "wandb"), ("trackio", "trackio")]
)
def test_the_error_for_a_missing_package_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingRequirement) as caught:
        NamedTrackers((name,), RunLayout(tmp_path))
    assert caught.value.fix == f"pip install 'groupwise[{name}]'" and caught.value.code == 4


def test_the_error_for_an_unknown_sink_lists_the_sinks(tmp_path: Path) -> None:
    with pytest.raises(Usage) as caught:
        NamedTrackers(("tensorbord",), RunLayout(tmp_path))
    assert "tensorboard, wandb, trackio" in caught.value.fix


def test_a_failing_sink_is_dropped_and_the_run_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing, working = Calls(fails="log"), Calls()
    monkeypatch.setitem(sys.modules, "wandb", failing)
    monkeypatch.setitem(sys.modules, "trackio", working)
    logs = RunLogs(RunLayout(tmp_path), trackers=("wandb", "trackio"))
    logs.metrics(LINE)
    logs.metrics(LINE)
    assert [call for call, _, _ in failing.calls].count("log") == 1
    assert [call for call, _, _ in working.calls].count("log") == 2
    assert len(logs.warnings) == 1
    assert (
        "wandb failed and is no longer used (ConnectionError)" in logs.warnings[0] and "SECRET" not in logs.warnings[0]
    )
    assert len(read_lines(tmp_path / "metrics.jsonl")) == 2


def test_the_error_of_a_sink_that_cannot_be_opened_hides_its_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", Calls(fails="init"))
    with pytest.raises(MissingRequirement, match="the tracker wandb cannot be opened") as caught:
        NamedTrackers(("wandb",), RunLayout(tmp_path))
    assert "SECRET" not in str(caught.value)


def test_only_named_trackers_are_imported(tmp_path: Path) -> None:
    code = "import sys, groupwise.runs.run_logs; print(sorted({'wandb', 'trackio', 'tensorboardX'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_the_real_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    trackers = NamedTrackers(("tensorboard",), RunLayout(tmp_path))
    trackers.write(LINE)
    trackers.close()
    assert not trackers.warnings
    assert b"loss" in b"".join(path.read_bytes() for path in (tmp_path / "tensorboard").iterdir())


def test_a_tracker_receives_recipe_timings_and_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = Calls()
    monkeypatch.setitem(sys.modules, "wandb", package)
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    (tmp_path / "recipe.toml").write_text("prompts = 4\n[optimizer]\nlr = 1e-5\n")
    logs = RunLogs(RunLayout(tmp_path), trackers=("wandb",))
    logs.timings({"iteration": 4, "seconds": 2.0, "memory_mib": 600})
    logs.close()
    options = next(options for call, _, options in package.calls if call == "init")
    assert options["project"] == "mine" and options["config"] == {"prompts": 4, "optimizer": {"lr": 1e-5}}
    assert ("log", ({"seconds": 2.0, "memory_mib": 600.0},), {"step": 4}) in package.calls


SAMPLE = {
    "prompt_id": "a1", "group": 0, "prompt": "2+2=", "gold": "SECRET",
    "text": "# 4\n<script>x</script>\x1b[2J\r![a](b)",
    "outcome": "correct", "score": 1.0, "reward": math.nan, "advantage": 0.5, "finish": "stop", "length": 3,
}  # fmt: skip


def written_samples(name: str, module: str, run: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls of a tracker's package for one iteration of 20 samples."""
    package = Calls()
    monkeypatch.setitem(sys.modules, module, package)
    logs = RunLogs(RunLayout(run), trackers=(name,))
    logs.samples(4, [SAMPLE] * 20, {})
    logs.metrics(LINE)
    assert not logs.warnings and "SECRET" not in repr(package.calls)
    return package.calls


def test_wandb_receives_a_table_of_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = written_samples("wandb", "wandb", tmp_path, monkeypatch)
    table = next(options for call, _, options in calls if call == "Table")
    assert table["columns"] == list(COLUMNS) and len(table["data"]) == SAMPLES
    row = dict(zip(table["columns"], table["data"][0]))
    assert row["text"] == "# 4\n<script>x</script>\\x1b[2J\\r![a](b)"  # plain text in a cell; no control characters
    assert row["reward"] is None and row["advantage"] == 0.5 and row["outcome"] == "correct"
    steps = [options["step"] for call, _, options in calls if call == "log"]
    assert steps == [4, 4]  # samples first: a tracker's steps never decrease


def test_trackio_receives_samples_without_markup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """trackio renders a cell as Markdown and HTML: text is escaped, and indented as a code block."""
    calls = written_samples("trackio", "trackio", tmp_path, monkeypatch)
    table = next(options for call, _, options in calls if call == "Table")
    cells = [cell for row in table["data"] for cell in row if isinstance(cell, str)]
    assert all(line.startswith("    ") for cell in cells for line in cell.split("\n"))
    assert not any("<" in cell for cell in cells) and any("&lt;script&gt;" in cell for cell in cells)


def test_tensorboard_receives_samples_as_code_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = written_samples("tensorboard", "tensorboardX", tmp_path, monkeypatch)
    (tag, text, step) = next(args for call, args, _ in calls if call == "add_text")
    assert (tag, step) == ("samples", 4)
    blocks = text.split("\n\n---\n\n")
    assert len(blocks) == SAMPLES and "outcome: correct" in blocks[0] and "2+2=" in blocks[0]
    assert all(line.startswith("    ") for block in blocks for line in block.splitlines())


def test_long_texts_are_cut() -> None:
    table = SampleTable.of([{"prompt": "a", "text": "x" * (CHARACTERS + 1)}])
    assert table.rows[0][table.columns.index("text")] == "x" * CHARACTERS + "..."
    assert table.rows[0][table.columns.index("score")] is None


def test_a_users_sink_may_take_samples(tmp_path: Path) -> None:
    class TakesBoth:
        def __init__(self, run: Path) -> None:
            self.tables: list[Any] = []
            trackers.append(self)

        def write(self, iteration: int, numbers: dict[str, float]) -> None: ...

        def write_samples(self, iteration: int, table: SampleTable) -> None:
            self.tables.append((iteration, len(table.rows)))

        def close(self) -> None: ...

    trackers: list[TakesBoth] = []
    logs = RunLogs(
        RunLayout(tmp_path), trackers=("my_file:MyTracker",), load={"my_file:MyTracker": TakesBoth}.__getitem__
    )
    logs.samples(2, [SAMPLE], {})
    assert trackers[0].tables == [(2, 1)]


def test_a_users_sink(tmp_path: Path) -> None:
    written: list[Any] = []

    class MyTracker:
        def __init__(self, run: Path) -> None:
            written.append(run)

        def write(self, iteration: int, numbers: dict[str, float]) -> None:
            written.append((iteration, numbers))

        def close(self) -> None:
            written.append("closed")

    logs = RunLogs(
        RunLayout(tmp_path), trackers=("my_file:MyTracker",), load={"my_file:MyTracker": MyTracker}.__getitem__
    )
    logs.metrics(LINE)
    logs.close()
    assert written == [tmp_path, (4, {"step": 8.0, "loss": 0.5}), "closed"]
