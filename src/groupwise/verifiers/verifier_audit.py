"""Measures a verifier's error rates on labelled answers, and on the same answers in another notation."""

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from groupwise.core import BadData, first_lines, or_near
from groupwise.core.errors import ends_run
from groupwise.data import Outcome, Prompt, Sample, Verdict, Verifier
from groupwise.verifiers.formats import JsonSchema, Regex, TagFormat
from groupwise.verifiers.text import Text

DEADLINE = 60.0
"""The deadline, in seconds, for one verdict."""
_FORM = """\
one JSON object per line, such as {"answer": "so \\\\boxed{4}", "gold": "4", "right": true};
"prompt" and "family" are optional"""


@dataclass(frozen=True, slots=True)
class LabelledCase:
    """A labelled test case of a verifier: an answer, the gold answer, and whether the answer is right."""

    answer: str
    gold: Any
    right: bool
    family: str = ""
    prompt: str = ""


@dataclass(frozen=True, slots=True)
class AuditResult:
    """A verifier's verdict on each labelled case, and the seconds of each call."""

    cases: tuple[LabelledCase, ...]
    verdicts: tuple[Verdict, ...]
    seconds_per_call: tuple[float, ...]

    def select(self, right: bool, *outcomes: Outcome) -> list[tuple[LabelledCase, Verdict]]:
        """The cases whose label equals `right` and whose verdict has one of these outcomes, with their verdicts."""
        pairs = zip(self.cases, self.verdicts, strict=True)
        return [(c, v) for c, v in pairs if c.right is right and v.outcome in outcomes]

    @property
    def false_accepts(self) -> list[tuple[LabelledCase, Verdict]]:
        """The cases labelled wrong that the verifier accepts, with their verdicts."""
        return self.select(False, Outcome.correct)

    @property
    def false_rejects(self) -> list[tuple[LabelledCase, Verdict]]:
        """The cases labelled right that the verifier rejects or cannot judge, with their verdicts."""
        return self.select(True, Outcome.wrong, Outcome.malformed, Outcome.unverifiable)

    def latency(self, share: float) -> float:
        """The quantile `share`, from 0 to 1, of the seconds per verdict."""
        return sorted(self.seconds_per_call)[
            min(len(self.seconds_per_call) - 1, int(share * len(self.seconds_per_call)))
        ]


def packaged_cases(name: str) -> tuple[LabelledCase, ...] | None:
    """The labelled cases for a verifier that are part of the package; None if there are none."""
    table = Path(__file__).parent / "cases" / f"{name}.jsonl"
    return _cases(table.read_text("utf-8"), f"{name}.jsonl") if table.is_file() else None


def read_cases(path: str | Path) -> tuple[LabelledCase, ...]:
    """Read labelled cases from a JSONL file. `BadData`, with the first faults, if a row is invalid."""
    try:
        return _cases(Path(path).read_text("utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        fix = f"give a JSONL file: {_FORM}"
        fix = or_near(path, fix) if isinstance(error, FileNotFoundError) else fix
        raise BadData(f"{path} cannot be read", evidence=str(error), fix=fix) from None


def _cases(text: str, name: str) -> tuple[LabelledCase, ...]:
    cases, faults = [], []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("the line is not a JSON object")
            if differences := (row.keys() ^ {"answer", "gold", "right"}) - {"family", "prompt"}:
                kind = "an unknown field" if min(differences) in row else "no field"
                raise ValueError(f"{kind} {min(differences)!r}")
            if type(row["right"]) is not bool or not isinstance(row["answer"], str):
                raise ValueError("answer must be text, and right must be true or false")
            cases.append(LabelledCase(**row))
        except (ValueError, RecursionError) as error:
            faults.append(f"row {number}: {error}")
    if not faults and not cases:
        raise BadData(f"{name} has no cases", fix=_FORM)
    if faults:
        raise BadData(f"{name}: {len(faults)} rows are not valid cases", evidence=first_lines(faults), fix=_FORM)
    return tuple(cases)


async def audit_cases(verifier: Verifier, cases: Sequence[LabelledCase]) -> AuditResult:
    """Verify the labelled cases one at a time, so that each latency is that of a single verdict.

    An additional first call keeps the start of worker processes out of the latencies.
    """
    verdicts, seconds = [], []
    await _verdict(verifier, cases[0])
    for case in cases:
        start = perf_counter()
        verdicts.append(await _verdict(verifier, case))
        seconds.append(perf_counter() - start)
    return AuditResult(tuple(cases), tuple(verdicts), tuple(seconds))


async def _verdict(verifier: Verifier, case: LabelledCase) -> Verdict:
    prompt = Prompt("audit", (), case.prompt, {"answer": case.gold})
    sample = Sample(context=(), stream=(0,), text=case.answer)
    try:
        verdict = await asyncio.wait_for(verifier(prompt, sample), DEADLINE)
        if isinstance(verdict, Verdict):
            return verdict
        return Verdict(Outcome.unverifiable, cause=f"it returned {type(verdict).__name__}: expected a Verdict")
    except Exception as error:
        if ends_run(error):
            raise
        return Verdict(Outcome.unverifiable, cause=f"{type(error).__name__}: {error}")


# The same answer in another notation

_BOX = re.compile(r"\\boxed\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}")
_FRACTION = re.compile(r"\\frac\{(\d+)\}\{(\d+)\}")


def _in_box(form: str, unless: str = "(?!)") -> Callable[[str], str]:
    """A function that rewrites each box as `form`, where `@` is the old content, unless that matches `unless`."""

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
"""Harmless changes of an answer's notation: the verdict should stay the same."""


AROUND = ("blank lines around it", "Windows line ends")
OF_WHOLE_TEXTS: Mapping[type, tuple[str, ...]] = {Text: AROUND, TagFormat: AROUND, JsonSchema: AROUND, Regex: ()}
"""Which of CHANGES are harmless for verifiers that compare the whole text: `Regex` allows none."""


async def count_flips(
    verifier: Verifier, result: AuditResult, names: Sequence[str] = tuple(CHANGES)
) -> dict[str, tuple[int, int]]:
    """For each change of notation: how many answers it alters, and for how many of these the acceptance changes."""
    counts = {}
    for name in names:
        change = CHANGES[name]
        texts = [(c, v, change(c.answer)) for c, v in zip(result.cases, result.verdicts, strict=True)]
        texts = [(c, v, text) for c, v, text in texts if text != c.answer]
        verdicts = [
            await _verdict(verifier, LabelledCase(text, c.gold, c.right, c.family, c.prompt)) for c, _, text in texts
        ]
        flips = sum((new.value == 1) != (old.value == 1) for (_, old, _), new in zip(texts, verdicts, strict=True))
        if texts:
            counts[name] = (len(texts), flips)
    return counts
