"""Runs the tests that verify a method (its proofs), by pytest in a separate process."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal
from xml.etree import ElementTree

import groupwise
from groupwise.core import MissingRequirement, WorkerLost
from groupwise.data import declares, name_of
from groupwise.methods import Method, reference_of
from groupwise.rewards import everything

Result = Literal["passed", "failed", "skipped", "missing", "not run"]
WORST: tuple[Result, ...] = ("failed", "missing", "skipped", "passed")
PACKAGES = ("pytest", "pytest_timeout", "hypothesis", "beartype")
"""Packages that the tests import, from the optional dependencies `dev`."""
LINES = 20
"""The number of lines of pytest's output that an error shows."""
OF_EVERY_METHOD = (
    "tests/laws/test_published_laws.py::test_the_method_moves_the_policy",
    "tests/laws/test_published_laws.py::test_microbatches_add_up_to_the_step",
    "tests/laws/test_published_laws.py::test_a_step_or_a_microbatch_without_tokens_gives_0",
    "tests/laws/test_published_laws.py::test_the_order_of_samples_in_a_group_does_not_matter",
    "tests/laws/test_published_laws.py::test_float32_gives_the_loss_of_float64",
    "tests/methods/test_published.py::test_the_table_lists_every_constant",
)
"""Tests with a case for each method: the laws, and the constants in the table of differences."""
OF_EVERY_RUN = (
    "tests/data/test_segments.py::test_reductions_equal_loops",
    "tests/learner/test_plan.py::test_steps_are_of_prompts_or_of_equally_many_samples",
    "tests/learner/test_gradients.py::test_a_step_divides_by_its_tokens_and_reports_its_loss",
    "tests/rollout/test_buffer.py::test_rules_for_unverifiable_samples",
)
"""Tests of what each method's run does: sums over groups, steps, their divisor, the rule for unverifiable answers."""
TOY = "tests/toys/test_every_method_runs.py::test_it_trains"
FILTERS = "tests/rewards/test_filters.py::test_selected"


@dataclass(frozen=True, slots=True)
class ProofResult:
    """A test that verifies a method: its id, the worst result of its cases, their number and their seconds."""

    test: str
    result: Result
    case_count: int
    seconds: float


def proofs_of(publish: Callable[..., Method]) -> tuple[str, ...]:
    """The ids of the tests that verify a published method: its own, and by rule the laws, its filter's and the toy.

    >>> from groupwise.methods import dapo
    >>> [proof.rpartition("::")[2] for proof in proofs_of(dapo)][-2:]
    ['test_selected[mixed_outcomes]', 'test_it_trains[dapo]']
    """
    name, method = publish.__name__, publish()
    filtered = () if method.filter == everything else (f"{FILTERS}[{name_of(method.filter)}]",)
    toy = (f"{TOY}[{name}]",) if trains_the_toy(method) else ()
    return (
        *reference_of(publish).proof_tests,
        *(f"{x}[{name}]" for x in OF_EVERY_METHOD),
        *OF_EVERY_RUN,
        *filtered,
        *toy,
    )


def trains_the_toy(method: Method) -> bool:
    """Whether a method can train the toy of the tests: a language model, without environment or stored answers."""
    left_out = any(declares(method.strategy, name) for name in ("needs_environment", "writes_stored_answers"))
    return method.denoise is None and not left_out


def repository() -> Path:
    """The repository that the package is imported from. `MissingRequirement` without its tests or their packages."""
    root = Path(groupwise.__file__).parents[2]
    if not (root / "tests" / "golden").is_dir():
        what = "the proofs of a method are tests of the repository, and this installation has no tests"
        fix = "run the command in a clone of the repository, installed by: pip install -e '.[dev]'"
        raise MissingRequirement(what, fix=fix)
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        what = f"the proofs (tests) of a method need the packages {', '.join(missing)}"
        raise MissingRequirement(what, fix="pip install -e '.[dev]'")
    return root


def run_proofs(tests: Iterable[str], root: Path) -> dict[str, ProofResult]:
    """Run tests in one process of pytest, and return their results by id. Raises `WorkerLost` if it cannot run them."""
    ids = sorted(set(tests))
    with TemporaryDirectory() as scratch:
        results = Path(scratch) / "results.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={results}", *ids]
        paths = (str(root / "src"), os.environ.get("PYTHONPATH", ""))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
        cases = cases_of(results.read_text(encoding="utf-8")) if results.is_file() else {}
    if not cases:
        last = "\n".join(f"{done.stdout}\n{done.stderr}".split("\n")[-LINES:]).strip()
        fix = f"see the cause with: pytest -q {' '.join(ids[:3])}"
        raise WorkerLost("pytest ran no test (proof) of the method", evidence=last, fix=fix)
    return {test: proof_of(test, cases) for test in ids}


def cases_of(report: str) -> dict[str, tuple[Result, float]]:
    """Read a JUnit report: the result and the seconds of each test case, by its id.

    >>> cases_of('<testsuite><testcase classname="tests.a" name="test_b[1]" time="0.5"/></testsuite>')
    {'tests/a.py::test_b[1]': ('passed', 0.5)}
    """
    cases: dict[str, tuple[Result, float]] = {}
    for case in ElementTree.fromstring(report).iter("testcase"):
        marks = {child.tag for child in case}
        result: Result = "failed" if marks & {"failure", "error"} else "skipped" if "skipped" in marks else "passed"
        file = case.attrib["classname"].replace(".", "/")
        cases[f"{file}.py::{case.attrib['name']}"] = result, float(case.attrib["time"])
    return cases


def proof_of(test: str, cases: Mapping[str, tuple[Result, float]]) -> ProofResult:
    """Combine the results of a test's cases. An id without parameters means all of its cases.

    >>> proof_of("a.py::b", {"a.py::b[1]": ("passed", 0.5), "a.py::b[2]": ("failed", 0.25)})
    ProofResult(test='a.py::b', result='failed', cases=2, seconds=0.75)
    """
    matches = [case for name, case in cases.items() if name == test or name.startswith(f"{test}[")]
    results: list[Result] = [result for result, _ in matches] or ["missing"]
    return ProofResult(test, min(results, key=WORST.index), len(matches), sum(seconds for _, seconds in matches))
