"""The verifier `math`: find the answer, compare exactly, and ask math-verify where exact numbers do not tell."""

import asyncio
import re
from collections import OrderedDict
from concurrent.futures import Future
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any, cast, get_args

from groupwise.data import Environment, Outcome, Prompt, Sample, Usage, Verdict
from groupwise.tasks.maths.equal import same
from groupwise.tasks.maths.extract import LONGEST, Place, Which, find_answer
from groupwise.tasks.judge import Order, Pool, unverifiable
from groupwise.tasks.maths.rational import rational
from groupwise.tasks.maths.tidy import tidy
from groupwise.tasks.maths.units import split_unit, words

MEMORY = 2 << 30
"""Bytes that a worker may address."""
REMEMBERED = 4096
"""Comparisons whose outcome is kept: a group writes the same answer many times."""


class Math:
    """Right if the answer is mathematically what the gold answer is; malformed where no answer is found.

    `answer` says which of several boxes or answer lines counts (`last`, `first`, `only`: all alike), `place` where it
    may stand (`either`, `boxed`, `line`). Exact text, numbers, units, lists, intervals and matrices are compared here;
    what needs algebra goes to math-verify in `workers` processes, each call bounded by `deadline` seconds of the
    process's own time: beyond it the answer is unverifiable. With `symbolic=False` such an answer is wrong unless it is
    written as the gold one is, and no extra package is needed.
    """

    keeps_time = True
    expects = "text or a number"

    def __init__(
        self,
        *,
        answer: str = "last",
        place: str = "either",
        symbolic: bool = True,
        deadline: float = 2.0,
        workers: int = 2,
    ) -> None:
        for name, value, known in (("answer", answer, get_args(Which)), ("place", place, get_args(Place))):
            if value not in known:
                raise Usage(f"math({name}={value!r})", fix=f"take {', '.join(map(repr, known))}")
        if deadline <= 0 or workers < 1:
            raise Usage(f"math(deadline={deadline:g}, workers={workers})", fix="deadline above 0, workers from 1")
        if symbolic and (find_spec("math_verify") is None or find_spec("sympy") is None):
            raise Environment(
                "the verifier math needs the package math-verify",
                evidence="it is not installed",
                fix="pip install 'groupwise[math]', or --verifier 'math(symbolic=False)', which compares text, exact\n"
                "numbers, units, lists and intervals, and calls what needs algebra wrong",
            )
        self.answer: Which = cast(Which, answer)
        self.place: Place = cast(Place, place)
        order = Order(str(Path(__file__).with_name("algebra.py")), "equal", cpu=deadline, memory=MEMORY, bare=True)
        # The wall clock only ends what is stuck: how busy a machine is must change no verdict.
        self._pool = Pool(order, deadline=max(60.0, 20 * deadline), workers=workers, in_a_row=0) if symbolic else None
        self._known: OrderedDict[Pairs, Future[Verdict]] = OrderedDict()
        self._lock = Lock()

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        gold = gold_answer(prompt.given.get("answer"))
        if gold is None:
            return unverifiable(f"the gold answer {str(prompt.given.get('answer'))[:80]!r} is not text or a number")
        found = find_answer(sample.text, self.answer, self.place)
        if not found.text:
            return Verdict(Outcome.malformed, feedback=f"no answer: {found.rule}")
        if (why := too_much(found.text)) and tidy(found.text[:LONGEST]) != tidy(gold):
            return _said(False, found.text, f"{found.rule}; {why}")
        known: dict[tuple[str, str], bool] = {}
        how = "exact"
        while True:
            missing: dict[tuple[str, str], None] = {}

            def algebra(g: str, a: str, missing: Any = missing, known: Any = known) -> bool | None:
                if not (is_algebra(g) and is_algebra(a)) or self._pool is None:
                    return False
                if (g, a) not in known:
                    missing[g, a] = None
                return known.get((g, a))

            decision = same(gold, found.text, algebra)
            if decision is not None:
                return _said(decision, found.text, f"{found.rule}; {how}")
            told = await asyncio.shield(asyncio.wrap_future(self._ask(tuple(missing))))
            if told.outcome is Outcome.unverifiable:
                return told
            known |= {pair: told.parts[str(i)] == 1 for i, pair in enumerate(missing)}
            how = "math-verify"

    def fits(self, gold: Any) -> bool:
        """Whether answers can be compared with this gold answer."""
        return gold_answer(gold) is not None

    def close(self) -> None:
        """Ends the worker processes."""
        if self._pool is not None:
            self._pool.close()

    def _ask(self, pairs: "Pairs") -> Future[Verdict]:
        """What math-verify says of these pairs: asked once, however many answers wait for it."""
        assert self._pool is not None, "without algebra nothing is left open"
        with self._lock:
            if pairs not in self._known:
                self._known[pairs] = self._pool.ask(pairs)
            self._known.move_to_end(pairs)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
            return self._known[pairs]


Pairs = tuple[tuple[str, str], ...]


def _said(right: bool, answer: str, how: str) -> Verdict:
    read = tidy(answer[:LONGEST])
    number = rational(split_unit(read)[0])
    said = read[:200] if number is None else str(number)
    return Verdict(Outcome.correct if right else Outcome.wrong, feedback=f"read {answer[:200]!r} by {how}", said=said)


@cache
def _from_text(gold: str) -> str:
    if "\\boxed" in gold or "####" in gold:
        return find_answer(gold).text or gold
    return gold


def gold_answer(gold: Any) -> str | None:
    r"""A gold answer as text: what is boxed, or stands behind `####`, where it is a whole solution.

    >>> gold_answer("3+4=7\n#### 7"), gold_answer(r"so \boxed{\frac12}"), gold_answer(0.5), gold_answer([1])
    ('7', '\\frac12', '0.5', None)
    """
    if isinstance(gold, bool) or not isinstance(gold, str | int | float):
        return None
    text = _from_text(str(gold))
    return text if tidy(text) else None


# What is never computed

_FUNCTIONS = words("sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp max min gcd lcm det")
_COMMANDS = words("sum prod int iint iiint oint lim limsup liminf bigcup bigcap sup inf")
_TOO_LARGE = (
    (re.compile(r"\d{401}"), "a number of more than 400 digits"),
    (re.compile(r"\^[{(\s]*[-+]?[{(\s]*\d{4}"), "a power of more than three digits"),
    (re.compile(r"\d[\s})]*\^[{(\s]*\d+[\s})]*\^|\^[^^]{0,40}\d[\s})]*\^[{(\s]*\d"), "a tower of powers"),
    (re.compile(r"\^[^^]*\^[^^]*\^[^^]*\^[^^]*\^[^^]*\^[^^]*\^[^^]*\^[^^]*\^"), "too many powers"),
    (re.compile(r"\d{4}[\s})]*!|[})\]]\s*!|!\s*!"), "a factorial that is too large"),
    (re.compile(r"\\(?:d|t)?binom[{(\s]*\d{4}|\\Gamma|\\zeta|\\uparrow"), "a function that may be too large"),
)
DEEPEST = 32


def too_much(answer: str) -> str:
    """Why an answer is not even compared, from its text alone; empty where it is. Such an answer is wrong.

    >>> too_much("9^{9^9}"), too_much("9**9**9"), too_much("2^{10}")
    ('a tower of powers', 'a tower of powers', '')
    """
    if len(answer) >= LONGEST:
        return f"an answer of {LONGEST} characters or more"
    depth = deepest = 0
    for c in answer:
        depth += (c in "([{") - (c in ")]}")
        deepest = max(deepest, depth)
    if deepest > DEEPEST:
        return f"brackets {deepest} deep"
    text = tidy(answer)
    return next((why for pattern, why in _TOO_LARGE if pattern.search(text)), "")


def is_algebra(text: str) -> bool:
    r"""Whether math-verify is asked about this: no prose, no blanks between numbers, no sums or integrals left.

    >>> is_algebra(r"2\sqrt{2}"), is_algebra("not 34"), is_algebra("3 4"), is_algebra(r"\sum_{k=1}^{9} k")
    (True, False, False, False)
    """
    commands = re.findall(r"\\([A-Za-z]+)", text)
    words = re.findall("[A-Za-z]{3,}", re.sub(r"\\[A-Za-z]+", " ", text))
    return (
        len(text) <= 512
        and not _COMMANDS.intersection(commands)
        and all(word in _FUNCTIONS for word in words)
        and not re.search(r"(?<!_)\d \d|\d_|[\d)}] [A-Za-z]{2}|[<>¤&#]|[^\x00-\x7f]", text)
    )
