"""Tests of the charts and tiles of the report page against the table of metrics."""

import re
from collections import Counter
from dataclasses import fields

from groupwise.data import METRICS, QUESTIONS
from groupwise.report.charts import CHARTS, TILES, Chart, MetricTile, charts_data
from groupwise.report.report import PAGE, SCRIPTS
from groupwise.report.run_warnings import RULES


def test_charts_tiles_and_rules_use_declared_metrics() -> None:
    ends = [name for chart in CHARTS for pair in chart.interval_metrics.values() for name in pair]
    flags = [flag for chart in CHARTS for flag in chart.flag_notes]
    lines = [name for chart in CHARTS for name in chart.metric_labels]
    rules = [name for rule in RULES.values() for name in rule.needed_metrics]
    tiles = [name for tile in TILES for name in tile.metric_choices]
    assert {*ends, *flags, *lines, *rules, *tiles} <= METRICS.keys()


DEFINED = re.compile(r"^(?:function|const|let|class) (\w+)", re.MULTILINE)


def test_a_metric_has_one_chart_and_a_chart_one_question() -> None:
    assert max(Counter(name for chart in CHARTS for name in chart.metric_labels).values()) == 1
    for chart in CHARTS:
        assert {METRICS[name].question for name in chart.metric_labels} == {chart.question}, chart.title
    assert {chart.question for chart in CHARTS} == set(QUESTIONS)


def test_charts_are_in_the_order_of_their_questions() -> None:
    order = [QUESTIONS.index(chart["question"]) for chart in charts_data([])["charts"]]
    assert order == sorted(order)


def test_the_page_gets_the_meaning_of_its_metrics() -> None:
    metrics = charts_data(["reward", "kl/teacher", "unknown"])["metrics"]
    assert metrics["reward"] == {"meaning": METRICS["reward"].meaning, "better": "higher"}
    assert metrics.keys() == {"reward", "kl/teacher"}


def test_the_page_s_scripts_name_no_metric() -> None:
    """Metric names reach the page as data. A script with a literal name would miss a renamed metric."""
    for script in SCRIPTS[1:]:
        literals = re.findall(r"""["'`]([^"'`\n]*)["'`]""", (PAGE / script).read_text(encoding="utf-8"))
        assert not {name for name in literals if name in METRICS and (("/" in name) or ("_" in name))}, script


def test_no_two_scripts_define_a_name() -> None:
    """They share one scope: a second function of a name replaces the first without an error."""
    names = [name for script in SCRIPTS[1:] for name in DEFINED.findall((PAGE / script).read_text(encoding="utf-8"))]
    assert len(names) > 50 and [name for name, count in Counter(names).items() if count > 1] == []


def test_the_script_reads_each_field_of_charts_and_tiles() -> None:
    """The script of the page is no Python: no other check sees that a field has another name there."""
    source = "\n".join((PAGE / name).read_text() for name in SCRIPTS)
    tile = re.search(r"DATA\.tiles\.map\(\(\{ ([\w, ]+) \}\)", source)
    assert tile is not None and set(tile[1].split(", ")) == {field.name for field in fields(MetricTile)}
    of_scripts = {"question", "stack"}  # added to a chart's fields, and a setting of a chart that the script makes
    assert set(re.findall(r"spec\.(\w+)", source)) == {field.name for field in fields(Chart)} | of_scripts
