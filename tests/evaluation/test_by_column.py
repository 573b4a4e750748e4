"""Accuracy for each value of a column: in a run, in `groupwise eval`, and refused where it says nothing."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from groupwise.__main__ import main
from groupwise.api.evaluate import Evaluation
from groupwise.core import Usage
from groupwise.data import Outcome, Prompt, Rollout
from groupwise.evaluation.by_column import LONGEST, MOST, check_column, figures_by, scores_by
from tests.checks import check
from tests.evaluation.test_evaluate import rollout

ROWS = [{"prompt": f"{a}+{b}+2-{c}=", "answer": a + b + 2 - c, "level": 10 if a > 4 else 2}
        for a in range(1, 7) for b in range(2, 8) for c in (1, 2)]  # fmt: skip


def at(level: object, outcomes: list[Outcome]) -> Rollout:
    made = rollout(outcomes)
    prompt = Prompt("p", (5,), row={} if level is None else {"level": level})
    return replace(made, draw=replace(made.draw, prompt=prompt))


def test_accuracy_by_value_in_the_order_of_numbers() -> None:
    o = Outcome
    levels: dict[object, list[Outcome]] = {10: [o.correct, o.wrong], 2: [o.wrong], "x": [o.correct], None: [o.wrong]}
    rollouts = [at(2, [o.correct]), *(at(level, outcomes) for level, outcomes in levels.items())]
    metrics = scores_by(rollouts, "level")
    assert metrics == {"eval/accuracy/level=2": 0.5, "eval/accuracy/level=10": 0.5, "eval/accuracy/level=x": 1.0}
    assert [*metrics][:2] == ["eval/accuracy/level=2", "eval/accuracy/level=10"]
    counts = {name: n for name, (n, _) in figures_by(rollouts, "level").items()}
    assert counts == {"level=2": 2, "level=10": 1, "level=x": 1}
    assert scores_by(rollouts, "") == scores_by(rollouts, "subject") == {} == figures_by([], "level")
    assert figures_by([at(2, [o.unverifiable])], "level") == {}


@pytest.mark.parametrize(
    "rows, what",
    [
        ([{"answer": 1}], "no held-out problem has a value"),
        ([{"level": i} for i in range(MOST + 1)], f"{MOST + 1} different values"),
        ([{"level": [1]}], "no names"),
        ([{"level": "x" * (LONGEST + 1)}], "no names"),
        ([{"level": "a\nb"}], "no names"),
    ],
)
def test_a_column_that_cannot_name_metrics_is_refused(rows: list[dict], what: str) -> None:
    with pytest.raises(Usage, match=what):
        check_column("level", [Prompt(str(i), (5,), row=row) for i, row in enumerate(rows)])
    check_column("", [])


def test_a_run_and_an_evaluation_have_it(home: Path) -> None:
    for name, rows in (("train", ROWS[::2]), ("test", ROWS[1::2])):
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fields = {"task": "train.jsonl", "held_out": "test.jsonl", "verifier": "last_number", "evaluate.by_column": "level",
              "iterations": "1", "prompts": "4", "method.group_size": "2", "sampling.max_tokens": "48"}  # fmt: skip
    assert "evaluate.by_column is 'grade'" in str(check(None, [*(fields | {"evaluate.by_column": "grade"}).items()])[0])
    assert main(["train", *(word for name, text in fields.items() for word in (f"--{name}", text))]) == 0
    (run,) = Path("runs").glob("*-*")
    first = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
    assert {name for name in first if "level=" in name} == {"eval/accuracy/level=2", "eval/accuracy/level=10"}
    assert main(["eval", str(run), "--out", "one.json"]) == 0
    stored = json.loads(Path("one.json").read_text())["results"][1]
    right, counts = Counter[int](), Counter[int]()
    for problem, (_, answers, n, _) in zip(ROWS[1::2], stored["problems"], strict=True):
        right[problem["level"]] += n
        counts[problem["level"]] += answers
    assert {name: x[0] for name, x in stored["by"].items()} == {
        f"level={level}": pytest.approx(right[level] / n) for level, n in counts.items()
    }
    assert any(x[0] for x in stored["by"].values())
    figures = Evaluation(json.loads(Path("one.json").read_text())).figures
    assert figures["level=2"] == stored["by"]["level=2"][0] and "greedy level=10" in figures
