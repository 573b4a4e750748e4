"""How often a verifier errs: its verdicts on answers that a reader has decided, and on the same written otherwise."""

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from time import perf_counter
from typing import Any

from groupwise.data import BadData, GroupwiseError, Outcome, Prompt, Sample, Verdict, Verifier

SHOWN = 5
LONGEST_CALL = 60.0
"""Seconds that one verdict is waited for."""
_FORM = """\
one JSON object a row, such as {"answer": "so \\\\boxed{4}", "gold": "4", "right": true};
"prompt" and "family" may stand there too"""


@dataclass(frozen=True, slots=True)
class Case:
    """An answer, the gold answer, and whether a reader calls it right."""

    answer: str
    gold: Any
    right: bool
    family: str = ""
    prompt: str = ""


@dataclass(frozen=True, slots=True)
class Judged:
    """What a verifier said of every case, and how long it took."""

    cases: tuple[Case, ...]
    verdicts: tuple[Verdict, ...]
    seconds: tuple[float, ...]

    def having(self, right: bool, *said: Outcome) -> list[tuple[Case, Verdict]]:
        """The right (or wrong) cases of which one of these was said."""
        pairs = zip(self.cases, self.verdicts, strict=True)
        return [(c, v) for c, v in pairs if c.right is right and v.outcome in said]

    @property
    def false_accepts(self) -> list[tuple[Case, Verdict]]:
        return self.having(False, Outcome.correct)

    @property
    def false_rejects(self) -> list[tuple[Case, Verdict]]:
        return self.having(True, Outcome.wrong, Outcome.malformed, Outcome.unverifiable)

    def latency(self, share: float) -> float:
        """The quantile of the seconds that a verdict took."""
        return sorted(self.seconds)[min(len(self.seconds) - 1, int(share * len(self.seconds)))]


def packaged_cases(name: str) -> tuple[Case, ...] | None:
    """The table of cases that comes with a verifier; None where there is none."""
    table = files("groupwise.verifiers") / "cases" / f"{name}.jsonl"
    return _cases(table.read_text("utf-8"), f"{name}.jsonl") if table.is_file() else None


def read_cases(path: str | Path) -> tuple[Case, ...]:
    """One's own cases; `BadData` names every row that is none."""
    try:
        return _cases(Path(path).read_text("utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise BadData(f"{path} cannot be read", evidence=str(error), fix=f"give a JSONL file: {_FORM}") from None


def _cases(text: str, name: str) -> tuple[Case, ...]:
    cases, faults = [], []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("not an object")
            if strange := (row.keys() ^ {"answer", "gold", "right"}) - {"family", "prompt"}:
                kind = "an unknown field" if min(strange) in row else "no field"
                raise ValueError(f"{kind} {min(strange)!r}")
            if type(row["right"]) is not bool or not isinstance(row["answer"], str):
                raise ValueError("answer is text, and right is true or false")
            cases.append(Case(**row))
        except (ValueError, RecursionError) as error:
            faults.append(f"row {number}: {error}")
    if faults or not cases:
        seen = [*faults[:SHOWN], *[f"and {len(faults) - SHOWN} more"] * (len(faults) > SHOWN)]
        raise BadData(f"{name}: {len(faults)} rows are no cases", evidence="\n".join(seen), fix=_FORM)
    return tuple(cases)


async def judge(verifier: Verifier, cases: Sequence[Case]) -> Judged:
    """The verifier's verdicts, one case after the other, so that the time of each is its own.

    The first case is asked once before: what starts at the first call is no part of any latency.
    """
    verdicts, seconds = [], []
    await _asked(verifier, cases[0])
    for case in cases:
        start = perf_counter()
        verdicts.append(await _asked(verifier, case))
        seconds.append(perf_counter() - start)
    return Judged(tuple(cases), tuple(verdicts), tuple(seconds))


async def _asked(verifier: Verifier, case: Case) -> Verdict:
    prompt = Prompt("audit", (), case.prompt, {"answer": case.gold})
    try:
        said = await asyncio.wait_for(verifier(prompt, Sample(context=(), stream=(0,), text=case.answer)), LONGEST_CALL)
        if isinstance(said, Verdict):
            return said
        return Verdict(Outcome.unverifiable, cause=f"it returned {type(said).__name__}, which is no Verdict")
    except GroupwiseError:
        raise
    except Exception as error:
        return Verdict(Outcome.unverifiable, cause=f"{type(error).__name__}: {error}")


# The same answer, written otherwise

_BOX = re.compile(r"\\boxed\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}")
_FRACTION = re.compile(r"\\frac\{(\d+)\}\{(\d+)\}")


def _in_box(form: str, unless: str = "(?!)") -> Callable[[str], str]:
    """What stands in every box put into a form, unless it matches."""

    def inside(box: re.Match[str]) -> str:
        return box[0] if re.search(unless, box[1]) else r"\boxed{" + form.replace("@", box[1]) + "}"

    return lambda text: _BOX.sub(inside, text)


def _doubled(text: str) -> str:
    def twice(fraction: re.Match[str]) -> str:
        return rf"\frac{{{2 * int(fraction[1])}}}{{{2 * int(fraction[2])}}}"

    return _BOX.sub(lambda box: _FRACTION.sub(twice, box[0]), text)


def _after_a_sentence(text: str) -> str:
    return f"Let us go through this step by step.\n\n{text}"


CHANGES: Mapping[str, Callable[[str], str]] = {
    "blank lines around it": lambda text: f"\n\n{text}\n\n",
    "Windows line ends": lambda text: text.replace("\n", "\r\n"),
    "a sentence before it": _after_a_sentence,
    "the box in bold": lambda text: _BOX.sub(lambda m: f"**{m[0]}**", text),
    "blanks in the box": _in_box(" @ "),
    "a full stop in the box": _in_box("@.", unless=r"\.$"),
    r"\text{} in the box": _in_box(r"\text{@}", unless="[^A-Za-z0-9]|^$"),
    "dollars in the box": _in_box("$@$"),
    "fractions not reduced": _doubled,
}
"""Changes of the writing that change no answer. One that leaves every text as it is, is not asked."""


AROUND = ("blank lines around it", "Windows line ends")
OF_WHOLE_TEXTS = {"text": AROUND, "format": AROUND, "json_schema": AROUND, "regex": ()}
"""What changes no answer where the whole text is the answer; to a pattern every character counts."""


async def changed(
    verifier: Verifier, judged: Judged, names: Sequence[str] = tuple(CHANGES)
) -> dict[str, tuple[int, int]]:
    """For each of these changes: of how many answers it changes the text, and of how many of these the verdict."""
    found = {}
    for name in names:
        change = CHANGES[name]
        both = [(c, v, change(c.answer)) for c, v in zip(judged.cases, judged.verdicts, strict=True)]
        both = [(c, v, text) for c, v, text in both if text != c.answer]
        verdicts = [await _asked(verifier, Case(text, c.gold, c.right, c.family, c.prompt)) for c, _, text in both]
        flips = sum((new.value == 1) != (old.value == 1) for (_, old, _), new in zip(both, verdicts, strict=True))
        if both:
            found[name] = (len(both), flips)
    return found
