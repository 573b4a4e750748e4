"""The verifier `math`: find the answer, compare exactly, and ask math-verify where exact numbers do not tell."""

import asyncio
from collections import OrderedDict
from concurrent.futures import Future
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any, cast, get_args

from groupwise.data import Environment, Outcome, Prompt, Sample, Usage, Verdict
from groupwise.tasks.judge import Order, Pool, unverifiable
from groupwise.tasks.mathematics.equal import same
from groupwise.tasks.mathematics.extract import Place, Which, find_answer
from groupwise.tasks.mathematics.limits import is_algebra, too_much
from groupwise.tasks.mathematics.rational import rational
from groupwise.tasks.mathematics.tidy import tidy
from groupwise.tasks.mathematics.units import split_unit

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
    packages = ("math-verify", "latex2sympy2_extended", "sympy")
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
        if symbolic:
            need_math_verify("math", "; or --verifier 'math(symbolic=False)', which compares text, exact numbers,\n"
                             "units, lists and intervals, and calls what needs algebra wrong")  # fmt: skip
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
        if (why := too_much(found.text)) and tidy(found.text) != tidy(gold):
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

    @staticmethod
    def fits(gold: Any) -> bool:
        """Whether answers can be compared with this gold answer."""
        return is_gold(gold)

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
    read = tidy(answer)
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


def is_gold(gold: Any) -> bool:
    """Whether answers can be compared with this gold answer."""
    return gold_answer(gold) is not None


def need_math_verify(name: str, otherwise: str = "", also: tuple[str, ...] = ()) -> None:
    """`Environment` where the extra is not installed."""
    missing = [package for package in ("math_verify", "sympy", *also) if find_spec(package) is None]
    if missing:
        package = "math-verify" if missing[0] == "sympy" else missing[0].replace("_", "-")
        raise Environment(
            f"the verifier {name} needs the package {package}",
            evidence="it is not installed",
            fix=f"pip install 'groupwise[math]'{otherwise}",
        )
