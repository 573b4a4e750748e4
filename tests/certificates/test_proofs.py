"""Proofs are run by pytest, and their results are those of its report."""

import importlib.util
from pathlib import Path

import pytest

from groupwise.certificates import proofs
from groupwise.certificates.proofs import ProofResult, proof_of, repository, run_proofs
from groupwise.core import MissingRequirement, WorkerLost

TESTS = """
import pytest

@pytest.mark.parametrize("n", [1, 2])
def test_both(n):
    assert n < 3

@pytest.mark.parametrize("n", [1, 2])
def test_one(n):
    assert n < 2

def test_skipped():
    pytest.skip("no reason")
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A repository with three tests."""
    root = tmp_path_factory.mktemp("clone")
    (root / "tests" / "golden").mkdir(parents=True)
    (root / "tests" / "golden" / "test_a.py").write_text(TESTS)
    (root / "pytest.ini").write_text("[pytest]\naddopts = --rootdir=.\n")
    return root


def test_each_proof_has_the_worst_result_of_its_cases(root: Path) -> None:
    names = ("test_both", "test_one", "test_one[1]", "test_skipped")
    found = run_proofs((f"tests/golden/test_a.py::{name}" for name in names), root)
    results = {test.partition("::")[2]: (proof.result, proof.case_count) for test, proof in found.items()}
    assert results == {
        "test_both": ("passed", 2),
        "test_one": ("failed", 2),
        "test_one[1]": ("passed", 1),
        "test_skipped": ("skipped", 1),
    }
    assert all(proof.seconds >= 0 for proof in found.values())


def test_a_test_that_did_not_run_is_missing_and_a_longer_name_is_another_test() -> None:
    cases = {"a.py::b_2": ("passed", 1.0), "a.py::b[x]": ("passed", 1.0)}
    assert proof_of("a.py::b", cases) == ProofResult("a.py::b", "passed", 1, 1.0)
    assert proof_of("a.py::c", cases) == ProofResult("a.py::c", "missing", 0, 0)


def test_no_case_at_all_is_an_error_with_the_output_of_pytest(root: Path) -> None:
    with pytest.raises(WorkerLost, match="ran no test") as raised:
        run_proofs(["tests/golden/test_a.py::test_nothing"], root)
    assert "test_nothing" in raised.value.evidence and "pytest -q tests/golden" in raised.value.fix


def test_the_repository_is_required_with_its_tests_and_their_packages(monkeypatch, tmp_path: Path) -> None:
    assert (repository() / "tests" / "certificates").is_dir()
    find = importlib.util.find_spec
    monkeypatch.setattr(proofs, "find_spec", lambda name: None if name == "hypothesis" else find(name))
    with pytest.raises(MissingRequirement, match="need the packages hypothesis") as raised:
        repository()
    assert "'.[dev]'" in raised.value.fix
    monkeypatch.setattr(proofs.groupwise, "__file__", str(tmp_path / "lib" / "groupwise" / "__init__.py"))
    with pytest.raises(MissingRequirement, match="this installation has no tests") as raised:
        repository()
    assert "clone" in raised.value.fix
