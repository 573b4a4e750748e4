"""The directory for the weights: what an error says about it, and the room that it needs."""

import errno
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from groupwise.__main__ import main
from groupwise.core import Storage
from groupwise.engines import EngineAccess, Served, WeightsFilesDirectory, write_weights
from groupwise.engines.remote import fleet as fleets
from groupwise.engines.remote.weights_file import weights_errors
from groupwise.runs.atomic_writes import FileSystemOperations
from tests.engines.lines import weights
from tests.rollout.fakes import decoder
from tests.rollout.fakes import tokenizer as letters

SMALL = ["--iterations", "2", "--prompts", "2", "--method.group_size", "4", "--method.minibatches", "1",
         "--evaluate.problems", "1", "--sampling.max_tokens", "8"]  # fmt: skip


def test_a_missing_directory_is_named_with_the_setting(tmp_path: Path) -> None:
    with pytest.raises(Storage) as caught:
        WeightsFilesDirectory(tmp_path / "none")
    assert caught.value.fix == f"make the directory {tmp_path / 'none'}, or name another one: --engine-exchange DIR"


def test_another_failure_advises_to_make_the_directory_writable(tmp_path: Path) -> None:
    with pytest.raises(Storage) as caught, weights_errors(tmp_path):
        raise OSError(errno.EACCES, "Permission denied")
    assert caught.value.fix == f"make {tmp_path} writable, or name another one: --engine-exchange DIR"


class Full(FileSystemOperations):
    def sync(self, path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_directory_is_named_after_the_runs_own_is_gone(tmp_path: Path) -> None:
    exchange = WeightsFilesDirectory(tmp_path)
    with pytest.raises(Storage, match="weights for the engines") as caught:
        write_weights(exchange.path, 1, weights(decoder()), Full())
    assert f"({tmp_path}); " in caught.value.evidence and " MB needed" in caught.value.evidence
    assert caught.value.fix.startswith(f"free space in {tmp_path} for 2 copies") and "save.keep" not in caught.value.fix
    assert not [*exchange.path.iterdir()]


def test_two_copies_of_the_weights_must_fit_when_a_run_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = decoder(model_family="qwen3")
    size = sum(x.nbytes for x in model.state_dict().values())
    free = [2 * size - 1]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free[0]))
    served, access = Served(), EngineAccess(exchange_directory=str(tmp_path))
    with pytest.raises(Storage, match="do not fit") as caught:
        served.build(model, letters(), seed=0, experts=None, access=access)
    assert "2 copies of the weights" in caught.value.evidence and "--engine-exchange" in caught.value.fix
    free[0] += 1
    served.build(model, letters(), seed=0, experts=None, access=access)


def test_a_run_whose_weights_cannot_be_published_prints_how_to_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def write(directory: Path, version: int, *arguments: Any) -> Any:
        return write_weights(directory, version, *arguments, Full() if version else FileSystemOperations())

    monkeypatch.setattr(fleets, "write_weights", write)
    words = ["--engine", '{ kind = "Served", replicas = 1 }', "--engine-exchange", str(tmp_path)]
    assert main(["train", *SMALL, *words, "--out", str(tmp_path / "runs"), "--name", "full"]) == 6
    printed = capsys.readouterr().err
    (run,) = (tmp_path / "runs").iterdir()
    assert (
        f"continue from the last checkpoint: groupwise resume {run} --engine-exchange {tmp_path}\n" in printed
        and "repeat" not in printed
    )
