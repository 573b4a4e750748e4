"""Which columns of a row hold the problem and its answer, and how the two are read off them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from groupwise.tasks.rows import Fault, Row, kind_of

Asked = str | list[dict[str, Any]]
"""A problem in words: a text, or the messages of a conversation."""


def as_written(prompt: Any, answer: Any) -> tuple[Any, Any]:
    """Both as they stand."""
    return prompt, answer


def after_hashes(prompt: Any, answer: Any) -> tuple[Any, Any]:
    """The number behind the last `####`, where GSM8K puts it under its worked solution.

    >>> after_hashes("How many?", "6 * 200 = 1200\\n#### 1,200")
    ('How many?', '1200')
    """
    _, mark, gold = str(answer).rpartition("####")
    if not mark:
        raise Fault("the answer has no line that begins with ####")
    return prompt, gold.strip().replace(",", "")


def last_boxed(prompt: Any, answer: Any) -> tuple[Any, Any]:
    r"""What stands in the last `\boxed{...}` or `\fbox{...}` of a worked solution, as in MATH; `\boxed 5` too.

    >>> last_boxed("Half?", r"It is $\boxed{\frac{1}{2}}$.")
    ('Half?', '\\frac{1}{2}')
    """
    text = str(answer)
    at = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
    if at < 0:
        raise Fault("the solution has no \\boxed{...}")
    rest = text[at:].removeprefix("\\boxed").removeprefix("\\fbox")
    if not rest.startswith("{"):
        return prompt, rest.lstrip().split("$")[0].strip()
    depth = 0
    for i, c in enumerate(rest):
        depth += (c == "{") - (c == "}")
        if depth == 0:
            return prompt, rest[1:i].strip()
    raise Fault("the \\boxed{ of the solution is not closed")


def only(prompt: Any, answer: Any) -> tuple[Any, Any]:
    """A list of answers as one text, and a whole number as one: `["27.0"]`, 27.0 and `"27"` agree.

    >>> only("p", ["x^2"]), only("p", 27.0), only("p", ["1", "2"])
    (('p', 'x^2'), ('p', 27), ('p', '1, 2'))
    """
    several = isinstance(answer, list) and all(isinstance(a, str) for a in answer)
    gold = ", ".join(answer) if several else answer
    if isinstance(gold, str) and gold.endswith(".0") and gold[:-2].lstrip("-").isdecimal():
        gold = gold[:-2]
    return prompt, int(gold) if isinstance(gold, float) and gold.is_integer() else gold


def countdown(numbers: Any, target: Any) -> tuple[Any, Any]:
    """The problem in words, from the numbers and what they are to make.

    >>> countdown([3, 7, 2], 13)[0]
    'Make 13 out of the numbers 3, 7 and 2, each used exactly once, with +, -, * and /. Give the expression.'
    """
    whole = isinstance(numbers, list) and numbers and all(type(n) is int for n in (*numbers, target))
    if not whole:
        raise Fault("countdown needs a list of whole numbers and a whole number to make")
    listed = f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}" if len(numbers) > 1 else str(numbers[0])
    many = "numbers" if len(numbers) > 1 else "number"
    text = f"Make {target} out of the {many} {listed}, each used exactly once, with +, -, * and /. Give the expression."
    return text, {"numbers": numbers, "target": target}


@dataclass(frozen=True, slots=True)
class Fields:
    """Where a row keeps the two: columns, or dotted paths such as `reward_model.ground_truth`. `problem` reads them."""

    prompt: str = "prompt"
    answer: str = "answer"
    problem: Callable[[Any, Any], tuple[Any, Any]] = as_written

    def fits(self, row: Row) -> bool:
        """Whether a row has both."""
        return all(_reached(row, path)[1] for path in (self.prompt, self.answer))

    def read(self, row: Row) -> tuple[Asked, Any]:
        """The problem in words and the gold answer. Raises `Fault`."""
        (prompt, here), (answer, there) = _reached(row, self.prompt), _reached(row, self.answer)
        if not (here and there):
            raise Fault(_missing(row, {"prompt": self.prompt, "answer": self.answer}))
        for name, value in ((self.prompt, prompt), (self.answer, answer)):
            if _empty(value) and not (name == self.prompt and value is None):
                raise Fault(f"field {name!r} is empty")
        asked, gold = self.problem(prompt, answer)
        if _empty(gold):
            raise Fault(f"field {self.answer!r} holds no answer")
        try:
            json.dumps(gold, allow_nan=False)
        except (TypeError, ValueError):
            raise Fault(f"field {self.answer!r} is {kind_of(gold)}: an answer is text, a number or JSON") from None
        if not isinstance(asked, str) and not is_conversation(asked):
            raise Fault(f"field {self.prompt!r} is {kind_of(asked)}: a prompt is text")
        return asked, gold


def words(asked: Asked) -> str:
    """The text of a problem: of a conversation, the text of all its messages."""
    return asked if isinstance(asked, str) else "\n\n".join(m["content"] for m in asked)


def is_conversation(asked: Any) -> bool:
    """Whether these are messages: one or more objects, each with a role and its text."""
    return (
        isinstance(asked, list)
        and bool(asked)
        and all(
            isinstance(m, Mapping) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
            for m in asked
        )
    )


def _empty(value: Any) -> bool:
    return value is None or value in ([], {}) or (isinstance(value, str) and not value.strip())


def _reached(row: Row, path: str) -> tuple[Any, bool]:
    """What a column or a dotted path leads to, and whether it leads anywhere. Whole numbers count into lists."""
    if path in row:
        return row[path], True
    here: Any = row
    for key in path.split("."):
        if isinstance(here, Mapping) and key in here:
            here = here[key]
        elif isinstance(here, list) and key.isdecimal() and int(key) < len(here):
            here = here[int(key)]
        else:
            return None, False
    return here, True


_USUAL = {
    "prompt": ("question", "problem", "query", "instruction", "input"),
    "answer": ("reward_model.ground_truth", "target", "solution", "label", "gold", "expected", "output"),
}
"""What other data sets call the two fields."""


def _missing(row: Row, paths: Mapping[str, str]) -> str:
    """Which of the two fields are not there, what is, and the options that may be meant."""
    lost = {role: path for role, path in paths.items() if not _reached(row, path)[1]}
    taken = {path for role, path in paths.items() if role not in lost}
    options, has = [], [", ".join(row) or "none"]
    for role, path in lost.items():
        usual = next((k for k in _USUAL[role] if _reached(row, k)[1] and k not in taken), None)
        near = max(row.keys() - taken, key=lambda k: (SequenceMatcher(None, k, path).ratio(), k), default=None)
        if column := usual or near:
            options.append(f"--columns.{role} {column}")
            taken.add(column)
        outer = path.partition(".")[0]
        if "." in path and isinstance(inner := row.get(outer), Mapping):
            has.append(f"in {outer} {', '.join(inner) or 'none'}")
    hint = f": say {' '.join(options)}" if options else ""
    return f"no field {' and no field '.join(map(repr, lost.values()))}; it has {', and '.join(has)}{hint}"
