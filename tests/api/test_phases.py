"""Runs of phases from Python: the same runs as on the command line, with rows and rewards in memory."""

from pathlib import Path

import pytest

import groupwise as gw
from groupwise.__main__ import main
from groupwise.commands.train import resume as resume_command
from groupwise.core import BadData, Usage
from groupwise.lifecycle import run_phases as runner
from groupwise.runs.run_info import RunInfo
from groupwise.runs.run_layout import RunLayout
from tests.api.test_library import ROWS, changed_closure, constant, variety

RECIPE = """
prompts = 2
iterations = 1
sampling.max_tokens = 6
evaluate.problems = 2
save.every = 1
method = { base = "gspo", group_size = 2, minibatches = 1 }

[[phase]]
name = "search"

[[phase]]
name = "sharpen"
seed = 1
"""
MODEL = "model/model.safetensors"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "two.toml"
    path.write_text(RECIPE)
    return path


def test_phases_from_python_are_those_of_the_command_line(recipe: Path, tmp_path: Path) -> None:
    run = gw.train(recipe, out=tmp_path / "a", seed=3, **{"phase.1.iterations": 2})
    assert [phase.directory.name for phase in run.phases] == ["1-search", "2-sharpen"] and not run.stop_reason
    assert run.directory.name.startswith("two-") and [phase.done for phase in run.phases] == [1, 2]
    last = run.phases[-1]
    assert (run.metrics, run.samples(), run.model_dir) == (last.metrics, last.samples(), last.model_dir)
    assert (run.done, run.iterations, last.phases) == (2, 2, ()) and "sharpen" in run.report.path.read_text()
    assert RunInfo.read(RunLayout(last.directory)).command == "gw.train(...)"
    words = ["--out", str(tmp_path / "b"), "--seed", "3", "--phase.1.iterations", "2"]
    assert main(["train", str(recipe), *words]) == 0
    (other,) = (tmp_path / "b").iterdir()
    for phase in ("1-search", "2-sharpen"):
        assert (other / phase / MODEL).read_bytes() == (run.directory / phase / MODEL).read_bytes()
    assert gw.sample(run, "2*3+4=") == gw.sample(last, "2*3+4=")
    with pytest.raises(Usage, match=r"phases.*iterations"):
        gw.sample(run, "2*3+4=", at=1)
    with pytest.raises(Usage, match=r"phases.*iterations"):
        gw.resume(run, iterations=5)


def test_stopped_phases_resume_with_equal_bytes(recipe: Path, tmp_path: Path) -> None:
    """Rows and reward are files of the whole run. The callback gets the run of the phase."""
    seen: list[tuple[str, int]] = []

    def stop_in_the_second(run: gw.Run, line: dict) -> None:
        seen.append((run.directory.name, line["iteration"]))
        if run.directory.name == "2-sharpen":
            run.stop()

    given = {"data": ROWS, "reward": variety, "model": "calculator"}
    whole = gw.train(recipe, out=tmp_path / "a", **given)
    run = gw.train(recipe, out=tmp_path / "b", on_iteration=stop_in_the_second, **given)
    assert seen == [("1-search", 0), ("1-search", 1), ("2-sharpen", 0)] and run.stop_reason == "stopped by a callback"
    assert run.model_dir == run.phases[0].model_dir
    with pytest.raises(BadData, match="started with"):
        gw.resume(run, reward=constant)
    assert not gw.resume(run, reward=variety).stop_reason
    for name in ("1-search", "2-sharpen"):
        assert (whole.directory / name / MODEL).read_bytes() == (run.directory / name / MODEL).read_bytes()
    assert gw.resume(run.phases[1], reward=variety).done == 1  # a phase is a run, too


def test_phases_that_never_started_are_resumed(recipe: Path, tmp_path: Path, monkeypatch) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(runner, "build", killed)
        with pytest.raises(KeyboardInterrupt):
            gw.train(recipe, data=ROWS, reward=variety, out=tmp_path / "runs")
    (directory,) = (tmp_path / "runs").iterdir()
    with pytest.raises(BadData, match="started with"):
        gw.resume(directory, reward=constant)
    run = gw.resume(directory, reward=variety)
    assert run.done == 1 and RunInfo.read(RunLayout(run.phases[0].directory)).command == "gw.resume(...)"


def test_phases_with_a_reward_in_memory_continue_in_python(recipe: Path, tmp_path: Path) -> None:
    def stop(run: gw.Run, line: dict) -> None:
        run.stop()

    run = gw.train(recipe, data=ROWS, reward=changed_closure(), out=tmp_path, on_iteration=stop)
    assert run.stop_reason and [phase.directory.name for phase in run.phases] == ["1-search"]
    with pytest.raises(Usage, match="closure"):
        resume_command(str(run.directory))
    assert [phase.done for phase in gw.resume(run, reward=changed_closure()).phases] == [1, 1]


def test_a_wrong_later_phase_leaves_no_directory(recipe: Path, tmp_path: Path) -> None:
    with pytest.raises(Usage, match="phase sharpen"):
        gw.train(recipe, out=tmp_path / "runs", **{"phase.1.task": "calculater"})
    with pytest.raises(Usage, match="is called 'phases'"):
        gw.train(recipe, out=tmp_path / "runs", phases=[])
    assert not (tmp_path / "runs").exists()
