"""Changes to a stopped run or to its model: `resume` names them before it computes."""

import json
import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from groupwise.__main__ import main
from groupwise.api.options import RunOptions
from groupwise.commands.train import resume
from groupwise.core import BadData, Locked, Storage
from groupwise.models import find_model
from groupwise.report.report import existing_run
from groupwise.runs.checkpoints import RunLock, newest_checkpoint, run_directory, save_checkpoint
from groupwise.runs.open_run import start_run
from groupwise.runs.run_info import RunInfo
from groupwise.runs.run_layout import RunLayout
from groupwise.training.build_run import RunObjects
from tests.faults.small_runs import EVERY, Quick, begun, forked, left, lines, ran
from tests.faults.test_store_kills import Counting, Dying, killed, moments
from tests.runs.infos import INFO

ONE = replace(EVERY, iterations=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(find_model("calculator"), tmp_path_factory.mktemp("model") / "model"))


@pytest.fixture(scope="module")
def finished(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ran(tmp_path_factory.mktemp("changed") / "run", replace(ONE, model=str(model)))


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of a run of one iteration."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def altered(model: Path) -> Iterator[Path]:
    """The directory of the run's model, restored after the test."""
    before = {path: path.read_bytes() for path in model.iterdir() if path.is_file()}
    yield model
    for path in model.iterdir():
        path.unlink()
    for path, data in before.items():
        path.write_bytes(data)


def contents(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def substitute(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, old
    path.write_text(text.replace(old, new))


# The recipe


def test_a_changed_recipe_is_refused_and_accepted_with_changed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    substitute(run / "recipe.toml", "lr = 0.0003", "lr = 0.002")
    substitute(run / "recipe.toml", "iterations = 1", "iterations = 2")
    before = contents(run)
    assert main(["resume", str(run)]) == 3
    message = capsys.readouterr().err
    assert "recipe.optimizer.lr: 0.0003 -> 0.002" in message and "recipe.iterations: 1 -> 2" in message
    assert f"groupwise resume {run} --changed" in message
    assert {name: data for name, data in contents(run).items() if name != "lock"} == {
        name: data for name, data in before.items() if name != "lock"
    }
    assert main(["resume", str(run), "--changed"]) == 0
    newest = newest_checkpoint(RunLayout(run), strict=True)
    assert newest and newest.iteration == 2 and len(lines(run)) == 3
    change = {"iteration": 1, "changes": ["recipe.iterations: 1 -> 2", "recipe.optimizer.lr: 0.0003 -> 0.002"]}
    assert newest.state["changes"] == list(RunInfo.read(RunLayout(run)).changes) == [change]
    assert RunInfo.read(RunLayout(run)).iterations == 2
    assert resume(str(run)) == 0  # an accepted change is not reported again


def test_how_often_a_run_saves_may_change(run: Path) -> None:
    substitute(run / "recipe.toml", "keep = 2", "keep = 1")
    assert resume(str(run)) == 0 and RunInfo.read(RunLayout(run)).changes == ()


def test_a_recipe_that_no_longer_fits_its_checkpoint(run: Path) -> None:
    substitute(run / "recipe.toml", 'reference = "InitialPolicy"', 'other = "InitialPolicy"')
    substitute(run / "recipe.toml", 'model = "reference"', 'model = "other"')
    with pytest.raises(BadData, match="does not fit its changed recipe"):
        resume(str(run), RunOptions(accept_changes=True))


# The model's files


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja"])
def test_a_changed_tokenizer_or_template_is_refused(name: str, run: Path, altered: Path) -> None:
    text = (altered / name).read_text() if (altered / name).exists() else "{{ messages }}"
    if name == "tokenizer.json":
        three, seven = (json.dumps(json.loads(text)["model"]["vocab"][digit]) for digit in "37")
        text = text.replace(f'"3": {three}', f'"3": {seven}').replace(f'"7": {seven}', f'"7": {three}')
    (altered / name).write_text(text + "\n")
    with pytest.raises(BadData, match="were changed after its checkpoint") as error:
        resume(str(run))
    assert f"files.{name}: " in error.value.evidence


# Logs and samples


def test_a_flipped_digit_in_the_metrics_is_found(run: Path) -> None:
    substitute(run / "metrics.jsonl", '"iteration": 1', '"iteration": 3')
    with pytest.raises(Storage, match=r"metrics\.jsonl was changed after checkpoint 1 was saved") as error:
        resume(str(run))
    assert "lines 1 to 2" in error.value.evidence
    assert resume(str(run), RunOptions(accept_changes=True)) == 0
    assert "metrics.jsonl: SHA-256" in str(list(RunInfo.read(RunLayout(run)).changes))


def test_a_broken_line_is_found_before_training(run: Path) -> None:
    substitute(run / "metrics.jsonl", '{"iteration": 1', '{"iteration" 1')
    with pytest.raises(Storage, match=r"line 2 of .*metrics\.jsonl is damaged"):
        resume(str(run))


@pytest.mark.parametrize("name", ["000001.jsonl", "000001.safetensors"])
def test_a_changed_sample_is_named(name: str, run: Path) -> None:
    path = run / "samples" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(Storage, match=f"{name} was changed after it was written"):
        resume(str(run))


def test_missing_samples_are_reported_and_missing_timings_are_not_needed(
    run: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(run / "samples")
    (run / "timings.jsonl").write_bytes((run / "timings.jsonl").read_bytes()[:-9])
    assert resume(str(run)) == 0
    assert "2 of 2 files of samples/ are missing: samples/000001.jsonl" in capsys.readouterr().err
    assert len((run / "timings.jsonl").read_bytes().splitlines()) == 1
    (run / "timings.jsonl").unlink()
    assert resume(str(run)) == 0
    assert (run / "metrics.jsonl").read_bytes() == (finished / "metrics.jsonl").read_bytes()


def test_sha256sum_checks_the_samples_of_a_run(finished: Path) -> None:
    assert os.system(f"cd {finished} && sha256sum --check --status samples.sha256") == 0


# The start and the end of a run


def test_a_start_killed_at_any_operation_leaves_a_run_or_an_empty_directory(tmp_path: Path) -> None:
    def start(run: Path, disk: Any) -> None:
        with RunLock(RunLayout(run)) as lock:
            start_run(lock, INFO, "seed = 0\n", disk=disk)

    (tmp_path / "count").mkdir()
    start(tmp_path / "count", counting := Counting())
    outcomes = set()
    for number, moment in moments(counting.names):
        run = tmp_path / f"{number}-{moment}"
        run.mkdir()
        assert killed(lambda run=run, n=number, m=moment: start(run, Dying(n, m)))
        try:
            assert RunInfo.read(existing_run(str(run))) == INFO
            assert (run / "recipe.toml").read_text() == "seed = 0\n"
            outcomes.add("a run")
        except BadData as error:
            assert "is empty" in error.what and error.code == 3
            outcomes.add("empty")
    assert outcomes == {"a run", "empty"}


def test_another_directory_is_not_an_empty_run(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(BadData, match="is not a run"):
        existing_run(str(tmp_path))


@pytest.mark.parametrize("again", [False, True], ids=["first", "again"])
def test_a_killed_write_leaves_no_half_model(again: bool, run: Path, finished: Path) -> None:
    if not again:
        shutil.rmtree(run / "model")

    def die() -> int:
        write = RunObjects.write

        def half(objects: RunObjects, path: Path, weights: Mapping[str, Tensor] | None = None) -> None:
            write(objects, path, weights)
            (path / "model.safetensors").write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)

        RunObjects.write = half  # type: ignore[method-assign]
        return resume(str(run))

    assert forked(die, run.with_suffix(".log")) == -signal.SIGKILL
    assert (run / "model").exists() == again and list(run.glob(".writing-*"))
    if again:
        assert contents(run / "model") == contents(finished / "model")
    assert resume(str(run)) == 0
    assert left(run) == left(finished)
    assert not list(run.rglob(".*"))


def test_the_error_of_a_failed_start_does_not_advise_resume(tmp_path: Path) -> None:
    class ReadOnly(Quick):
        def mkdir(self, path: Path) -> None:
            raise OSError(30, os.strerror(30), str(path))

        def write(self, path: Path, data: bytes) -> None:
            self.mkdir(path)

    with pytest.raises(Storage) as refusal:
        run_directory(tmp_path, "x", disk=ReadOnly())
    assert "resume" not in refusal.value.fix and "repeat the command" in refusal.value.fix
    with RunLock(RunLayout(tmp_path)) as lock, pytest.raises(Storage) as refusal:
        start_run(lock, INFO, "", disk=ReadOnly())
    assert "resume" not in refusal.value.fix
    run = begun(tmp_path / "run", ONE)
    with pytest.raises(Storage) as refusal:
        save_checkpoint(RunLayout(run), 1, {}, {}, keep=1, disk=ReadOnly())
    assert f"groupwise resume {run}" in refusal.value.fix


def test_a_lock_deleted_by_hand_still_holds(tmp_path: Path) -> None:
    with RunLock(RunLayout(tmp_path)):
        (tmp_path / "lock").unlink()
        with pytest.raises(Locked):
            RunLock(RunLayout(tmp_path))
    RunLock(RunLayout(tmp_path)).close()
