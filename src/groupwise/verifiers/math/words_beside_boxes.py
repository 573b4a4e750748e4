"""Whether words beside a box make it a part of a calculation: `half of \\boxed{5}`, `\\boxed{5} times 3`.

`times`, `over` and comparatives (`more than`) calculate only with a second number: `\\boxed{5} times as long` and
`\\boxed{5} more than Bob` state the box, and so does `8 is \\boxed{5} more than 3`.
"""

import re

from groupwise.verifiers.math.number_words import spelled

BLANK = r"(?:\s|~|\\[,;:! ]|\\q?quad(?![A-Za-z])|\{\})"
"""A blank in text or in a formula."""
_THAN = r"(?:more|less|fewer|greater|larger|smaller|higher|lower) than"
_RESULT = r"(?:sum|product|difference|quotient|ratio|mean|average) (?:of|between)"
_FRONT = re.compile(
    rf"\b(?:half|twice|double|triple|minus|less|plus|times|between|(?<!no ){_THAN}"
    r"|(?:add|subtract)(?:ing)?(?: \w+ (?:to|from))?|(?:added to|subtracted from)"
    r"|(?:square|cube|root|half|third|quarter|double|triple|negative|opposite|reciprocal|inverse|logarithm) of"
    rf"|{_RESULT}(?: [^,.]{{1,30}} and)?|(?<=[\d$}}] )(?:multiplied|divided|increased|decreased) by)"
    rf"(?:\s+the)?{BLANK}*[*_`]*\\?[$(\[]?{BLANK}*[*_`]*$",
    re.IGNORECASE,
)
_CLOSE = rf"(?:{BLANK}|[$*_`]|\\[)\]])*"
_BEHIND = re.compile(
    rf"{_CLOSE}(?:,?{BLANK}*(?:squared|cubed|halved|doubled)|plus|minus|mod(?:ulo)?|choose|added to|subtracted from"
    r"|(?:multiplied|divided|increased|decreased) by|(?:raised )?to the (?:\w+ )?power"
    r"|and (?:then )?(?:add|subtract|multiply|divide|double|square)"
    r"|\\(?:b?mod|times|choose|over|plus|minus))(?![A-Za-z])"
)
_WITH_NUMBER = re.compile(rf"{_CLOSE}(?:times|over|{_THAN})\s+(?P<number>[\d$\\]|[A-Za-z]+)")
_NUMBER_IS = re.compile(r"[\d}]\$?\s+is\s+\\?[$(]?$")


def calculates(before: str, behind: str) -> bool:
    """Whether the words in front of a box, or those behind it, calculate with it.

    >>> calculates("Half of ", ""), calculates("", " times 3"), calculates("It takes ", " times as long")
    (True, True, False)
    """
    if _FRONT.search(before) or _BEHIND.match(behind):
        return True
    other = _WITH_NUMBER.match(behind)
    return other is not None and _is_number(other["number"]) and not _NUMBER_IS.search(before)


def _is_number(word: str) -> bool:
    """Whether a word, or the first letter of a formula, is a number."""
    if len(word) == 1:
        return word not in "aAI"
    return word == "itself" or spelled(word) is not None
