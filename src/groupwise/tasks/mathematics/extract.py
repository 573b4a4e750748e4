"""Which part of a model's text is its answer."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from groupwise.tasks.mathematics.tidy import closing, tidy

Which = Literal["first", "last", "only"]
Place = Literal["either", "boxed", "line", "tag"]

LONGEST = 1000
"""Characters of the longest answer that is looked at."""
MOST = 64
"""Answers that are compared with each other at most, where all must agree."""

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
# Runs of blanks are possessive (`++`): each is read once, so a long one costs linear time.
_LINE = re.compile(
    r"####[ \t]*|\b(?:final[ \t]+)?answers?\b(?:[ \t]++[^\n.:=*]{0,60}?)?"
    r"[ \t]*+(?:\*\*|__)?[ \t]*+(?::|=|\b(?:is|are)\b:?)"
    r"[ \t]*(?:\*\*(?=[ \t]))?",
    re.IGNORECASE,
)
_NEXT_SENTENCE = re.compile(r"(?<=[\w)}\]$%*])[.!?]\**\s+(?=[A-Z\"'(])")


@dataclass(frozen=True, slots=True)
class Found:
    """An answer as it stands in the text, and which rule found it; without a text, why there is none."""

    text: str
    rule: str


def find_answer(text: str, which: Which = "last", place: Place = "either") -> Found:
    r"""The answer by the rule: in a box, or behind `Answer:`, `the answer is` or `####`, up to the end of the sentence.

    With `either`, boxes count where there are any and lines otherwise. `last` and `first` take one of several; `only`
    asks that all are alike. Nothing before the last `</think>` is an answer. A box that is not closed is no answer, and
    neither is an empty one: where it is the one that counts, there is none. `tag` asks for `</think> <answer>` as Dr.
    GRPO's template r1 does.

    >>> find_answer(r"so \boxed{3}, no: \boxed{4}"), find_answer("The answer is $5$. I hope it is correct.").text
    (Found(text='4', rule='the last of 2 boxes'), '$5$')
    >>> find_answer(r"\boxed{3} or \boxed{4}", "only")
    Found(text='', rule='its 2 boxes differ')
    """
    if place == "tag":
        return _in_tag(text)
    body = text[text.rfind("</think>") + len("</think>") :] if "</think>" in text else text
    if place != "line" and (boxes := list(_BOX.finditer(body))):
        return _chosen([m.end() - 1 for m in boxes], which, "box", "boxes", lambda at: _in_box(body, at))
    if place != "boxed" and (lines := [m.end() for m in _LINE.finditer(body)]):
        return _chosen(lines, which, "answer line", "answer lines", lambda at: _on_line(body, at))
    return Found(
        "", "no box" if place == "boxed" else "no answer line" if place == "line" else "no box, no answer line"
    )


def _in_tag(text: str) -> Found:
    """Behind the last `<answer>`, out of its box: Dr. GRPO's rule for the template r1, one space and all."""
    if "</think> <answer>" not in text or "</answer>" not in text:
        return Found("", "no '</think> <answer>' with '</answer>' behind it")
    inside = text.split("<answer>")[-1].replace("</answer>", "")[: LONGEST + 1]
    return find_answer(inside, "last", "boxed") if _BOX.search(inside) else Found(inside.strip(), "the answer tag")


def _chosen(places: list[int], which: Which, one: str, many: str, read: Callable[[int], str | None]) -> Found:
    n = len(places)
    if which == "only" and n > MOST:
        return Found("", f"more than {MOST} {many}")
    if which == "only" and len({tidy(read(at) or "") for at in places}) > 1:
        return Found("", f"its {n} {many} differ")
    answer = read(places[0] if which == "first" else places[-1])
    rule = f"the {one}" if n == 1 else f"the {which} of {n} {many}" if which != "only" else f"its {n} {many}, all alike"
    if answer is None:
        return Found("", f"{rule} is not closed")
    return Found(answer, rule) if answer else Found("", f"{rule} is empty")


def _in_box(text: str, at: int) -> str | None:
    """What stands in the box opened at a place; one that goes on for too long is cut, and will be refused."""
    window = text[at : at + LONGEST + 3]
    end = closing(window, 0)
    if end is not None:
        return window[1:end].strip()
    return window[1:] if len(window) == LONGEST + 3 else None


def _on_line(text: str, at: int) -> str:
    """The rest of the line, or the next line that is not empty, up to the end of its first sentence."""
    window = text[at : at + LONGEST + 1]
    line = next((line.strip() for line in window.split("\n") if line.strip("\r \t*_")), "")
    return _NEXT_SENTENCE.split(line)[0]
