"""Rows with stored answers: demonstrations and preference pairs, in the formats of TRL and of `datasets`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

from groupwise.core import BadData, first_lines
from groupwise.data import Ids, Picture, Prompt
from groupwise.models.picture_messages import count_pictures
from groupwise.tasks.read_rows import DataRowError, Row, check_length, fix_of, kind_of, rows_of
from groupwise.tasks.row_columns import CHOSEN, COMPLETION, REJECTED, Problem, RowColumns, is_conversation, problem_text
from groupwise.tasks.row_pictures import hashes_of, pictures_of, plain_messages, without_pictures
from groupwise.tasks.rows_task import encoded_problem
from groupwise.tasks.source_stats import ContentHash, SourceStats
from groupwise.tasks.stored_calls import (
    ASSISTANT,
    CALLS,
    PARTS,
    has_calls,
    parts_of,
    read_message,
    tools_of,
    with_tools,
)
from groupwise.tasks.typed_columns import number_in, truth_in

__all__ = ["read_stored"]

TEXT, MESSAGES = "text", "messages"
"""Columns from which a prompt is read."""
ROLES = ("system", "user", ASSISTANT, "tool")
"""The roles of messages."""
LABEL = "label"
"""The column that says whether a completion is wanted."""
Answer = str | list[dict[str, Any]] | dict[str, str]
"""A stored answer: a text, the messages of a conversation after the prompt, or a whole text as `{"text": ...}`."""
EXAMPLE = (
    'write one JSON object per row, such as {"prompt": "7*5=", "completion": "35"},\n'
    '{"messages": [{"role": "user", "content": "7*5="}, {"role": "assistant", "content": "35"}]},\n'
    '{"prompt": "7*5=", "chosen": "35", "rejected": "36"}, {"text": "7*5=35"}\n'
    'or, with labels, {"prompt": "7*5=", "completion": "36", "label": false}'
)


@dataclass(frozen=True, slots=True)
class StoredAnswersRow:
    """The problem of a row, empty for a whole text, and its answers by column: `completion`, or the two of a pair."""

    problem: Problem
    answers_by_column: Mapping[str, Answer]


def read_stored(
    source: str,
    encode: Callable[[Any], Ids],
    columns: RowColumns,
    *,
    plain: bool,
    splits_pairs: bool = False,
    number_columns: Sequence[str] = (),
) -> tuple[list[Prompt], SourceStats]:
    """Read a source of rows with stored answers: prompts whose `row` has them by column, and the statistics.

    A row has one of these forms; `prompt` and `answer` are the names of `columns`:

    - `prompt` and `completion`, or `prompt` and `answer`
    - `messages`: the prompt ends before the first message of the assistant. With `tool_calls` the answer is given as
      ids, which the chat template writes; a column `tools` has the schemas of the tools that the prompt describes
    - `prompt`, `chosen` and `rejected`; without `prompt`, it is what both conversations or texts begin with
    - `text`, under a plain template only: its first token is the prompt

    Answers are texts or messages. The prompt of a vision-language model may have pictures. Every row counts, also one
    that repeats another. A completion's `label` is true or false, and all rows without a pair have one, or none has.
    With `splits_pairs` they must have one, and a pair is two prompts, as if it were two rows with a `label`. Columns in
    `number_columns` are numbers. `BadData`, with the first faults.
    """
    name = Path(source.partition("@")[0]).stem
    prompts: list[Prompt] = []
    faults: dict[int, str] = {}
    advice: dict[int, str] = {}
    labelled: dict[int, bool] = {}
    content, omitted, rows = ContentHash(), set[str](), 0
    for rows, row in rows_of(source):
        try:
            if isinstance(row, DataRowError):
                raise row
            stored = read_row(row, columns)
            check_roles(stored)
            pictures = pictures_of(row, stored.problem, source, encode)
            row = without_pictures(row) if pictures else row
            kept, left_out = RowColumns(keeps_whole_row=True).extra(row)
            omitted |= left_out
            kept |= {name: number_in(kept, name) for name in number_columns if name in kept}
            if CHOSEN in stored.answers_by_column or columns.answer_column == LABEL:
                kept.pop(LABEL, None)
            elif labelled.setdefault(rows, LABEL in kept):
                kept[LABEL] = truth_in(kept, LABEL)
            content.add(stored.problem, stored.answers_by_column, kept | hashes_of(pictures))
            for part, single, label in separate(stored) if splits_pairs else [("", stored, {})]:
                prompt = prompt_of(single, kept | gold(row, columns) | label, encode, pictures, plain=plain)
                prompts.append(replace(prompt, id=f"{name}/{rows}{part}"))
        except DataRowError as fault:
            faults[rows] = str(fault)
            advice[rows] = fault.fix
    if splits_pairs or any(labelled.values()):
        why = f"field {LABEL!r} is missing or null: it must be true or false"
        unlabelled = [row for row, has_label in labelled.items() if not has_label]
        faults = dict.fromkeys(unlabelled, why) | faults
        advice = dict.fromkeys(unlabelled, "") | advice
    if faults:
        what = f"{source}: {len(faults)} of {rows:,} rows have no stored answer that can be used"
        lines = [f"row {row}: {fault}" for row, fault in sorted(faults.items())]
        raise BadData(what, evidence=first_lines(lines), fix=fix_of([*advice.values()], EXAMPLE))
    if not prompts:
        raise BadData(f"{source} holds no stored answer", evidence="0 rows", fix=EXAMPLE)
    counts = {
        "row_count": rows,
        "training_count": len(prompts),
        "held_out_count": 0,
        "omitted_columns": tuple(sorted(omitted)),
    }
    return prompts, SourceStats(source=source, sha256=content.digest, **counts)


def read_row(row: Row, columns: RowColumns) -> StoredAnswersRow:
    """The problem of a row and its stored answers. Raises `DataRowError`.

    >>> read_row({"prompt": "7*5=", "completion": "35"}, RowColumns()).answers_by_column
    {'completion': '35'}
    >>> pair = {"chosen": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}],
    ...         "rejected": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Go"}]}
    >>> read_row(pair, RowColumns()).problem
    [{'role': 'user', 'content': 'Hi'}]
    """
    if CHOSEN in row and REJECTED in row:
        return read_pair(row, columns)
    if MESSAGES in row and COMPLETION not in row:
        problem, answer = divided(messages_of(row, MESSAGES))
        return StoredAnswersRow(problem, {COMPLETION: checked_answer(answer, MESSAGES)})
    if TEXT in row and not columns.has_problem(row):
        text = row[TEXT]
        if not isinstance(text, str) or not text.strip():
            raise DataRowError(f"field {TEXT!r} is {kind_of(text) if not isinstance(text, str) else 'empty'}")
        return StoredAnswersRow("", {COMPLETION: {TEXT: text}})
    answer = COMPLETION if COMPLETION in row else columns.answer_column
    if (one := {CHOSEN, REJECTED} & row.keys()) and answer not in row:
        (other,) = {CHOSEN, REJECTED} - one
        raise DataRowError(f"it has {one.pop()!r} and no {other!r}: a pair has both")
    if not answer:
        raise DataRowError(f"it has {', '.join(row) or 'no fields'}, and no stored answer")
    problem, completion = RowColumns(columns.prompt_column, answer).read(row)
    return StoredAnswersRow(problem, {COMPLETION: checked_answer(completion, answer)})


def check_roles(stored: StoredAnswersRow) -> None:
    """Raise `DataRowError` for a message of an unknown role, which a plain template would take for the other side."""
    for messages in (stored.problem, *stored.answers_by_column.values()):
        for message in messages if isinstance(messages, list) else ():
            if (role := message["role"]) not in ROLES:
                raise DataRowError(f"a message has the role {role!r:.40}: the roles are {', '.join(ROLES)}")


def read_pair(row: Row, columns: RowColumns) -> StoredAnswersRow:
    """A preference pair. What both answers begin with belongs to the prompt; of texts, only without a prompt column."""
    answers = {name: row[name] for name in (CHOSEN, REJECTED)}
    opening: list[dict[str, Any]] = []
    if all(isinstance(answer, list) for answer in answers.values()):
        both = [messages_of(row, name) for name in answers]
        while all(both) and both[0][0] == both[1][0] and both[0][0]["role"] != ASSISTANT:
            opening.append(both[0].pop(0))
            both[1].pop(0)
        answers = dict(zip(answers, both, strict=True))
    if columns.has_problem(row):
        problem, _ = RowColumns(columns.prompt_column, "").read(row)
    elif opening:
        problem = opening
    elif (shared := common_beginning(answers)).strip():
        problem, answers = shared, {name: answer[len(shared) :] for name, answer in answers.items()}
    else:
        raise DataRowError(
            f"no field {columns.prompt_column!r}, and its answers have no common beginning, as texts or conversations"
        )
    return StoredAnswersRow(problem, {name: checked_answer(answer, name) for name, answer in answers.items()})


def separate(stored: StoredAnswersRow) -> list[tuple[str, StoredAnswersRow, Row]]:
    """A pair as two rows with one answer each: the end of its name, the row, and its label. Other rows stay."""
    answers = stored.answers_by_column
    if CHOSEN not in answers:
        return [("", stored, {})]
    return [
        (f"/{name}", StoredAnswersRow(stored.problem, {COMPLETION: answers[name]}), {LABEL: name == CHOSEN})
        for name in (CHOSEN, REJECTED)
    ]


def common_beginning(answers: Mapping[str, Any]) -> str:
    """The text that two texts begin with, without the space before their difference, as TRL; empty for other values.

    >>> common_beginning({"chosen": "The sky is blue.", "rejected": "The sky is green."})
    'The sky is'
    """
    if not all(isinstance(answer, str) for answer in answers.values()):
        return ""
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*answers.values()))
    return "".join(letter for letter, *_ in same).removesuffix(" ")


def prompt_of(
    stored: StoredAnswersRow, row: Row, encode: Callable[[Any], Ids], pictures: Sequence[Picture], *, plain: bool
) -> Prompt:
    """The prompt of a row, without a name. Of a whole text it is the first token, and the text is its own problem."""
    (first, *_) = stored.answers_by_column.values()
    conversation = {} if isinstance(stored.problem, str) else {MESSAGES: stored.problem}
    tools = tools_of(row)
    columns = {**row, **conversation}
    columns |= {name: written_out(answer, encode, tools) for name, answer in stored.answers_by_column.items()}
    if not isinstance(first, dict):
        text = problem_text(stored.problem)
        check_length(text, "prompt")
        ids = encoded_problem(with_tools(encode, tools), stored.problem, pictures)
        return Prompt("", ids, text, columns, pictures=tuple(pictures))
    if pictures:
        raise DataRowError(f"a whole text has no place for pictures: use {MESSAGES!r}")
    if not plain:
        raise DataRowError(f"a whole text has no prompt for a template: use --template no, or {MESSAGES!r}")
    ids = encoded_problem(encode, first[TEXT])
    if len(ids) < 2:
        raise DataRowError(f"field {TEXT!r} has one token: the first one is the prompt")
    return Prompt("", ids[:1], first[TEXT], columns)


def written_out(answer: Answer, encode: Callable[[Any], Ids], tools: list[Any] | None) -> Any:
    """An answer as the prompt's row has it: with tool calls, as ids."""
    if isinstance(answer, list) and has_calls(answer):
        return {PARTS: parts_of(answer, encode, tools)}
    return answer


def gold(row: Row, columns: RowColumns) -> Row:
    """The gold answer of a row that has one, by which a verifier of the recipe grades in evaluations."""
    return {"answer": row[columns.answer_column]} if columns.answer_column in row else {}


def messages_of(row: Row, name: str) -> list[dict[str, Any]]:
    """The messages in a column, each with a role and a text, or parts that are pictures. Raises `DataRowError`."""
    messages = row[name]
    if has_calls(messages):
        return [read_message(message) for message in messages]
    messages = plain_messages(messages) if isinstance(messages, list) else messages
    if not is_conversation(messages, pictures=True):
        raise DataRowError(f"field {name!r} is {kind_of(messages)}: it must be a list of objects with role and content")
    return [{"role": m["role"], "content": m["content"]} for m in messages]


def divided(messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A conversation as its prompt, before the first message of the assistant, and the rest."""
    start = next((i for i, m in enumerate(messages) if m["role"] == ASSISTANT), 0)
    if not start:
        raise DataRowError("its messages are no prompt and then an answer of the assistant")
    return messages[:start], messages[start:]


def checked_answer(answer: Any, name: str) -> Answer:
    """An answer that is a text, or messages that begin and end with the assistant's and alternate with others."""
    if isinstance(answer, str):
        if not answer.strip():
            raise DataRowError(f"field {name!r} is empty")
        check_length(answer, "answer")
        return answer
    if not isinstance(answer, list):
        raise DataRowError(f"field {name!r} is {kind_of(answer)}: an answer must be text or messages")
    messages = messages_of({name: answer}, name)
    if count_pictures(messages):
        raise DataRowError(f"the messages in {name!r} have a picture: pictures are before the first answer")
    turns = [m["role"] == ASSISTANT for m in messages]
    called = has_calls(messages)
    if not (turns[0] and turns[-1]) or not all(m["content"].strip() or m.get(CALLS) for m in messages):
        raise DataRowError(f"the messages in {name!r} do not begin and end with the assistant's, or one is empty")
    if any(a == b and (a or not called) for a, b in pairwise(turns)):
        raise DataRowError(f"two messages in {name!r} follow each other without the other side between them: join them")
    check_length("".join(m["content"] for m in messages), "answer")
    return messages


def turns_of(answer: Any) -> Sequence[tuple[str, str]]:
    """The turns of an answer as pairs of role and text: one of the assistant for a text.

    >>> turns_of("35")
    [('assistant', '35')]
    """
    return [(ASSISTANT, answer)] if isinstance(answer, str) else [(m["role"], m["content"]) for m in answer]
