"""Functions that read model text in the event loop take time linear in the length of the text.

Texts are `prefix + unit * n + suffix` for many combinations. The thread's CPU time is compared between two lengths. A
function that is quick at the greater length is not compared, so a busy machine does not change the result.
"""

import ast
import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import import_module
from itertools import pairwise, product
from pathlib import Path
from time import thread_time
from typing import Any

import pytest
import tokenizers

import groupwise
from groupwise.config.registry import fitting_names
from groupwise.core import class_name, visible
from groupwise.data import Prompt, Sample, Verifier, VerifierSettings
from groupwise.environments import HermesFormat, PythonBlockFormat
from groupwise.environments.tools import calculate
from groupwise.models import Tokenizer
from groupwise.sandbox.code_block import code_of
from groupwise.tasks.calculator import calculator_answer
from groupwise.verifiers import Math, MathDapo
from groupwise.verifiers.countdown import Countdown
from groupwise.verifiers.exact_and_last_number import Exact, LastNumber
from groupwise.verifiers.formats import TagFormat
from groupwise.verifiers.formats_worker import _last_block
from groupwise.verifiers.hackable import HackableScore
from groupwise.verifiers.math.extract_answer import LONGEST, extract_answer
from groupwise.verifiers.math.published_graders import answer_of
from groupwise.verifiers.math.size_limits import too_much
from groupwise.verifiers.noisy import NoisyVerdicts
from groupwise.verifiers.proof_steps import ProofSteps
from groupwise.verifiers.spanning_graph import SpanningGraph
from groupwise.verifiers.sum_proposal import SumWithProposal
from groupwise.verifiers.sum_steps import SumSteps
from groupwise.verifiers.text import OptionChoice, Text
from tests.verifiers.built import built

SHORT, LONG = LONGEST + 100, 4 * (LONGEST + 100)
"""Characters of the last two texts: both longer than the longest answer that `math` reads."""
SIZES = (SHORT // 64, SHORT // 16, SHORT // 4, SHORT, LONG)
"""Each is compared with the one before, so that cubic time is found before it takes hours."""
FLOOR = 0.004
"""Seconds below which the longer text is quick: about 1 microsecond per character."""
LINEAR = 8
"""Allowed factor between the two times. A quadratic function needs 16 times as long, a linear one 4 times."""

PREFIXES = (
    "",
    "answer",
    "the answer is ",
    "\\boxed{",
    "\\boxed",
    "</think> <answer>",
    "<tool_call>",
    "```python\n",
    "####",
)
UNITS = (
    " ", "\t", "\n", "a", "1,111", ".", "-", "(", "{", "}", "\\", "$", "*", "`", "a ", "1 ", "^", "<", "=", "/", "#",
    "answer ", "answer:", "\\text{", "\\boxed", "\\boxed{", "</think>", "<answer>", "</answer>", "<tool_call>",
    "</tool_call>", "```python\n", "```json\n", "```\n", "\u0301\u0327", "é",
)  # fmt: skip
SUFFIXES = ("x",)


def verdict(verifier: Verifier, gold: Any, problem: str = "1+1=", **columns: Any) -> Callable[[str], Any]:
    """Calls a verifier that returns its verdict without awaiting anything."""
    prompt = Prompt("p", (), problem, {"answer": gold, **columns})

    def judged(text: str) -> Any:
        with pytest.raises(StopIteration):
            verifier(prompt, Sample(context=(), stream=(0,), text=text)).__await__().send(None)

    return judged


def or_error(call: Callable[[str], Any]) -> Callable[[str], Any]:
    """A parser that refuses a text with ValueError (`MalformedCall` is one)."""

    def called(text: str) -> Any:
        try:
            return call(text)
        except ValueError as error:
            return error

    return called


def bytes_read(text: str) -> Any:
    """The text as tokens of one byte each, followed by a byte that makes the run invalid UTF-8."""
    return byte_tokenizer().decode_with_ends((*text.encode(), 255, *[EMPTY] * len(text)))


EMPTY = 256


@cache
def byte_tokenizer() -> Tokenizer:
    """Llama's byte fallback: a run of bytes that is not valid UTF-8 decodes to no text. `EMPTY` has no text."""
    vocabulary = {f"<0x{i:02X}>": i for i in range(256)} | {"</s>": EMPTY}
    fast = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], byte_fallback=True))
    fast.decoder = tokenizers.decoders.Sequence([tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()])
    return Tokenizer.of(fast, [EMPTY])


FEW: dict[str, Callable[[str], Any]] = {
    "option_choice": verdict(OptionChoice(), "B"),
    "math": verdict(built(Math(use_algebra=False)), "34"),
    "math, tag": verdict(built(Math(use_algebra=False, answer_location="tag")), "3"),
    "text, line": verdict(Text(answer_location="line"), "The End"),
    "tokens": bytes_read,
    "too_much": too_much,
    "visible": visible,
}
"""Functions that read a bounded part of the text, or no characters. Few texts are enough for them."""
READERS: dict[str, Callable[[str], Any]] = {
    "answer_of": lambda text: answer_of(text, tag=False),
    "answer_of, tag": lambda text: answer_of(text, tag=True),
    "calculate": or_error(calculate),
    "calculator_answer": verdict(calculator_answer, 2),
    "code_of": code_of,
    "countdown": verdict(Countdown(), {"numbers": [3, 7, 2], "target": 13}),
    "exact": verdict(Exact(), "3"),
    "noisy_verdicts": verdict(built(NoisyVerdicts(Exact(), false_reject_rate=0.5)), "3"),
    "tag_format": verdict(TagFormat(), None),
    "hackable_score": verdict(built(HackableScore(Exact())), "3"),
    "extract_answer": extract_answer,
    "extract_answer, line": lambda text: extract_answer(text, "first", "line"),
    "extract_answer, tag": lambda text: extract_answer(text, "last", "tag"),
    "hermes": or_error(HermesFormat().calls),
    "json block": _last_block,
    "last_number": verdict(LastNumber(), "3"),
    "math_dapo": verdict(MathDapo(), "34"),
    "math_dapo, box": verdict(MathDapo(use_last_box=True), "34"),
    "proof_steps": verdict(ProofSteps(), "e", facts="abc", rules=["ab>d", "cd>e"]),
    "python block": or_error(PythonBlockFormat().calls),
    "spanning_graph": verdict(SpanningGraph(), ["03", "14"]),
    "sum_with_proposal": verdict(SumWithProposal(), 2),
    "sum_steps": verdict(SumSteps(), 2),
    "text": verdict(Text(), "The End"),
}
"""Functions that read all of a model's text in this process: verifiers and parsers."""
ELSEWHERE = {
    "EnvironmentVerdictVerifier", "Code", "Combined", "Function", "JsonSchema", "Judge", "MathDrGrpo", "MathVerify",
    "GymScore",
    "ProcessRewardModel", "Regex", "RewardModel",
}  # fmt: skip
"""Verifiers that run in other processes or threads, or delegate to other verifiers."""
STATES = {"BeadString", "Figures", "GlyphPatches", "QuiltPatches", "RingPointDirection"}
"""Verifiers of the states of a flow policy, and of eight beads: they read no long text."""

Parts = tuple[str, str, str]


def text_of(parts: Parts, n: int) -> str:
    prefix, unit, suffix = parts
    return prefix + unit * (n // len(unit)) + suffix


def seconds(f: Callable[[str], Any], text: str, tries: int = 1) -> float:
    def once() -> float:
        start = thread_time()
        f(text)
        return thread_time() - start

    return min(once() for _ in range(tries))


def slow_parts(f: Callable[[str], Any], *parts: Sequence[str], sizes: Sequence[int] = SIZES) -> Parts | None:
    """The first combination with more than linear time. A suspicious measurement is repeated."""

    def slow(parts: Any, shorter: int, longer: int, tries: int) -> bool:
        duration = seconds(f, text_of(parts, longer), tries)
        return duration > FLOOR and duration > LINEAR * seconds(f, text_of(parts, shorter), tries)

    def grows(parts: Any) -> bool:
        return any(all(slow(parts, *pair, tries) for tries in (1, 3)) for pair in pairwise(sizes))

    return next((some for some in product(*parts) if grows(some)), None)


@pytest.mark.parametrize("name", READERS)
def test_readers_of_model_text_are_linear(name: str) -> None:
    assert slow_parts(READERS[name], PREFIXES, UNITS, SUFFIXES) is None


@pytest.mark.parametrize("name", FEW)
def test_readers_of_bounded_text_are_linear(name: str) -> None:
    assert slow_parts(FEW[name], ("\\boxed{", "the answer is "), UNITS[::4], ("",), sizes=(SHORT, LONG)) is None


def test_every_verifier_is_measured_or_runs_elsewhere() -> None:
    measured = {class_name(name.partition(",")[0]) for name in READERS | FEW}
    assert set(fitting_names(VerifierSettings)) <= measured | ELSEWHERE | STATES


# Patterns

SOURCE = Path(groupwise.__file__).parent
ROOMS = ("environments", "sandbox", "tasks", "verifiers")
BOUNDED = {
    f"verifiers/math/{name}.py"
    for name in (
        "answer_equality", "answer_statements", "box_denials", "box_surroundings",
        "compound_quantities", "exact_rationals", "inequalities", "latex_parser", "latex_wrappers", "read_matrices",
        "noncommuting_products", "number_sets", "number_words", "size_limits", "thousands_separators",
        "unicode_to_latex", "units", "words_beside_boxes",
    )
}  # fmt: skip
"""Files whose patterns match an extracted answer of at most `LONGEST` characters, or the 240 beside it."""
WORKERS = {"verifiers/math/dr_grpo_grader.py"}
"""Files whose patterns run in a process with a time limit."""


def patterns() -> dict[str, Callable[[str], Any]]:
    """Each pattern of the other files of these rooms as it is used there, found by reading their source."""
    uses: dict[str, Callable[[str], Any]] = {}
    for path in sorted(path for room in ROOMS for path in (SOURCE / room).rglob("*.py")):
        if (file := path.relative_to(SOURCE).as_posix()) in BOUNDED | WORKERS or "re." not in (
            source := path.read_text()
        ):
            continue
        compiled: dict[str, re.Pattern[str]] = {"re": re}  # type: ignore[dict-item]
        if names := re.findall(r"^(\w+) = re\.compile\(", source, re.MULTILINE):
            module = import_module("groupwise." + file.removesuffix(".py").replace("/", "."))
            compiled = {name: getattr(module, name) for name in names}
        for node in ast.walk(ast.parse(source)):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="re"), attr=verb), args=[ast.Constant(value=pattern), *_]
                ):
                    if verb != "compile":
                        uses[f"{file}: {pattern}"] = partial(use, re.compile(pattern), verb)
                case ast.Attribute(value=ast.Name(id=name), attr=verb) if name in compiled and name != "re":
                    uses[f"{file}: {name}.{verb}"] = partial(use, compiled[name], verb)
    return uses


def use(pattern: "re.Pattern[Any]", verb: str, text: str) -> Any:
    words = ("", text) if isinstance(pattern.pattern, str) else (b"", text.encode())
    found = getattr(pattern, verb)(*words[verb != "sub" :])
    return list(found) if verb == "finditer" else found


PATTERNS = patterns()


def test_patterns_are_found() -> None:
    assert {
        "verifiers/math/extract_answer.py: _LINE.finditer",
        "verifiers/exact_and_last_number.py: _NUMBER.finditer",
    } <= PATTERNS.keys()


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns_are_linear(name: str) -> None:
    assert slow_parts(PATTERNS[name], PREFIXES, UNITS, SUFFIXES) is None
