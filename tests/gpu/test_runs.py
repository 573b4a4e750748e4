"""Whole runs on a CUDA device: five iterations, and the same after a stop. `make test-gpu`."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from groupwise.config.recipe import Machine
from groupwise.data import Sampling
from groupwise.runs.checkpoints import newest_checkpoint
from groupwise.runs.run_layout import RunLayout
from tests.faults.small_runs import EVERY, lines, ran

FIVE = replace(EVERY, iterations=5, sampling=Sampling(max_tokens=10))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_run_on_the_gpu_has_the_metrics_of_the_cpu(gpu: torch.device, tmp_path: Path, dtype: str) -> None:
    short = replace(FIVE, iterations=2)
    here = lines(ran(tmp_path / "cpu", replace(short, machine=Machine(device="cpu", dtype=dtype))))
    there = lines(ran(tmp_path / "gpu", replace(short, machine=Machine(device="cuda", dtype=dtype))))
    tolerance = {"float64": 1e-7, "float32": 1e-2}[dtype]
    assert there == [pytest.approx(line, rel=tolerance, abs=tolerance) for line in here]


def test_five_iterations_and_the_same_after_a_stop(gpu: torch.device, tmp_path: Path) -> None:
    """In bfloat16, with paged decoding. A resumed run continues; its numbers are compared up to rounding."""
    whole = ran(tmp_path / "whole", FIVE)
    assert len(lines(whole)) == 6 and lines(whole)[-1]["entropy"] > 0.05
    again = Path(shutil.copytree(whole, tmp_path / "again"))
    shutil.rmtree(again / "model")
    shutil.rmtree(again / "checkpoints" / "000005")
    checkpoint = newest_checkpoint(RunLayout(again), strict=True)
    assert checkpoint and checkpoint.state["done"] < 5
    metrics = lines(ran(again, FIVE))
    assert [line["iteration"] for line in metrics] == list(range(6))
    assert metrics[-1]["reward/mean"] == pytest.approx(lines(whole)[-1]["reward/mean"], abs=0.2)
