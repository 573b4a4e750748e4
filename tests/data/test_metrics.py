"""Tests of the table of metrics."""

from pathlib import Path

import pytest
from tools.metrics_page import metrics_table, with_table

from groupwise.data import INTERVALS, METRICS, QUESTIONS, find_metric, metric_bound


@pytest.mark.parametrize("name", METRICS)
def test_a_name_finds_its_own_metric(name: str) -> None:
    assert find_metric(name) is METRICS[name]


def test_a_placeholder_matches_any_text_and_an_exact_name_comes_first() -> None:
    declared = {"kl/teacher": "kl/<model>", "kl/teacher/k1": "kl/<model>/k1", "kl/k1": "kl/k1"}
    declared |= {"eval/counts/my.count": "eval/counts/<name>", "counts/calls": "counts/calls"}
    for name, entry in declared.items():
        assert find_metric(name) is METRICS[entry]
    assert find_metric("kl/") is None and find_metric("xkl/a") is None and find_metric("rewardx") is None


def test_every_question_is_answered() -> None:
    assert {metric.question for metric in METRICS.values()} == {"", *QUESTIONS}
    assert all(metric.meaning for metric in METRICS.values())
    assert all(name in METRICS for pair in INTERVALS.items() for name in (pair[0], *pair[1]))


def test_a_bound_is_asked_for_only_where_there_is_one() -> None:
    assert metric_bound("rollout/missing") == 0
    with pytest.raises(ValueError, match="the metric reward has no warning bound"):
        metric_bound("reward")


def test_the_notation_page_has_the_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "notation.md").read_text(encoding="utf-8")
    assert with_table(page) == page, "run: make docs"
    assert metrics_table() in page
