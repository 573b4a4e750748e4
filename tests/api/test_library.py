"""Runs from Python: rows and rewards in memory, callbacks, event loops, resume."""

import asyncio
import json
import os
from pathlib import Path

import pytest

import groupwise as gw
from groupwise.__main__ import main
from groupwise.api.metric_values import MetricValues
from groupwise.commands.train import resume as resume_command
from groupwise.core import BadData, Usage
from groupwise.data import MEAN_LENGTH
from groupwise.runs.checkpoints import RunLock
from groupwise.runs.run_info import RunInfo
from groupwise.runs.run_layout import RunLayout
from tests.verifiers.test_functions import children

ROWS = [{"prompt": f"{a}*{b}+{c}=", "level": c} for a in range(2, 6) for b in range(2, 4) for c in range(2)]
SMALL = {"method": gw.gspo(group_size=2, minibatches=1), "prompts": 2, "max_tokens": 6, "save": {"every": 1}}
SMALL |= {"evaluate": {"problems": 2}}


def variety(row, answer):
    return len(set(answer)) / 26 + row["level"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[gw.Run, list[int]]:
    """A run of two iterations with rows and a reward in memory, and the iterations that its callback saw."""
    seen: list[int] = []
    run = gw.train(
        model="calculator", data=ROWS, reward=variety, out=tmp_path_factory.mktemp("runs"), iterations=2,
        on_iteration=lambda run, line: seen.append(line["iteration"]), **SMALL
    )  # fmt: skip
    return run, seen


def test_a_run_from_python_is_an_ordinary_run(finished) -> None:
    run, seen = finished
    assert seen == [0, 1, 2] and run.done == run.iterations == 2 and not run.stop_reason
    assert sorted(run.metrics["reward"]) == [1, 2] and all(0 < value < 2 for value in run.metrics["reward"].values())
    assert [len(run.samples(i)) for i in (1, 2)] == [4, 4] and run.samples() == run.samples(2)
    assert (run.model_dir / "model.safetensors").is_file()
    assert [json.loads(line) for line in (run.directory / "data.jsonl").read_text().splitlines()] == ROWS
    assert (run.directory / "code" / "reward.py").read_text().startswith("def variety(row, answer):\n")
    info = json.loads((run.directory / "run.json").read_text())
    assert list(info["use"]) == ["reward"] and info["method"]["name"] == "gspo" and "in_memory" not in info


def test_a_notebook_shows_a_run_and_its_report(finished) -> None:
    run, _ = finished
    assert "<table>" in run._repr_html_()
    assert all(f"<th>{name}</th>" in run._repr_html_() for name in ("reward", "eval/score", MEAN_LENGTH))
    report = run.report
    assert Path(report).is_file() and report._repr_html_().startswith("<iframe srcdoc=")
    assert "<script>" not in report._repr_html_().partition("srcdoc=")[2].partition('" sandbox')[0]


def test_a_missing_iteration_and_a_directory_that_is_no_run_are_named(finished, tmp_path: Path) -> None:
    with pytest.raises(BadData, match="no samples of iteration 7"):
        finished[0].samples(7)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(BadData, match="is not a run"):
        gw.Run(tmp_path)


def test_answers_and_scores_of_a_finished_run(finished) -> None:
    run, _ = finished
    assert run.sample("2*3+4=") == gw.sample(run, "2*3+4=") and len(gw.sample(run, "2*3+4=", n=2)) == 2
    evaluation = gw.evaluate(run, data=ROWS[:3], reward=variety, samples=2)
    assert set(evaluation.figures) == {"greedy score", "score"} and "over 3 problems" in str(evaluation)


def test_a_checkpoint_is_evaluated_and_sampled_as_on_the_command_line(finished, capsys) -> None:
    run, _ = finished
    answer = gw.sample(run, "2*3+4=", at=1)
    assert main(["sample", str(run.directory), "2*3+4=", "--at", "1"]) == 0
    assert capsys.readouterr().out == f"{answer}\n"
    assert run.sample("2*3+4=", at=1) == gw.sample(run.directory / "models" / "000001", "2*3+4=")
    evaluation = gw.evaluate(run, at=1, data=ROWS[:3], reward=variety, samples=1)
    assert all("models/000001" in str(number["protocol"]["model"]) for number in evaluation["results"])
    with pytest.raises(BadData, match="has no model of iteration 7"):
        gw.evaluate(run, at=7)
    for at in ("last", True):
        with pytest.raises(Usage, match="does not name a checkpoint"):
            gw.sample(run, "2*3+4=", at=at)
    with pytest.raises(Usage, match="at names a checkpoint of a run"):
        gw.sample("calculator", "2*3+4=", at=1)


def test_a_packaged_recipe_is_trained_by_its_name(tmp_path: Path) -> None:
    small = {"method.group_size": 2, "method.minibatches": 1, "max_tokens": 6, "evaluate": {"problems": 2}}
    run = gw.train(recipe="hinted_sums", out=tmp_path, iterations=1, prompts=2, **small)
    assert run.directory.name.startswith("hinted_sums-")
    assert RunInfo.read(RunLayout(run.directory)).task == "hinted_sums"
    with pytest.raises(Usage, match="no packaged recipe is called 'smollm'") as caught:
        gw.train(recipe="smollm", out=tmp_path)
    assert "did you mean smollm2?" in str(caught.value)
    with pytest.raises(Usage) as caught:
        gw.train(recipe="mine", out=tmp_path)
    assert "take calculator, beads, big_sums, " in str(caught.value)
    with pytest.raises(Usage, match="gspo is a method, not a recipe") as caught:
        gw.train("gspo", out=tmp_path)
    assert caught.value.fix == 'train with it: gw.train(method="gspo")'


def test_a_stopped_run_resumes_with_equal_bytes_inside_an_event_loop(finished, tmp_path: Path) -> None:
    """Notebooks run cells in an event loop. The callback stops the run after its first iteration."""

    def stop_after_one(run: gw.Run, line: dict) -> None:
        if line["iteration"] == 1:
            run.stop()

    async def cell() -> gw.Run:
        first = gw.train(model="calculator", data=ROWS, reward=variety, out=tmp_path, iterations=2,
                         on_iteration=stop_after_one, **SMALL)  # fmt: skip
        assert first.stop_reason == "stopped by a callback" and first.done == 1
        with pytest.raises(BadData, match="started with"):
            gw.resume(first, reward=constant)
        return gw.resume(first, reward=variety)

    run = asyncio.run(cell())
    whole, _ = finished
    assert not run.stop_reason and run.done == 2
    for name in ("metrics.jsonl", "model/model.safetensors"):
        assert (run.directory / name).read_bytes() == (whole.directory / name).read_bytes(), name


def test_a_reward_in_memory_grades_in_this_process_and_its_run_continues_in_python(tmp_path: Path) -> None:
    graded: list[str] = []

    def closure(answer):
        graded.append(answer)
        return float(len(answer))

    def stop(run: gw.Run, line: dict) -> None:
        run.stop()

    run = gw.train(
        model="calculator", data=ROWS, reward=closure, out=tmp_path, iterations=1, on_iteration=stop, **SMALL
    )
    assert graded and run.stop_reason
    with pytest.raises(Usage, match="closure") as caught:
        resume_command(str(run.directory))
    assert "gw.resume(" in str(caught.value) and "reward=closure" in str(caught.value)
    with pytest.raises(BadData, match="started with"):
        gw.resume(run, reward=changed_closure())
    assert not gw.resume(run, reward=changed_closure(), changed=True).stop_reason


def constant(answer):
    return 1.0


def changed_closure():
    bound = 1.0

    def closure(answer):
        return bound

    return closure


def test_a_finished_run_is_extended(tmp_path: Path) -> None:
    """No worker of the graders is left, since a notebook's process lives on after a run."""
    others = set(children())
    run = gw.train(model="calculator", data=ROWS, reward=variety, out=tmp_path, iterations=1, **SMALL)
    assert gw.resume(run, reward=variety, iterations=2).done == 2 and run.iterations == 2
    assert set(children()) == others


def test_a_run_that_cannot_start_leaves_no_directory(tmp_path: Path) -> None:
    with pytest.raises(Usage, match="gives no grade for a made-up answer"):
        gw.train(model="calculator", data=ROWS, reward=lambda answer: answer, out=tmp_path, **SMALL)
    with pytest.raises(BadData, match="no token for the character"):
        gw.train(model="calculator", data=[{"prompt": "What?"}], reward=variety, out=tmp_path, **SMALL)
    assert not list(tmp_path.iterdir())


def test_only_a_run_that_trains_here_can_be_stopped(finished) -> None:
    run, _ = finished
    with pytest.raises(Usage, match="cannot end") as caught:
        run.stop()
    assert caught.value.evidence == "it is not training" and "on_iteration" in caught.value.fix
    lock = RunLock(RunLayout(run.directory))
    try:
        with pytest.raises(Usage, match="cannot end") as caught:
            gw.Run(run.directory).stop()
    finally:
        lock.close()
    assert caught.value.evidence.startswith(f"pid {os.getpid()} on host") and "kill -TERM" in caught.value.fix


def test_data_that_a_call_names_are_used_whole_and_alone_at_both_doors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"{a}+{b}=", "answer": a + b} for a in range(2, 7) for b in range(2, 4)]
    others = [{"prompt": f"{a}*{b}=", "answer": a * b} for a in range(2, 5) for b in range(2, 4)]
    run = gw.train(model="calculator", data=rows, eval_data=others, reward="last_number", iterations=1, **SMALL)
    assert f"10 rows, {len(rows)} to train on, sha256" in capsys.readouterr().err
    own = gw.evaluate(run, samples=1)["results"][0]["protocol"]["task"]
    assert own["problems"] == SMALL["evaluate"]["problems"] and own["name"].endswith("eval_data.jsonl")
    named = gw.evaluate(run, data=rows, samples=1)["results"][0]["protocol"]["task"]
    assert named["problems"] == len(rows) and named["name"] == "data"
    assert "10 rows, 10 held out" in capsys.readouterr().err
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    counts = {"": 10, " --problems 4": 4, " --evaluate.problems 3": 3}
    for options, count in counts.items():
        words = f"eval {run.directory} --samples 1 --data rows.jsonl --out e.json{options}"
        assert main(words.split()) == 0
        task = json.loads(Path("e.json").read_text())["results"][0]["protocol"]["task"]
        assert task["problems"] == count and (count < 10 or task["sha256"] == named["sha256"])
    with pytest.raises(Usage, match=r"^data has no verifier"):
        gw.evaluate("calculator", data=rows)


def test_a_metric_has_a_last_value_and_names_its_iterations() -> None:
    values = MetricValues({0: 0.5, 10: 0.75, 15: 1.0})
    assert [values[i] for i in (-1, -2, -3, 10)] == [1.0, 0.75, 0.5, 0.75] and values.get(-1) is None
    for missing in (-4, 5, "last"):
        with pytest.raises(gw.Usage, match="no value at iteration") as caught:
            values[missing]  # type: ignore[index]
        assert isinstance(caught.value, KeyError) and caught.value.evidence == "it has values at 0, 10, 15"
    with pytest.raises(KeyError, match="no value"):
        MetricValues()[-1]
