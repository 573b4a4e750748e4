"""Prose is plain English."""

import re

import pytest
from tools.words import HOME, prose_of

from groupwise.environments.tools import NO_PAIR
from groupwise.verifiers.llm_judge import PROMPT

PAGES = sorted([HOME / "README.md", HOME / "CHANGELOG.md", *HOME.glob("docs/**/*.md")])
FOLDERS = ("src", "tools", "benchmarks", "studies", "examples")
CODE = sorted(path for folder in FOLDERS for path in (HOME / folder).rglob("*.py"))


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
        for path in [*CODE, *PAGES]
        for passage in prose_of(path)
        if not re.search(r"\(\?|\\[bs]", passage.text) and passage.text not in (PROMPT, NO_PAIR)
    ]


@pytest.mark.parametrize("kind", ARCHAIC)
def test_prose_is_plain(kind: str, prose: list[tuple[str, str]]) -> None:
    matches = ((where, re.search(ARCHAIC[kind], text)) for where, text in prose)
    phrases = [f"{where}: {match[0]}" for where, match in matches if match]
    assert not phrases, "\n".join(["write these in plain English:", *phrases])
