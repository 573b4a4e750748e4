"""Demonstrations for a warm start: rows with a prompt and its answer, or with the messages of a conversation.

In a conversation with an environment, messages with the role `tool` hold the environment's replies.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from groupwise.core import BadData, Usage, first_lines
from groupwise.data import ENVIRONMENT, TEMPLATE, WRITTEN, Ids
from groupwise.tasks.big_sums import sum_demonstrations
from groupwise.tasks.coin import coin_demonstrations
from groupwise.tasks.deduction import deduction_demonstrations
from groupwise.tasks.delegated_sums import delegated_demonstrations
from groupwise.tasks.dropped_thoughts import DroppedThoughts
from groupwise.tasks.edges import edge_demonstrations
from groupwise.tasks.hinted_sums import hinted_demonstrations
from groupwise.tasks.mixed_sums import mixed_demonstrations
from groupwise.tasks.programs import program_demonstrations
from groupwise.tasks.proposals import proposal_demonstrations
from groupwise.tasks.read_rows import DataRowError, Row, check_length, kind_of, rows_of
from groupwise.tasks.row_columns import Problem, RowColumns, is_conversation, problem_text
from groupwise.tasks.source_stats import ContentHash, SourceStats
from groupwise.tasks.tiny_countdown import countdown_demonstrations
from groupwise.tasks.wordy_sums import wordy_demonstrations

__all__ = ["Demonstration", "need_environment", "read_demonstrations"]

T = TypeVar("T")

EXAMPLE = (
    'write one JSON object per row, such as {"prompt": "7*5=", "answer": "35"} or\n'
    '{"messages": [{"role": "user", "content": "7*5="}, {"role": "assistant", "content": "35"}]}'
)

PACKAGED: dict[str, Callable[[], Iterator[Row]]] = {
    "big_sums": sum_demonstrations,
    "coin": coin_demonstrations,
    "deduction": deduction_demonstrations,
    "delegated_sums": delegated_demonstrations,
    "edges": edge_demonstrations,
    "hinted_sums": hinted_demonstrations,
    "mixed_sums": mixed_demonstrations,
    "programs": program_demonstrations,
    "proposals": proposal_demonstrations,
    "tiny_countdown": countdown_demonstrations,
    "wordy_sums": wordy_demonstrations,
}
"""Tasks that generate their own demonstrations, in the form of a file's rows."""
FROM_STRATEGIES = ("delegated_sums",)
"""Packaged demonstrations whose tool messages a strategy appends, so that no environment is needed."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """The token ids of a prompt and of its answer, which includes the token that ends an answer.

    `token_origins` has one entry per answer token where the answer contains replies of an environment. The loss leaves
    out the tokens of the environment and of the template around them. Empty: all tokens of the answer are trained.
    """

    prompt_ids: Ids
    answer_ids: Ids
    token_origins: Ids = ()


EncodeReply = Callable[[Ids, str], tuple[Ids, Ids, Ids]]
"""A function that encodes an environment's reply: (template ids before it, ids of its text, template ids after it)."""


def need_environment(source: str) -> bool:
    """Whether the recipe must name an environment if these demonstrations contain tool messages."""
    return source not in FROM_STRATEGIES


def read_demonstrations(
    source: str,
    encode_prompt: Callable[[Any], Ids],
    encode_answer: Callable[[str], Ids],
    *,
    prompt: str,
    answer: str,
    encode_reply: EncodeReply | None = None,
    dropped: DroppedThoughts | None = None,
) -> tuple[list[Demonstration], SourceStats]:
    """Read demonstrations from a file, a directory, `datasets:NAME` or a packaged task; and their statistics.

    A row with `messages` ends with a message of the assistant. The answer is that message, with the tool messages
    right before it and the assistant messages that those reply to. `encode_prompt` takes a text or messages;
    `encode_reply` takes an environment's text (None: the recipe has no environment). `dropped` empties the thoughts of
    some rows. `BadData`, with the first faults, if a row is unusable; rows count from 1.
    """
    demonstrations: list[Demonstration] = []
    faults: list[str] = []
    content, rows, thoughts = ContentHash(), 0, 0
    for rows, row in enumerate(PACKAGED[source](), 1) if source in PACKAGED else rows_of(source):
        try:
            problem, turns = _read_row(row, RowColumns(prompt, answer))
            content.add(problem, turns[0][1] if len(turns) == 1 else turns)
            context = _ids(encode_prompt, problem, "prompt")
            if dropped is not None:
                thoughts += any(dropped.has_thought(text) for role, text in turns if role == ASSISTANT)
                turns = [(role, dropped(rows, text) if role == ASSISTANT else text) for role, text in turns]
            demonstrations.append(Demonstration(context, *_encode(turns, encode_answer, encode_reply)))
        except DataRowError as fault:
            faults.append(f"row {rows}: {str(fault).replace('--columns.', '--warm_start.columns.')}")
    if faults:
        what = f"{source}: {len(faults)} of {rows} demonstrations cannot be used"
        raise BadData(what, evidence=first_lines(faults), fix=f"correct or remove these rows; {EXAMPLE}")
    if not demonstrations:
        raise BadData(f"{source} holds no demonstration", evidence="0 rows", fix=EXAMPLE)
    if dropped is not None and not thoughts:
        what = (
            f"no demonstration of {source} has a thought between {dropped.thought_start!r} and {dropped.thought_end!r}"
        )
        raise BadData(what, evidence=f"{rows} rows", fix="set warm_start.thought to the two tags around a thought")
    return demonstrations, SourceStats(
        source=source, sha256=content.digest, row_count=rows, training_count=rows, held_out_count=0
    )


ASSISTANT, TOOL = "assistant", "tool"
"""The roles of a conversation's messages: the model, and its environment."""
Turns = list[tuple[str, str]]
"""The turns of a conversation: pairs of a role and a text."""


def _read_row(row: Row | DataRowError, fields: RowColumns) -> tuple[Problem, Turns]:
    """Read a demonstration's row: the problem, and the turns of the answer (assistant and tool messages)."""
    if isinstance(row, DataRowError):
        raise row
    if "messages" not in row:
        problem, answer = fields.read(row)
        if not isinstance(answer, str):
            raise DataRowError(f"field {fields.answer_column!r} is {kind_of(answer)}: a demonstration must be text")
        return problem, [(ASSISTANT, answer)]
    messages = row["messages"]
    if not is_conversation(messages):
        raise DataRowError(
            f"field 'messages' is {kind_of(messages)}: it must be a list of objects with role and content"
        )
    start = len(messages) - 1  # of the answer: walk back from the end while assistant and tool alternate
    while start > 0 and messages[start - 1]["role"] == (TOOL if messages[start]["role"] == ASSISTANT else ASSISTANT):
        start -= 1
    problem, turns = messages[:start], [(m["role"], m["content"]) for m in messages[start:]]
    if turns[-1][0] != ASSISTANT or not problem or not all(text.strip() for _, text in turns):
        raise DataRowError("its messages do not end with an answer of the assistant to a prompt, or one is empty")
    if problem[-1]["role"] == TOOL:
        raise DataRowError("two messages of the tool follow each other: write them as one")
    return problem, turns


def _encode(turns: Turns, encode_answer: Callable[[str], Ids], encode_reply: EncodeReply | None) -> tuple[Ids, Ids]:
    """Encode an answer: its token ids, and the origin of each id (no origins if the assistant wrote them all)."""
    ids, origin = (), ()
    for role, text in turns:
        if role == ASSISTANT:
            parts = [(_ids(encode_answer, text, "answer"), WRITTEN)]
        elif encode_reply is None:
            what = "the demonstrations contain tool messages, and the recipe names no environment"
            raise Usage(what, fix="name the environment that writes them, such as --environment calculator_tools")
        else:
            before, reply, after = _ids(partial(encode_reply, ids), text, "tool's answer")
            parts = [(before, TEMPLATE), (reply, ENVIRONMENT), (after, TEMPLATE)]
        ids = sum((part for part, _ in parts), ids)
        origin = sum(((source,) * len(part) for part, source in parts), origin)
    return ids, origin if len(turns) > 1 else ()


def _ids(encode: Callable[[Any], T], text: Any, what: str) -> T:
    check_length(problem_text(text), what)
    try:
        ids = encode(text)
    except Exception as error:  # a user's tokenizer may raise any exception
        raise DataRowError(f"the tokenizer cannot read this {what} ({getattr(error, 'what', error)})") from error
    if not ids:
        raise DataRowError(f"the {what} has no tokens")
    return ids
