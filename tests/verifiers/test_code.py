"""The verifier `code`: extraction of code, verdicts, and the tests that it refuses to train on."""

import asyncio
import json
from typing import Literal

import pytest

import groupwise.verifiers.code as code_room
from groupwise.core import BadData
from groupwise.data import Outcome, Prompt, Sample, Verdict
from groupwise.sandbox import ExecutionLimits, Sandbox
from groupwise.sandbox.sandbox import ExecutionInput, ExecutionResult
from groupwise.tasks import RowsTask
from groupwise.verifiers import CodeVerifier
from groupwise.verifiers.code import CodeProblemTests, code_of, same
from tests.sandbox.boxes import needed
from tests.verifiers.built import built

ADD = {"function": "add", "cases": [{"args": [1, 2], "expected": 3}, {"args": [-1, 5], "expected": 4}]}
REFERENCE = "def add(a, b): return a + b"
GENERATOR = (
    "import random\ndef generate(seed):\n  r = random.Random(seed)\n  return [r.randint(-99, 99), r.randint(-99, 99)]"
)
UNSEEN = {**ADD, "unseen": [{"args": [40, 2], "expected": 42}]}
HIDDEN = {**ADD, "reference": REFERENCE, "generator": GENERATOR}
EVEN = {
    "function": "even",
    "cases": [{"args": [2], "expected": True}],
    "reference": "def even(n): return n % 2 == 0",
    "generator": "def generate(seed): return [seed]",
    "hidden": 2,
}
DOUBLE = {"cases": [{"stdin": "3\n", "stdout": "6\n"}, {"stdin": "0\n", "stdout": "0"}]}


@pytest.fixture(scope="module")
def verifier():
    needed()
    with_sandbox = CodeVerifier(Sandbox(ExecutionLimits(cpu_seconds=0.5, wall_seconds=60), boxes=2))
    yield with_sandbox
    with_sandbox.sandbox.close()


def forget(verifier: CodeVerifier) -> None:
    verifier._hidden.clear()
    verifier._verdicts.clear()


def ask(verifier: CodeVerifier, code: str, gold: object) -> Verdict:
    return asyncio.run(call(verifier, f"So:\n```python\n{code}\n```\n", gold))


async def call(verifier: CodeVerifier, text: str, gold: object) -> Verdict:
    return await verifier(Prompt("p/1", (), "p", {"answer": gold}), Sample(context=(), stream=(0,), text=text))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\na\n```", "a\n"), ("```py\na\n```", "a\n"), ("``` Python3 \r\na\n```\r\n", "a\n"),
        ("x\n  ```python\n  a\n  ```", "  a\n"), ("```python\na\n```\n```python\nb\n```", "b\n"),
        ("```python\na\n```\n```json\nb\n```", "a\n"), ("```python\na = '```'\n```", "a = '```'\n"),
        ("```python\na\n```\n```python\nb", None), ("```python\n```", None), ("```python\n \n```", None),
        ("```\na\n```", None), ("a = 1", None), ("", None), ("```python", None), ("```pythonic\na\n```", None),
    ],
)  # fmt: skip
def test_the_last_closed_python_block_is_the_code(text, code):
    assert code_of(text) == code


@pytest.mark.parametrize(
    ("code", "gold", "outcome", "visible", "feedback"),
    [
        (REFERENCE, ADD, "correct", 1, ""), (REFERENCE, HIDDEN, "correct", 1, ""),
        ("def add(a, b): return a - b", ADD, "wrong", 0, "case 1: another value"),
        ("def add(a, b): return abs(a) + b", ADD, "wrong", 0, "case 2: another value"),
        ("def add(a, b): return float(a + b)", ADD, "wrong", 0, "case 1: another value"),
        ("def plus(a, b): return a + b", ADD, "wrong", 0, "case 1: NameError: there is no add"),
        ("def add(a, b): return {(1, 2): 3, (-1, 5): 4}.get((a, b))", HIDDEN, "wrong", 1,
         "a hidden case: another value"),
        (REFERENCE, UNSEEN, "correct", 1, ""),
        ("def add(a, b): return {(1, 2): 3, (-1, 5): 4}[a, b]", UNSEEN, "wrong", 1,
         "an unseen case: KeyError: (40, 2)"),
        ("def add(a, b):\n  while True: pass", ADD, "wrong", 0, "case 1: too much CPU time"),
        ("print(int(input()) * 2)", DOUBLE, "correct", 1, ""),
        ("print(6)", DOUBLE, "wrong", 0, "case 2: another value"),
        ("print(int(input()) * 2)\n1 / 0", DOUBLE, "wrong", 0, "case 1: exit code 1"),
        ("import sys\nsys.stdout.write(f' {int(input()) * 2}')", DOUBLE, "wrong", 0, "case 1: another value"),
        ("print(int(input()) * 2, end=' \\n\\n\\n')", DOUBLE, "correct", 1, ""),
    ],
)  # fmt: skip
def test_verdicts(verifier, code, gold, outcome, visible, feedback):
    verdict = ask(verifier, code, gold)
    assert (verdict.outcome.name, dict(verdict.subscores), verdict.feedback) == (
        outcome,
        {"visible": visible},
        feedback,
    )


def test_without_code_an_answer_is_malformed(verifier):
    assert asyncio.run(call(verifier, "def add(a, b): return a + b", ADD)).outcome is Outcome.malformed


@pytest.mark.parametrize(
    ("change", "cause"),
    [({"generator": "1 / 0"}, "no input: ZeroDivisionError"), ({"generator": "def generate(s): return 3"}, "int"),
     ({"reference": "def add(a, b): 1 / 0"}, "the reference solution fails on generate")],
)  # fmt: skip
def test_a_hidden_case_that_cannot_be_generated_is_unverifiable(verifier, change, cause):
    forget(verifier)
    verdict = ask(verifier, REFERENCE, {**HIDDEN, **change})
    assert verdict.outcome is Outcome.unverifiable and cause in verdict.cause


@pytest.mark.parametrize("end", ["lost", "busy"])
def test_a_sandbox_that_fails_is_unverifiable(end: Literal["lost", "busy"], verifier, monkeypatch):
    async def lost(program):
        return ExecutionResult(end, error="gone")

    forget(verifier)
    monkeypatch.setattr(verifier.sandbox, "execute", lost)
    verdict = ask(verifier, REFERENCE, ADD)
    assert verdict.outcome is Outcome.unverifiable and verdict.cause == "gone"


def counted(monkeypatch, sandbox: Sandbox, end: str = "done") -> list[ExecutionInput]:
    """The programs that a sandbox runs from now on; the value of each is 3."""
    programs = []

    async def ran(program):
        programs.append(program)
        await asyncio.sleep(0.01)
        return ExecutionResult(end, 3, "gone" if end == "lost" else "")

    monkeypatch.setattr(sandbox, "execute", ran)
    return programs


async def at_once(verifier: CodeVerifier, codes: list[str]) -> list[Verdict]:
    gold = {"function": "f", "cases": [{"args": [1], "expected": 3}]}
    return await asyncio.gather(*[call(verifier, f"```python\n{code}\n```", gold) for code in codes])


def test_equal_code_of_a_group_is_judged_once(verifier, monkeypatch):
    forget(verifier)
    programs = counted(monkeypatch, verifier.sandbox)
    verdict = asyncio.run(at_once(verifier, ["a", "b", "a", "a", "b"]))
    assert [p.code.strip() for p in programs] == ["a", "b"] and verdict == [verdict[0]] * 5
    assert asyncio.run(at_once(verifier, ["a", "c"])) == verdict[:2] and len(programs) == 3  # in another loop too
    assert not verifier._locks


def test_equal_code_for_another_problem_is_judged_again(verifier):
    forget(verifier)
    sample = Sample(context=(), stream=(0,), text="```python\ndef f(): return 1\n```")

    async def both() -> list[Verdict]:
        prompts = [Prompt(f"p/{n}", (), "", {"answer": returns(n)}) for n in (1, 2)]
        return [await verifier(prompt, sample) for prompt in prompts]

    assert [v.outcome.name for v in asyncio.run(both())] == ["correct", "wrong"]


def returns(n: int) -> dict:
    return {"function": "f", "cases": [{"args": [], "expected": n}]}


def test_unverifiable_verdicts_are_not_cached(verifier, monkeypatch):
    forget(verifier)
    programs = counted(monkeypatch, verifier.sandbox, end="lost")
    assert {v.outcome for v in asyncio.run(at_once(verifier, ["a", "a"]))} == {Outcome.unverifiable}
    assert len(programs) == 2 and not verifier._verdicts


def test_after_a_cancelled_call_a_waiting_call_judges(verifier, monkeypatch):
    forget(verifier)
    programs = counted(monkeypatch, verifier.sandbox)

    async def first_gives_up() -> Verdict:
        first, second = (asyncio.ensure_future(at_once(verifier, ["a"])) for _ in range(2))
        await asyncio.sleep(0.001)
        first.cancel()
        return (await second)[0]

    assert asyncio.run(first_gives_up()).outcome is Outcome.correct and len(programs) == 2


def test_the_cache_of_verdicts_is_bounded(verifier, monkeypatch):
    forget(verifier)
    counted(monkeypatch, verifier.sandbox)
    monkeypatch.setattr(code_room, "CACHE_SIZE", 2)
    asyncio.run(at_once(verifier, ["a", "b", "c"]))
    assert [code.strip() for _, code in verifier._verdicts] == ["b", "c"]


def test_hidden_inputs_are_generated_once_and_the_same_again(verifier):
    forget(verifier)
    verdict = []
    for _ in range(3):
        verdict.append(ask(verifier, REFERENCE, HIDDEN))
        verifier._verdicts.clear()
    assert verdict == [verdict[0]] * 3 and len(verifier._hidden) == 4
    ask(verifier, REFERENCE + "  # another", HIDDEN)
    assert 4 < len(verifier._hidden) <= 8


@pytest.mark.parametrize(
    ("actual", "expected", "equal"),
    [
        (1, 1, True), (1, True, False), (True, 1, False), (1.0, 1, False), (1, 1.0, False), (None, None, True),
        (1.0000001, 1.0, True), (1.0001, 1.0, False), (1e12 + 1, 1e12, True), ([], [], True), ([1], [1, 1], False),
        (0.0, 3.313e-19, False), (6.626e-34, 6.6260001e-34, True), (0.0, 5e-324, False), (1e-13, 0.0, True),
        (1e-9, 0.0, False), (-0.0, 0.0, True), (-1e-300, 1e-300, False), (1.7e308, -1.7e308, False),
        ([1, [2.0]], [1, [2.0000001]], True), ({"a": 1}, {"a": 1}, True), ({"a": 1}, {"b": 1}, False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True), ("1", 1, False), ([], {}, False), ("", None, False),
    ],
)  # fmt: skip
def test_same(actual, expected, equal):
    assert same(actual, expected) is equal


# Tests that are none, and tests that teach something else


def task_of(tmp_path, *golds) -> RowsTask:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"p{i}", "answer": gold}) for i, gold in enumerate(golds)))
    return RowsTask.read(path, lambda text: tuple(map(ord, text)))


@pytest.mark.parametrize(
    ("gold", "why"),
    [
        (3, "not a JSON object"), ({"function": "f"}, "no cases"), ({"cases": []}, "no cases"),
        ({**ADD, "x": 1}, "field 'x'"),
        ({"function": "a b", "cases": ADD["cases"]}, "not the name"), ({"cases": ADD["cases"]}, "stdin and stdout"),
        ({"function": "f", "cases": DOUBLE["cases"]}, "args and expected"), ({"cases": [3]}, "stdin and stdout"),
        ({"function": "f", "cases": [{"args": 1, "expected": 2}]}, "args must be a list"),
        ({"cases": [{"stdin": 1, "stdout": "2"}]}, "stdin and stdout must be text"),
        ({**ADD, "unseen": 3}, "must be a list of cases"), ({**ADD, "unseen": [{"args": [1]}]}, "case 3 must have"),
        ({**ADD, "generator": "x"}, "there is a generator, but no reference"),
        ({**ADD, "reference": 3}, "code as text"), ({**HIDDEN, "hidden": 0}, "1 <= hidden <= 64"),
        ({**HIDDEN, "hidden": True}, "1 <= hidden <= 64"),
    ],
)  # fmt: skip
def test_rows_with_invalid_tests_are_named(tmp_path, gold, why):
    with pytest.raises(BadData) as caught:
        built("code", task_of(tmp_path, ADD, gold))
    assert "1 of 2 problems" in caught.value.what and "a/2: " in caught.value.evidence
    assert why in caught.value.evidence and '"cases"' in caught.value.fix


def test_the_gate_accepts_valid_tests(verifier, tmp_path):
    forget(verifier)
    case, other = {"args": [0.0], "expected": 0.0}, {"args": [1.0], "expected": 1e-13}
    tiny = {"function": "f", "cases": [case], "unseen": [other]}
    task = task_of(tmp_path, ADD, HIDDEN, {**DOUBLE, "reference": "print(int(input()) * 2)"}, EVEN, tiny)
    verifier.gate([*task.training, *task.held_out])


@pytest.mark.parametrize(
    ("gold", "why"),
    [
        ({**ADD, "reference": "def add(a, b): return a * b"}, "the reference does not pass: case 1: another value"),
        ({**HIDDEN, "generator": "1 / 0"}, "the reference does not pass: the test generator's generate("),
        ({"function": "f", "cases": [{"args": [1], "expected": None}]}, "an answer that returns nothing passes"),
        ({"function": "f", "cases": [{"args": [1], "expected": 1}]}, "an answer that returns its input passes"),
        ({"cases": [{"stdin": "1", "stdout": ""}]}, "a program without code passes"),
        ({"cases": [{"stdin": "1", "stdout": "1"}]}, "a program that prints its input passes"),
        ({"function": "f", "cases": [{"args": [2], "expected": True}, {"args": [4], "expected": True}]},
         "an answer that always gives True passes"),
        *(({"function": "f", "cases": [{"args": [2], "expected": value}] * 2},
           f"an answer that always gives {value!r} passes")
          for value in (0, 0.0, False, [], "", {}, 3)),
        ({"cases": [{"stdin": "1", "stdout": "2"}]}, "an answer that always gives '2' passes"),
        ({**EVEN, "reference": "def even(n): return n % 2 == 0 or n > 9"}, "an answer that always gives True passes"),
    ],
)  # fmt: skip
def test_the_gate_names_rows_whose_tests_accept_wrong_code(verifier, tmp_path, gold, why):
    task = task_of(tmp_path, ADD, gold)
    verifier._hidden.clear()
    with pytest.raises(BadData) as caught:
        verifier.gate(sorted([*task.training, *task.held_out], key=lambda p: p.id))
    assert caught.value.what.startswith("the tests of 1 of 2 problems") and f"a/2: {why}" in caught.value.evidence


def test_read_keeps_the_fields_of_a_row():
    tests = CodeProblemTests.read({**HIDDEN, "unseen": UNSEEN["unseen"], "hidden": 7})
    assert (tests.function_name, len(tests.visible_cases), len(tests.unseen_cases), tests.hidden_cases_per_answer) == (
        "add",
        2,
        1,
        7,
    )
    assert tests.reference == REFERENCE and tests.generator == GENERATOR
