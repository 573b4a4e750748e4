"""Extracts the final answer from a model's text: from a box, or behind words such as `the answer is`."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from groupwise.verifiers.math.tidy import closing, tidy

Which = Literal["first", "last", "only"]
Place = Literal["either", "boxed", "line", "tag"]

LONGEST = 1000
"""The most characters of an answer. A longer one is rejected, not truncated."""
MOST = 64
"""The most answers that are compared with each other, with the setting `only`, which requires that all are equal."""

_BOX = re.compile(r"\\(?:boxed|fbox)(?:\s*\{|\s+(?=[-+]?\d))")
# Runs of blanks are possessive (`++`), so a long run takes linear time.
_LINE = re.compile(
    r"####[ \t]*|\b(?:final[ \t]+)?answers?\b(?:[ \t]++[^\n.:=*]{0,60}?)?"
    r"[ \t]*+(?:\*\*|__)?[ \t]*+(?:[:：=]|\b(?:is|are)\b[:：]?)"
    r"[ \t]*(?:\*\*(?=[ \t]))?",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"\b(?:isn't|not|no|wrong|incorrect|false|previous|earlier|old)\s+(?:the\s+|an?\s+)?(?:final\s+)?answers?\b"
    r"|\banswers?\b.*?\b(?:wrong|incorrect|false)\b|(?:\b(?:not|cannot|never)|n't)(?:\s+(?:be|equal))?\W*(?:is|are)?\W*$",
    re.IGNORECASE,
)
"""Pattern of an answer line without an answer, such as `the answer cannot be:` or `a wrong answer is`."""
_BLANK_LINES = re.compile(r"[\s*_]*\n|")
_SENTENCE_END = re.compile(r"(?<=[\w)}\]$%*])(?:[.!]\**\s+(?=[A-Z\"'(])|\?\**(?:\s|$))")
_LEADING = re.compile(
    r"(?:(?:therefore|thus|hence|so|indeed|then|exactly|simply|just|clearly|given by)\b[,:]?\s*)+", re.I
)
_REASON = re.compile(
    r",?\s(?:because|since)\s.*|,?\sas\s(?:required|desired|expected|needed|claimed|was to be (?:shown|found))\W*$",
    re.IGNORECASE | re.DOTALL,
)
"""Pattern of a reason or filler after an answer (`because ...`, `as required`), which is removed."""
_NUMBER = re.compile(r"[-+]?\d+(?:[.,]\d+)*")
_TAKEN_BACK = re.compile(
    r"[\s$*_.!,;:)}\]\\]*(?:\?|(?:but\s+)?(?:no[,.:;!]|no\s+wait|wait\b|oops|sorry\b|correction\b|scratch\s+that|hmm"
    r"|on\s+second\s+thought|actually,?\s+(?:no|it|that)\b"
    r"|(?:that|this|it)(?:\s+is|'s|\s+was)\s+(?:wrong|incorrect|not\s+(?:right|correct|it))))",
    re.IGNORECASE,
)
_EMPTY_LINE = re.compile(r"\n[ \t\r]*+\n")


@dataclass(frozen=True, slots=True)
class Extraction:
    """An extracted answer and the rule that found it. If `text` is empty, `rule` states why no answer was found.

    `paragraph`: for an answer line, all text behind its marker up to an empty line.
    """

    text: str
    rule: str
    paragraph: str = field(default="", repr=False)


def extract_answer(text: str, which: Which = "last", place: Place = "either") -> Extraction:
    r"""The answer in a box, or behind `Answer:`, `the answer is` or `####` up to the end of the sentence.

    With `either`, boxes count if there are any, otherwise lines. `last` and `first` take one of several; `only`
    requires that all are equal. Text before the last `</think>` is no answer. The chosen answer must not be empty,
    unclosed, longer than 1000 characters, followed by a question mark, or retracted in the next words (`No, ...`,
    `Wait`); otherwise there is none. `tag` requires `</think> <answer>`, the format of Dr. GRPO's template r1.

    >>> extract_answer(r"so \boxed{3}, no: \boxed{4}"), extract_answer("The answer is $5$. I hope it is correct.").text
    (Extraction(text='4', rule='the last of 2 boxes'), '$5$')
    >>> extract_answer(r"\boxed{3} or \boxed{4}", "only"), extract_answer("The answer is 17? No. It is 18.").rule
    (Extraction(text='', rule='its 2 boxes differ'), 'the answer line is taken back')
    """
    if place == "tag":
        return _in_tag(text)
    body = text[text.rfind("</think>") + len("</think>") :] if "</think>" in text else text
    if place != "line" and (boxes := [m.end() for m in _BOX.finditer(body)]):
        return _chosen(boxes, which, "box", "boxes", lambda at: _in_box(body, at))
    if place != "boxed" and (lines := [m.end() for m in _LINE.finditer(body) if not _denied(body, m)]):
        found = _chosen(lines, which, "answer line", "answer lines", lambda at: _on_line(body, at))
        return replace(found, paragraph=_paragraph(body, lines[0] if which == "first" else lines[-1]))
    return Extraction(
        "", "no box" if place == "boxed" else "no answer line" if place == "line" else "no box, no answer line"
    )


def _denied(text: str, line: re.Match[str]) -> bool:
    """Whether an answer line states that it is not the answer."""
    return bool(_DENIED.search(text[max(0, line.start() - 24) : line.end()]))


def _in_tag(text: str) -> Extraction:
    """The text behind the last `<answer>`, or its box; needs `</think> <answer>` and `</answer>`. Dr. GRPO's r1."""
    if "</think> <answer>" not in text or "</answer>" not in text:
        return Extraction("", "no '</think> <answer>' with '</answer>' behind it")
    inside = text.split("<answer>")[-1].replace("</answer>", "")
    if len(inside) > LONGEST:
        return Extraction("", f"the answer tag {_TOO_LONG}")
    return (
        extract_answer(inside, "last", "boxed") if _BOX.search(inside) else Extraction(inside.strip(), "the answer tag")
    )


_TOO_LONG = f"is longer than {LONGEST} characters"


class _NoAnswer(Exception):
    """Internal exception: the reason why a box or line has no answer."""


def _chosen(places: list[int], which: Which, one: str, many: str, read: Callable[[int], str]) -> Extraction:
    n = len(places)
    if which == "only" and n > MOST:
        return Extraction("", f"more than {MOST} {many}")
    rule = f"the {one}" if n == 1 else f"the {which} of {n} {many}" if which != "only" else f"its {n} {many}, all alike"
    try:
        if which == "only" and len({tidy(read(at)) for at in places}) > 1:
            return Extraction("", f"its {n} {many} differ")
        answer = read(places[0] if which == "first" else places[-1])
        return Extraction(answer, rule) if answer else Extraction("", f"{rule} is empty")
    except _NoAnswer as reason:
        return Extraction("", f"{rule if which != 'only' or n == 1 else f'one of its {n} {many}'} {reason}")


def _in_box(text: str, at: int) -> str:
    """The content of the box that opens before position `at`."""
    if text[at - 1] != "{":  # `\\boxed 5`
        number = _NUMBER.match(text, at, at + LONGEST)
        assert number is not None, "the pattern requires a digit"
        return number[0]
    window = text[at - 1 : at + LONGEST + 1]
    end = closing(window, 0)
    if end is None:
        raise _NoAnswer(_TOO_LONG if len(window) == LONGEST + 2 else "is not closed")
    if _TAKEN_BACK.match(text, at + end, at + end + LONGEST):
        raise _NoAnswer("is taken back")
    return window[1:end].strip()


def _on_line(text: str, at: int) -> str:
    """The first sentence of the line from position `at`, or of the next line that is not empty."""
    start = _first_line(text, at)
    line = text[start : start + LONGEST + 1].split("\n")[0]
    end = _SENTENCE_END.search(line)
    length = end.start() if end else len(line)
    if length > LONGEST:
        raise _NoAnswer(_TOO_LONG)
    if _TAKEN_BACK.match(text, start + length, start + length + LONGEST):
        raise _NoAnswer("is taken back")
    answer = _REASON.sub("", line[:length].strip())
    return answer[leading.end() :] if (leading := _LEADING.match(answer)) else answer


def _paragraph(text: str, at: int) -> str:
    return _EMPTY_LINE.split(text[_first_line(text, at) :], maxsplit=1)[0]


def _first_line(text: str, at: int) -> int:
    """The start of the first line, from position `at`, that is not empty."""
    blank = _BLANK_LINES.match(text, at)
    return blank.end() if blank else at
