"""What the text beside a box does to it: `-\\boxed{5}` is part of a formula, and `not \\boxed{5}` is denied.

Strict in doubt: a box may stand behind an equals sign, an arrow, punctuation or a word, and in front of a unit,
punctuation or a word. Beside anything else it is a part of a formula.
"""

import re

from groupwise.verifiers.math.assertions import denied

_BLANK = r"(?:\s|~|\\[,;:! ]|\\q?quad(?![A-Za-z])|\{\})"
_RELATION = (
    r"=|(?:[-=]|\\[lr]?)>|\\(?:approx|simeq|sim|equiv|in|to|[lL]?e?q?s?slant|leq?q?|geq?q?|(?:long)?rightarrow"
    r"|(?:Long)?[lL]?(?:eft)?[rR]ightarrow|implies|iff|therefore|because|leadsto|mapsto|colon|displaystyle|large|Large|LARGE|bf|rm)"
    r"(?![A-Za-z])"
)
_FONT = r"\\(?:text\w*|math(?:rm|bf|it|sf)|boldsymbol|emph|underline|ensuremath|mbox|color|textcolor|colorbox|tag)"
_NOT_OPERATORS = r"[^\x00-\x7f×·⋅÷±√−–∓∑∏∫¬≠<>]"
_FRONT = re.compile(
    rf"(?:(?:^|\n)[\s>#]*(?:(?:[-*+•>]|\d{{1,2}}[.)])\s+)?|(?<!\\)\$|\\[(\[]|\.(?=\s)|(?<!\d)\.|[:,;?!&\"'’”“`]|\\\\|{_RELATION}"
    rf"|(?<![A-Za-z\\])(?:[A-Za-z]{{2,}}|\b[aI])(?:['’](?:s|re)?)?|\\item|{_FONT}(?:\s*\{{[^{{}}]*\}})+|\\(?:begin|end)\{{[^{{}}]*\}}(?:\{{[^{{}}]*\}})?"
    rf"|(?<![\w^_}}\]])\{{|{_NOT_OPERATORS}|\\\$)"
    rf"{_BLANK}*$"
)
_FRONT_OF_PROSE = re.compile(r"(?:[\d)\]%}|]\s+|\|\s*|(?:(?<![A-Za-z\\])[A-Za-z]{2,}|[)\].,:])\s+[-–—]+\s+)$")
"""The text in front of a box outside of a formula: a number or a bracket and a blank, a dash between words."""
_REAR = re.compile(
    rf"{_BLANK}*(?:$|\n|\$|\\[)\]]|[.,;:?](?=[\s$*_\"'’”)\]}}\\<]|$)|!(?=[\s*_\"'’”)<]|$)|\.\.\.|[\"'’”`&]|\\\\|=|\\(?:approx|simeq|pmod|blacksquare|square|Box"
    rf"|checkmark|qed|qquad|end|text\w*|mathrm|mbox|tag|hfill|label|because|therefore|Rightarrow|implies|iff|in|le|ge|leq|geq)(?![A-Za-z])"
    rf"|\\?%|°|\^\s*\{{?\s*\\circ|\\circ|[A-Za-z]{{2,}}|[mgshLJNVWKCF](?![\w^])|<[/|]?[A-Za-z]|{_NOT_OPERATORS})"
)
_ASIDE = re.compile(rf"{_BLANK}+\((?=\s*(?:=|\\approx|\\text|[A-Za-z]{{2,}}))")
_REAR_OF_PROSE = re.compile(r"\s*\(|\s*\||\s+[aAI\d]\b|\s+[-–—]+\s+[A-Za-z]{2,}|\s*—|\s+\[")
_MOD = re.compile(rf"{_BLANK}*\\?(?:b?mod|times|choose|over|plus|minus|divided)(?![A-Za-z])")
_TAG = re.compile(r"</?[A-Za-z][^<>\n]*>\s*$")
_MARKS = ("**", "__", "*", "_", "`")
_OPEN_FONT = re.compile(
    rf"(?:{_FONT}(?:\s*\{{[^{{}}]*\}})*|\\(?:large|Large|LARGE|huge|Huge)|(?<![\w^_}}\]\\]))\s*\{{$"
)
_PAIRS = ((r"\left(", r"\right)"), ("(", ")"), ("[", "]"))


def beside(before: str, behind: str) -> str:
    r"""What the texts around a box do to it: they make it a part of a formula, or deny it; empty if neither.

    >>> beside("so $x=", "$ cm."), beside("$-", "$"), beside("it is not ", ".")
    ('', 'is part of a formula', 'is denied')
    """
    front, rear = _without_marks(_TAG.sub("", before), behind)
    line = front.rpartition("\n")[2]
    prose = (line.count("$") - line.count(r"\$")) % 2 == 0 and not re.search(r"\\[\[(](?!.*\\[\])])", line)
    stands = _FRONT.search(front) or (prose and _FRONT_OF_PROSE.search(front))
    ends = _REAR.match(rear) or _ASIDE.match(rear) or (prose and _REAR_OF_PROSE.match(rear))
    if not stands or not ends or _MOD.match(rear):
        return "is part of a formula"
    return "is denied" if denied(before, behind) else ""


def _without_marks(before: str, behind: str) -> tuple[str, str]:
    """The texts without emphasis and brackets that open and close at the box."""
    for mark in _MARKS:
        if before.endswith(mark) and behind.startswith(mark):
            before, behind = before.removesuffix(mark), behind.removeprefix(mark)
    before = re.sub(r"(?<![\w)}\]*])(?:\*\*|__|\*|_)$", "", before)
    behind = re.sub(r"^(?:\*\*|__|\*|_)(?![\w(\\{*])", "", behind)
    for left, right in _PAIRS:
        if before.endswith(left) and behind.startswith(right):
            return before.removesuffix(left), behind.removeprefix(right)
    if behind.startswith("}") and (font := _OPEN_FONT.search(before)):
        return before[: font.start()], behind[1:]
    return before, behind
