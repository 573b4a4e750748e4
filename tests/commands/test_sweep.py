"""`sweep`: each combination once, finished runs skipped, interrupted ones resumed, a table and one report."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from groupwise.__main__ import main
from groupwise.api.options import RunOptions
from groupwise.commands import sweep as module
from groupwise.commands.sweep import combinations, values_of
from groupwise.commands.sweep_table import SweepResult, run_rows, seed_rows
from groupwise.core import Diverged, Usage
from groupwise.report.read_run import read
from tests.report.fixture_run import write_run

RECIPE = """\
iterations = 1
prompts = 2
method = { base = "gspo", group_size = 4, minibatches = 2 }
sampling = { max_tokens = 16 }
evaluate = { problems = 4 }
"""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Runs that are written instead of trained: (train or resume, name). The run of seed 1 stops at first."""
    calls: list[tuple[str, str]] = []

    def train(recipe: Any, overrides: Any, options: RunOptions, **others: Any) -> int:
        out, name, command = options.out, options.name, options.command_line
        calls.append(("train", str(name)))
        seed = int(dict(overrides)["seed"])
        if seed == 2:
            raise Diverged("the loss is not finite", fix="lower optimizer.lr")
        run = write_run(Path(out) / f"{name}-20260101-000000", iterations=3, planned=6 if seed == 1 else 3, seed=seed)
        about = json.loads((run / "run.json").read_text()) | {"command": command}
        (run / "run.json").write_text(json.dumps(about))
        if seed != 1:
            (run / "model").mkdir()
        return 130 if seed == 1 else 0

    def resume(run: str, options: RunOptions) -> int:
        calls.append(("resume", Path(run).name))
        about = json.loads((Path(run) / "run.json").read_text())
        shutil.rmtree(run)
        write_run(Path(run), iterations=6)
        (Path(run) / "run.json").write_text(json.dumps(about))
        (Path(run) / "model").mkdir()
        return 0

    monkeypatch.setattr(module, "train", train)
    monkeypatch.setattr(module, "resume", resume)
    return calls


def test_the_same_command_continues_a_sweep(calls, home, capsys):
    command = ["sweep", "a.toml", "--seed", "0..2", "--prompts", "4"]
    assert main(command) == 130  # stopped in the second run
    assert calls == [("train", "seed-0"), ("train", "seed-1")]
    calls.clear()
    assert main(command) == 0
    assert calls == [("resume", "seed-1-20260101-000000"), ("train", "seed-2")]  # the third diverges, the sweep goes on
    out = capsys.readouterr().out
    rows = out[out.index("seed  figure") :].splitlines()
    assert [row.split()[0] for row in rows[1:3]] == ["0", "1"] and rows[2].split()[-1] == "6"
    assert rows[4].split() == ["figure", "seeds", "mean", "first", "mean", "last", "range", "of", "last"]
    assert rows[5].split()[:2] == ["eval/accuracy_greedy", "2"]  # the third has no run directory
    page = (home / "sweeps/a/report.html").read_text()
    assert page.count("<span class=name>") == 2
    assert "<caption>Runs</caption>" in page and "<caption>Seeds</caption>" in page
    metrics = [json.loads(line) for line in (home / "sweeps/a/seed-0-20260101-000000/metrics.jsonl").open()]
    last = [m for m in metrics if "eval/accuracy_greedy" in m][-1]
    cells = [f"{last[name]:.3f}" for name in ("eval/accuracy_greedy", "eval/low_greedy", "eval/high_greedy")]
    assert rows[1].split()[3:7] == [cells[0], cells[1], "to", cells[2]]
    calls.clear()
    assert main(command) == 0 and calls == [("train", "seed-2")]


def result(directory: Path, name: str, finished: bool = True, **values: str) -> SweepResult:
    seed = int(values.get("seed", 0))
    run = directory / name
    write_run(run, iterations=3, seed=seed, lr=1e-4 if seed == 1 else 3e-4)  # the run of seed 1 learns less
    return SweepResult(tuple(values.items()), read(run), finished)


def test_seeds_are_pooled(tmp_path):
    results = [result(tmp_path, f"{seed}.{high}", seed=seed, high=high) for seed in "012" for high in ("0.2", "0.3")]
    header, *rows = seed_rows(results)
    assert header == ["high", "figure", "seeds", "mean first", "mean last", "range of last"]
    assert [row[0] for row in rows] == ["0.2", "0.3"] and {row[2] for row in rows} == {"3"}
    last = [r.ends[1] for r in results[::2]]
    assert rows[0][4] == f"{sum(last) / 3:.3f}" and rows[0][5] == f"{min(last):.3f} to {max(last):.3f}"
    assert max(last) > min(last)


def test_a_run_that_did_not_finish_is_left_out_of_the_mean(tmp_path):
    results = [result(tmp_path, seed, finished=seed != "1", seed=seed) for seed in "012"]
    _, row = seed_rows(results)
    last = [results[0].ends[1], results[2].ends[1]]
    assert row[1] == "2 of 3" and row[3] == f"{sum(last) / 2:.3f}"
    assert run_rows(results)[2][-1] == "3 (not finished)"
    _, row = seed_rows([replace(r, finished=False) for r in results])
    assert row == ["-", "0 of 3", "-", "-", "-"]


def test_without_several_seeds_nothing_is_pooled(tmp_path):
    assert seed_rows([result(tmp_path, high, high=high) for high in ("0.2", "0.3")]) == []


def test_a_combination_without_a_run_does_not_shift_the_others(calls, home, capsys):
    assert main(["sweep", "a.toml", "--seed", "2,0"]) == 0  # the run of seed 2 diverges before it has a directory
    table = capsys.readouterr().out.partition("seed  figure")[2].splitlines()
    assert next(line.split()[0] for line in table[1:] if line) == "0"


def test_a_directory_holds_one_sweep(calls, home, capsys):
    assert main(["sweep", "a.toml", "--seed", "0,3"]) == 0
    assert main(["sweep", "a.toml", "--seed", "0,3", "--prompts", "8"]) == 2
    assert "belongs to another sweep" in capsys.readouterr().err
    assert main(["sweep", "a.toml", "--seed", "0,3", "--prompts", "8", "--out", "other"]) == 0
    assert len(calls) == 4


def test_a_sweep_trains(home, capsys):
    (home / "r.toml").write_text(RECIPE)
    assert main(["sweep", "r.toml", "--method.objective.surrogate.high", "0.2,0.3"]) == 0
    runs = sorted((home / "sweeps/r").glob("high-*"))
    assert [("high = 0.2" in (run / "recipe.toml").read_text(), (run / "model").is_dir()) for run in runs] == [
        (True, True),
        (False, True),
    ]
    assert capsys.readouterr().out.count("eval/accuracy_greedy") == 2


def test_values_that_cannot_be_swept_are_refused():
    for overrides in ([("seed", "1,1")], [("sampling.seed", "1,2"), ("seed", "1,2"), ("prompts", "0..99999")]):
        with pytest.raises(Usage):
            combinations(overrides)
    assert values_of("{ a = 1, b = 2 }") == ("{ a = 1, b = 2 }",)
    assert [c.values for c in combinations([("prompts", "8")])] == [()]
