"""`groupwise compare`: differences and intervals, protocols that differ, damaged files."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from groupwise.__main__ import main
from groupwise.commands.compare_evaluations import compare, differences, flat, pooled
from groupwise.core import BadData, GroupwiseError, Usage
from groupwise.evaluation.evaluation_files import MAY_DIFFER, file_name, mean_of, read, task_result, write
from groupwise.evaluation.interval import averaged, paired
from tests.evaluation.test_evaluate import RIGHT, graded

PROTOCOL: dict[str, Any] = {
    "model": {"name": "m", "sha256": "0" * 64},
    "task": {"name": "sums.jsonl", "data_sha256": ["1" * 64], "problems": 30, "sha256": "2" * 64},
    "template": {"no": "3" * 64},
    "sampling": {"temperature": 1.0, "max_tokens": 64, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "stop": []},
    "strategy": "Independent",
    "verifier": {"name": "exact", "sha256": "4" * 64, "packages": {}, "deadline": 10.0},
    "dtype": "float32",
    "n": 32,
    "seed": 0,
    "seed_rule": "rule",
    "engine": {"name": "native", "device": "cpu", "threads": 1},
    "interval": {"rule": "rule", "level": 0.95, "resamples": 10000},
    "versions": {"python": "3.11"},
}
BETTER = tuple(min(32, c + 4) for c in RIGHT)


def changed(path: str, value: Any) -> dict[str, Any]:
    """The protocol with the field at a dotted path changed."""
    record = deepcopy(PROTOCOL)
    at = record
    *above, last = path.split(".")
    for name in above:
        at = at[name]
    at[last] = value
    return record


def evaluation(right: Sequence[int], protocol: Mapping[str, Any] = PROTOCOL) -> dict[str, Any]:
    return {"preset": None, "results": [task_result(graded(right, protocol["n"]), protocol)]}


def write_file(path: Path, *numbers: tuple[Sequence[int], Mapping[str, Any]], **more: Any) -> Path:
    write(path, {"preset": None, "results": [evaluation(*one)["results"][0] for one in numbers], **more})
    return path


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    other = changed("model", {"name": "n", "sha256": "9" * 64})
    return write_file(tmp_path / "a.json", (RIGHT, PROTOCOL)), write_file(tmp_path / "b.json", (BETTER, other))


def test_the_difference_is_printed_with_its_paired_interval(two, capsys):
    assert main(["compare", *map(str, two)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"A: {two[0]}  model m, sha256 {'0' * 12}", f"B: {two[1]}  model n, sha256 {'9' * 12}"]
    assert lines[3] == "sums.jsonl, temperature 1, 30 problems"
    a, b = np.array(RIGHT) / 32, np.array(BETTER) / 32
    low, high = paired(a, b)
    row = f"avg@32     {a.mean():.3f}  {b.mean():.3f}  {(b - a).mean():+.3f}  ({low:+.3f} .. {high:+.3f})"
    assert lines[5] == row and low > 0
    assert [line.split()[0] for line in lines[6:-1]] == [f"pass@{k}" for k in (2, 4, 8, 16, 32)]
    better = sum(x > y for x, y in zip(BETTER, RIGHT))
    assert lines[-1].strip() == f"B is better on {better} problems, A on 0, equal on {30 - better}"
    assert main(["compare", str(two[1]), str(two[0])]) == 0
    assert f"  {(a - b).mean():+.3f}  (-" in capsys.readouterr().out


def test_an_interval_that_contains_0_is_marked(tmp_path, capsys):
    a = write_file(tmp_path / "a.json", (RIGHT, PROTOCOL))
    same = write_file(tmp_path / "b.json", (RIGHT, PROTOCOL))
    assert main(["compare", str(a), str(same)]) == 0
    figures = [line for line in capsys.readouterr().out.splitlines() if "@" in line]
    assert figures and all(line.endswith("the interval contains 0") for line in figures)


ALLOWED = {name for name, _ in flat(PROTOCOL) if any(name == m or name.startswith(f"{m}.") for m in MAY_DIFFER)}


def test_fields_that_may_differ():
    assert {
        "model.name", "model.sha256", "task.name", "n", "seed", "seed_rule", "engine.name", "engine.device",
        "engine.threads", "interval.rule", "interval.level", "interval.resamples", "versions.python",
    } == ALLOWED  # fmt: skip


@pytest.mark.parametrize("field", [name for name, _ in flat(PROTOCOL) if name not in ("n", "task.problems")])
def test_any_other_difference_raises_with_the_field_s_name(field: str, tmp_path: Path, capsys):
    a = write_file(tmp_path / "a.json", (RIGHT, PROTOCOL))
    value = dict(flat(PROTOCOL))[field]
    other = value + 1 if isinstance(value, int | float) else ["x"] if isinstance(value, list) else "x"
    b = write_file(tmp_path / "b.json", (RIGHT, changed(field, other)))
    if field in ALLOWED:
        assert compare(str(a), str(b)) == 0
        return
    with pytest.raises(Usage) as error:
        compare(str(a), str(b))
    assert error.value.what == "the protocols differ: sums.jsonl, temperature 1"
    assert error.value.evidence.startswith(f"{field}: ") and f"--allow {field}" in error.value.fix
    assert len(error.value.evidence.splitlines()) == 1
    assert compare(str(a), str(b), allow=[field]) == 0
    assert compare(str(a), str(b), allow=[field.partition(".")[0]]) == 0
    capsys.readouterr()


def test_a_missing_field_raises(tmp_path):
    less = {k: v for k, v in PROTOCOL.items() if k != "dtype"}
    a, b = (write_file(tmp_path / "a.json", (RIGHT, PROTOCOL)), write_file(tmp_path / "b.json", (RIGHT, less)))
    with pytest.raises(Usage) as error:
        compare(str(a), str(b))
    assert error.value.evidence == "dtype: 'float32' in A, nothing in B"
    assert differences(PROTOCOL, PROTOCOL) == []


def test_different_numbers_of_answers_can_be_compared(tmp_path, capsys):
    """avg@8 and avg@32 estimate the same quantity."""
    a = write_file(tmp_path / "a.json", ([c // 4 for c in RIGHT], changed("n", 8)))
    b = write_file(tmp_path / "b.json", (RIGHT, PROTOCOL))
    assert compare(str(a), str(b)) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines() if "(" in line]
    assert names == ["avg", "pass@2", "pass@4", "pass@8"]


def test_different_problems_raise(tmp_path):
    a = write_file(tmp_path / "a.json", (RIGHT, PROTOCOL))
    fewer = changed("task", PROTOCOL["task"] | {"problems": 20, "sha256": "5" * 64})
    b = write_file(tmp_path / "b.json", (RIGHT[:20], fewer))
    with pytest.raises(Usage) as error:
        compare(str(a), str(b), allow=["model"])
    assert [line.partition(":")[0] for line in error.value.evidence.splitlines()] == ["task.problems", "task.sha256"]
    with pytest.raises(Usage, match="are of different problems"):  # --allow cannot allow it
        compare(str(a), str(b), allow=["task"])


def test_evaluations_with_different_numbers_raise(tmp_path):
    a = write_file(tmp_path / "a.json", (RIGHT, PROTOCOL))
    b = write_file(tmp_path / "b.json", (RIGHT, PROTOCOL), (RIGHT, PROTOCOL))
    with pytest.raises(Usage, match="have different numbers of results") as error:
        compare(str(a), str(b))
    assert "b.json: sums.jsonl, temperature 1; sums.jsonl, temperature 1" in error.value.evidence


def test_the_mean_over_tasks(tmp_path, capsys):
    numbers = [(RIGHT, PROTOCOL), (BETTER[:20], changed("task", PROTOCOL["task"] | {"problems": 20}))]
    more = [(BETTER, PROTOCOL), (BETTER[:20], numbers[1][1])]
    mean = mean_of([evaluation(*one)["results"][0] for one in numbers])
    values = [np.mean(RIGHT) / 32, np.mean(BETTER[:20]) / 32]
    assert mean[0] == pytest.approx(np.mean(values))
    a = write_file(tmp_path / "a.json", *numbers, mean=mean)
    b = write_file(tmp_path / "b.json", *more, mean=mean)
    assert compare(str(a), str(b)) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    first, second = paired(np.array(RIGHT) / 32, np.array(BETTER) / 32), paired(*[np.array(BETTER[:20]) / 32] * 2)
    gain = (np.mean(BETTER) - np.mean(RIGHT)) / 64
    low, high = averaged([2 * gain, 0.0], [first, second])
    assert f"{gain:+.3f}  ({low:+.3f} .. {high:+.3f})" in last and last.startswith("mean of 2 ")
    assert pooled([(0.0, 1.0, (0.5, 1.5))] * 1) == (0.0, 1.0, (0.5, 1.5))


def test_the_interval_of_a_mean_agrees_with_simulation():
    random = np.random.default_rng(0)
    draws = random.normal([0.2, 0.5, 0.9], [0.1, 0.02, 0.05], (200_000, 3)).mean(1)
    ends = [(m - 1.96 * s, m + 1.96 * s) for m, s in ((0.2, 0.1), (0.5, 0.02), (0.9, 0.05))]
    assert averaged([0.2, 0.5, 0.9], ends) == pytest.approx(tuple(np.quantile(draws, [0.025, 0.975])), abs=1e-3)


# Which files


def test_runs_are_compared_by_their_common_evaluations(tmp_path, capsys):
    for run, right in (("one", RIGHT), ("two", BETTER)):
        data = evaluation(right, changed("model.name", run))
        write(tmp_path / run / "evaluations" / file_name(data), data)
    data = evaluation(RIGHT, changed("sampling.top_p", 0.7))
    write(tmp_path / "two" / "evaluations" / file_name(data), data)
    assert main(["compare", str(tmp_path / "one"), str(tmp_path / "two")]) == 0
    assert capsys.readouterr().out.count("B is better on") == 1
    (file,) = (tmp_path / "one" / "evaluations").iterdir()
    assert compare(str(file), str(tmp_path / "two")) == 0
    assert capsys.readouterr().out.startswith("of 1 and 2 evaluations the newest with equal protocols")
    with pytest.raises(Usage, match="A and B are the same run") as error:
        compare(str(tmp_path / "two"), str(tmp_path / "two"))
    assert len(error.value.evidence.splitlines()) == 2 and "groupwise compare " in error.value.fix
    for path, top_p in zip((tmp_path / "two" / "evaluations").iterdir(), (0.5, 0.6)):
        write(path, evaluation(BETTER, changed("sampling.top_p", top_p)))
    with pytest.raises(Usage, match="equal protocols") as error:
        compare(str(file), str(tmp_path / "two"))
    assert "top_p 0.5, 32 answers" in error.value.evidence and str(file) in error.value.fix
    moved = file.rename(tmp_path / "moved.json")
    write(file, evaluation(RIGHT, changed("model.name", "one")))
    assert compare(str(tmp_path / "one"), str(moved)) == 0
    for same in (file, tmp_path / "one"):
        with pytest.raises(Usage, match="A and B are the same evaluation"):
            compare(str(tmp_path / "one"), str(same))


def test_a_file_name_depends_on_the_protocol_but_not_on_the_model():
    here, there = evaluation(RIGHT), evaluation(BETTER, changed("model.sha256", "7"))
    assert file_name(here) == file_name(there) and file_name(here).startswith("sums-")
    for field in ("n", "seed", "sampling.top_p", "verifier.sha256"):
        assert file_name(here) != file_name(evaluation([0] * 30, changed(field, 9)))
    assert file_name(here | {"preset": "suite"}).startswith("suite-")


def damaged(path: Path, change: Any) -> str:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    return str(path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda e: e.pop("results"), "is damaged"),
        (lambda e: e["results"].clear(), "is damaged"),
        (lambda e: e["results"][0].pop("protocol"), "is damaged"),
        (lambda e: e["results"][0]["protocol"].pop("sampling"), "is damaged"),
        (lambda e: e["results"][0]["protocol"].pop("model"), "is damaged"),
        (lambda e: e["results"][0]["problems"].pop(), "is damaged"),
        (lambda e: e["results"][0]["problems"][0].__setitem__(3, [40]), "is damaged"),
        (lambda e: e["results"][0]["problems"][0].__setitem__(3, ["a"]), "is damaged"),
        (lambda e: e["results"][0]["problems"][0].__setitem__(2, 99), "is damaged"),
        (lambda e: e["results"][0]["figures"]["avg@32"].__setitem__(0, 0.99), "is damaged"),
        (lambda e: e["results"].__setitem__(0, 3), "is damaged"),
        (lambda e: e.__setitem__("format", 2), "written by another version"),
        (lambda e: e.pop("format"), "is not an evaluation"),
    ],
)
def test_a_changed_file_raises(two, change, says: str):
    with pytest.raises(BadData, match=says) as error:
        compare(damaged(two[0], change), str(two[1]))
    assert error.value.evidence and "groupwise eval" in error.value.fix


def test_errors_of_files_that_are_not_evaluations(two, tmp_path, capsys):
    for text in ("", "{", "[]", "[" * 100_000, "\xff"):
        (tmp_path / "odd.json").write_bytes(text.encode("latin-1"))
        assert main(["compare", str(tmp_path / "odd.json"), str(two[1])]) == 3
    assert main(["compare", str(two[0]), str(tmp_path / "absent.json")]) == 3
    assert "no such file" in capsys.readouterr().err
    (tmp_path / "run").mkdir()
    assert main(["compare", str(two[0]), str(tmp_path / "run")]) == 3
    assert f"evaluate it first: groupwise eval {tmp_path / 'run'}" in capsys.readouterr().err
    (tmp_path / "run" / "evaluations").mkdir()
    with pytest.raises(GroupwiseError, match="has no evaluations"):
        compare(str(tmp_path / "run"), str(two[1]))


def test_an_evaluation_reads_back_equal(tmp_path):
    data = evaluation(RIGHT)
    write(tmp_path / "a.json", data)
    assert read(tmp_path / "a.json") == {"format": 1, **json.loads(json.dumps(data))}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_the_command_needs_no_torch(two):
    """With two valid files, and with a missing one."""
    script = """
import sys
from groupwise.__main__ import main
a, b = sys.argv[1:]
assert [main(["compare", a, b]), main(["compare", a, "absent"])] == [0, 3]
print("LOADED", sorted({"torch", "transformers", "tokenizers", "jaxtyping"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script, *map(str, two)], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "LOADED []", done.stderr
