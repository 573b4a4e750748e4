"""Whether the words beside an answer state it: `so the answer is`, but not `I doubt that the answer is`."""

import re

from groupwise.verifiers.math.units import words

BEFORE = 160
"""The characters before an answer that are read."""
NEAR = 40
"""A connective, such as `so` or `we find that`, ends in this number of characters before the answer."""

_SENTENCE = re.compile(r"[.!?。]['\"”)$*_]*\s+|\n\s*")
"""The end of a sentence."""
_LIST_MARK = re.compile(
    r"[\s>#*_•+–\-=|→⇒∴✅✔👉➡]*(?:(?:\(?[0-9a-zA-Z]{1,2}[.)]|step \d+:?)\s+)?[\s*_#]*", re.IGNORECASE
)
_LAST_WORD = re.compile(r"(?<![A-Za-z])([A-Za-z]{2,12})[\s*_]+$")
_THE = frozenset(("the", "our", "my", "your", "this", "its", "that"))
_ADJECTIVES = frozenset((
    "final", "correct", "right", "required", "desired", "requested", "exact", "numerical", "simplified", "complete",
    "overall", "whole", "full",
))  # fmt: skip
_ADVERB = (
    r"(?:so|thus|therefore|hence|then|consequently|accordingly|finally|overall|now|and|but|clearly|indeed"
    r"|altogether|however|actually|in conclusion|in summary|in short|in other words|that is|here is"
    r"|in total|in the end|to conclude|to summarize|to sum up|at last|result)"
)
_FIND = r"(?:get|find|see|conclude|know|have shown|have found|have proved|have|obtain|deduce|claim|think|believe)"
_FOLLOWS = r"(?:follows|means|shows|implies|gives|tells us)"
_CONNECTIVE = (
    rf"(?:{_ADVERB}|(?:we|I)(?: can| now| therefore| thus| must)? {_FIND}|I am (?:sure|certain|confident)"
    rf"|(?:it|this|that|which)(?: now)? {_FOLLOWS})(?: that)?[,:]?\s+"
)
_OPENING = re.compile(rf"(?:(?:as an? )?{_CONNECTIVE})+", re.IGNORECASE)
_LEADS = re.compile(rf"(?:^|[\s,;)}}\]$]){_CONNECTIVE}$|[:;]\s*$|[\d)}}\]$%*]\s+$", re.IGNORECASE)
_DOING = (
    r"(?:since|because|as|given|after|by|with|from|using|adding|summing|subtracting|multiplying|dividing"
    r"|combining|counting|substituting|simplifying|solving|putting|evaluating|computing|calculating"
    r"|expanding|factoring|integrating|taking|differentiating|applying|checking|plugging|rounding)"
)
_REASON = re.compile(rf"{_DOING}\b.*,\s*$", re.IGNORECASE | re.DOTALL)
_OPEN_NO_STATEMENT = words(
    "if suppose assume assuming unless imagine pretend let say perhaps maybe were had is are does do did can could why "
    "who how what when where should would contrary unlike like"
)
"""Words at the start of a sentence that supposes or asks."""
_REPORT = words(
    "naive naively doubt doubts doubted doubtful deny denies whether claims claimed say says said thinks thought if "
    "guess guesses guessed guessing wrote write writes mistaken mistakenly wrong wrongly incorrect incorrectly false "
    "falsely untrue suppose supposes supposed supposing supposedly perhaps maybe unlikely"
)
"""Words of a sentence that reports, denies or supposes what follows."""
_WORD = re.compile("[a-z']+")
_HELD = r"(?:true|the case|so|sure|certain|clear|follow|mean|imply|think|believe|claim|conclude|say)"
_NOT_HELD = re.compile(rf"(?:\bnot|(?:\bcannot|n't)(?: \w+)?) {_HELD}\b")
_NEGATED = re.compile(r"\b(?:not|never|cannot)\b|n't\b")
_NO_ABOUT = (
    r"(?:not|no|never|cannot|nobody|none|whether|if|what|wrong|incorrect|false|naive|different|another|other"
    r"|previous|earlier|first|old|would|could|might|may|must)"
)
_ABOUT = re.compile(
    rf"\s*(?:(?:(?:to|of|for|in|on|we|you|here|now|then|therefore|thus|hence|simply|clearly)|\()"
    rf"(?!.*(?:n't|\b{_NO_ABOUT}\b)).*)?",
    re.IGNORECASE | re.DOTALL,
)
"""What an answer may be about: `to the question`, `in simplest form`."""


def stated(text: str, start: int, about: str) -> bool:
    """Whether the word `answer` at `start` opens a statement: at the start of a sentence, or behind `so`, `since ...,`.

    `about`: the words between `answer` and `is`.

    >>> [stated(text, text.find("answer"), "") for text in ("So the answer is", "I doubt that the answer is")]
    [True, False]
    """
    before = _without_article(text[max(0, start - BEFORE) : start])
    ends = [0, *(end.end() for end in _SENTENCE.finditer(before))]
    opening = before[ends[-1] :]
    opening = opening[mark.end() :] if (mark := _LIST_MARK.match(opening)) else opening
    if not _ABOUT.fullmatch(about):
        return False
    if not opening or _OPENING.fullmatch(opening):
        return True
    if not (_LEADS.search(opening[-NEAR:]) or _REASON.fullmatch(opening)):
        return False
    return not _is_supposed(opening.lower())


def _is_supposed(opening: str) -> bool:
    """Whether the start of a sentence reports, asks, denies or supposes what follows."""
    written = _WORD.findall(opening)
    if (written and written[0] in _OPEN_NO_STATEMENT) or not _REPORT.isdisjoint(written):
        return True
    return bool(_NOT_HELD.search(opening) or (opening.rstrip().endswith(":") and _NEGATED.search(opening)))


def _without_article(before: str) -> str:
    """The text in front of `the final answer`, where `before` ends in front of `answer`."""
    for known in (_ADJECTIVES, _ADJECTIVES, _THE):
        word = _LAST_WORD.search(before[-NEAR:])
        if word is not None and word[1].lower() in known:
            before = before[: word.start() - len(before[-NEAR:])]
    return before
