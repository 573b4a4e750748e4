"""Numbers that the parts and states of a method report."""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from groupwise.data import LARGEST_GAP, Batch, find_metric, notes
from groupwise.learner import StepResult
from groupwise.methods import Method
from groupwise.objective import MaskedImportance, Objective, SequenceTruncatedImportance, TruncatedImportance
from groupwise.training.iteration_records import iteration_metrics, method_metrics
from tests.laws.batches import step_of


def result(step: Batch) -> StepResult:
    return StepResult(batch=step, loss=0.0, grad_norm=1.0, grad_norm_clipped=1.0, learning_rate=1e-3)


def gapped(rho: list[float]) -> Batch:
    """A step of answers of two and one tokens with these ratios of learner to engine."""
    step = step_of([[2, 1]])
    return step.having(logp_engine=step.logp_old - torch.tensor(rho, dtype=torch.float64).log())


def test_the_gap_of_an_engine_whose_numbers_are_no_float32_is_the_learners() -> None:
    """Old log-probs that are the engine's have no gap to it. The gap is that of the first step's own log-probs."""
    step = step_of([[2, 1]])
    engine = step.logp_old - 1e-9
    step = step.having(logp_engine=engine, logp_old=engine.float(), logp=engine + 0.25)
    line = iteration_metrics(step, [result(step)], Objective())
    assert line[LARGEST_GAP] == pytest.approx(0.25)
    other = step.having(logp_old=engine.float() + 0.5)
    assert iteration_metrics(other, [result(other)], Objective())[LARGEST_GAP] == pytest.approx(0.5)


@dataclass(frozen=True)
class Noted:
    """A user's shaping that reports the largest reward."""

    def __call__(self, reward: Tensor, batch: Batch) -> Tensor:
        return reward

    def notes(self, batch: Batch) -> Mapping[str, float]:
        return {"largest": float(batch.verdict_score.max())}


def test_weights_report_what_they_cut() -> None:
    step = gapped([3.0, 1.0, 0.1])
    assert notes(TruncatedImportance(2.0), step) == {"method/TruncatedImportance/truncated": pytest.approx(1 / 3)}
    assert notes(SequenceTruncatedImportance(2.0), step) == {"method/SequenceTruncatedImportance/truncated": 0.5}
    assert notes(MaskedImportance(0.5, 2.0), step) == {"method/MaskedImportance/masked": pytest.approx(2 / 3)}
    empty = step.take([])
    assert set(notes(TruncatedImportance(2.0), empty).values()) == {0.0}


def test_an_iteration_reports_notes_over_all_steps_and_the_numbers_of_states() -> None:
    method = Method(shaping=(Noted(),), objective=Objective(weights=(TruncatedImportance(2.0),)))
    steps = [result(gapped([3.0, 1.0, 0.1])), result(gapped([1.0, 1.0, 1.0]))]
    metrics = method_metrics(method, {"kl": 0.25, "state": {"n": 3, "names": ["a"]}, "table": [1.0]}, steps)
    assert metrics["state/kl"] == 0.25 and metrics["state/state/n"] == 3.0
    assert metrics["method/TruncatedImportance/truncated"] == pytest.approx(1 / 6)
    assert "method/Noted/largest" in metrics and len(metrics) == 4
    assert all(find_metric(name) is not None for name in metrics)
    assert method_metrics(Method(), {}, steps) == {}
