"""The table of samples that trackers such as wandb receive. Its texts are data, never rendered as markup."""

import math
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from groupwise.core import visible

COLUMNS = ("prompt_id", "group", "prompt", "text", "outcome", "score", "reward", "advantage", "finish", "length")
"""The columns of the table of samples that trackers receive."""
TEXTS = ("prompt", "text")
SAMPLES, CHARACTERS = 16, 4000
"""The most samples of an iteration that a tracker receives, and the most characters of a text."""


@dataclass(frozen=True, slots=True)
class SampleTable:
    """Some samples, one row each. A model wrote the texts: a tracker must not render them as markup."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    @classmethod
    def of(cls, lines: Iterable[Mapping[str, Any]]) -> "SampleTable":
        """The first `SAMPLES` lines of samples/, with texts cut to `CHARACTERS`."""
        rows = (tuple(_cell(name, line.get(name)) for name in COLUMNS) for line in islice(lines, SAMPLES))
        return cls(COLUMNS, tuple(rows))

    @property
    def markdown(self) -> str:
        """Each sample as a code block: its other columns in a line, then the prompt and the answer."""
        blocks = []
        for row in self.rows:
            cells = dict(zip(self.columns, row))
            facts = "  ".join(f"{name}: {cell}" for name, cell in cells.items() if name not in TEXTS)
            blocks.append(code_block(f"{facts}\n{cells['prompt']}\n-> {cells['text']}"))
        return "\n\n---\n\n".join(blocks)


def _cell(name: str, value: Any) -> Any:
    """A table cell: text with visible control characters, a finite number, or None."""
    if isinstance(value, str):
        return visible(value[:CHARACTERS], lines=True) + "..." * (len(value) > CHARACTERS)
    finite = isinstance(value, int | float) and math.isfinite(value)
    return value if finite else "" if name in TEXTS else None


def code_block(text: str) -> str:
    """Text as a code block of Markdown, in which no markup is active.

    >>> code_block("# one\\n![two](three)")
    '    # one\\n    ![two](three)'
    """
    return textwrap.indent(text, " " * 4, lambda line: True)
