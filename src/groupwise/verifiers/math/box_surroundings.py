"""What the text beside a box does to it: `-\\boxed{5}` is part of a formula, and `not \\boxed{5}` is denied.

Strict in doubt: a box may stand behind an equals sign, an arrow, punctuation or a word, and in front of a unit,
punctuation or a word. Beside anything else it is a part of a formula.
"""

import re

from groupwise.verifiers.math.box_denials import denied
from groupwise.verifiers.math.words_beside_boxes import BLANK, calculates

_ARGUMENT = r"\s*\{[^{}]*\}"
_FONT = r"\\(?:text\w*|math(?:rm|bf|it|sf)|boldsymbol|emph|underline|ensuremath|mbox|color|colorbox|tag)"
_SIZE = r"\\(?:large|Large|LARGE|huge|Huge)"
_OTHER_SCRIPTS = r"[^\x00-\x7f×·⋅÷±√−–∓∑∏∫¬≠]"
_WORD = r"(?<![A-Za-z\\])(?:[A-Za-z]{2,}|\b[aI])(?:['’](?:s|re)?)?"


def _commands(names: str) -> str:
    """The pattern of these LaTeX commands."""
    return rf"\\(?:{'|'.join(names.split())})(?![A-Za-z])"


_RELATIONS = _commands(
    "approx simeq sim equiv in to le leq leqq leqslant ge geq geqq geqslant rightarrow longrightarrow Rightarrow "
    "Longrightarrow implies iff Leftrightarrow therefore because leadsto mapsto colon"
)
_IN_FRONT = (
    r"(?:^|\n)[\s>#]*(?:(?:[-*+•>]|\d{1,2}[.)])\s+)?", r"(?<!\\)\$", r"\\\$", r"\\[(\[]", r"\.(?=\s)", r"(?<!\d)\.",
    r"(?<!\\)[:,;?!\"'’”“`]", "&", r"\\\\", "=", r"[-=]>", _RELATIONS,
    _commands("displaystyle large Large LARGE bf rm item"), _WORD,
    rf"{_FONT}(?:{_ARGUMENT})+", rf"\\(?:begin|end){_ARGUMENT}(?:{_ARGUMENT})?",
    r"(?<![\w^_}\]\\])\{", _OTHER_SCRIPTS,
)  # fmt: skip
_FRONT = re.compile(rf"(?:{'|'.join(_IN_FRONT)}){BLANK}*$")
"""The text in front of a box that states its content."""
_FRONT_OF_PROSE = re.compile(r"(?:[\d)\]%}|]\s+|\|\s*|(?:(?<![A-Za-z\\])[A-Za-z]{2,}|[)\].,:])\s+[-–—]+\s+)$")
"""The same outside of a formula: also a number or a bracket and a blank, or a dash between words."""
_BEHIND = (
    "$", r"\n", r"\$", r"\\[)\]]", r"[.,;:?](?=[\s$*_\"'’”)\]}\\<]|$)", r"!(?=[\s*_\"'’”)<]|$)", r"\.\.\.",
    r"[\"'’”`&=]", r"\\\\", _RELATIONS,
    _commands("pmod blacksquare square Box checkmark qed qquad end tag hfill label mathrm mbox"),
    r"\\text\w*", r"\\?%", "°", r"\^\s*\{?\s*\\circ", r"\\circ", "[A-Za-z]{2,}", r"[mgshLJNVWKCF](?![\w^])",
    "<[/|]?[A-Za-z]", _OTHER_SCRIPTS,
)  # fmt: skip
_REAR = re.compile(rf"{BLANK}*(?:{'|'.join(_BEHIND)})")
"""The text behind a box that leaves it as it is."""
_ASIDE = re.compile(rf"{BLANK}+\((?=\s*(?:=|\\approx|\\text|[A-Za-z]{{2,}}))")
_REAR_OF_PROSE = re.compile(r"\s*\(|\s*\||\s+[aAI\d]\b|\s+[-–—]+\s+[A-Za-z]{2,}|\s*—|\s+\[")
_CLOSING = re.compile(r"\)(?=[.,;:!?]|\s*$|\s*\n|\s+[A-Za-z])")
"""The end of a sentence in brackets: `(so it is \\boxed{5})`."""
_TAG = re.compile(r"</?[A-Za-z][^<>\n]*>\s*$")
_MARKS = ("**", "__", "*", "_", "`")
_OPEN_FONT = re.compile(rf"(?:{_FONT}(?:{_ARGUMENT})*|{_SIZE}|(?<![\w^_}}\]\\]))\s*\{{$")
_PAIRS = ((r"\left(", r"\right)"), ("(", ")"), ("[", "]"))


def beside(before: str, behind: str, hypothetical: bool = False) -> str:
    r"""What the texts around a box do to it: they make it a part of a formula, or deny it; empty if neither.

    `hypothetical`: whether the problem asks about what would be (box_denials.py).

    >>> beside("so $x=", "$ cm."), beside("$-", "$"), beside("it is not ", ".")
    ('', 'is part of a formula', 'is denied')
    """
    front, rear = _without_marks(_TAG.sub("", before), behind)
    line = front.rpartition("\n")[2]
    prose = (line.count("$") - line.count(r"\$")) % 2 == 0 and not re.search(r"\\[\[(](?!.*\\[\])])", line)
    stands = _FRONT.search(front) or (prose and _FRONT_OF_PROSE.search(front))
    in_brackets = line.count("(") > line.count(")") and _CLOSING.match(rear)
    ends = _REAR.match(rear) or _ASIDE.match(rear) or (prose and (in_brackets or _REAR_OF_PROSE.match(rear)))
    if not stands or not ends or calculates(front, rear):
        return "is part of a formula"
    return "is denied" if denied(before, behind, hypothetical) else ""


def _without_marks(before: str, behind: str) -> tuple[str, str]:
    """The texts without emphasis and brackets that open and close at the box."""
    for mark in _MARKS:
        if before.endswith(mark) and behind.startswith(mark):
            before, behind = before.removesuffix(mark), behind.removeprefix(mark)
    before = re.sub(r"(?<![\w)}\]*])(?:\*\*|__|\*|_)$", "", before)
    behind = re.sub(r"^(?:\*\*|__|\*|_)(?![\w(\\{*])", "", behind)
    for left, right in _PAIRS:
        if before.endswith(left) and behind.startswith(right) and not before.removesuffix(left)[-1:].isalnum():
            return before.removesuffix(left), behind.removeprefix(right)
    if behind.startswith("}") and (font := _OPEN_FONT.search(before)):
        return before[: font.start()], behind[1:]
    return before, behind
