"""The verifier `Code`: an answer is right if its code passes the problem's tests, in the sandbox."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from weakref import WeakValueDictionary

from groupwise.core import BadData, counted, first_lines
from groupwise.data import (
    Outcome,
    Prompt,
    Sample,
    Task,
    Verdict,
    Verifier,
    VerifierSettings,
    all_problems,
    verdicts_have,
)
from groupwise.sandbox.code_block import code_of
from groupwise.sandbox.sandbox import ExecutionInput, ExecutionResult, Sandbox
from groupwise.verifiers.build_verifier import VerifierContext

__all__ = ["Code", "CodeVerifier"]

CLOSE = 1e-6
"""The relative tolerance for floats."""
ZERO = 1e-12
"""The absolute tolerance for floats if 0 is expected."""
SEEDS = 64
"""The largest number of generated hidden inputs per problem."""
CACHE_SIZE = 4096
"""The most cached verdicts: a group often contains the same code many times."""
FORM = """\
write them as {"function": "add", "cases": [{"args": [1, 2], "expected": 3}, {"args": [2, 2], "expected": 4}]}
or {"cases": [{"stdin": "1 2", "stdout": "3"}, {"stdin": "2 2", "stdout": "4"}]} (docs/sandbox.md)"""
MEND = "correct or remove these rows; against a constant answer, add a case that expects another value"


@dataclass(frozen=True, slots=True)
class CodeTestCase:
    """One test: an input and the expected output, as arguments and a value, or as two texts."""

    input: Any
    expected_output: Any


@dataclass(frozen=True, slots=True)
class CodeProblemTests:
    """The tests in a problem's `answer`: cases for a `function_name`, or for a program if `function_name` is None.

    `unseen_cases` are further cases that the problem does not show; they run after `visible_cases`. `reference_code` is
    correct code. `case_generator_code` is code with a function `generate(seed)`, which returns the arguments (a list)
    or the input (a text) of a hidden case; the reference computes its expected output. `hidden_cases_per_answer` is the
    number of hidden cases per answer.
    """

    function_name: str | None
    visible_cases: tuple[CodeTestCase, ...]
    unseen_cases: tuple[CodeTestCase, ...] = ()
    reference: str = ""
    generator: str = ""
    hidden_cases_per_answer: int = 4

    @classmethod
    def read(cls, gold: Any) -> "CodeProblemTests":
        """Read the tests from a data row's JSON. ValueError, with the reason, for invalid ones."""
        if not isinstance(gold, dict):
            raise ValueError("the tests are not a JSON object")
        if unknown := gold.keys() - {"function", "cases", "unseen", "reference", "generator", "hidden"}:
            raise ValueError(f"the tests have an unknown field {min(unknown)!r}")
        function, cases, unseen = gold.get("function"), gold.get("cases"), gold.get("unseen", [])
        if function is not None and not (isinstance(function, str) and function.isidentifier()):
            raise ValueError(f"function is {function!r}, which is not the name of a function")
        if not isinstance(cases, list) or not cases:
            raise ValueError("the tests have no cases")
        if not isinstance(unseen, list):
            raise ValueError("unseen must be a list of cases")
        names = ("stdin", "stdout") if function is None else ("args", "expected")
        kind = str if function is None else list
        for number, case in enumerate([*cases, *unseen], 1):
            if not isinstance(case, dict) or case.keys() != set(names):
                raise ValueError(f"case {number} must have exactly the fields {names[0]} and {names[1]}")
            if not isinstance(case[names[0]], kind) or (function is None and not isinstance(case["stdout"], str)):
                kinds = "stdin and stdout must be text" if function is None else "args must be a list"
                raise ValueError(f"case {number}: {kinds}")
        code = {name: gold.get(name, "") for name in ("reference", "generator")}
        hidden = gold.get("hidden", 4)
        if not all(isinstance(text, str) for text in code.values()):
            raise ValueError("reference and generator must be code as text")
        if type(hidden) is not int or not 1 <= hidden <= SEEDS:
            raise ValueError(f"hidden is {hidden!r}: it must be an integer with 1 <= hidden <= {SEEDS}")
        if code["generator"] and not code["reference"]:
            raise ValueError("there is a generator, but no reference solution to compute expected outputs")
        visible, hidden_cases = (
            tuple(CodeTestCase(*(case[name] for name in names)) for case in rows) for rows in (cases, unseen)
        )
        return cls(function, visible, hidden_cases, **code, hidden_cases_per_answer=hidden)

    def program(self, code: str, given: Any) -> ExecutionInput:
        """The program that runs the code on an input."""
        if self.function_name is None:
            return ExecutionInput(code, stdin=given)
        return ExecutionInput(code, self.function_name, tuple(given))

    def passed(self, execution: ExecutionResult, expected: Any) -> bool:
        """Whether the output is the expected one; a program's output up to white space at the ends of lines."""
        if execution.end_reason != "done":
            return False
        if self.function_name is None:
            return lines(execution.return_value) == lines(expected)
        return same(execution.return_value, expected)


def same(value: Any, expected: Any) -> bool:
    """Whether two values are equal and of the same types, at every level; floats within the tolerances `CLOSE`, `ZERO`.

    >>> same([1, 0.1 + 0.2], [1, 0.3]), same(True, 1), same(1, 1.0), same(0.0, 6.6e-34)
    (True, False, False, False)
    """
    if type(value) is not type(expected):
        return False
    if type(expected) is float:
        return abs(value - expected) <= (CLOSE * abs(expected) if expected else ZERO)
    if type(expected) is list:
        return len(value) == len(expected) and all(map(same, value, expected))
    if type(expected) is dict:
        return value.keys() == expected.keys() and all(same(value[key], expected[key]) for key in expected)
    return value == expected


def lines(text: str) -> list[str]:
    """The lines of a text without white space at their ends, and without empty lines at the end."""
    return [line.rstrip() for line in text.rstrip().split("\n")]


@verdicts_have("visible", feedback=True)
@dataclass(frozen=True, slots=True)
class Code(VerifierSettings):
    """Right if the code in the answer passes the problem's tests, in the sandbox (`CodeVerifier`)."""

    def build(self, grading: VerifierContext) -> Verifier:
        """The verifier with its sandbox. `BadData`, with the first faults, if a gold answer is no tests."""
        if grading.task is not None:
            check_tests(grading.task)
        return CodeVerifier(grading.create_sandbox())


@verdicts_have("visible", feedback=True)
class CodeVerifier(Verifier):
    """Right if the code passes all visible, unseen and generated hidden cases, each in a separate execution.

    An answer without code is malformed. Too much time, memory or output is wrong. A failure of the sandbox, of the
    generator or of the reference is unverifiable. The subscore `visible` is 1 if the code passes the visible cases;
    1 with a wrong verdict indicates a memorised table. Equal code for the same problem is judged once, and its verdict
    is cached. Reference and generator run in processes that run no answers.
    """

    has_own_deadline = True

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox, self.references = sandbox, sandbox.separate()
        self._hidden: dict[tuple[str, int], CodeTestCase] = {}
        self._verdicts: dict[tuple[str, str], Verdict] = {}
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        code = code_of(sample.text)
        if code is None:
            return Verdict(Outcome.malformed, subscores={"visible": 0.0})
        key = (prompt.id, code)
        async with self._locks.setdefault(key, asyncio.Lock()):  # an equal answer waits for the cached verdict
            if key not in self._verdicts:
                verdict = await self.judge(prompt.id, CodeProblemTests.read(prompt.row["answer"]), code)
                if verdict.outcome is Outcome.unverifiable:
                    return verdict
                self._verdicts[key] = verdict
                if len(self._verdicts) > CACHE_SIZE:
                    del self._verdicts[next(iter(self._verdicts))]
            return self._verdicts[key]

    async def judge(self, name: str, tests: CodeProblemTests, code: str, sandbox: Sandbox | None = None) -> Verdict:
        """Run code on the tests in `sandbox`, and return the verdict.

        A hash of the code chooses its hidden inputs, so no answer can know them in advance.
        """
        sandbox = sandbox or self.sandbox
        for number, case in enumerate(tests.visible_cases, 1):
            execution = await sandbox.execute(tests.program(code, case.input))
            if verdict := failure(tests, execution, case, f"case {number}", visible=0.0):
                return verdict
        for case in tests.unseen_cases:
            execution = await sandbox.execute(tests.program(code, case.input))
            if verdict := failure(tests, execution, case, "an unseen case", visible=1.0):
                return verdict
        digest = sha256(f"{name}\0{code}".encode("utf-8", "surrogatepass")).digest()
        for i in range(tests.hidden_cases_per_answer if tests.generator else 0):
            try:
                case = await self.hidden(name, tests, (digest[0] + i) % SEEDS)
            except ValueError as error:
                return Verdict(Outcome.unverifiable, cause=str(error))
            execution = await sandbox.execute(tests.program(code, case.input))
            if verdict := failure(tests, execution, case, "a hidden case", visible=1.0):
                return verdict
        return Verdict(Outcome.correct, subscores={"visible": 1.0})

    async def hidden(self, name: str, tests: CodeProblemTests, seed: int) -> CodeTestCase:
        """A hidden test case from the problem's generator. ValueError if the generator or the reference fails."""
        if (name, seed) not in self._hidden:
            generated = await self.references.execute(ExecutionInput(tests.generator, "generate", (seed,)))
            given = generated.return_value
            if generated.end_reason != "done" or type(given) is not (str if tests.function_name is None else list):
                cause = generated.error or f"it returned {type(given).__name__}"
                raise ValueError(f"the test generator's generate({seed}) fails or returns no input: {cause}")
            expected = await self.references.execute(tests.program(tests.reference, given))
            if expected.end_reason != "done":
                raise ValueError(f"the reference solution fails on generate({seed}): {expected.error}")
            self._hidden[name, seed] = CodeTestCase(given, expected.return_value)
        return self._hidden[name, seed]

    def gate(self, prompts: Sequence[Prompt], /) -> None:
        """Check all tests before a run. `BadData` if a reference solution fails its tests, or a trivial answer passes.

        Trivial answers: empty code, a stub that returns or prints nothing, one that returns its input, and one that
        always returns the same value.
        """
        with ThreadPoolExecutor(1) as thread:  # the current thread may have a running loop
            faults = thread.submit(lambda: asyncio.run(self._faults(prompts))).result()
        if faults:
            what = f"the tests of {len(faults)} of {len(prompts):,} problems reject a right answer"
            raise BadData(f"{what}, or accept a wrong one", evidence=first_lines(faults), fix=MEND)

    async def _faults(self, prompts: Sequence[Prompt]) -> list[str]:
        slots = asyncio.Semaphore(16)

        async def fault_of(prompt: Prompt) -> str:
            async with slots:
                return await self._fault(prompt.id, CodeProblemTests.read(prompt.row["answer"]))

        faults = await asyncio.gather(*map(fault_of, prompts))
        return [f"{prompt.id}: {fault}" for prompt, fault in zip(prompts, faults, strict=True) if fault]

    async def _fault(self, name: str, tests: CodeProblemTests) -> str:
        if tests.reference:
            verdict = await self.judge(name, tests, tests.reference, self.references)
            if verdict.outcome is not Outcome.correct:
                return f"the reference does not pass: {verdict.feedback or verdict.cause}"
        for what, code in trivial_answers(tests.function_name).items():
            verdict = await self.judge(name, tests, code)
            if verdict.outcome is Outcome.correct:
                return f"{what} passes"
            if verdict.outcome is Outcome.unverifiable:
                return verdict.cause
        return await self._constant(name, tests)

    async def _constant(self, name: str, tests: CodeProblemTests) -> str:
        """The fault of the tests if an answer that always returns the same value can pass them; empty if none can.

        It must pass the first case, so the value expected there is the only candidate. The hidden cases are `hidden`
        successive seeds of a ring of SEEDS, from a start that depends on the answer's code. The constant must fail in
        each such window.
        """
        constant = ExecutionResult("done", tests.visible_cases[0].expected_output)
        if not all(
            tests.passed(constant, case.expected_output) for case in (*tests.visible_cases, *tests.unseen_cases)
        ):
            return ""
        if tests.generator:
            try:
                ring = await asyncio.gather(*(self.hidden(name, tests, seed) for seed in range(SEEDS)))
            except ValueError as error:
                return str(error)
            passes = [tests.passed(constant, case.expected_output) for case in ring]
            if not any(all((passes + passes)[start : start + tests.hidden_cases_per_answer]) for start in range(SEEDS)):
                return ""
        return f"an answer that always gives {repr(constant.return_value)[:40]} passes"


def trivial_answers(function: str | None) -> Mapping[str, str]:
    """Programs that ignore the problem, such as one that prints its input, by description. Valid tests reject them."""
    if function is None:
        echo = "import sys\nsys.stdout.write(sys.stdin.read())"
        return {"a program without code": "", "a program that prints its input": echo}
    return {
        "an answer without code": "",
        "an answer that returns nothing": f"def {function}(*args): pass",
        "an answer that returns its input": f"def {function}(*args): return args[0] if args else None",
    }


def failure(
    tests: CodeProblemTests, execution: ExecutionResult, case: CodeTestCase, which: str, visible: float
) -> Verdict | None:
    """The verdict if a test case failed or could not run, else None. Its feedback hides the expected value."""
    if execution.no_result:
        return Verdict(Outcome.unverifiable, cause=execution.error)
    if tests.passed(execution, case.expected_output):
        return None
    feedback = f"{which}: {execution.error or 'another value'}"
    return Verdict(Outcome.wrong, subscores={"visible": visible}, feedback=feedback)


def check_tests(task: Task) -> None:
    """Raise `BadData`, with the first faults, if the gold answers of some problems are no valid tests."""
    faults, problems = [], all_problems(task)
    for prompt in problems:
        try:
            tests = CodeProblemTests.read(prompt.row.get("answer"))
            json.dumps(
                [[case.input, case.expected_output] for case in (*tests.visible_cases, *tests.unseen_cases)],
                allow_nan=False,
            )
        except (ValueError, RecursionError) as error:
            faults.append(f"{prompt.id}: {error}")
    if faults:
        what = f"{len(faults)} of {counted(len(problems), 'problem')} have no valid tests in their answer column"
        raise BadData(what, evidence=first_lines(faults), fix=FORM)
