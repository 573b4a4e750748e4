"""Reads problem and answer from the columns of a data row."""

import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from difflib import SequenceMatcher
from math import inf
from typing import Any

from groupwise.models.picture_messages import as_parts
from groupwise.tasks.read_rows import LONGEST_ROW, DataRowError, Row, kind_of
from groupwise.tasks.row_pictures import plain_messages
from groupwise.tasks.stored_calls import CALLS, has_calls, read_message

LONGEST = 10_000
"""A value of a column other than problem and answer is kept if it has at most this many characters as JSON."""
Problem = str | list[dict[str, Any]]
"""A problem: a text, or the messages of a conversation."""


def unchanged(prompt: Any, answer: Any) -> tuple[Any, Any]:
    """The problem and its answer exactly as in their columns."""
    return prompt, answer


def after_hashes(prompt: Any, answer: Any) -> tuple[Any, Any]:
    """The problem, and as its answer the text behind the last `####`, without commas, as in GSM8K's solutions.

    >>> after_hashes("How many?", "6 * 200 = 1200\\n#### 1,200")
    ('How many?', '1200')
    """
    _, mark, gold = str(answer).rpartition("####")
    if not mark:
        raise DataRowError("the answer has no ####")
    return prompt, gold.strip().replace(",", "")


def last_boxed(prompt: Any, answer: Any) -> tuple[Any, Any]:
    r"""The answer is the content of the solution's last `\boxed{...}` or `\fbox{...}`, as in MATH; also `\boxed 5`.

    >>> last_boxed("Half?", r"It is $\boxed{\frac{1}{2}}$.")
    ('Half?', '\\frac{1}{2}')
    """
    text = str(answer)
    start = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
    if start < 0:
        raise DataRowError("the solution has no \\boxed{...}")
    box = text[start:].removeprefix("\\boxed").removeprefix("\\fbox")
    if not box.startswith("{"):
        return prompt, box.lstrip().split("$")[0].strip()
    depth = 0
    for i, c in enumerate(box):
        depth += (c == "{") - (c == "}")
        if depth == 0:
            return prompt, box[1:i].strip()
    raise DataRowError("the \\boxed{ of the solution is not closed")


def as_one_answer(prompt: Any, answer: Any) -> tuple[Any, Any]:
    """Convert a list of answers to one answer text; a whole float becomes an int, so `["27.0"]`, 27.0 and `"27"` agree.

    >>> as_one_answer("p", ["x^2"]), as_one_answer("p", 27.0), as_one_answer("p", ["1", "2"])
    (('p', 'x^2'), ('p', 27), ('p', '1, 2'))
    """
    is_list = isinstance(answer, list) and all(isinstance(a, str) for a in answer)
    gold = ", ".join(answer) if is_list else answer
    if isinstance(gold, str) and gold.endswith(".0") and gold[:-2].lstrip("-").isdecimal():
        gold = gold[:-2]
    return prompt, int(gold) if isinstance(gold, float) and gold.is_integer() else gold


def countdown(numbers: Any, target: Any) -> tuple[Any, Any]:
    """Write the text of a countdown problem, from its numbers and its target.

    >>> countdown([3, 7, 2], 13)[0]
    'Make 13 out of the numbers 3, 7 and 2, each used exactly once, with +, -, * and /. Give the expression.'
    """
    is_valid = isinstance(numbers, list) and numbers and all(type(n) is int for n in (*numbers, target))
    if not is_valid:
        raise DataRowError("countdown needs a list of whole numbers, and a whole number as the target")
    listed = f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}" if len(numbers) > 1 else str(numbers[0])
    noun = "numbers" if len(numbers) > 1 else "number"
    text = f"Make {target} out of the {noun} {listed}, each used exactly once, with +, -, * and /. Give the expression."
    return text, {"numbers": numbers, "target": target}


@dataclass(frozen=True, slots=True)
class RowColumns:
    """The columns of a row with problem and gold answer, each a name or a dotted path: `reward_model.ground_truth`.

    Without gold answers `answer_column` is empty. `convert_values` makes the problem and the gold answer of the two
    values. With `answer_is_solution` the answer column is a worked solution, which the prompt's row keeps as
    `solution`. With `keeps_whole_row`, for agents, a row needs no column and keeps all: without the column of the
    problem, its text is the row as JSON.
    """

    prompt_column: str = "prompt"
    answer_column: str = "answer"
    convert_values: Callable[[Any, Any], tuple[Any, Any]] = unchanged
    answer_is_solution: bool = False
    keeps_whole_row: bool = False

    def fits(self, row: Row) -> bool:
        """Whether a row has the column of the problem and, unless `answer_column` is empty, that of the gold answer."""
        return all(_lookup(row, path)[1] for path in (self.prompt_column, self.answer_column) if path)

    def read(self, row: Row) -> tuple[Problem, Any]:
        """The problem and the gold answer. Raises `DataRowError`."""
        if self.keeps_whole_row:
            return self._read_whole(row)
        if not self.fits(row):
            columns = {"prompt": self.prompt_column, "answer": self.answer_column}
            raise DataRowError(_missing(row, columns))
        prompt, answer = (
            _lookup(row, self.prompt_column)[0],
            _lookup(row, self.answer_column)[0] if self.answer_column else None,
        )
        for name, value in ((self.prompt_column, prompt), (self.answer_column, answer))[
            : 2 if self.answer_column else 1
        ]:
            if _empty(value) and not (name == self.prompt_column and value is None):
                raise DataRowError(f"field {name!r} is empty")
        problem, gold = self.convert_values(prompt, answer)
        if self.answer_column and _empty(gold):
            raise DataRowError(f"field {self.answer_column!r} holds no answer")
        try:
            json.dumps(gold, allow_nan=False)
        except (TypeError, ValueError):
            what = f"field {self.answer_column!r} is {kind_of(gold)}"
            raise DataRowError(f"{what}: a gold answer must be text, a number or other JSON") from None
        if isinstance(problem, list):
            problem = list(map(read_message, problem)) if has_calls(problem) else plain_messages(problem)
        if not isinstance(problem, str) and not is_conversation(problem, pictures=True):
            raise DataRowError(f"field {self.prompt_column!r} is {kind_of(problem)}: a prompt must be text or messages")
        return problem, gold

    def _read_whole(self, row: Row) -> tuple[Problem, Any]:
        prompt, answer = (
            _lookup(row, self.prompt_column)[0],
            _lookup(row, self.answer_column)[0] if self.answer_column else None,
        )
        if not isinstance(prompt, str) and not is_conversation(prompt):
            prompt = json.dumps(row, sort_keys=True, default=str)
        return prompt, answer

    def has_problem(self, row: Row) -> bool:
        """Whether the row has the column of the problem."""
        return _lookup(row, self.prompt_column)[1]

    def extra(self, row: Row) -> tuple[dict[str, Any], set[str]]:
        """The row's other columns, and the names of those that are left out because they are too long or not JSON.

        A column is left out if it is not plain JSON or longer than `LONGEST` characters as JSON. Null is no value: it
        is neither kept nor left out, so rows of JSONL and Parquet give the same.

        >>> RowColumns("question", "gold").extra({"question": "1+1=", "gold": 2, "level": 3, "image": b"..."})
        ({'level': 3}, {'image'})
        """
        others = () if self.keeps_whole_row else (self.prompt_column, self.answer_column)
        columns = {name: value for name, value in row.items() if name not in (*others, "answer")}
        if self.answer_is_solution:
            columns["solution"] = _lookup(row, self.answer_column)[0]
        columns = {name: value for name, value in columns.items() if value is not None}
        longest = LONGEST_ROW if self.keeps_whole_row else LONGEST
        kept = {name: value for name, value in columns.items() if _json_length(value) <= longest}
        return kept, columns.keys() - kept.keys()


def _json_length(value: Any) -> float:
    """The length of a value as JSON; infinite if it is not plain JSON."""
    try:
        return len(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return inf


def problem_text(problem: Problem) -> str:
    """The text of a problem; for a conversation, the text of all its messages with their calls, without pictures."""
    return problem if isinstance(problem, str) else "\n\n".join(map(_message_text, problem))


def _message_text(message: Mapping[str, Any]) -> str:
    calls = [json.dumps(call["function"], sort_keys=True) for call in message.get(CALLS, ())]
    return "\n".join(["".join(part.get("text", "") for part in as_parts(message["content"])), *calls])


def is_conversation(value: Any, *, pictures: bool = False) -> bool:
    """Whether a value is a list of messages: one or more objects, each with a role and a text.

    With `pictures`, the content may be a list of parts, too.
    """
    contents = str | list if pictures else str
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(m, Mapping) and isinstance(m.get("role"), str) and isinstance(m.get("content"), contents)
            for m in value
        )
    )


def _empty(value: Any) -> bool:
    return value is None or value in ([], {}) or (isinstance(value, str) and not value.strip())


def _lookup(row: Row, path: str) -> tuple[Any, bool]:
    """The value at a column or dotted path of a row, and whether it exists. Whole numbers in a path index lists."""
    if path in row:
        return row[path], True
    value: Any = row
    for key in path.split("."):
        if isinstance(value, Mapping) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            return None, False
    return value, True


COMPLETION, CHOSEN, REJECTED = "completion", "chosen", "rejected"
"""The columns of stored answers: of a demonstration, and of a preference pair."""


def method_of_stored(columns: Iterable[str]) -> str:
    """What to write for rows with these columns if they have stored answers; empty for other columns.

    >>> method_of_stored(["prompt", "chosen", "rejected"])
    'the rows are preference pairs: train them with --method dpo'
    >>> method_of_stored(["prompt", "answer"])
    ''
    """
    names = set(columns)
    if {CHOSEN, REJECTED} <= names:
        return "the rows are preference pairs: train them with --method dpo"
    return "the rows are demonstrations: train them with --method sft" if COMPLETION in names else ""


NEAR = 0.5
"""The least similarity of a column's name for which a message suggests it as the column of gold answers."""
_USUAL = {
    "prompt": ("prompt", "question", "problem", "query", "instruction", "input", "q", "text", "messages"),
    "answer": (
        "answer",
        "reward_model.ground_truth",
        "ground_truth",
        "target",
        "solution",
        "label",
        "gold",
        "expected",
        "output",
        "a",
    ),
}
"""Usual names of the columns of problem and gold answer in published data sets."""


def _missing(row: Row, paths: Mapping[str, str]) -> str:
    """The error text for missing columns: the columns that the row has, and options that may fix it.

    An empty path says that the rows have no such column; if they seem to have one, it is named beside the others.
    """
    missing = [role for role, path in paths.items() if path and not _lookup(row, path)[1]]
    taken = {path for role, path in paths.items() if role not in missing}
    found: dict[str, str] = {}
    for role in [role for role, path in paths.items() if role in missing or not path]:
        if column := _likely(row, role, paths[role], taken):
            found[role] = column
            taken.add(column)
    columns = [", ".join(row) or "none"]
    for outer in [paths[role].partition(".")[0] for role in missing if "." in paths[role]]:
        if isinstance(inner := row.get(outer), Mapping):
            columns.append(f"in {outer} {', '.join(inner) or 'none'}")
    options = [
        f"--columns.{role} {shlex.quote(found.get(role, 'NAME'))}"
        for role in paths
        if role in found or role == missing[0]
    ]
    without = "; without gold answers: --columns.answer=" if "answer" in missing else ""
    hint = f": say {' '.join(options)}" if found or "answer" not in missing else ""
    lacking = " and no field ".join(repr(paths[role]) for role in missing)
    return f"no field {lacking}; it has {', and '.join(columns)}{hint}{without}"


def _likely(row: Row, role: str, path: str, taken: Set[str]) -> str:
    """The column that may hold a row's problem or gold answer, or an empty text.

    It has a usual name, one like the `path` that is missing, or is the only one left, with a text, for the problem.
    """
    left = row.keys() - taken
    other = {name for one, names in _USUAL.items() if one != role for name in names}
    if usual := next((name for name in _USUAL[role] if _lookup(row, name)[1] and name not in taken), ""):
        return usual
    near = max(left - other, key=lambda name: (SequenceMatcher(None, name, path).ratio(), name), default="")
    if path and SequenceMatcher(None, near, path).ratio() >= NEAR:
        return near
    texts = [
        name for name in row if name in left - other and (isinstance(row[name], str) or is_conversation(row[name]))
    ]
    return texts[0] if role == "prompt" and len(texts) == 1 else ""
