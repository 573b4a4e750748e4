"""The policy's predictions about its own answers (pass rate, length): reads them from text, and grades them.

The text is written by the policy: it is searched for JSON data or two numbers, and never evaluated.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from groupwise.data import Outcome, Sample, Verdict
from groupwise.rollout.attempts import graded, is_correct, is_graded

OF = 8
"""A predicted pass rate is written as a number of correct answers among this many."""
KEYS = {"pass_rate": int, "solution_length": int, "math_notion": list}
"""The keys of a prediction in JSON, as in the code of MASA, and the types of their values."""
SHORT = re.compile(r"(\d{1,9});(\d{1,9})")
FLAT_OBJECT = re.compile(r"\{[^{}]*\}")
MOST_NOTIONS = 64
"""The most notions (named concepts) that are read from one prediction: each is searched in all answers."""
LARGEST = 10**9
"""The largest absolute value of a predicted number: a text can contain integers that are too large for a float."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """A prediction that was read from a text. A number that cannot be read is None; `notions` may be empty."""

    rate: int | None = None
    length: int | None = None
    notions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Statistics:
    """Facts about a group of answers, to grade predictions: pass rate, token lengths of the correct ones, texts."""

    rate: float | None
    """The pass rate of the answers; None if no answer could be graded."""
    lengths: tuple[int, ...]
    correct: tuple[str, ...]
    others: tuple[str, ...]

    @classmethod
    def of(cls, answers: Sequence[Sample]) -> "Statistics":
        outcomes = graded(answers)
        correct = [s for s in answers if is_correct(s)]
        return cls(
            rate=sum(outcomes) / len(outcomes) if outcomes else None,
            lengths=tuple(len(s.tokens) for s in correct),
            correct=tuple(s.text.lower() for s in correct),
            others=tuple(s.text.lower() for s in answers if is_graded(s) and not is_correct(s)),
        )


def predicted(text: str) -> Prediction:
    """Read a prediction: the text is `rate;length`, or its last `{...}` without inner braces is JSON.

    >>> predicted('I think {"pass_rate": 3, "solution_length": 40, "math_notion": ["Angles"]}')
    Prediction(rate=3, length=40, notions=('Angles',))
    >>> predicted("3;40"), predicted("{[").rate
    (Prediction(rate=3, length=40, notions=()), None)
    """
    if short := SHORT.fullmatch(text):
        return Prediction(int(short[1]), int(short[2]))
    data = _json_object(text)
    notions = tuple(x for x in data.get("math_notion", ())[:MOST_NOTIONS] if isinstance(x, str))
    return Prediction(_bounded(data.get("pass_rate")), _bounded(data.get("solution_length")), notions)


def _bounded(number: int | None) -> int | None:
    return None if number is None else max(-LARGEST, min(number, LARGEST))


def _json_object(text: str) -> Mapping[str, Any]:
    """Read the last `{...}` of a text as JSON: the `KEYS` with values of the right type; empty if it cannot be read."""
    try:
        data = json.loads((FLAT_OBJECT.findall(text) or ["{}"])[-1])
    except (ValueError, RecursionError):
        return {}
    return {key: data[key] for key, kind in KEYS.items() if type(data.get(key)) is kind}


def agreement(prediction: Prediction, found: Statistics, problem: str) -> Verdict:
    """Grade a prediction by the mean of three verdict parts from 0 to 1: `length`, `rate` and `notions`. MASA.

    `length` is 1 if the predicted length lies strictly between the shortest and the longest correct answer. `rate` is
    `0.01^|p - predicted / 8|`. `notions` is the share of predicted notions that occur in more correct answers than in
    others; notions in the problem's text do not count. A part that the text does not say is 0. The verdict is
    unverifiable if no answer could be graded.

    >>> found = Statistics(0.5, (900, 1500, 1200, 700), (), ())
    >>> round(agreement(Prediction(rate=8, length=1000), found, "").parts["rate"], 6)
    0.1
    """
    if found.rate is None:
        return Verdict(Outcome.unverifiable, cause="the answers that it predicts could not be graded")
    length = -1 if prediction.length is None else prediction.length
    parts = {
        "length": float(min(found.lengths, default=0) < length < max(found.lengths, default=0)),
        "rate": 0.0 if prediction.rate is None else 0.01 ** abs(found.rate - prediction.rate / OF),
        "notions": _notions(prediction.notions, found, problem.lower()),
    }
    return Verdict(Outcome.scored, score=sum(parts.values()) / 3, parts=parts)


def _notions(notions: Sequence[str], found: Statistics, problem: str) -> float:
    words = [w for w in dict.fromkeys(singular(notion.strip().lower()) for notion in notions) if w not in problem]
    more = [sum(w in text for text in found.correct) > sum(w in text for text in found.others) for w in words]
    return sum(more) / len(more) if more else 0.0


def singular(word: str) -> str:
    """The singular of a regular English plural.

    >>> [singular(word) for word in ("identities", "boxes", "angles", "series", "class")]
    ['identity', 'box', 'angle', 'series', 'class']
    """
    if word == "series" or word.endswith("ss"):
        return word
    if word.endswith("ies"):
        return f"{word[:-3]}y"
    return word[:-2] if re.search("(ch|sh|x|z|o)es$", word) else word.removesuffix("s")


def corrected(text: str, found: Statistics) -> str:
    """A prediction's text with the true pass rate and length; empty if it is unreadable, or no answer is correct.

    The length is the mean over the correct answers. Text after the JSON object is left out.

    >>> corrected('so {"pass_rate": 7, "math_notion": ["sum"]}', Statistics(0.5, (20, 30), (), ()))
    'so {"pass_rate": 4, "solution_length": 25, "math_notion": ["sum"]}'
    """
    if not found.lengths or found.rate is None:
        return ""
    rate, length = round(OF * found.rate), round(sum(found.lengths) / len(found.lengths))
    if SHORT.fullmatch(text):
        return f"{rate};{length}"
    if not (data := _json_object(text)):
        return ""
    start = [match.start() for match in FLAT_OBJECT.finditer(text)][-1]
    values = {"pass_rate": rate, "solution_length": length, "math_notion": list(predicted(text).notions)}
    return text[:start] + json.dumps({key: values[key] for key in KEYS if key in data or key != "math_notion"})
