"""Extracts the final answer from a model's text: from a box, or behind words such as `the answer is`."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from groupwise.verifiers.math.answer_statements import stated
from groupwise.verifiers.math.box_surroundings import beside
from groupwise.verifiers.math.find_boxes import LONGEST, BoxPositions, boxes
from groupwise.verifiers.math.normalise_answer import bare, tidy

Which = Literal["first", "last", "only"]
Place = Literal["either", "boxed", "line", "tag"]

MOST = 64
"""The most answers that are compared with each other, with the setting `only`, and the most answer lines."""

BESIDE = 240
"""The characters in front of a box, and behind it, that are read with it."""

_BOX = re.compile(r"\\(?:boxed|fbox)(?:\s*\{|\s+(?=[-+]?\d))")
# Runs of blanks are possessive (`++`), so a long run takes linear time.
_LINE = re.compile(
    r"####[ \t]*|\banswers?\b(?P<about>(?:[ \t]++[^\n.:=*]{0,60}?)?)"
    r"[ \t]*+(?:\*\*|__)?[ \t]*+(?:[:：=]|\b(?:is|are)\b[:：]?)"
    r"[ \t]*(?:\*\*(?=[ \t]))?(?:[ \t]*####[ \t]*)?",
    re.IGNORECASE,
)
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
_TAKEN_BACK = re.compile(
    r"[\s$*_.!,;:)}\]\\]*(?:\?|(?:but\s+)?(?:no[,.:;!]|no\s+wait|wait\b|oops|sorry\b|correction\b|scratch\s+that|hmm"
    r"|on\s+second\s+thought|actually,?\s+(?:no|it|that)\b"
    r"|(?:that|this|it)(?:\s+is|'s|\s+was)\s+(?:wrong|incorrect|not\s+(?:right|correct|it)))"
    r"|(?:but|however|actually|yet)\b,?\s+the\s+(?:correct|right|true|actual|real)\b)",
    re.IGNORECASE,
)
_EMPTY_LINE = re.compile(r"\n[ \t\r]*+\n")


@dataclass(frozen=True, slots=True)
class ExtractedAnswer:
    """An extracted answer and the rule that found it.

    If `text` is empty, `extraction_rule` states why no answer was found.

    `answer_paragraph`: for an answer line, all text behind its marker up to an empty line.
    """

    text: str
    extraction_rule: str
    answer_paragraph: str = field(default="", repr=False)


def extract_answer(
    text: str, which: Which = "last", place: Place = "either", hypothetical: bool = False
) -> ExtractedAnswer:
    r"""The answer in a box, or behind `Answer:`, `the answer is` or `####` up to the end of the sentence.

    With `either`, boxes count if there are any, otherwise lines. `last` and `first` take one of several; `only`
    requires that all are equal. Text before the last `</think>` is no answer. The chosen answer must not be empty,
    unclosed, longer than 1000 characters, followed by a question mark, or retracted in the next words (`No, ...`,
    `Wait`); otherwise there is none. `tag` requires `</think> <answer>`, the format of Dr. GRPO's template r1.
    `hypothetical`: whether the problem asks about what would be, so that its answer may be (`is_hypothetical`).

    >>> extract_answer(r"so \boxed{3}, no: \boxed{4}"), extract_answer("The answer is $5$. I hope it is correct.").text
    (Extraction(text='4', rule='the last of 2 boxes'), '$5$')
    >>> extract_answer(r"\boxed{3} or \boxed{4}", "only"), extract_answer("The answer is 17? No. It is 18.").rule
    (Extraction(text='', rule='its 2 boxes differ'), 'the answer line is taken back')
    """
    if place == "tag":
        return _in_tag(text, hypothetical)
    body = text[text.rfind("</think>") + len("</think>") :] if "</think>" in text else text
    if place != "line" and (found := boxes(body)):
        return _chosen([partial(_in_box, body, box, hypothetical) for box in found], which, "box", "boxes")
    if place != "boxed" and (lines := _lines(body, which)):
        line = _chosen([partial(_on_line, body, at) for at in lines], which, "answer line", "answer lines")
        return replace(line, answer_paragraph=_paragraph(body, lines[0] if which == "first" else lines[-1]))
    return ExtractedAnswer(
        "", "no box" if place == "boxed" else "no answer line" if place == "line" else "no box, no answer line"
    )


def _lines(text: str, which: Which) -> list[int]:
    """Where the answers of answer lines start. Of many markers, the last ones are read, or with `first` the first."""
    markers = list(_LINE.finditer(text))
    near = markers[: MOST + 1] if which == "first" else markers[-MOST - 1 :]
    return [marker.end() for marker in near if stated(text, marker.start(), marker["about"] or "")]


def _in_tag(text: str, hypothetical: bool) -> ExtractedAnswer:
    """The text behind the last `<answer>`, or its box; needs `</think> <answer>` and `</answer>`. Dr. GRPO's r1."""
    if "</think> <answer>" not in text or "</answer>" not in text:
        return ExtractedAnswer("", "no '</think> <answer>' with '</answer>' behind it")
    inside = text.split("<answer>")[-1].replace("</answer>", "")
    if len(inside) > LONGEST:
        return ExtractedAnswer("", f"the answer tag {_TOO_LONG}")
    if _BOX.search(inside):
        return extract_answer(inside, "last", "boxed", hypothetical)
    return ExtractedAnswer(inside.strip(), "the answer tag")


_TOO_LONG = f"is longer than {LONGEST} characters"


class _NoAnswer(Exception):
    """Internal exception: the reason why a box or line has no answer."""


def _chosen(answers: Sequence[Callable[[], str]], which: Which, one: str, many: str) -> ExtractedAnswer:
    n = len(answers)
    if which == "only" and n > MOST:
        return ExtractedAnswer("", f"more than {MOST} {many}")
    rule = f"the {one}" if n == 1 else f"the {which} of {n} {many}" if which != "only" else f"its {n} {many}, all alike"
    try:
        if which == "only" and len({tidy(answer()) for answer in answers}) > 1:
            return ExtractedAnswer("", f"its {n} {many} differ")
        text = answers[0 if which == "first" else -1]()
        return ExtractedAnswer(text, rule) if text else ExtractedAnswer("", f"{rule} is empty")
    except _NoAnswer as reason:
        return ExtractedAnswer("", f"{rule if which != 'only' or n == 1 else f'one of its {n} {many}'} {reason}")


def _in_box(text: str, box: BoxPositions, hypothetical: bool) -> str:
    """The content of a box. A box in it counts only if it is all of the content."""
    if box.end is None:
        raise _NoAnswer("is not closed" if len(text) - box.content_start <= LONGEST else _TOO_LONG)
    if box.end - box.content_start > LONGEST + 1:
        raise _NoAnswer(_TOO_LONG)
    if _TAKEN_BACK.match(text, box.end, box.end + LONGEST):
        raise _NoAnswer("is taken back")
    before, behind = text[max(0, box.start - BESIDE) : box.start], text[box.end : box.end + BESIDE]
    if reason := beside(before, behind, hypothetical):
        raise _NoAnswer(reason)
    content = box.content(text)
    if _BOX.search(bare(content)):
        raise _NoAnswer("has another box beside text")
    return content


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
