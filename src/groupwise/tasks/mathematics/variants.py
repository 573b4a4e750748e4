"""Graders that published numbers rest on, with their faults: take `math` where no such number is to be met."""

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from groupwise.data import Outcome, Prompt, Sample, Usage, Verdict
from groupwise.tasks.judge import Order, Pool, unverifiable
from groupwise.tasks.mathematics.r1_zero import answer_of
from groupwise.tasks.mathematics.verifier import MEMORY, is_gold, need_math_verify

_DAPO_LINE = re.compile(r"(?i)Answer\s*:\s*([^\n]+)")
_DAPO_FIRST = (
    ("an ", ""), ("a ", ""), (".$", "$"), ("\\$", ""), ("\\ ", ""), (" ", ""), ("mbox", "text"),
    (",\\text{and}", ","), ("\\text{and}", ","), ("\\text{m}", "\\text{}"),
)  # fmt: skip
_DAPO_GONE = (
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


class MathDapo:
    r"""What DAPO's training compared: the last `Answer:` line of the last 300 characters, as text.

    Both sides are brought to Minerva's normal form (Lewkowycz et al., arXiv:2206.14858, appendix D); with `box` the
    last `\boxed{}` of the last 100 characters must be the gold answer to the letter. Its faults are kept: what stands
    behind the last `=` counts, words such as `km` vanish from the middle, `034` and `34.0` are not 34.
    DAPO, arXiv:2503.14476. An answer without such a line is malformed here, and wrong there: both score 0.
    """

    expects = "text or a number"

    def __init__(self, *, box: bool = False) -> None:
        self.box = box

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        tail, gold = sample.text[-300:], str(prompt.given["answer"])
        if self.box:
            said, gold = dapo_box(tail[-100:]), gold
        else:
            lines = _DAPO_LINE.findall(tail)
            said, gold = (dapo_normal(lines[-1]) if lines else None), dapo_normal(gold)
        if said is None:
            return Verdict(Outcome.malformed, feedback="no box" if self.box else "no line Answer:")
        return Verdict(Outcome.correct if said == gold else Outcome.wrong, said=said)

    fits = staticmethod(is_gold)


def dapo_box(text: str) -> str | None:
    r"""What the last `\boxed{` holds; None without one, or where it never ends. A brace is a brace, escaped or not."""
    start = text.rfind("\\boxed{")
    depth = 0
    for i in range(start, len(text)) if start >= 0 else ():
        depth += (text[i] == "{") - (text[i] == "}")
        if text[i] == "}" and depth == 0:
            return text[start + len("\\boxed{") : i]
    return None


def dapo_normal(answer: str) -> str:
    r"""Minerva's normal form of an answer.

    >>> dapo_normal("x = 1,234"), dapo_normal("12 km"), dapo_normal(r"$\frac12$."), dapo_normal("034")
    ('1234', '12', '\\frac{1}{2}', '034')
    """
    answer = answer.split("=")[-1]
    for old, new in (*_DAPO_FIRST, *((gone, "") for gone in _DAPO_GONE)):
        answer = answer.replace(old, new)
    for pattern, to in _DAPO_LATER:
        answer = re.sub(pattern, to, answer)
    answer = answer.replace("$", "")
    return (answer.replace(",", "") if answer.replace(",", "").isdigit() else answer).strip()


class MathVerify:
    """math-verify by its own defaults, reading the whole text; in worker processes that are killed and replaced.

    `deadline` is seconds of the worker's own time. What it accepts wrongly is on the page of verifiers.
    """

    keeps_time = True
    packages = ("math-verify", "latex2sympy2_extended", "sympy")
    expects = "text or a number"

    def __init__(self, *, deadline: float = 2.0, workers: int = 2) -> None:
        need_math_verify("math_verify")
        self.pool = _pool("math_verify", "algebra.py", "alone", deadline, workers)
        self.close = self.pool.close

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        if not is_gold(gold := prompt.given.get("answer")):
            return unverifiable(f"the gold answer {str(gold)[:80]!r} is not text or a number")
        return await asyncio.wrap_future(self.pool.ask(sample.text, str(gold)))

    fits = staticmethod(is_gold)


class MathDrGrpo:
    r"""What Dr. GRPO's runs compared: the last `\boxed{}`, or with `tag` what stands behind the last `<answer>`.

    Right if it is one of the gold answers by the rules in r1_zero.py: in the normal form of MATH, in that of PRM800K,
    by sympy, or, unless `fast`, by math-verify; the 7B run and every evaluation asked math-verify too. Faults are kept:
    `x+a` is `x+c` and `5 km` is `5 m`, since all that may be a unit vanishes, and to `fast` `2/4` is not `1/2` and
    `2+2` is not 4. Their second to answer in is `deadline` seconds of the worker's own time here, and unverifiable
    beyond. arXiv:2503.20783.
    """

    keeps_time = True
    packages = (*MathVerify.packages, "pylatexenc")
    expects = "text, a number or a list of them"

    def __init__(self, *, tag: bool = False, fast: bool = False, deadline: float = 2.0, workers: int = 2) -> None:
        need_math_verify("math_dr_grpo", also=("pylatexenc",))
        self.tag, self.fast = tag, fast
        self.pool = _pool("math_dr_grpo", "r1_zero.py", "graded", deadline, workers)
        self.close = self.pool.close

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        if not self.fits(gold := prompt.given.get("answer")):
            return unverifiable(f"the gold answer {str(gold)[:80]!r} is not {self.expects}")
        said = answer_of(sample.text, self.tag)
        if said is None:
            return Verdict(Outcome.malformed, feedback="no answer in tags" if self.tag else "no box")
        golds = [str(one) for one in (gold if isinstance(gold, list) else [gold])]
        told = await asyncio.wrap_future(self.pool.ask(said, golds, self.fast))
        return told if told.outcome is Outcome.unverifiable else replace(told, said=said[:200])

    @staticmethod
    def fits(gold: Any) -> bool:
        return all(map(is_gold, gold)) and bool(gold) if isinstance(gold, list) else is_gold(gold)


def _pool(name: str, file: str, function: str, deadline: float, workers: int) -> Pool:
    """Workers that run a file of this room; the wall clock only ends what is stuck."""
    if deadline <= 0 or workers < 1:
        raise Usage(f"{name}(deadline={deadline:g}, workers={workers})", fix="deadline above 0, workers from 1")
    order = Order(str(Path(__file__).with_name(file)), function, cpu=deadline, memory=MEMORY, bare=True)
    return Pool(order, deadline=max(60.0, 20 * deadline), workers=workers, in_a_row=0)
