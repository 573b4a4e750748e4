"""Whether the words beside a box take it back: `it is not \\boxed{5}`, `it would be \\boxed{5} if x were 3`.

A box states its content unless these words deny it, report it as another's answer, suppose it, or make it a bound of
the answer. Words that only qualify the value take nothing back: `perhaps`, `about`, and `at least`, as in `we need at
least \\boxed{5} draws`.
"""

import re

_ASIDE = re.compile(r"(?<=\bnot), [^,.\n]+,\s")
_ALL_BUT = r"(?:\b(?:anything|everything|anyone|everyone|all|(?:any|every|all)(?: \w+){1,2}) but)"
_CLAUSE = re.compile(
    rf"{_ALL_BUT}|(?P<end>[.!?;:,]['\"”)$*_]*\s|\n|\b(?:so|thus|then|therefore|hence|but)\b)", re.IGNORECASE
)
_SENTENCE = re.compile(r"[.!?]['\"”)$*_]*\s|\n")

# Denials

_HELD = r"(?:true|the case|so|sure|certain|clear|follow|mean|imply|think|believe|claim|conclude|say)"
_FILLER = (
    r"(?:be|been|is|are|equals?|to|that|the|an?|it|this|x|y|n|answer|value|result|total|sum|at|all|yet|even|quite|just"
    rf"|simply|exactly|really|actually|necessarily|possibly|precisely|{_HELD}|said|write|convinced|confident|agree"
    r"|accept|trust|bet|find|get|gives?|supports?|have|shown?|proved?|expect)"
)
"""Words between a denial and the box: `not (at all sure that it is) \\boxed{5}`."""
_ODD = r"(?:wrong|incorrect|false|foolish|absurd|mistake)"
_OTHER = r"(?:(?:other|else|rather) than|instead of|(?:different|far) from|except|unequal)"
_REJECTS = r"(?:exclud|reject|discard|avoid|rul|contradict|withdraw|retract|disbeliev|disprov|disput)(?:e?s?|ed|ing)"
_NOT = (
    r"(?:(?:\bnot|n't)\b(?!\W+(?:is|are|was|were)\b)"
    r"|\b(?:never|cannot|nor|neither|hardly|scarcely|seldom|rarely|by no means"
    r"|no (?:longer|way|reason|evidence|proof|sign|chance)|nothing (?:shows|proves|suggests|says)"
    rf"|(?:refus|declin|fail|hesitat)\w* to|{_ODD}\s+(?:answer|value|result|solution|that|to)|{_OTHER}"
    rf"|{_REJECTS}(?: out)?)\b|{_ALL_BUT})"
)
_DENIED = rf"{_NOT}\W*(?:\b{_FILLER}\b\W*){{0,8}}$"
_DOUBLE = re.compile(
    r"(?:\b(?:not?|never|cannot|nor|nothing|none|nobody|without|little|impossible)|n't)\b(?:\W+\w+){0,3}?"
    rf"\W+(?:doubt\w*|den(?:y|ies|ied)|{_OTHER}|excluded|{_ODD}|{_ALL_BUT})",
    re.IGNORECASE,
)
"""A denial of a denial, which denies nothing: `no doubt`, `cannot be other than`."""
_UNSURE = (
    r"\b(?:(?:do|does|did|can|could|should|would|must|may|is|are|am)(?: not|n't)|cannot|never)(?: \w+)?"
    rf" (?:{_HELD}|write|convinced)\b"
    r"|\b(?:doubt(?:s|ful)?|deny|denies|disagree|untrue|unlikely|improbable|whether|suppose|assume|imagine|pretend"
    r"|wrongly|impossible)\b"
)
_REPORTED = (
    r"(?<!\bI )\b(?:might|may|could|would) (?:think|guess|say|believe|expect|conclude|suspect)\b"
    r"|\b(?:he|she|they|student|book|friend|someone|people|solver|nobody|no one|few) (?:would )?(?:\w+ly )?"
    r"(?:says?|claims?|guess\w*|thinks?|believes?|knows|gets)\b"
    r"|\b(?:many|most|some|others)(?: people| students)? (?:(?:would|might|will) )?(?:write|say|guess|think|get)\b"
)
_MISTAKEN = (
    r"\b(?:naive|mistaken)|\b(?:trap|(?:common|frequent|usual|typical|easy) (?:mistake|error|answer))\b"
    r"|\bfirst (?:guess|thought)\b"
)
_BOUND = (
    r"(?:at (?:least|most)|above|below|under|over|beyond|up to|exceeds?|no (?:less|more|fewer) than"
    r"|from \S{1,9} to|between \S{1,9} and)"
)
_BOUNDED = rf"\b(?:answer|result|solution)(?: \w+){{0,2}}? {_BOUND}\W*$"
_ONE_OF_TWO = r"\beither(?: [^,.]{1,20} or)?\W+(?:\w\W*=\W*)?$"
_DENIES = re.compile("|".join((_DENIED, _UNSURE, _REPORTED, _MISTAKEN, _BOUNDED, _ONE_OF_TWO)), re.IGNORECASE)
_FAULT = (
    r"(?:wrong|incorrect|false|impossible|mistake|naive|never|rejected|excluded|discarded|invalid|ruled out|too|no|off)"
)
_DENIED_BEHIND = re.compile(
    r"(?:[\s$},;\"'*_`]|\\[)\]]|\\text\w*\{)*(?:which\s+|that\s+|it\s+)?"
    r"(?:(?:is|was|are|would\s+be|seems|looks|must\s+be)"
    rf"(?:\s+(?:\w+\s+){{0,2}}{_FAULT}\b"
    r"|(?:n't|\s+(?:\w+\s+){0,2}not)\b(?:\s+(?:(?:the|an?|my|our)\s+)?(?:final\s+|correct\s+|right\s+)?"
    rf"(?:answer|solution|result|value|correct|right|true|possible|valid|it|what|allowed|equal)\b|\W*(?:$|\n)))"
    r"|(?:is|was)\s+(?:(?:only|just|merely)\s+)?an?\s+(?:\w+\s+)?(?:bound|estimate|guess)\b(?!\s+(?:that|which))"
    r"|or\s+(?:maybe|perhaps|possibly|else|something)\b"
    r"|(?:cannot|can\s*not|can't|does\s+not|doesn't|won't|will\s+not|fails?|failed)\b"
    r"|(?:\(|[-–—]+)\s*(?:(?:is|but|that|this|it)\s+)*(?:wrong|incorrect|false|impossible|invalid|no(?=\s*[,.!;]))\b"
    r"|[^.\n]{0,80}\bbut (?:I doubt|(?:it|this|that|\w) (?:is|was|does|did)(?: not\b|n't\b)))",
    re.IGNORECASE,
)

# Conditions that do not hold

_WOULD = re.compile(r"(?:\b(?:would|could|might|should)|\w['’]d)\b", re.IGNORECASE)
_PAST = r"(?:were|weren['’]t|was|wasn['’]t|had|did|held|came|took|gave|made|got|knew|\w{2,}ed)"
_UNREAL = re.compile(
    rf"(?<!\beven )\b(?:if|unless|supposing|suppose|assume|imagine)\b[^.;]*\b{_PAST}\b"
    r"|\b(?:otherwise|without|but for)\b"
    r"|(?:^|[,;])\W*(?:had|were|should)\s+\S|\bwere it not\b"
    r"|\bhave\s+(?:been|had|got|gotten|found|said|written|made|given|\w+ed)\b",
    re.IGNORECASE,
)
"""A condition that does not hold, beside `would`: `if x were 3`, `had x been 3`, `it would have been`."""
_HYPOTHETICAL = re.compile(r"\b(?:if|suppos\w+|imagine|assum\w+|would|could)\b", re.IGNORECASE)


def is_hypothetical(problem: str) -> bool:
    """Whether a problem asks about what would be: then its right answer may be under an unreal condition.

    >>> is_hypothetical("How much would he pay for 3?"), is_hypothetical("How much does he pay?")
    (True, False)
    """
    return bool(_HYPOTHETICAL.search(problem))


def denied(before: str, behind: str, hypothetical: bool = False) -> bool:
    """Whether the words in front of a box, or those behind it, take it back.

    With `hypothetical`, an unreal condition (`if it were 3, it would be`) is the problem's own, and takes nothing back.

    >>> denied("It cannot be ", "."), denied("", " is wrong"), denied("Since 4 is not prime, it is ", ", not 4")
    (True, True, False)
    >>> denied("If x were 3, it would be ", "."), denied("I have no doubt that it is ", ".")
    (True, False)
    """
    before = _ASIDE.sub(" ", before)
    ends = [0, *(clause.end() for clause in _CLAUSE.finditer(before) if clause["end"])]
    clause = before[ends[-1] :]
    if _DENIES.search(_DOUBLE.sub(" ", clause)) or _DENIED_BEHIND.match(behind):
        return True
    return not hypothetical and _is_unreal(before, clause, behind)


def _is_unreal(before: str, clause: str, behind: str) -> bool:
    """Whether a clause says what would be, in a sentence with a condition that does not hold."""
    sentence = _SENTENCE.split(before)[-1] + " " + _SENTENCE.split(behind + " ", maxsplit=1)[0]
    clause += " " + _CLAUSE.split(behind + " ", maxsplit=1)[0]
    return bool(_WOULD.search(clause) and _UNREAL.search(sentence))
