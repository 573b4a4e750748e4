"""Demonstrations for a supervised phase: rows with a prompt and its answer, or with the messages of a conversation."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from groupwise.data import BadData, Ids
from groupwise.tasks.facts import Facts, Reckoning
from groupwise.tasks.fields import Asked, Fields, is_conversation
from groupwise.tasks.rows import SHOWN, Fault, Row, kind_of, rows_of

EXAMPLE = (
    'write one JSON object a row, such as {"prompt": "7*5=", "answer": "35"} or\n'
    '{"messages": [{"role": "user", "content": "7*5="}, {"role": "assistant", "content": "35"}]}'
)


@dataclass(frozen=True, slots=True)
class Demonstration:
    """What the model reads, and what it is taught to write after it, the token that ends an answer included."""

    context: Ids
    answer: Ids


def read_demonstrations(
    source: str, ask: Callable[[Any], Ids], write: Callable[[str], Ids], *, prompt: str, answer: str
) -> tuple[list[Demonstration], Facts]:
    """The demonstrations of a file, a directory or `datasets:NAME`, in order, and what is known of them.

    A row with `messages` ends with the assistant's, which is the answer. `ask` makes ids of a text or of messages and
    `write` of an answer. `BadData` names every row that cannot be used; rows count from 1.
    """
    found: list[Demonstration] = []
    faults: list[str] = []
    content, rows = Reckoning(), 0
    for rows, row in rows_of(source):
        try:
            asked, told = _told(row, Fields(prompt, answer))
            content.add(asked, told)
            found.append(Demonstration(_ids(ask, asked, "prompt"), _ids(write, told, "answer")))
        except Fault as fault:
            faults.append(f"row {rows}: {str(fault).replace('--columns.', '--warm_start.columns.')}")
    if faults:
        seen = faults[:SHOWN] + [f"and {len(faults) - SHOWN} more"] * (len(faults) > SHOWN)
        what = f"{source}: {len(faults)} of {rows} demonstrations cannot be used"
        raise BadData(what, evidence="\n".join(seen), fix=f"mend or remove these rows; {EXAMPLE}")
    if not found:
        raise BadData(f"{source} holds no demonstration", evidence="0 rows", fix=EXAMPLE)
    return found, Facts(source=source, sha256=content.digest, rows=rows, training=rows, held_out=0)


def _told(row: Row | Fault, fields: Fields) -> tuple[Asked, str]:
    """What is asked in a row, and the answer that it shows."""
    if isinstance(row, Fault):
        raise row
    if "messages" not in row:
        asked, told = fields.read(row)
        if not isinstance(told, str):
            raise Fault(f"field {fields.answer!r} is {kind_of(told)}: a demonstration is text")
        return asked, told
    messages = row["messages"]
    if not is_conversation(messages):
        raise Fault(f"field 'messages' is {kind_of(messages)}: it is a list of objects with role and content")
    *before, last = messages
    if last["role"] != "assistant" or not last["content"].strip() or not before:
        raise Fault("its messages do not end with an answer of the assistant to something")
    return before, last["content"]


def _ids(encode: Callable[[Any], Ids], words: Any, what: str) -> Ids:
    try:
        ids = encode(words)
    except Exception as error:  # a tokenizer of one's own may raise anything
        raise Fault(f"the tokenizer cannot read this {what} ({getattr(error, 'what', error)})") from error
    if not ids:
        raise Fault(f"the {what} has no tokens")
    return ids
