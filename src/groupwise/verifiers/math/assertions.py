"""Whether the words beside an answer state it: `so the answer is`, but not `I doubt that the answer is`."""

import re

BEFORE = 240
"""The characters before an answer that are read."""

_SENTENCE = re.compile(r"[.!?。]['\"”)$*_]*\s+|\n\s*")
"""The end of a sentence."""
_LIST_MARK = re.compile(r"[\s>#*_•+–\-]*(?:(?:\(?[0-9a-zA-Z]{1,2}[.)]|step \d+:?)\s+)?[\s*_#]*", re.IGNORECASE)
_THE = frozenset(("the", "our", "my", "your", "this", "its", "that"))
_ADJECTIVES = frozenset((
    "final", "correct", "right", "required", "desired", "requested", "exact", "numerical", "simplified", "complete",
    "overall", "whole", "full",
))  # fmt: skip
_LAST_WORD = re.compile(r"(?<![A-Za-z])([A-Za-z]{2,12})[\s*_]+$")
_CONNECTIVE = (
    r"(?:so|thus|therefore|hence|then|consequently|accordingly|finally|overall|now|and|but|clearly|indeed|altogether"
    r"|however|actually|in (?:conclusion|summary|short|total|the end)|to (?:conclude|summarize|sum up)|at last|(?:as a )?result"
    r"|(?:we|I)(?: can| now| therefore| thus| must)? (?:get|find|see|conclude|know|have(?: shown| found| proved)?|obtain|deduce|claim|think|believe)"
    r"|I am (?:sure|certain|confident)|(?:it|this|that|which)(?: now)? (?:follows|means|shows|implies|gives|tells us))"
)
_OPENING = re.compile(rf"(?:{_CONNECTIVE}(?: that)?[,:]?\s+)+", re.IGNORECASE)
_LEADS = re.compile(rf"(?:^|[\s,;)}}\]$]){_CONNECTIVE}(?: that)?[,:]?\s+$|[:;]\s*$|[\d)}}\]$%*]\s+$", re.IGNORECASE)
_DOING = (
    "using|adding|summing|subtracting|multiplying|dividing|combining|substituting|simplifying|solving|counting|putting"
    "|evaluating|computing|calculating|expanding|factoring|integrating|differentiating|applying|checking|taking|plugging"
)
_REASON = re.compile(rf"(?:since|because|as|given|after|by|with|from|{_DOING})\b.*,\s*$", re.IGNORECASE | re.DOTALL)
_NOT_STATED = re.compile(
    r"^(?:if|suppose|assum\w+|unless|imagine|pretend|let|say|perhaps|maybe|were|had|is|are|does|do|did|can|could|why|who"
    r"|how|what|when|where|should|would|contrary|unlike|like)\b"
    r"|\b(?:naive\w*|nobody|no one|someone|some|people|doubt\w*|deny|denies|whether|claims|claimed|says?|said|thinks|thought"
    r"|guess\w*|wrote|writes?|mistaken\w*|wrong\w*|incorrect\w*|false\w*|untrue|suppos\w+|perhaps|maybe|unlikely|if"
    r"|not (?:true|the case|so|sure|certain|clear|follow|mean|imply|think|believe|claim|conclude|say)"
    r"|(?:cannot|\w+n't)(?: \w+)? (?:true|sure|certain|clear|follow|mean|imply|think|believe|claim|conclude|say))\b",
    re.IGNORECASE,
)
"""A sentence that reports, asks, denies or supposes what follows."""
_NEGATED = re.compile(r"\b(?:not|never|cannot)\b|n't\b", re.IGNORECASE)
_ABOUT = re.compile(
    r"\s*(?:(?:to|of|for|in|on|we|you|here|now|then|therefore|thus|hence|simply|clearly|\()"
    r"(?!.*(?:n't|\b(?:not|no|never|cannot|nobody|none|whether|if|what|wrong|incorrect|false|naive|different|another|other"
    r"|previous|earlier|first|old|would|could|might|may|must)\b)).*)?",
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
    if _NOT_STATED.search(opening) or (opening.rstrip().endswith(":") and _NEGATED.search(opening)):
        return False
    return bool(_LEADS.search(opening[-48:]) or _REASON.fullmatch(opening))


def _without_article(before: str) -> str:
    """The text in front of `the final answer`, where `before` ends in front of `answer`."""
    for known in (_ADJECTIVES, _ADJECTIVES, _THE):
        word = _LAST_WORD.search(before)
        if word is not None and word[1].lower() in known:
            before = before[: word.start()]
    return before


_ASIDE = re.compile(r"(?<=\bnot), [^,.\n]+,\s")
_CLAUSE = re.compile(r"[.!?;:,]['\"”)$*_]*\s|\n|\b(?:so|thus|then|therefore|hence|but)\b")
_DENIES = re.compile(
    r"(?:\b(?:not|never|cannot|nor|except|unequal)\b|\b(?:wrong|incorrect|false)\s+(?:answer|value|result|solution|that|to)\b|n't\b|\b(?:other|rather) than\b|\binstead of\b"
    r"|\bdifferent from\b)\W*(?:\b(?:be|is|are|equals?|to|that|the|an?|answer|value|simply|just|it|x|y|n)\b\W*){0,5}$"
    r"|\b(?:(?:do|does|did|can|could|should|would|must|may|is|are|am)(?: not|n't)|cannot|never)(?: \w+)?"
    r" (?:think|believe|claim|say|mean|conclude|imply|write|follow|sure|true|certain|convinced|the case)\b"
    r"|\b(?:doubt\w*|deny|denies|(?:nobody|no one) (?:says|thinks|believes|claims|knows|gets|would)|untrue|unlikely|whether|suppose|assume|imagine|pretend|naive\w*|wrongly|impossible"
    r"|(?:might|may|could|would) (?:think|guess|say|believe|expect|conclude|suspect)"
    r"|mistaken\w*|(?:he|she|they|student|book|friend|someone|people|solver) (?:would )?(?:says?|claims?|guess\w*|thinks?))\b",
    re.IGNORECASE,
)
_DENIED_BEHIND = re.compile(
    r"(?:[\s$},;\"']|\\[)\]]|\\text\w*\{)*(?:which\s+|that\s+|it\s+)?"
    r"(?:(?:is|was|are|would\s+be|seems|looks|must\s+be)(?:n't\b|\s+(?:\w+\s+){0,2}(?:wrong|incorrect|false|impossible|mistake"
    r"|naive|never|rejected|excluded|too|no|not(?=\s+(?:(?:the|an?|my|our)\s+)?(?:final\s+|correct\s+|right\s+)?(?:answer"
    r"|solution|result|value|correct|right|true|possible|valid|it|what|allowed|equal)\b|\W*(?:$|\n)))\b)"
    r"|(?:cannot|can\s*not|can't|does\s+not|doesn't|won't|will\s+not)\b)",
    re.IGNORECASE,
)


def denied(before: str, behind: str) -> bool:
    """Whether the words in front of an answer, or those behind it, deny or merely suppose it.

    >>> denied("It cannot be ", "."), denied("", " is wrong"), denied("Since 4 is not prime, it is ", ", not 4")
    (True, True, False)
    """
    before = _ASIDE.sub(" ", before)
    ends = [0, *(end.end() for end in _CLAUSE.finditer(before))]
    return bool(_DENIES.search(before[ends[-1] :]) or _DENIED_BEHIND.match(behind))
