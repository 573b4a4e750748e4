"""The verifier `Math`: extracts the answer and compares it exactly, or by algebra in the sandbox."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from groupwise.core import check_types
from groupwise.data import Outcome, Prompt, Sample, Verdict, Verifier, VerifierSettings, verdicts_have
from groupwise.data.verdicts import unverifiable
from groupwise.verifiers.build_verifier import VerifierContext
from groupwise.verifiers.function_pool import check_workers
from groupwise.verifiers.math.answer_equality import same
from groupwise.verifiers.math.box_denials import is_hypothetical
from groupwise.verifiers.math.exact_rationals import rational
from groupwise.verifiers.math.extract_answer import Place, Which, extract_answer
from groupwise.verifiers.math.normalise_answer import tidy
from groupwise.verifiers.math.sandboxed_algebra import SandboxedAlgebra
from groupwise.verifiers.math.size_limits import is_algebra, too_much
from groupwise.verifiers.math.units import split_unit

__all__ = ["Math"]

AT_ONCE = 16
"""The most expression pairs per call in the sandbox, so that each pair of a long list gets enough time."""


@verdicts_have(feedback=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class Math(VerifierSettings):
    """Right if the answer equals the gold answer mathematically; malformed if no answer is found.

    `which_answer` chooses among several boxes or answer lines: `last`, `first`, or `only` (all must be equal).
    `answer_location` is where the answer may be: `either`, `boxed`, `line` or `tag`. Text, numbers, units, lists,
    intervals and matrices are compared in this process. Other expressions go to numeric_equality.py in the sandbox, in
    `workers` processes, with `deadline` CPU seconds per call. If a call uses them up, the answer is wrong ("too large
    to compare"), or unverifiable if the gold answer by itself uses them up. With `use_algebra=False`, an answer that
    needs algebra is wrong unless its text equals the gold answer; this needs no sandbox and no extra package.
    """

    gold_answer_format: ClassVar[str] = "text or a number"
    which_answer: Which = "last"
    answer_location: Place = "either"
    use_algebra: bool = True
    deadline: float = 2.0
    workers: int = 2

    def __post_init__(self) -> None:
        check_types(self)
        check_workers(self.deadline, self.workers)

    def build(self, grading: VerifierContext) -> Verifier:
        """The verifier with its processes. `MissingRequirement` without the package or a sandbox, if it needs them."""
        return MathVerifier(self, grading)

    def fits(self, gold: Any) -> bool:
        """Whether answers can be compared with this gold answer."""
        return is_gold(gold)


@verdicts_have(feedback=True)
class MathVerifier(Verifier):
    """The verifier of `Math`."""

    has_own_deadline = True
    packages = ("mpmath",)

    def __init__(self, kind: Math, grading: VerifierContext) -> None:
        self.kind = kind
        self._algebra: SandboxedAlgebra | None = None
        if kind.use_algebra:
            modules = (
                "expression_trees",
                "latex_parser",
                "noncommuting_products",
                "values_at_point",
                "numeric_equality",
            )
            self._algebra = SandboxedAlgebra(
                "Math", modules, "equal", make=grading.create_sandbox, deadline=kind.deadline, workers=kind.workers,
                packages=self.packages,
            )  # fmt: skip

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        gold = gold_answer(prompt.row.get("answer"))
        if gold is None:
            return unusable_gold(prompt.row.get("answer"), self.kind.gold_answer_format)
        found = extract_answer(
            sample.text, self.kind.which_answer, self.kind.answer_location, is_hypothetical(prompt.text)
        )
        if not found.text:
            return Verdict(Outcome.malformed, feedback=f"no answer: {found.extraction_rule}")
        if (reason := too_much(found.text)) and tidy(found.text) != tidy(gold):
            return _verdict(False, found.text, f"{found.extraction_rule}; {reason}")
        results: dict[tuple[str, str], bool] = {}
        comparison = "exact"
        while True:  # compare with the results so far, then ask the sandbox for the pairs that are missing
            missing: dict[tuple[str, str], None] = {}

            def algebra(g: str, a: str, missing: Any = missing, results: Any = results) -> bool | None:
                if not (is_algebra(g) and is_algebra(a)) or self._algebra is None:
                    return False
                if (g, a) not in results:
                    missing[g, a] = None
                return results.get((g, a))

            decision = same(gold, found.text, algebra, prompt.text)
            if decision is not None:
                return _verdict(decision, found.text, f"{found.extraction_rule}; {comparison}")
            equal = await self._equal(list(missing))
            if isinstance(equal, Verdict):
                too_large = equal.outcome is Outcome.wrong
                return _verdict(False, found.text, f"{found.extraction_rule}; {equal.feedback}") if too_large else equal
            results |= zip(missing, equal, strict=True)
            comparison = "algebra"

    def close(self) -> None:
        """Ends the sandbox processes."""
        if self._algebra is not None:
            self._algebra.close()

    async def _equal(self, pairs: Sequence[tuple[str, str]]) -> list[bool] | Verdict:
        """Whether the two expressions of each pair are equal; a verdict if the sandbox fails or exceeds a limit."""
        assert self._algebra is not None, "without algebra every pair is decided"
        equal: list[bool] = []
        for start in range(0, len(pairs), AT_ONCE):
            batch = pairs[start : start + AT_ONCE]
            golds = dict.fromkeys(gold for gold, _ in batch)
            baseline = [pair for gold in golds for pair in ((gold, gold), (gold, "1"))]
            value = await self._algebra([batch], [baseline])
            if isinstance(value, Verdict):
                return value
            values = value if isinstance(value, list) else []
            equal += [i < len(values) and values[i] is True for i in range(len(batch))]
        return equal


def _verdict(right: bool, answer: str, how: str) -> Verdict:
    read = tidy(answer)
    number = rational(split_unit(read)[0])
    said = read[:200] if number is None else str(number)
    return Verdict(Outcome.correct if right else Outcome.wrong, feedback=f"read {answer[:200]!r} by {how}", answer=said)


@cache
def _from_text(gold: str) -> str:
    if "\\boxed" in gold or "####" in gold:
        return extract_answer(gold, hypothetical=True).text or gold
    return gold


def gold_answer(gold: Any) -> str | None:
    r"""The gold answer as text, or None if it is unusable. A full solution is reduced to its box or `####` line.

    >>> gold_answer("3+4=7\n#### 7"), gold_answer(r"so \boxed{\frac12}"), gold_answer(0.5), gold_answer([1])
    ('7', '\\frac12', '0.5', None)
    """
    if isinstance(gold, bool) or not isinstance(gold, str | int | float):
        return None
    text = _from_text(str(gold))
    return text if tidy(text) else None


def unusable_gold(gold: Any, answer_format: str) -> Verdict:
    """The verdict if a problem's gold answer is not of the kind that the verifier needs: unverifiable."""
    return unverifiable(f"the gold answer {str(gold)[:80]!r} is not {answer_format}")


def is_gold(gold: Any) -> bool:
    """Whether answers can be compared with this gold answer."""
    return gold_answer(gold) is not None
