"""What every published method owes: a short function, the paper's constants, differences, proofs that exist."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from groupwise import methods
from groupwise.commands.show import show
from groupwise.learner import InitialPolicy
from groupwise.methods import Method, Ramp, Reference, Schedule, grpo, published, reference_of
from groupwise.methods.method import Method as MethodItself
from groupwise.objective import Objective, TruncatedImportance

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "groupwise"
NAMES = [method.__name__ for method in published]

each = pytest.mark.parametrize("method", published, ids=NAMES)


def test_the_policy_is_no_model_beside_itself():
    with pytest.raises(ValueError, match="the model under training"):
        Method(models=(("policy", InitialPolicy()),))


@each
def test_is_a_short_function_in_its_own_file(method):
    assert len(inspect.getsource(method).splitlines()) <= 25
    assert Path(inspect.getfile(inspect.unwrap(method))).stem == method.__name__
    assert all(p.kind is p.KEYWORD_ONLY for p in inspect.signature(method).parameters.values())
    assert isinstance(method(), Method) and hash(method()) == hash(method())


def test_every_file_of_the_room_is_shown_at_its_door():
    inside = {"__init__", "method", "published", "reference", "schedules"}
    assert {path.stem for path in (SOURCE / "methods").glob("*.py")} - inside == set(NAMES)
    assert set(NAMES) <= set(methods.__all__)


@pytest.mark.t(53)
@each
def test_prints_paper_code_and_ours(method):
    reference = reference_of(method)
    assert isinstance(reference, Reference) and re.fullmatch(r"\d{4}\.\d{5}", reference.arxiv)
    assert len(reference.differences) >= 5
    shown = " ".join(show(method.__name__).split())
    for words in (reference.paper, reference.arxiv, *map(str.strip, reference.formula.splitlines())):
        assert " ".join(words.split()) in shown
    for d in reference.differences:
        assert all((d.what, d.paper, d.code, d.ours))
        for word in f"{d.what} {d.paper} {d.code} {d.ours}".split():
            assert word in shown


@pytest.mark.t(53)
@each
def test_the_table_has_every_constant_as_it_is(method):
    ours = " ".join(d.ours for d in reference_of(method).differences)
    numbers = {float(n) for n in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?:e-?\d+)?", ours)}
    constants = {name: float(p.default) for name, p in inspect.signature(method).parameters.items()}
    assert {name: x for name, x in constants.items() if x not in numbers} == {}


def test_proofs_are_tests_that_exist():
    proofs = {proof for method in published for proof in reference_of(method).proofs}
    assert all(len(reference_of(method).proofs) >= 2 for method in published)
    files = sorted({proof.partition("::")[0] for proof in proofs})
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", *files], cwd=ROOT, capture_output=True, text=True
    ).stdout.splitlines()
    ids = {line.strip() for line in told} | {line.partition("[")[0] for line in told}
    assert proofs - ids == set()


def test_no_method_is_named_outside_its_room():
    """The loop and the learner never see a method's name: neither as an identifier nor as a string."""
    seen = {
        f"{path.relative_to(ROOT)}: {word}"
        for path in SOURCE.rglob("*.py")
        if SOURCE / "methods" not in path.parents
        for word in words_of(ast.parse(path.read_text()))
        if word in NAMES
    }
    assert seen == set()


def words_of(tree: ast.AST) -> set[str]:
    """Every identifier and string of a file but its docstrings."""
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    words: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            words.add(node.value)
        for _, value in ast.iter_fields(node):
            for word in value if isinstance(value, list) else [value]:
                if isinstance(word, str) and not isinstance(node, ast.Constant):
                    words |= {word, *word.split(".")}
    return words


def test_the_search_for_names_finds_them():
    found = words_of(ast.parse('"""doc"""\nimport a.gspo\ndef f(x: int = 1): return g(kw="y").z\n'))
    assert {"gspo", "f", "x", "g", "kw", "y", "z"} <= found and "doc" not in found


def test_a_method_refuses_what_cannot_be():
    with pytest.raises(ValueError, match="compares samples of a group"):
        grpo(group_size=1)
    with pytest.raises(ValueError, match="no such model"):
        Method(objective=grpo().objective)
    with pytest.raises(ValueError, match="shaping is empty"):
        Method(shaping=())
    with pytest.raises(ValueError, match="minibatches is 0"):
        Method(minibatches=0)


def test_the_gap_of_the_engine_is_answered_for_once():
    weighed = Objective(weights=(TruncatedImportance(2.0),))
    assert Method(objective=weighed).proximal == "recomputed"
    with pytest.raises(ValueError, match="correct it twice"):
        Method(objective=weighed, proximal="sampled")


def test_a_ramp_ends_where_it_says():
    ramp = Ramp(0.4, 0.2, 10)
    assert isinstance(ramp, Schedule)
    assert [ramp(i) for i in (0, 5, 10, 99)] == pytest.approx([0.4, 0.3, 0.2, 0.2])


def test_the_room_shows_one_method_type():
    assert Method is MethodItself


def test_the_page_is_fresh():
    from tools.methods_page import methods_page

    page = ROOT / "docs" / "methods.md"
    assert page.read_text(encoding="utf-8") == methods_page(), "run: make docs"
    assert methods_page() == methods_page()
