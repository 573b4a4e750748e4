"""Every metric that the sources name is a declared one: a name that no run writes would silently show nothing."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from groupwise.data import METRICS, find_metric, metric_definitions

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "tools", "studies", "benchmarks", "examples")
TABLE = Path(metric_definitions.__file__)
EARLIER = ROOT / "tools" / "compare_bits.py"
"""A tool with a table of the names of an earlier commit."""
FAMILIES = {name.partition("/")[0] for name in METRICS if "/" in name}
"""The first words of metrics with a slash; a text with such a beginning has the form of a metric's name."""
BEYOND = ("iteration", "step", "eval/pass@")
"""Columns of a line that every file of metrics has, and the begin of the names of pass@k."""
CONSTANTS = {
    value: name for name, value in vars(metric_definitions).items()
    if name in metric_definitions.__all__ and isinstance(value, str) and value in METRICS
}  # fmt: skip
ANY = "\0"
"""Stands for a placeholder of an f-string."""


def text_of(node: ast.AST) -> str | None:
    """A literal text, with ANY in place of an f-string's placeholders."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(x.value) if isinstance(x, ast.Constant) else ANY for x in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def is_named_like_a_metric(text: str) -> bool:
    """Whether a text begins as a metric with a slash does, and consists of the characters of names."""
    return text.partition("/")[0] in FAMILIES and "/" in text and re.fullmatch(r"[\w@<>=./\0]+", text) is not None


@cache
def is_a_metric(text: str) -> bool:
    """Whether a text is a metric, the beginning of metrics (`eval/`), or an f-string that gives metrics."""
    if find_metric(text.replace(ANY, "x")) or any(name.startswith(text.rstrip("/") + "/") for name in METRICS):
        return True
    pattern = re.escape(text).replace(re.escape(ANY), "[^/]+")
    return any(re.fullmatch(pattern, name) for name in METRICS)


def is_metrics(node: ast.AST) -> bool:
    """Whether an expression is called `metrics`, as `run.metrics` is."""
    return (node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")) == "metrics"


def named_metrics(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line and the text of each literal that names a metric: by its form, or by where it stands."""
    parts = {id(x) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for x in node.values}
    for node in ast.walk(tree):
        if (text := text_of(node)) is not None and id(node) not in parts and is_named_like_a_metric(text):
            yield node.lineno, text  # type: ignore[attr-defined]
        named: list[ast.expr] = []
        if isinstance(node, ast.Tuple | ast.List | ast.Set):  # beside a metric, all are metrics
            texts = [text for x in node.elts if (text := text_of(x))]
            if len(texts) == len(node.elts) and any("/" in text and text in METRICS for text in texts):
                named = node.elts
        elif isinstance(node, ast.keyword) and node.arg == "metric":
            named = [node.value]
        elif isinstance(node, ast.Subscript) and is_metrics(node.value):
            named = [node.slice]
        yield from ((x.lineno, text) for x in named if (text := text_of(x)))


@cache
def found_in_sources() -> list[tuple[Path, int, str]]:
    """Each source with the line and the text of each metric that it names."""
    sources = (p for folder in FOLDERS for p in sorted((ROOT / folder).rglob("*.py")) if p not in (TABLE, EARLIER))
    return [(p, line, text) for p in sources for line, text in named_metrics(ast.parse(p.read_text()))]


def test_every_metric_that_a_source_names_is_declared() -> None:
    found = found_in_sources()
    assert len(found) > 200
    wrong = {
        f"{p.relative_to(ROOT)}:{line} {text.replace(ANY, '{}')}"
        for p, line, text in found
        if text not in BEYOND and not is_a_metric(text)
    }
    assert not wrong


def test_a_metric_with_a_constant_is_written_by_it() -> None:
    """But for the values of methods, which a command reads without importing them, and types and their examples."""
    literal = []
    for p, line, text in found_in_sources():
        where = p.relative_to(ROOT).as_posix()
        if where.startswith("src/") and "/methods/" not in where and p.name not in ("recipe.py", "fields.py"):
            literal += [f"{where}:{line}: write {CONSTANTS[text]}"] if "/" in text and text in CONSTANTS else []
    assert not literal


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('SHOWN = ("reward", "eval/accuracy", "mean_length")', "mean_length"),
        ('x = ExpectedEffect(metric="accuracy")', "accuracy"),
        ('run.metrics["accuracy"]', "accuracy"),
        ('line["eval/acuracy"]', "eval/acuracy"),
        ('f"completions/mean_{kind}"', None),
        ('f"completion/{kind}"', None),
        ('f"groups/some_{kind}"', f"groups/some_{ANY}"),
        ('print("eval/ is a folder")', None),
    ],
)
def test_the_law_sees_a_name_that_is_no_metric(source: str, found: str | None) -> None:
    wrong = {text for _, text in named_metrics(ast.parse(source)) if not is_a_metric(text)}
    assert wrong == ({found} if found else set())
