"""What is known of a task's data before a run: how much, which bytes, and what looks wrong with it."""

from dataclasses import dataclass
from hashlib import sha256
from json import dumps
from typing import Any

from groupwise.tasks.rows import SHOWN

__all__ = ["SourceStats"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStats:
    """One source of problems. `sha256` is of the problems and answers alone, in order: the same from JSONL and Parquet.

    `repeated` are the rows left out because an earlier one asks the same; in `told` the answer stands in the problem.
    """

    source: str
    sha256: str
    rows: int
    training: int
    held_out: int
    repeated: tuple[int, ...] = ()
    told: tuple[int, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """What a person should see, the warnings last."""
        used = [f"{n} {role}" for n, role in ((self.training, "to train on"), (self.held_out, "held out")) if n]
        first = f"data: {self.source}: {counted(self.rows, 'row')}, {', '.join(used)}, sha256 {self.sha256[:12]}"
        warnings = []
        if self.repeated:
            verb = "asks" if len(self.repeated) == 1 else "ask"
            warnings.append(f"{listed(self.repeated)} {verb} what an earlier row asks: left out")
        if self.told:
            warnings.append(f"the answer stands in the prompt of {listed(self.told)}")
        return (first, *(f"  warning: {warning}" for warning in warnings))

    @property
    def record(self) -> dict[str, Any]:
        """For run.json: row numbers are cut where there are many."""
        some = {"repeated": self.repeated, "answer_in_prompt": self.told}
        return {
            "source": self.source,
            "sha256": self.sha256,
            "rows": self.rows,
            "training": self.training,
            "held_out": self.held_out,
            **{name: {"count": len(rows), "rows": list(rows[:100])} for name, rows in some.items() if rows},
        }


class ContentHash:
    """The content hash of problems as they come."""

    def __init__(self) -> None:
        self._sum = sha256()

    def add(self, asked: Any, gold: Any) -> None:
        self._sum.update(dumps([asked, gold], sort_keys=True, ensure_ascii=True).encode() + b"\n")

    @property
    def digest(self) -> str:
        return self._sum.hexdigest()


def counted(n: int, thing: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{n} {thing}{'' if n == 1 else 's'}"


def listed(rows: tuple[int, ...]) -> str:
    """Rows by their numbers, the first few of them.

    >>> listed((4,)), listed((1, 2, 3, 5, 8, 13, 21))
    ('row 4', '7 rows (1, 2, 3, 5, 8 and 2 more)')
    """
    if len(rows) == 1:
        return f"row {rows[0]}"
    more = f" and {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""
    return f"{len(rows)} rows ({', '.join(map(str, rows[:SHOWN]))}{more})"


def stands_in(gold: Any, text: str) -> bool:
    """Whether a gold answer that is text or a number stands in a text as a word of its own.

    >>> stands_in(35, "7*5=35"), stands_in(3, "3.5 or 13"), stands_in("Rome", "Is it in Rome?")
    (True, False, True)
    """
    if isinstance(gold, bool) or not isinstance(gold, str | int | float):
        return False
    word, at = str(gold).strip(), -1
    while (at := text.find(word, at + 1)) >= 0:
        before, behind = text[max(at - 2, 0) : at], text[at + len(word) : at + len(word) + 2]
        inside = (before[-1:].isalnum() and word[0].isalnum()) or (behind[:1].isalnum() and word[-1].isalnum())
        cut = word[0].isdigit() and before[-1:] in (".", ",") and before[:1].isdigit()
        cut = cut or (word[-1].isdigit() and behind[:1] in (".", ",") and behind[1:].isdigit())
        if not inside and not cut:
            return True
    return False
