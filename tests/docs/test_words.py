"""One word for one thing: the old names of docs/words.md are gone, and prose is plain English."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.words import FENCE, HOME, SOURCE, prose_of

from groupwise.data import METRICS
from groupwise.environments.tools import NO_PAIR
from groupwise.runs.format_1 import KEYS, PARTS
from groupwise.verifiers.llm_judge import PROMPT

WORDS = HOME / "docs" / "words.md"
PAGES = sorted([HOME / "README.md", *(page for page in HOME.glob("docs/**/*.md") if page != WORDS)])
FOLDERS = ("src", "tools", "benchmarks", "studies", "examples")
CODE = sorted(path for folder in FOLDERS for path in (HOME / folder).rglob("*.py"))


def rows(table: str) -> list[tuple[str, ...]]:
    """The cells of a table of docs/words.md, without backticks."""
    text = WORDS.read_text("utf-8").partition(f"<!-- {table} -->\n")[2].partition(f"<!-- /{table} -->")[0]
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [tuple(cell.strip(" `") for cell in line.strip("|").split(" | ")) for line in lines]


def definitions(path: Path) -> Iterator[str]:
    """The names that a file defines: classes, functions and constants, and members as `Class.member`."""

    def names(body: list[ast.stmt], prefix: str) -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.ClassDef):
                yield prefix + node.name
                yield from names(node.body, f"{node.name}.")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield prefix + node.name
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield prefix + node.target.id
            elif isinstance(node, ast.Assign):
                yield from (prefix + target.id for target in node.targets if isinstance(target, ast.Name))

    yield from names(ast.parse(path.read_text("utf-8")).body, "")


def renamed_member(old: str, new: str) -> str:
    """A former member under the present name of its class.

    >>> renamed_member("Family.kept", "Rollout.selected"), renamed_member("Family", "Rollout")
    ('Rollout.kept', 'Family')
    """
    return f"{new.rpartition('.')[0]}.{old.rpartition('.')[2]}" if "." in old else old


def test_tables_were_read() -> None:
    assert ("method.keep", "method.filter") in rows("keys") and ("Family.kept", "Rollout.selected") in rows("names")
    assert len(rows("names")) > 100 and len(rows("local")) > 100 and len(rows("files")) > 100
    assert len({row[0] for row in rows("files")}) == len(rows("files"))


def test_keys_and_metrics_are_those_of_the_package() -> None:
    renamed = {(f"{table}.{old}", f"{table}.{new}") for table, keys in KEYS.items() for old, new in keys.items()}
    assert set(rows("keys")) == renamed
    assert set(rows("metrics")) == {(old, metric.name) for metric in METRICS.values() for old in metric.former}
    assert set(PARTS.items()) <= {row[-2:] for table in ("names", "local") for row in rows(table)}


def test_the_package_defines_no_old_name() -> None:
    present = {name: path.relative_to(SOURCE) for path in SOURCE.rglob("*.py") for name in definitions(path)}
    old = [renamed_member(*row) for row in rows("names")]
    assert {name: str(present[name]) for name in old if name in present} == {}


def test_a_file_defines_no_old_name_of_its_own() -> None:
    present = {str(path.relative_to(SOURCE)): set(definitions(path)) for path in SOURCE.rglob("*.py")}
    assert [row for row in rows("local") if renamed_member(*row[1:]) in present[row[0]]] == []


def test_each_new_name_exists() -> None:
    """Members may be inherited, properties or attributes, so only classes, functions and constants are compared."""
    present = {name for path in SOURCE.rglob("*.py") for name in definitions(path)}
    new = [row[-1] for table in ("names", "local") for row in rows(table)]
    assert [name for name in new if "." not in name and name not in present] == []


def test_files_have_their_new_paths() -> None:
    roots = (SOURCE, HOME)
    assert [old for old, _ in rows("files") if any((root / old).is_file() for root in roots)] == []
    assert [new for _, new in rows("files") if not any((root / new).exists() for root in roots)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_no_old_name(page: Path) -> None:
    """Names in code spans and code blocks; keys, metrics and paths anywhere."""
    text = page.read_text("utf-8")
    code = "\n".join([*(match[0] for match in FENCE.finditer(text)), *re.findall(r"`([^`\n]+)`", FENCE.sub("", text))])
    names = [renamed_member(*row) for row in rows("names")] + [old for old, _ in rows("names")]
    assert [name for name in names if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", code)] == []
    plain = [old for table in ("keys", "files", "metrics") for old, _ in rows(table) if "/" in old or "." in old]
    assert [old for old in plain if re.search(rf"(?<![\w/.-]){re.escape(old)}(?!\w)", text)] == []


@pytest.mark.parametrize(
    "recipe", sorted([*HOME.glob("recipes/*.toml"), *SOURCE.rglob("*.toml")]), ids=lambda p: p.stem
)
def test_a_recipe_has_no_old_key(recipe: Path) -> None:
    keys = {old.rpartition(".")[2] for old, _ in rows("keys")}
    assert re.findall(rf"^(?:\w+\.)*(?:{'|'.join(keys)}) *=", recipe.read_text("utf-8"), re.MULTILINE) == []


# Plain English

ARCHAIC = {
    "pronoun": r"\b(somebody|anybody|whatsoever|whomever|oneself|one's own|nobody(?!`))\b",
    "adverb": r"\b(anew|hence|thence|whence|thereof|whereof|wherein|thereby|hither|amiss|lest|nought)\b",
    "verb": r"\b(borne|hears|heard|hearken|bethink|mends|mended|unmended|strews?|begotten)\b",
    "telling": r"\b(is|are|was|were|be|been|being) told\b|\btold (of|by|apart)\b"
    r"|\btells? (of|whether|what|how|it|its)\b",
    "asking": r"\b(is|are|was|were|be|been) (said|met|heard|asked) (of|by|from|for|again|with)\b",
    "clause": r"\b(of|by|for|from|with|to|in|at|on|all) (what|whom|whose)"
    r" (it|he|they|is|was|are|were|has|had|comes|stands)\b",
    "opening": r"(^|[.;:] )(Whose|Whom|What (reads|asks|says|stands|holds|comes|goes|came|went|follows|makes|knows))\b",
    "inverted": r"(^|[.;] )(Counted|Asked|Told|Meant|Kept|Held|Known|Said|Refused|Written) (is|are|was)\b",
    "standing": r"\bst(ands?|ood) (beside|behind|between|for|still|alone|as|in|at|on|where|there|around|above)\b"
    r"|\b(as|where) (it|they|he) st(ands?|ood)\b",
    "per": r"\b(numbers?|lines?|tokens?|values?|steps?|verdicts?|calls?|seconds?|FLOPs|bytes)"
    r" an? (token|sample|group|step|row|answer|draw|iteration|second|prompt|run|problem|call|line|microbatch)\b",
    "own": r"\bof (its|their|his|her|your|our|one's) own\b",
    "way back": r"\bway back\b",
    "goes on": r"\bgo(es)? on (with|to|from|until|where|as)\b",
    "is no": r"\b(it|this|that|which|what) (is|are|was) no (number|model|directory|file|part|task|name|recipe|run)\b",
}
"""Phrases that a stranger has to read twice, by the kind of phrase."""
EXAMPLES = {
    "pronoun": "Where somebody asked",
    "adverb": "it is made anew",
    "verb": "A full disk is borne a few times",
    "telling": "the iteration is told as a page",
    "asking": "it is said of them",
    "clause": "indices of what is asked",
    "opening": "What reads files needs no torch",
    "inverted": "Counted is `failed`",
    "standing": "the weights as they stand",
    "per": "one number a token",
    "own": "a process of its own",
    "way back": "forwarded again on the way back",
    "goes on": "the run goes on with the next",
    "is no": "it is no number",
}


@pytest.mark.parametrize("kind", ARCHAIC)
def test_the_pattern_finds_its_example(kind: str) -> None:
    assert EXAMPLES.keys() == ARCHAIC.keys() and re.search(ARCHAIC[kind], EXAMPLES[kind])


@pytest.fixture(scope="module")
def prose() -> list[tuple[str, str]]:
    """(`file:line`, text) of all docstrings, comments, messages and pages; code spans are empty.

    Regular expressions are left out, and texts that models read: other words would change cached replies and tokens.
    """
    return [
        (f"{path.relative_to(HOME)}:{passage.line}", re.sub(r"`[^`]*`", "``", " ".join(passage.text.split())))
        for path in [*CODE, *PAGES, WORDS, HOME / "CHANGELOG.md"]
        for passage in prose_of(path)
        if not re.search(r"\(\?|\\[bs]", passage.text) and passage.text not in (PROMPT, NO_PAIR)
    ]


@pytest.mark.parametrize("kind", ARCHAIC)
def test_prose_is_plain(kind: str, prose: list[tuple[str, str]]) -> None:
    matches = ((where, re.search(ARCHAIC[kind], text)) for where, text in prose)
    phrases = [f"{where}: {match[0]}" for where, match in matches if match]
    assert not phrases, "\n".join(["write these in plain English:", *phrases])
