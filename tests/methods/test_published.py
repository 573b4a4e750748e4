"""Every published method has a short function, the paper's constants, differences, and proofs that exist."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

from groupwise import methods
from groupwise.certificates.proofs import proofs_of
from groupwise.commands.show_and_diff import show
from groupwise.data import find_metric
from groupwise.learner import InitialPolicy
from groupwise.methods import LinearRamp, Method, PaperReference, Schedule, ScheduleInput, grpo, published, reference_of
from groupwise.methods.families import FAMILIES, method_family, subject_of
from groupwise.methods.method import Method as MethodItself
from groupwise.objective import Objective, TruncatedImportance

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "groupwise"
NAMES = [method.__name__ for method in published]

OTHER_WORDS = {"real", "ton"}
"""Names of methods that are also words of mathematics or English, and so occur in other rooms."""

each = pytest.mark.parametrize("method", published, ids=NAMES)


def test_no_side_model_is_named_policy():
    with pytest.raises(ValueError, match="the model under training"):
        Method(models=(("policy", InitialPolicy()),))


@each
def test_is_a_short_function_in_its_own_file(method):
    docstring = (method.__doc__ or "").splitlines()
    assert len(inspect.getsource(method).splitlines()) - len(docstring) <= 25
    assert Path(inspect.getfile(inspect.unwrap(method))).stem == method.__name__
    assert all(p.kind is p.KEYWORD_ONLY for p in inspect.signature(method).parameters.values())
    assert isinstance(method(), Method) and hash(method()) == hash(method())


@pytest.mark.parametrize("method", published, ids=lambda method: method.__name__)
def test_the_docstring_says_why_and_describes_each_argument(method):
    first, *rest = (inspect.getdoc(method) or "").split("\n\n")
    (arguments,) = [text for text in rest if text.startswith("Args:")]
    assert first.endswith(".") and len(rest) >= 2, "one sentence of what it is, two of why, and the arguments"
    assert re.findall(r"^    (\w+): \S", arguments, re.MULTILINE) == list(inspect.signature(method).parameters)


def test_every_method_file_is_exported():
    """Each file in a family's folder is a method, and each folder is a family with a paragraph."""
    files = {path for path in (SOURCE / "methods").glob("*/*.py") if path.stem != "__init__"}
    assert {path.stem for path in files} == set(NAMES) <= set(methods.__all__)
    assert {path.parent.name for path in (SOURCE / "methods").glob("*/__init__.py")} == set(FAMILIES)
    assert {path.stem: path.parent.name for path in files} == {name: method_family(name) for name in NAMES}
    assert all(len(subject_of(family).splitlines()) > 2 for family in FAMILIES)


@each
def test_the_reference_names_its_parent_and_a_known_effect(method):
    """A parent is a published method, the line of parents ends at a root, and an effect is a metric that runs write."""
    line = [method.__name__]
    while parent := reference_of(getattr(methods, line[-1])).parent:
        assert parent in NAMES and parent not in line
        line.append(parent)
    effect = reference_of(method).expected_effect
    if effect is not None:
        assert effect.parent in NAMES and effect.min_difference > 0 and find_metric(effect.metric) is not None
        assert effect.parent != method.__name__ or effect.own_settings
    assert (effect is None) == bool(reference_of(method).unmeasured_reason), (
        "an effect, or the reason why none is stated"
    )


def test_a_reference_has_a_year_and_one_of_the_labels():
    facts = {"formula": "J", "differences": (), "proof_tests": ()}
    assert PaperReference(paper="REINFORCE", year=1992, evidence="paper read", **facts).source == "REINFORCE, 1992"
    assert (
        PaperReference(paper="GRPO", arxiv="2402.03300", evidence="paper read", **facts).source
        == "GRPO, arXiv:2402.03300"
    )
    with pytest.raises(ValueError, match="needs its year"):
        PaperReference(paper="REINFORCE", evidence="paper read", **facts)


def test_code_that_was_read_stands_in_a_file_at_a_commit():
    """Without a place that can be opened, the label is *code read earlier*."""
    facts = {"paper": "GRPO", "arxiv": "2402.03300", "formula": "J", "differences": (), "proof_tests": ()}
    place = f"owner/name@{'0a' * 20}:a/b.py"
    read = PaperReference(evidence="code read", code=place, **facts)
    assert read.code_link == f"https://github.com/owner/name/blob/{'0a' * 20}/a/b.py"
    assert PaperReference(evidence="code read earlier", **facts).code_link == ""
    for label, code in (("code read", ""), ("code read", "owner/name:a.py"), ("our reading", place)):
        with pytest.raises(ValueError, match="OWNER/NAME@COMMIT:PATH"):
            PaperReference(evidence=label, code=code, **facts)
    assert sum(bool(reference_of(method).code) for method in published) >= 40


def test_methods_are_in_the_order_of_their_arxiv_numbers():
    order = [(reference_of(m).year, reference_of(m).arxiv, m.__name__) for m in published]
    assert order == sorted(order) and order[0] < (2025, "", "")


@pytest.mark.t(53)
@each
def test_show_prints_paper_code_and_ours(method):
    reference = reference_of(method)
    assert isinstance(reference, PaperReference) and re.fullmatch(r"(\d{4}\.\d{5})?", reference.arxiv)
    assert len(reference.differences) >= 3
    text = " ".join(show(method.__name__).split())
    for line in (reference.source, reference.evidence, *map(str.strip, reference.formula.splitlines())):
        assert " ".join(line.split()) in text
    for d in reference.differences:
        assert all((d.subject, d.paper, d.code, d.ours))
        for word in f"{d.subject} {d.paper} {d.code} {d.ours}".split():
            assert word in text


@pytest.mark.t(53)
@each
def test_the_table_lists_every_constant(method):
    """A constant stands in a row; that of a size, such as `group_size`, in the row that names it, if one does."""
    rows = reference_of(method).differences
    for name, p in inspect.signature(method).parameters.items():
        named = [d for d in rows if name in SIZES and name.replace("_", " ") in d.subject]
        assert numbers_in(p.default) <= numbers_of(" ".join(d.ours for d in named or rows)), name
        assert name not in SIZES or getattr(method(), name) == p.default, f"the method does not use its {name}"


SIZES = ("group_size", "minibatches", "epochs")
"""Constants that change no formula, so that only the table says what they are."""


def numbers_of(text: str) -> set[float]:
    return {float(n) for n in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?:e-?\d+)?", text)}


def numbers_in(default: object) -> set[float]:
    """The absolute numbers of a default value. A number of a subscore of the verdict belongs to the user's task."""
    values = default if isinstance(default, tuple) else (default,)
    return {abs(float(x)) for x in values if isinstance(x, int | float) and not isinstance(x, bool)}


def cases(test: str) -> set[str]:
    """The ids of a test as pytest makes them, read from the function and the names of its parameters."""
    file, name = test.partition("[")[0].split("::")
    function = getattr(importlib.import_module(file.removesuffix(".py").replace("/", ".")), name)
    marks = [mark for mark in getattr(function, "pytestmark", []) if mark.name == "parametrize"]
    names = (x for m in marks if not callable(m.kwargs.get("ids")) for x in m.kwargs.get("ids") or m.args[1])
    return {f"{file}::{name}", *(f"{file}::{name}[{x}]" for x in names)}


def test_proofs_are_tests_that_exist():
    proofs = {proof for method in published for proof in proofs_of(method)}
    proofs |= {toy for method in published if (toy := reference_of(method).toy_test)}
    assert all(len(reference_of(method).proof_tests) >= 2 for method in published)
    assert {proof for proof in proofs if proof not in cases(proof)} == set()


def test_no_method_name_occurs_outside_its_room():
    """No code outside the room has a method's name as an identifier or a string.

    Left out are names that are also other words, and the table of other frameworks' names.
    """
    names = set(NAMES) - OTHER_WORDS
    occurrences = {
        f"{path.relative_to(ROOT)}: {word}"
        for path in SOURCE.rglob("*.py")
        if SOURCE / "methods" not in path.parents and path != SOURCE / "config" / "trl_and_verl_names.py"
        for word in words_of(ast.parse(path.read_text()))
        if word in names
    }
    assert occurrences == set()


def words_of(tree: ast.AST) -> set[str]:
    """Every identifier and string of a file except its docstrings."""
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
    words = words_of(ast.parse('"""doc"""\nimport a.gspo\ndef f(x: int = 1): return g(kw="y").z\n'))
    assert {"gspo", "f", "x", "g", "kw", "y", "z"} <= words and "doc" not in words


def test_invalid_methods_are_refused():
    with pytest.raises(ValueError, match="compares samples of a group"):
        grpo(group_size=1)
    with pytest.raises(ValueError, match="does not define"):
        Method(objective=grpo().objective)
    with pytest.raises(ValueError, match="the role answer is missing"):
        Method(trained_roles=("hint",))
    with pytest.raises(ValueError, match="shaping is empty"):
        Method(shaping=())
    with pytest.raises(ValueError, match="minibatches is 0"):
        Method(minibatches=0)


def test_the_engine_gap_is_corrected_once():
    weighted = Objective(weights=(TruncatedImportance(2.0),))
    assert Method(objective=weighted).old_logprobs == "learner"
    with pytest.raises(ValueError, match="correct it twice"):
        Method(objective=weighted, old_logprobs="engine")


def test_a_ramp_ends_at_its_end():
    ramp = LinearRamp(0.4, 0.2, 10)
    assert isinstance(ramp, Schedule)
    assert [ramp(ScheduleInput(i)) for i in (0, 5, 10, 99)] == pytest.approx([0.4, 0.3, 0.2, 0.2])


def test_method_is_exported_once():
    assert Method is MethodItself


def test_the_index_is_fresh():
    from tools.family_tree import family_tree
    from tools.method_pages import CHANGES_FILE, INDEX, TREE, changes_file, methods_index

    index = ROOT / INDEX
    assert index.read_text(encoding="utf-8") == methods_index(), "run: make docs"
    assert index.with_name(TREE).read_text(encoding="utf-8") == family_tree(), "run: make docs"
    assert CHANGES_FILE.read_text(encoding="utf-8") == changes_file(), "run: make docs"
