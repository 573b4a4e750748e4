"""Runs of phases: each phase is an ordinary run, and a killed run of phases ends with the same bytes."""

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from groupwise.__main__ import main
from groupwise.api.options import RunOptions
from groupwise.checks.check import second_adapter, standing_in
from groupwise.commands.train import resume
from groupwise.config.phase_recipes import read_phases
from groupwise.config.toml import read_toml
from groupwise.config.user_code import UserCode
from groupwise.data import ACCURACY_GREEDY, GRAD_NORM
from groupwise.learner import Learner
from groupwise.lifecycle import create_or_open_run as training
from groupwise.lifecycle import run as running
from groupwise.lifecycle import run_phases as runner
from groupwise.models.model_directories import base_name
from groupwise.runs.phase_directories import finished_run, phase_directories, runs_in, whole_run
from groupwise.runs.run_info import RunInfo
from groupwise.runs.run_layout import RunLayout
from groupwise.tasks import demonstrations
from tests.checks import check
from tests.faults.small_runs import forked, left, lines

pytestmark = pytest.mark.usefixtures("home")

SMALL = """
prompts = 4
iterations = 2
sampling.max_tokens = 24
sampling.temperature = 0.7
evaluate.problems = 2
save.every = 1
optimizer.lr = 1e-4

[method]
base = "gspo"
group_size = 4
minibatches = 1
"""
PHASES = """
[[phase]]
name = "search"

[[phase]]
name = "sharpen"
seed = 1
iterations = 1
method.models.reference = { kind = "FromDirectory", directory = "@search/model" }
method.objective.penalties = [{ kind = "KL", coefficient = 0.1 }]
"""
RUN = Path("run")
SEARCH, SHARPEN = RUN / "1-search", RUN / "2-sharpen"


def begun(home: Path, recipe: str = SMALL + PHASES) -> None:
    """Make `run` in an empty directory a run of phases in which no phase has started, and go there."""
    (home / RUN).mkdir(parents=True)
    (home / RUN / "recipe.toml").write_text(recipe)
    os.chdir(home)


def results() -> list[dict[str, Any]]:
    """The bytes of each phase."""
    return [left(path) for path in phase_directories(RUN)]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of a run of phases that never stopped."""
    home, before = tmp_path_factory.mktemp("straight"), Path.cwd()
    begun(home)
    assert resume(str(RUN)) == 0
    yield home
    os.chdir(before)


def copied(straight: Path, home: Path) -> None:
    shutil.copytree(straight / RUN, home / RUN)


def test_each_phase_is_an_ordinary_run(straight: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(straight)
    assert phase_directories(RUN) == (SEARCH, SHARPEN)
    assert [len(lines(path)) for path in (SEARCH, SHARPEN)] == [3, 2]
    assert RunInfo.read(RunLayout(SHARPEN)).model == "@search/model"
    assert RunInfo.read(RunLayout(SHARPEN)).method["name"] == "gspo"
    first, last = ((path / "model" / "model.safetensors").read_bytes() for path in (SEARCH, SHARPEN))
    assert first != last
    assert all(line[GRAD_NORM] > 0 for path in (SEARCH, SHARPEN) for line in lines(path)[1:])
    assert lines(SEARCH)[-1][ACCURACY_GREEDY] == lines(SHARPEN)[0][ACCURACY_GREEDY]
    assert "1-search and 2-sharpen" in (RUN / "report.html").read_text()
    assert list(RunInfo.read(RunLayout(SHARPEN)).side_models) == ["reference"]


def test_a_run_of_phases_with_an_adapter_can_be_moved(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No file has its path. A run killed in its second phase ends with the same bytes in another place."""
    adapter = SMALL + PHASES.replace("iterations = 1", "iterations = 2\nlora.rank = 2")
    begun(tmp_path / "straight", adapter)
    assert resume(str(RUN.absolute())) == 0
    expected = results()
    begun(tmp_path / "old", adapter)
    absolute = str(RUN.absolute())
    assert forked(lambda: killed(Learner, "step", 3, "after", absolute), tmp_path / "log") == -signal.SIGKILL
    (tmp_path / "old").rename(tmp_path / "new")
    os.chdir(tmp_path / "new")
    assert forked(lambda: resume(str(RUN)), tmp_path / "log") == 0, (tmp_path / "log").read_text()
    assert results() == expected
    named = [path for path in RUN.rglob("*") if path.is_file() and b"/old/run" in path.read_bytes()]
    assert named == []
    assert main(["eval", str(RUN), "--samples", "1", "--problems", "2"]) == 0
    assert main(["sample", str(RUN), "1+1=", "--sampling.max_tokens", "2"]) == 0
    assert main(["export", str(RUN), str(tmp_path / "out")]) == 0
    assert base_name(tmp_path / "out") == str((SEARCH / "model").resolve())


def test_resume_refuses_a_changed_side_model(straight: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copied(straight, home)
    shutil.rmtree(SHARPEN / "model")
    (SEARCH / "model" / "tokenizer.json").open("a").write("\n")
    for words in ([], ["--changed"]):
        assert main(["resume", str(RUN), *words]) == 3
        assert "the model reference in method.models" in capsys.readouterr().err


def test_a_run_that_stops_in_each_phase_ends_with_the_same_bytes(
    straight: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(straight)
    expected = results()
    begun(home)
    assert resume(str(RUN), RunOptions(stop_after_seconds=0.0)) == 0
    assert f"continue: groupwise resume {RUN}\n" in capsys.readouterr().out
    assert not (SEARCH / "model").exists() and finished_run(RUN) is None
    stop_at_the_next_start(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        resume(str(RUN))
    assert finished_run(RUN) == SEARCH and not (SHARPEN / "recipe.toml").exists()
    monkeypatch.undo()
    monkeypatch.chdir(home)
    assert resume(str(RUN)) == 0
    assert results() == expected


def stop_at_the_next_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "start_run", stop)


@pytest.mark.slow
@pytest.mark.t(49)
@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [
        (Learner, "step", 2),
        (running, "write_model_directory", 1),
        (training, "start_run", 2),
        (Learner, "step", 3),
        (runner, "write_report", 2),
    ],
)
def test_a_killed_run_ends_with_the_same_bytes(
    owner: Any, name: str, call: int, straight: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed within the first phase, at its model, before the second, within it, and at the last page."""
    monkeypatch.chdir(straight)
    expected = results()
    begun(home)
    for when in ("before", "after"):
        shutil.rmtree(RUN)
        begun(home)
        assert forked(lambda when=when: killed(owner, name, call, when), home / "log") == -signal.SIGKILL
        assert forked(lambda: resume(str(RUN)), home / "log") == 0
        assert results() == expected


def killed(owner: Any, name: str, call: int, when: str, run: str = str(RUN)) -> int:
    """Run all phases in a process that dies before or after the given call of `owner.name`."""
    inner: Callable[..., Any] = getattr(owner, name)
    calls: list[int] = []

    def dying(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == call and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = inner(*args, **kwargs)
        if len(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, dying)
    return resume(run)


def test_train_writes_a_recipe_that_runs_again(home: Path) -> None:
    Path("two.toml").write_text(SMALL + PHASES)
    assert main(["train", "two.toml", "--iterations", "0", "--phase.1.iterations", "0"]) == 0
    (first,) = Path("runs").iterdir()
    assert first.name.startswith("two-")
    assert main(["train", str(first / "recipe.toml"), "--out", "again"]) == 0
    (second,) = Path("again").iterdir()
    models = [(run / "2-sharpen" / "model" / "model.safetensors").read_bytes() for run in (first, second)]
    assert models[0] == models[1]
    assert RunInfo.read(RunLayout(first / "2-sharpen")).iterations == 0
    assert RunInfo.read(RunLayout(first / "2-sharpen")).command == RunInfo.read(RunLayout(first / "1-search")).command


def test_a_warm_start_and_two_phases_give_the_same_bytes(home: Path) -> None:
    """The reference model of the second phase is the model after the first, as it is after a warm start."""
    rows = ({"prompt": p, "answer": a} for p, a in demonstrations(3, 8, 1.0))
    Path("shown.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    method = '[method]\nbase = "grpo"\ngroup_size = 4\n'
    settings = SMALL.partition("[method]")[0].replace("iterations = 2", "iterations = 1")
    taught = 'warm_start = { demonstrations = "shown.jsonl", steps = 2, per_step = 4 }\n'
    Path("one.toml").write_text(settings + taught + method)
    Path("two.toml").write_text(
        settings + method + f'[[phase]]\nname = "teach"\niterations = 0\n{taught}[[phase]]\nname = "practise"\n'
    )
    assert main(["train", "one.toml"]) == 0 and main(["train", "two.toml"]) == 0
    (one,), (two,) = Path("runs").glob("one-*"), Path("runs").glob("two-*/2-practise")
    for name in ("metrics.jsonl", "model/model.safetensors"):
        assert (one / name).read_bytes() == (two / name).read_bytes(), name


def test_commands_use_the_last_finished_phase(straight: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copied(straight, home)
    assert main(["eval", str(RUN), "--samples", "1", "--problems", "2"]) == 0
    assert len(list((SHARPEN / "evaluations").iterdir())) == 1
    shutil.copytree(RUN, "copy")
    assert main(["compare", str(RUN), "copy"]) == 0
    assert main(["sample", str(RUN), "7*5="]) == 0
    shutil.rmtree(SHARPEN / "model")
    capsys.readouterr()
    assert main(["eval", str(RUN), "--samples", "1", "--problems", "2", "--out", "e.json"]) == 0
    assert f"{SEARCH / 'model'}" in Path("e.json").read_text()
    (RUN / "report.html").unlink()
    assert main(["report", str(RUN)]) == 0
    assert "1-search and 2-sharpen" in (RUN / "report.html").read_text()
    assert main(["show", str(RUN)]) == 2
    assert "name the directory of one phase" in capsys.readouterr().err


def test_resume_refuses_another_recipe_for_a_started_phase(
    straight: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied(straight, home)
    recipe = RUN / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("optimizer.lr = 1e-4", "optimizer.lr = 1e-3\nsave.keep = 1"))
    assert main(["resume", str(RUN)]) == 3
    message = capsys.readouterr().err
    assert "was changed for the phase 1-search" in message
    assert "recipe.optimizer.lr: 0.001 -> 0.0001" in message or "recipe.optimizer.lr: 0.0001 -> 0.001" in message
    assert main(["resume", str(RUN), "--changed"]) == 0


def errors(text: str, notes: list[str] | None = None) -> str:
    Path("two.toml").write_text(text)
    return "\n".join(map(str, check("two.toml", notify=(notes or []).append if notes is None else notes.append)))


def test_check_reads_every_phase_before_the_first_starts() -> None:
    notes: list[str] = []
    assert errors(SMALL + PHASES, notes) == ""
    assert [note for note in notes if note.startswith("phase")] == ["phase search:", "phase sharpen:"]
    assert "phase sharpen: no task is called 'calculater'" in errors(SMALL + PHASES + 'task = "calculater"')
    assert "phase sharpen: phase.sharpen.task: no earlier phase" in errors(SMALL + PHASES + 'task = "@serch/x"')
    assert errors(SMALL.replace("prompts = 4", "promts = 2") + PHASES).count("has no field 'promts'") == 1
    assert errors(SMALL + PHASES + 'task = "@search/rows.jsonl"', notes) == ""
    assert notes[-1] == "  note: its inputs are checked when it starts: @search/rows.jsonl"


def test_a_phase_puts_no_adapter_on_the_adapter_of_an_earlier_one() -> None:
    data = read_toml(SMALL + PHASES)
    data["lora"] = data["phase"][1]["lora"] = {"rank": 2}
    (search, _), (sharpen, _) = (phase.recipe(lambda *_: "blank", UserCode()) for phase in read_phases(data))
    assert search and sharpen and search.lora and sharpen.lora
    last = read_phases(data)[1]
    (error,) = second_adapter(last, sharpen, {"search": search})
    assert "the model of phase search is already an adapter" in error.what
    assert second_adapter(last, sharpen, {"search": replace(search, lora=None)}) == []
    assert standing_in(last, sharpen).lora is None  # blank has no weights yet
    assert standing_in(last, replace(sharpen, model="calculator")).lora == sharpen.lora


def test_train_starts_nothing_if_a_later_phase_is_wrong(home: Path) -> None:
    Path("two.toml").write_text(SMALL + PHASES + 'task = "calculater"')
    assert main(["train", "two.toml"]) == 2
    assert not Path("runs").exists()


def test_directories_of_phases(home: Path) -> None:
    begun(home)
    assert runs_in(RUN) == [RUN] and whole_run(SEARCH) == RUN and whole_run(RUN) == RUN
    for text in ("phase = 3", "[[phase]]\nname = '../x'", "[[phase]]", "[", SMALL):
        (RUN / "recipe.toml").write_text(text)
        assert phase_directories(RUN) == () and whole_run(SEARCH) == SEARCH
