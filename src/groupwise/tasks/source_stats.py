"""Statistics of a task's data: row counts, a content hash, and warnings about repeated or leaking rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from json import dumps
from types import MappingProxyType
from typing import Any

from groupwise.core import counted, first_items
from groupwise.tasks.read_rows import SHOWN

__all__ = ["SourceStats"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStats:
    """Statistics of one source of data rows. `sha256` covers problems, answers and other columns, in any file format.

    `repeated_rows`: rows that were left out because an earlier row has the same problem. `too_long_rows`: rows that
    were left out because their prompt has more tokens than the recipe's `max_prompt_tokens`. `answer_in_prompt_rows`:
    rows whose prompt contains the answer. `omitted_columns`: columns that are not in the prompts' `row`, since they are
    too long or not plain JSON.
    """

    source: str
    sha256: str
    row_count: int
    training_count: int
    held_out_count: int
    repeated_rows: tuple[int, ...] = ()
    too_long_rows: tuple[int, ...] = ()
    answer_in_prompt_rows: tuple[int, ...] = ()
    omitted_columns: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """Lines for the terminal: one summary of the rows, then warnings."""
        counts = [
            f"{n:,} {role}"
            for n, role in ((self.training_count, "to train on"), (self.held_out_count, "held out"))
            if n
        ]
        summary = (
            f"data: {self.source}: {counted(self.row_count, 'row')}, {', '.join(counts)}, sha256 {self.sha256[:12]}"
        )
        warnings = []
        if self.repeated_rows:
            verb = "repeats" if len(self.repeated_rows) == 1 else "repeat"
            warnings.append(f"{listed(self.repeated_rows)} {verb} the problem of an earlier row: left out")
        if self.too_long_rows:
            verb = "has" if len(self.too_long_rows) == 1 else "have"
            warnings.append(f"{listed(self.too_long_rows)} {verb} more prompt tokens than max_prompt_tokens: left out")
        if self.answer_in_prompt_rows:
            warnings.append(f"the prompt contains the answer in {listed(self.answer_in_prompt_rows)}")
        if self.omitted_columns:
            names = ", ".join(self.omitted_columns[:SHOWN]) + ", ..." * (len(self.omitted_columns) > SHOWN)
            warnings.append(f"not in the prompts' rows, since too long or not plain JSON: {names}")
        return (summary, *(f"  warning: {warning}" for warning in warnings))

    @property
    def record(self) -> dict[str, Any]:
        """The statistics as an entry of run.json; lists of rows are cut after 100."""
        warnings = {
            "repeated": self.repeated_rows,
            "too_long": self.too_long_rows,
            "answer_in_prompt": self.answer_in_prompt_rows,
        }
        return {
            "source": self.source,
            "sha256": self.sha256,
            "rows": self.row_count,
            "training": self.training_count,
            "held_out": self.held_out_count,
            **{name: {"count": len(rows), "rows": list(rows[:100])} for name, rows in warnings.items() if rows},
        }


class ContentHash:
    """The running SHA-256 of problems, gold answers and other columns."""

    def __init__(self) -> None:
        self._hash = sha256()

    def add(self, problem: Any, gold: Any, extra: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Adds one problem to the hash. Without other columns, the hash is that of problem and answer."""
        content = [problem, gold, dict(extra)] if extra else [problem, gold]
        self._hash.update(dumps(content, sort_keys=True, ensure_ascii=True).encode() + b"\n")

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()


def listed(rows: tuple[int, ...]) -> str:
    """Row numbers as text; of a long list, only the first few.

    >>> listed((4,)), listed((1, 2, 3, 5, 8, 13, 21))
    ('row 4', '7 rows (1, 2, 3, 5, 8 and 2 more)')
    """
    if len(rows) == 1:
        return f"row {rows[0]}"
    return f"{len(rows)} rows ({first_items(rows)})"


def contains_answer(text: str, gold: Any) -> bool:
    """Whether a text contains a gold answer (text or number) as a separate word.

    >>> contains_answer("7*5=35", 35), contains_answer("3.5 or 13", 3), contains_answer("Is it in Rome?", "Rome")
    (True, False, True)
    """
    if isinstance(gold, bool) or not isinstance(gold, str | int | float):
        return False
    word, i = str(gold).strip(), -1
    while (i := text.find(word, i + 1)) >= 0:
        before, after = text[max(i - 2, 0) : i], text[i + len(word) : i + len(word) + 2]
        in_word = (before[-1:].isalnum() and word[0].isalnum()) or (after[:1].isalnum() and word[-1].isalnum())
        in_number = word[0].isdigit() and before[-1:] in (".", ",") and before[:1].isdigit()
        in_number = in_number or (word[-1].isdigit() and after[:1] in (".", ",") and after[1:].isdigit())
        if not in_word and not in_number:
            return True
    return False
