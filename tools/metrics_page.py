"""Write the table of metrics into docs/notation.md: `python -m tools.metrics_page docs/notation.md`."""

import re
import sys
from pathlib import Path

from groupwise.data import METRICS, QUESTIONS, Metric

BETWEEN = re.compile(r"(<!-- metrics -->\n).*?(<!-- /metrics -->)", re.DOTALL)


def metrics_table() -> str:
    """All metrics as Markdown, one table per question."""
    lines: list[str] = []
    for question in ("", *QUESTIONS):
        metrics = [metric for metric in METRICS.values() if metric.question == question]
        lines += [
            f"### {question or 'Counters'}",
            "",
            "| metric | meaning | better | warning above |",
            "|---|---|---|---|",
        ]
        lines += [*map(_row, metrics), ""]
    return "\n".join(lines)


def _row(metric: Metric) -> str:
    bound = "" if metric.warning_threshold is None else f"{metric.warning_threshold:g}"
    return f"| `{metric.name}` | {metric.meaning} | {metric.better} | {bound} |"


def with_table(page: str) -> str:
    """The page with the current table between its markers."""
    return BETWEEN.sub(lambda match: f"{match[1]}\n{metrics_table()}\n{match[2]}", page)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")
