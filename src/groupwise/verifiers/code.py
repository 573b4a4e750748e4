"""The verifier `code`: an answer is right if its code passes the problem's tests, in the sandbox."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from weakref import WeakValueDictionary

from groupwise.data import BadData, Outcome, Prompt, Sample, Verdict
from groupwise.sandbox.code_block import code_of
from groupwise.sandbox.sandbox import Execution, Program, Sandbox
from groupwise.tasks.problems import Problems

__all__ = ["CodeVerifier"]

CLOSE = 1e-6
"""How far a float may be from the expected one, as a share of it."""
ZERO = 1e-12
"""How far a float may be from an expected 0."""
SEEDS = 64
"""Different hidden inputs of a problem at most."""
SHOWN = 5
REMEMBERED = 4096
"""Verdicts that are kept: a group that agrees writes the same code many times over."""
FORM = """\
write them as {"function": "add", "cases": [{"args": [1, 2], "expected": 3}, {"args": [2, 2], "expected": 4}]}
or {"cases": [{"stdin": "1 2", "stdout": "3"}, {"stdin": "2 2", "stdout": "4"}]} (docs/sandbox.md)"""
MEND = "mend or remove these rows; against a constant answer, add a case that expects another value"


@dataclass(frozen=True, slots=True)
class Case:
    """One input and what must come of it: arguments and a value, or two texts."""

    given: Any
    expected: Any


@dataclass(frozen=True, slots=True)
class CodeTests:
    """What a problem's `answer` says: cases for a `function`, or, without one, for a program.

    `unseen` are cases of the same kind that the problem does not show, tried after those that it does. `reference` is
    code that is right. `generator` is code with `generate(seed)`, which gives the arguments (a list) or
    the input (text) of a `hidden` case; the reference says what is expected of it.
    """

    function: str | None
    cases: tuple[Case, ...]
    unseen: tuple[Case, ...] = ()
    reference: str = ""
    generator: str = ""
    hidden: int = 4

    @classmethod
    def read(cls, gold: Any) -> "CodeTests":
        """From the JSON of a row; ValueError says what is wrong with it."""
        if not isinstance(gold, dict):
            raise ValueError("the tests are not an object")
        if unknown := gold.keys() - {"function", "cases", "unseen", "reference", "generator", "hidden"}:
            raise ValueError(f"the tests have an unknown field {min(unknown)!r}")
        function, cases, unseen = gold.get("function"), gold.get("cases"), gold.get("unseen", [])
        if function is not None and not (isinstance(function, str) and function.isidentifier()):
            raise ValueError(f"function is {function!r}, not the name of one")
        if not isinstance(cases, list) or not cases:
            raise ValueError("the tests have no cases")
        if not isinstance(unseen, list):
            raise ValueError("unseen is no list of cases")
        names = ("stdin", "stdout") if function is None else ("args", "expected")
        kind = str if function is None else list
        for number, case in enumerate([*cases, *unseen], 1):
            if not isinstance(case, dict) or case.keys() != set(names):
                raise ValueError(f"case {number} does not have {names[0]} and {names[1]}, and nothing else")
            if not isinstance(case[names[0]], kind) or (function is None and not isinstance(case["stdout"], str)):
                raise ValueError(f"case {number}: {names[0]} is not {'text' if function is None else 'a list'}")
        code = {name: gold.get(name, "") for name in ("reference", "generator")}
        hidden = gold.get("hidden", 4)
        if not all(isinstance(text, str) for text in code.values()):
            raise ValueError("reference and generator are code, so text")
        if type(hidden) is not int or not 1 <= hidden <= SEEDS:
            raise ValueError(f"hidden is {hidden!r}, not a number of cases from 1 to {SEEDS}")
        if code["generator"] and not code["reference"]:
            raise ValueError("a generator needs a reference: it says what is expected")
        shown, kept = (tuple(Case(*(case[name] for name in names)) for case in some) for some in (cases, unseen))
        return cls(function, shown, kept, **code, hidden=hidden)

    def program(self, code: str, given: Any) -> Program:
        if self.function is None:
            return Program(code, stdin=given)
        return Program(code, self.function, tuple(given))

    def passed(self, ran: Execution, expected: Any) -> bool:
        """Whether what came back is what is expected; a program's output up to white space at the ends of lines."""
        if ran.end != "done":
            return False
        return lines(ran.value) == lines(expected) if self.function is None else same(ran.value, expected)


def same(got: Any, expected: Any) -> bool:
    """Equal in value and in exact type, all the way down; floats within a millionth of the expected one.

    >>> same([1, 0.1 + 0.2], [1, 0.3]), same(True, 1), same(1, 1.0), same(0.0, 6.6e-34)
    (True, False, False, False)
    """
    if type(got) is not type(expected):
        return False
    if type(expected) is float:
        return abs(got - expected) <= (CLOSE * abs(expected) if expected else ZERO)
    if type(expected) is list:
        return len(got) == len(expected) and all(map(same, got, expected))
    if type(expected) is dict:
        return got.keys() == expected.keys() and all(same(got[key], expected[key]) for key in expected)
    return got == expected


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


class CodeVerifier:
    """Right if the code passes every case, then the hidden ones; each case is an execution of its own in the sandbox.

    An answer without code is malformed. Too much time, memory or output is wrong. What the sandbox itself could not do
    is unverifiable, as is a hidden case that the generator or the reference fails. The part `visible` is 1 where all
    cases that the problem lists are passed: right there and wrong in hidden ones is what a memorised table looks like.
    The same code for the same problem is judged once, and its verdict remembered for a while. Reference and generator
    run in boxes that no answer enters.
    """

    keeps_time = True

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox, self.references = sandbox, sandbox.separate()
        self._hidden: dict[tuple[str, int], Case] = {}
        self._judged: dict[tuple[str, str], Verdict] = {}
        self._judging: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        code = code_of(sample.text)
        if code is None:
            return Verdict(Outcome.malformed, parts={"visible": 0.0})
        key = (prompt.id, code)
        async with self._judging.setdefault(key, asyncio.Lock()):  # who waits here mostly finds the verdict there
            if key not in self._judged:
                verdict = await self.judge(prompt.id, CodeTests.read(prompt.given["answer"]), code)
                if verdict.outcome is Outcome.unverifiable:
                    return verdict
                self._judged[key] = verdict
                if len(self._judged) > REMEMBERED:
                    del self._judged[next(iter(self._judged))]
            return self._judged[key]

    async def judge(self, name: str, tests: CodeTests, code: str, sandbox: Sandbox | None = None) -> Verdict:
        """The verdict on some code, run in `sandbox` (the answers' own). Hidden inputs are chosen by its text, so no
        answer can know them before."""
        sandbox = sandbox or self.sandbox
        for number, case in enumerate(tests.cases, 1):
            ran = await sandbox.execute(tests.program(code, case.given))
            if verdict := told(tests, ran, case, f"case {number}", visible=0.0):
                return verdict
        for case in tests.unseen:
            ran = await sandbox.execute(tests.program(code, case.given))
            if verdict := told(tests, ran, case, "an unseen case", visible=1.0):
                return verdict
        digest = sha256(f"{name}\0{code}".encode("utf-8", "surrogatepass")).digest()
        for i in range(tests.hidden if tests.generator else 0):
            try:
                case = await self.hidden(name, tests, (digest[0] + i) % SEEDS)
            except ValueError as error:
                return Verdict(Outcome.unverifiable, cause=str(error))
            ran = await sandbox.execute(tests.program(code, case.given))
            if verdict := told(tests, ran, case, "a hidden case", visible=1.0):
                return verdict
        return Verdict(Outcome.correct, parts={"visible": 1.0})

    async def hidden(self, name: str, tests: CodeTests, seed: int) -> Case:
        """A generated case, made once; ValueError where generator or reference fail."""
        if (name, seed) not in self._hidden:
            made = await self.references.execute(Program(tests.generator, "generate", (seed,)))
            if made.end != "done" or type(made.value) is not (str if tests.function is None else list):
                raise ValueError(f"generate({seed}) gives no input: {made.error or type(made.value).__name__}")
            right = await self.references.execute(tests.program(tests.reference, made.value))
            if right.end != "done":
                raise ValueError(f"the reference fails on generate({seed}): {right.error}")
            self._hidden[name, seed] = Case(made.value, right.value)
        return self._hidden[name, seed]

    def gate(self, prompts: Sequence[Prompt]) -> None:
        """`BadData` with the rows whose tests teach something else: the reference fails, or an empty answer passes.

        Empty answers: code without anything in it, a stub that returns or prints nothing, one that gives back its
        input, and one that always returns the same value.
        """
        with ThreadPoolExecutor(1) as thread:  # there may be a running loop in this one
            faults = thread.submit(lambda: asyncio.run(self._faults(prompts))).result()
        if faults:
            seen = [*faults[:SHOWN], *[f"and {len(faults) - SHOWN} more"] * (len(faults) > SHOWN)]
            what = f"the tests of {len(faults)} of {len(prompts)} problems cannot tell right from wrong"
            raise BadData(what, evidence="\n".join(seen), fix=MEND)

    async def _faults(self, prompts: Sequence[Prompt]) -> list[str]:
        at_once = asyncio.Semaphore(16)

        async def one(prompt: Prompt) -> str:
            async with at_once:
                return await self._fault(prompt.id, CodeTests.read(prompt.given["answer"]))

        found = await asyncio.gather(*map(one, prompts))
        return [f"{prompt.id}: {fault}" for prompt, fault in zip(prompts, found, strict=True) if fault]

    async def _fault(self, name: str, tests: CodeTests) -> str:
        if tests.reference:
            verdict = await self.judge(name, tests, tests.reference, self.references)
            if verdict.outcome is not Outcome.correct:
                return f"the reference does not pass: {verdict.feedback or verdict.cause}"
        for what, code in nothing(tests.function).items():
            verdict = await self.judge(name, tests, code)
            if verdict.outcome is Outcome.correct:
                return f"{what} passes"
            if verdict.outcome is Outcome.unverifiable:
                return verdict.cause
        return await self._constant(name, tests)

    async def _constant(self, name: str, tests: CodeTests) -> str:
        """Why an answer that always gives the same value may pass; empty where none can.

        It has to pass the first case, so the value expected there is the only one to try. Hidden cases are `hidden`
        successive ones of a ring, from a place that depends on the answer's code: no such stretch may fit.
        """
        constant = Execution("done", tests.cases[0].expected)
        if not all(tests.passed(constant, case.expected) for case in (*tests.cases, *tests.unseen)):
            return ""
        if tests.generator:
            try:
                ring = await asyncio.gather(*(self.hidden(name, tests, seed) for seed in range(SEEDS)))
            except ValueError as error:
                return str(error)
            fits = [tests.passed(constant, case.expected) for case in ring]
            if not any(all((fits + fits)[at : at + tests.hidden]) for at in range(SEEDS)):
                return ""
        return f"an answer that always gives {repr(constant.value)[:40]} passes"


def nothing(function: str | None) -> Mapping[str, str]:
    """Code that solves no problem."""
    if function is None:
        echo = "import sys\nsys.stdout.write(sys.stdin.read())"
        return {"a program without code": "", "a program that prints its input": echo}
    return {
        "an answer without code": "",
        "an answer that returns nothing": f"def {function}(*args): pass",
        "an answer that returns its input": f"def {function}(*args): return args[0] if args else None",
    }


def told(tests: CodeTests, ran: Execution, case: Case, which: str, visible: float) -> Verdict | None:
    """The verdict of a case that was not passed; its feedback names no expected value."""
    if ran.end == "lost":
        return Verdict(Outcome.unverifiable, cause=ran.error)
    if tests.passed(ran, case.expected):
        return None
    return Verdict(Outcome.wrong, parts={"visible": visible}, feedback=f"{which}: {ran.error or 'another value'}")


def code_verifier(task: Any, sandbox: Callable[[], Sandbox] = Sandbox) -> CodeVerifier:
    """The verifier for a task whose every answer is tests; `BadData` names the rows where one is none."""
    faults, count = [], 0
    for prompt in (*task.training, *task.held_out) if isinstance(task, Problems) else task.held_out:
        count += 1
        try:
            tests = CodeTests.read(prompt.given.get("answer"))
            json.dumps([[case.given, case.expected] for case in (*tests.cases, *tests.unseen)], allow_nan=False)
        except (ValueError, RecursionError) as error:
            faults.append(f"{prompt.id}: {error}")
    if faults:
        seen = [*faults[:SHOWN], *[f"and {len(faults) - SHOWN} more"] * (len(faults) > SHOWN)]
        raise BadData(f"{len(faults)} of {count} answers are no tests of code", evidence="\n".join(seen), fix=FORM)
    return CodeVerifier(sandbox())
