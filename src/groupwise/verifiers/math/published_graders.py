"""The graders of published results, with their faults. Use `Math` unless you reproduce such a result."""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from groupwise.core import check_types
from groupwise.data import Outcome, Prompt, Sample, Verdict, Verifier, VerifierSettings, verdicts_have
from groupwise.verifiers.build_verifier import VerifierContext
from groupwise.verifiers.function_pool import check_workers
from groupwise.verifiers.math.math_verifier import is_gold, unusable_gold
from groupwise.verifiers.math.sandboxed_algebra import MATH_VERIFY, SandboxedAlgebra

__all__ = ["MathDapo", "MathDrGrpo", "MathVerify"]

_DAPO_LINE = re.compile(r"(?i)Answer\s*:\s*([^\n]+)")
_DAPO_FIRST = (
    ("an ", ""), ("a ", ""), (".$", "$"), ("\\$", ""), ("\\ ", ""), (" ", ""), ("mbox", "text"),
    (",\\text{and}", ","), ("\\text{and}", ","), ("\\text{m}", "\\text{}"),
)  # fmt: skip
_DAPO_REMOVED = (
    "square", "ways", "integers", "dollars", "mph", "inches", "hours", "km", "units", "\\ldots", "sue", "points",
    "feet", "minutes", "digits", "cents", "degrees", "cm", "gm", "pounds", "meters", "meals", "edges", "students",
    "childrentickets", "multiples", "\\text{s}", "\\text{.}", "\\text{\ns}", "\\text{}^2", "\\text{}^3", "\\text{\n}",
    "\\text{}", "\\mathrm{th}", "^\\circ", "^{\\circ}", "\\;", ",\\!", "{,}", '"', "\\dots",
)  # fmt: skip
_DAPO_LATER = (
    (r"(.*?)(\$)(.*?)(\$)(.*)", r"$\3$"), (r"(\\text\{)(.*?)(\})", r"\2"), (r"(\\textbf\{)(.*?)(\})", r"\2"),
    (r"(\\overline\{)(.*?)(\})", r"\2"), (r"(\\boxed\{)(.*)(\})", r"\2"), (r"(frac)([^{])(.)", r"frac{\2}{\3}"),
    (r"(sqrt)([^{])", r"sqrt{\2}"),
)  # fmt: skip


@verdicts_have()
@dataclass(frozen=True, slots=True, kw_only=True)
class MathDapo(VerifierSettings):
    r"""The grader of DAPO's training: compares the last `Answer:` line of the last 300 characters, as text.

    Both sides are converted to Minerva's normal form (Lewkowycz et al., arXiv:2206.14858, appendix D). With
    `use_last_box` the last `\boxed{}` of the last 100 characters must equal the gold answer exactly. Its faults are
    kept: only the text behind the last `=` counts, words such as `km` are removed also within words, `034` and `34.0`
    are not 34. DAPO, arXiv:2503.14476. An answer without such a line is malformed here and wrong there; both score 0.
    """

    gold_answer_format: ClassVar[str] = "text or a number"
    use_last_box: bool = False

    def __post_init__(self) -> None:
        check_types(self)

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        tail, gold = sample.text[-300:], str(prompt.row["answer"])
        if self.use_last_box:
            answer = dapo_box(tail[-100:])
        else:
            lines = _DAPO_LINE.findall(tail)
            answer, gold = (dapo_normal(lines[-1]) if lines else None), dapo_normal(gold)
        if answer is None:
            return Verdict(Outcome.malformed, feedback="no box" if self.use_last_box else "no line Answer:")
        return Verdict(Outcome(answer == gold), answer=answer)

    def fits(self, gold: Any) -> bool:
        """Whether answers can be compared with this gold answer."""
        return is_gold(gold)


def dapo_box(text: str) -> str | None:
    r"""The content of the last `\boxed{`; None without one, or if it is not closed. Escaped braces count as braces."""
    start = text.rfind("\\boxed{")
    return None if start < 0 else _braced(text, start + len("\\boxed"))


def _braced(text: str, at: int) -> str | None:
    """The content of the braces that open at position `at`; None if they are not closed."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] == "{") - (text[i] == "}")
        if depth == 0:
            return text[at + 1 : i]
    return None


def dapo_normal(answer: str) -> str:
    r"""The answer in Minerva's normal form, which DAPO's grader compares.

    >>> dapo_normal("x = 1,234"), dapo_normal("12 km"), dapo_normal(r"$\frac12$."), dapo_normal("034")
    ('1234', '12', '\\frac{1}{2}', '034')
    """
    answer = answer.split("=")[-1]
    for old, new in (*_DAPO_FIRST, *((text, "") for text in _DAPO_REMOVED)):
        answer = answer.replace(old, new)
    for pattern, to in _DAPO_LATER:
        answer = re.sub(pattern, to, answer)
    answer = answer.replace("$", "")
    return (answer.replace(",", "") if answer.replace(",", "").isdigit() else answer).strip()


Equal = Callable[[Sequence[Any], Sequence[Any]], Awaitable[Verdict]]
"""Compares in the sandbox: the arguments, and the same arguments without the model's answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxedGrader(VerifierSettings):
    """A published grader whose comparison runs in the sandbox: `function_name` in a file (`module_name`) of this room.

    `deadline` is in CPU seconds per call. An answer that uses them up is wrong, as in `Math`.
    """

    module_name: ClassVar[str]
    function_name: ClassVar[str]
    deadline: float = 2.0
    workers: int = 2

    def __post_init__(self) -> None:
        check_types(self)
        check_workers(self.deadline, self.workers)

    def build(self, grading: VerifierContext) -> Verifier:
        """The verifier with its processes. `MissingRequirement` without the packages or a sandbox."""
        return SandboxedVerifier(self, grading)

    async def grade(self, text: str, gold: Any, equal: Equal) -> Verdict:
        """The verdict on an answer, given its whole text with reasoning; the final answer is not extracted yet."""
        raise NotImplementedError


@verdicts_have()
class SandboxedVerifier(Verifier):
    """The verifier of `SandboxedGrader`."""

    has_own_deadline = True

    def __init__(self, kind: SandboxedGrader, grading: VerifierContext) -> None:
        self.kind, self.packages = kind, kind.packages
        self._compare = SandboxedAlgebra(
            type(kind).__name__, [kind.module_name], kind.function_name, make=grading.create_sandbox,
            deadline=kind.deadline,
            workers=kind.workers, packages=kind.packages,
        )  # fmt: skip
        self.close = self._compare.close

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        if not self.kind.fits(gold := prompt.row.get("answer")):
            return unusable_gold(gold, self.kind.gold_answer_format)
        return await self.kind.grade(sample.text, gold, self._equal)

    async def _equal(self, arguments: Sequence[Any], baseline: Sequence[Any]) -> Verdict:
        value = await self._compare(arguments, baseline)
        return value if isinstance(value, Verdict) else Verdict(Outcome(value is True))


@verdicts_have()
@dataclass(frozen=True, slots=True, kw_only=True)
class MathVerify(SandboxedGrader):
    """math-verify with its defaults, applied to the whole text in the sandbox.

    `deadline` is in CPU seconds per call. docs/verifiers.md lists wrong answers that math-verify accepts.
    """

    packages = MATH_VERIFY
    module_name: ClassVar[str] = "math_verify"
    function_name: ClassVar[str] = "accepted"
    gold_answer_format: ClassVar[str] = "text or a number"

    async def grade(self, text: str, gold: Any, equal: Equal) -> Verdict:
        """The verdict of math-verify."""
        return await equal([text, str(gold)], ["$1$", str(gold)])

    def fits(self, gold: Any) -> bool:
        """Whether answers can be compared with this gold answer."""
        return is_gold(gold)


@verdicts_have()
@dataclass(frozen=True, slots=True, kw_only=True)
class MathDrGrpo(SandboxedGrader):
    r"""The grader of Dr. GRPO's runs: compares the last `\boxed{}`, or with `use_answer_tag` the text of `<answer>`.

    Right if it equals one of the gold answers by the rules in dr_grpo_grader.py: in the normal form of MATH, in that of
    PRM800K, by sympy, or, unless `skip_math_verify`, by math-verify. The 7B run and all evaluations used math-verify
    too. Its faults are kept: `x+a` equals `x+c` and `5 km` equals `5 m`, since every possible unit is removed; with
    `skip_math_verify`, `2/4` does not equal `1/2`, nor `2+2` 4. The authors' time limit of one second is `deadline` CPU
    seconds per call here. arXiv:2503.20783.
    """

    packages = (*MATH_VERIFY, "pylatexenc")
    module_name: ClassVar[str] = "dr_grpo_grader"
    function_name: ClassVar[str] = "graded"
    gold_answer_format: ClassVar[str] = "text, a number or a list of them"
    use_answer_tag: bool = False
    skip_math_verify: bool = False

    async def grade(self, text: str, gold: Any, equal: Equal) -> Verdict:
        """The verdict on the last box, or on the text behind the last answer tag."""
        answer = answer_of(text, self.use_answer_tag)
        if answer is None:
            return Verdict(Outcome.malformed, feedback="no answer in tags" if self.use_answer_tag else "no box")
        texts = [str(one) for one in (gold if isinstance(gold, list) else [gold])]
        golds = [text for text in (boxed(text) if "\\boxed" in text else text for text in texts) if text is not None]
        verdict = await equal([answer, golds, self.skip_math_verify], ["1", golds, self.skip_math_verify])
        return verdict if verdict.outcome is Outcome.unverifiable else replace(verdict, answer=answer[:200])

    def fits(self, gold: Any) -> bool:
        """Whether answers can be compared with this gold answer, or with each of a list."""
        return all(map(is_gold, gold)) and bool(gold) if isinstance(gold, list) else is_gold(gold)


def answer_of(text: str, tag: bool) -> str | None:
    r"""The content of the last box; with `tag` the text behind the last `<answer>`, or the box in it; None if absent.

    >>> answer_of(r"\boxed{1} or \boxed{\frac{1}{2}}", tag=False), answer_of("</think> <answer> 4 </answer>", tag=True)
    ('\\frac{1}{2}', ' 4 ')
    """
    if tag:
        if "</think> <answer>" not in text or "</answer>" not in text:
            return None
        text = text.split("<answer>")[-1].replace("</answer>", "")
        return boxed(text) if "\\boxed" in text else text
    return boxed(text)


def boxed(text: str) -> str | None:
    r"""The content of the last `\boxed`; None if no brace follows directly, or if it is not closed."""
    start = text.rfind("\\boxed")
    return _braced(text, start + len("\\boxed")) if start >= 0 and text.startswith("\\boxed{", start) else None
