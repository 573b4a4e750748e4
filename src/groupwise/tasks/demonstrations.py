"""Demonstrations for a supervised phase: rows with a prompt and its answer, or with the messages of a conversation.

In a conversation with an environment, what it says stands in messages of the role `tool`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from groupwise.data import ENVIRONMENT, TEMPLATE, WRITTEN, BadData, Ids, Usage
from groupwise.tasks.big_sums import sum_demonstrations
from groupwise.tasks.fields import Asked, Fields, is_conversation
from groupwise.tasks.programs import program_demonstrations
from groupwise.tasks.rows import SHOWN, Fault, Row, kind_of, rows_of
from groupwise.tasks.source_stats import ContentHash, SourceStats

__all__ = ["Demonstration", "read_demonstrations"]

T = TypeVar("T")

EXAMPLE = (
    'write one JSON object a row, such as {"prompt": "7*5=", "answer": "35"} or\n'
    '{"messages": [{"role": "user", "content": "7*5="}, {"role": "assistant", "content": "35"}]}'
)

OWN: dict[str, Callable[[], Iterator[Row]]] = {"big_sums": sum_demonstrations, "programs": program_demonstrations}
"""Tasks that make their own demonstrations, as the rows of a file."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """What the model reads, and what it is taught to write after it, the token that ends an answer included.

    `origin` tells whose each token of the answer is where an environment answers within it: that one's, and the
    template's around them, are read and not taught. Empty where all of it is taught.
    """

    context: Ids
    answer: Ids
    origin: Ids = ()


Tell = Callable[[Ids, str], tuple[Ids, Ids, Ids]]
"""Of what stands there and an environment's words: the template's ids, the words' own, the template's."""


def read_demonstrations(
    source: str,
    ask: Callable[[Any], Ids],
    write: Callable[[str], Ids],
    *,
    prompt: str,
    answer: str,
    tell: Tell | None = None,
) -> tuple[list[Demonstration], SourceStats]:
    """The demonstrations of a file, a directory, `datasets:NAME` or a task's own, in order, and what is known of them.

    A row with `messages` ends with the assistant's, which is the answer, together with the tool's messages right before
    it and the assistant's that they answer. `ask` makes ids of a text or of messages, `write` of an answer, and `tell`
    of an environment's words (None: there is no environment). `BadData` names every row that cannot be used; rows count
    from 1.
    """
    found: list[Demonstration] = []
    faults: list[str] = []
    content, rows = ContentHash(), 0
    for rows, row in enumerate(OWN[source](), 1) if source in OWN else rows_of(source):
        try:
            asked, turns = _told(row, Fields(prompt, answer))
            content.add(asked, turns[0][1] if len(turns) == 1 else turns)
            found.append(Demonstration(_ids(ask, asked, "prompt"), *_conversation(turns, write, tell)))
        except Fault as fault:
            faults.append(f"row {rows}: {str(fault).replace('--columns.', '--warm_start.columns.')}")
    if faults:
        seen = faults[:SHOWN] + [f"and {len(faults) - SHOWN} more"] * (len(faults) > SHOWN)
        what = f"{source}: {len(faults)} of {rows} demonstrations cannot be used"
        raise BadData(what, evidence="\n".join(seen), fix=f"mend or remove these rows; {EXAMPLE}")
    if not found:
        raise BadData(f"{source} holds no demonstration", evidence="0 rows", fix=EXAMPLE)
    return found, SourceStats(source=source, sha256=content.digest, rows=rows, training=rows, held_out=0)


ASSISTANT, TOOL = "assistant", "tool"
"""Who speaks in a conversation: the model, and its environment."""
Turns = list[tuple[str, str]]


def _told(row: Row | Fault, fields: Fields) -> tuple[Asked, Turns]:
    """What is asked in a row, and the answer that it shows: the assistant's words, between them a tool's."""
    if isinstance(row, Fault):
        raise row
    if "messages" not in row:
        asked, told = fields.read(row)
        if not isinstance(told, str):
            raise Fault(f"field {fields.answer!r} is {kind_of(told)}: a demonstration is text")
        return asked, [(ASSISTANT, told)]
    messages = row["messages"]
    if not is_conversation(messages):
        raise Fault(f"field 'messages' is {kind_of(messages)}: it is a list of objects with role and content")
    at = len(messages) - 1  # where the answer begins: from the end, the assistant and a tool in turn
    while at > 0 and messages[at - 1]["role"] == (TOOL if messages[at]["role"] == ASSISTANT else ASSISTANT):
        at -= 1
    before, turns = messages[:at], [(m["role"], m["content"]) for m in messages[at:]]
    if turns[-1][0] != ASSISTANT or not before or not all(said.strip() for _, said in turns):
        raise Fault("its messages do not end with an answer of the assistant to something")
    if before[-1]["role"] == TOOL:
        raise Fault("two messages of the tool follow each other: write them as one")
    return before, turns


def _conversation(turns: Turns, write: Callable[[str], Ids], tell: Tell | None) -> tuple[Ids, Ids]:
    """The ids of an answer, and whose each is; nothing of that where all of it is the assistant's."""
    ids, origin = (), ()
    for who, said in turns:
        if who == ASSISTANT:
            new = [(_ids(write, said, "answer"), WRITTEN)]
        elif tell is None:
            what = "a tool speaks in the demonstrations, and the recipe names no environment"
            fix = "name the one that speaks so, such as --environment calculator_tools, with --method.strategy Turns"
            raise Usage(what, fix=f"{fix} --evaluate.strategy Turns")
        else:
            before, words, after = _ids(partial(tell, ids), said, "tool's answer")
            new = [(before, TEMPLATE), (words, ENVIRONMENT), (after, TEMPLATE)]
        ids = sum((added for added, _ in new), ids)
        origin = sum(((whose,) * len(added) for added, whose in new), origin)
    return ids, origin if len(turns) > 1 else ()


def _ids(encode: Callable[[Any], T], words: Any, what: str) -> T:
    try:
        ids = encode(words)
    except Exception as error:  # a tokenizer of one's own may raise anything
        raise Fault(f"the tokenizer cannot read this {what} ({getattr(error, 'what', error)})") from error
    if not ids:
        raise Fault(f"the {what} has no tokens")
    return ids
