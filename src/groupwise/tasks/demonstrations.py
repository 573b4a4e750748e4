"""`Demonstrations`: rows with a prompt and its answer to train on, or with the messages of a conversation.

In a conversation with an environment, messages with the role `tool` hold the environment's replies.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.core import BadData, check_types, first_lines
from groupwise.data import Ids, Prompt, TaskSettings
from groupwise.models.picture_messages import count_pictures
from groupwise.tasks.big_sums import sum_demonstrations
from groupwise.tasks.coin import coin_demonstrations
from groupwise.tasks.deduction import deduction_demonstrations
from groupwise.tasks.delegated_sums import delegated_demonstrations
from groupwise.tasks.dropped_thoughts import DroppedThoughts
from groupwise.tasks.edges import edge_demonstrations
from groupwise.tasks.hinted_sums import hinted_demonstrations
from groupwise.tasks.mixed_sums import mixed_demonstrations
from groupwise.tasks.programs import program_demonstrations
from groupwise.tasks.proposed_sums import proposal_demonstrations
from groupwise.tasks.read_rows import DataRowError, Row, check_length, kind_of, rows_of
from groupwise.tasks.row_columns import COMPLETION, Problem, RowColumns, is_conversation, problem_text
from groupwise.tasks.row_pictures import hashes_of, pictures_of, plain_messages
from groupwise.tasks.rows_task import RowsTask, encoded_problem
from groupwise.tasks.source_stats import ContentHash, SourceStats
from groupwise.tasks.stored_rows import ASSISTANT, MESSAGES
from groupwise.tasks.tiny_countdown import countdown_demonstrations
from groupwise.tasks.wordy_sums import wordy_demonstrations

__all__ = ["Demonstrations"]

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
    "proposed_sums": proposal_demonstrations,
    "tiny_countdown": countdown_demonstrations,
    "wordy_sums": wordy_demonstrations,
}
"""Tasks that generate their own demonstrations, in the form of a file's rows."""
WITHOUT_ENVIRONMENT = ("delegated_sums",)
"""Packaged demonstrations whose tool messages a strategy appends, so that a recipe needs no environment for them."""
TOOL = "tool"
"""The role of an environment's messages."""
Turns = list[tuple[str, str]]
"""The turns of a conversation: pairs of a role and a text."""


@dataclass(frozen=True, slots=True)
class Demonstrations(TaskSettings):
    """Demonstrations for a method of stored answers: those of a packaged task, or data rows as `DataRows` reads them.

    A row has a prompt and its answer as text, or `messages` that end with a message of the assistant. The answer is
    then that message, with the tool messages right before it and the assistant's messages that those reply to. All rows
    are trained, none is held out. `drop_thoughts` of the rows lose the text between the two marks of `thought_marks`,
    drawn once from the seed, so that the policy may leave a thought out; with an empty first mark, the text before the
    second one.
    """

    source: str
    drop_thoughts: float = 0.0
    thought_marks: tuple[str, str] = ("<think>", "</think>")

    def __post_init__(self) -> None:
        check_types(self)
        if not 0 <= self.drop_thoughts <= 1 or not self.thought_marks[1]:
            raise ValueError(
                f"drop_thoughts is {self.drop_thoughts} and thought_marks is {self.thought_marks}\n"
                "use 0 <= drop_thoughts <= 1, and a second mark that is not empty, such as </think>"
            )

    @property
    def label(self) -> str:
        return self.source

    def build(
        self, encode: Callable[[Any], Ids], /, *, prompt: str = "prompt", answer: str = "answer", seed: int = 0
    ) -> RowsTask:
        """The demonstrations as prompts, each with its answer in the column `completion`.

        `BadData`, with the first faults, if a row is unusable; rows count from 1.
        """
        dropped = DroppedThoughts(self.drop_thoughts, *self.thought_marks, seed) if self.drop_thoughts else None
        prompts, stats = read_demonstrations(self.source, encode, RowColumns(prompt, answer), dropped)
        return RowsTask(tuple(prompts), (), (stats,))


def need_environment(task: RowsTask) -> bool:
    """Whether a recipe must name an environment for these demonstrations: they contain its messages."""
    if task.source_stats[0].source in WITHOUT_ENVIRONMENT:
        return False
    answers = (prompt.row[COMPLETION] for prompt in task.training)
    return any(not isinstance(answer, str) and any(m["role"] == TOOL for m in answer) for answer in answers)


def read_demonstrations(
    source: str, encode: Callable[[Any], Ids], columns: RowColumns, dropped: DroppedThoughts | None = None
) -> tuple[list[Prompt], SourceStats]:
    """Read the demonstrations of a source, and their statistics. `dropped` empties the thoughts of some rows."""
    prompts: list[Prompt] = []
    faults: list[str] = []
    name, content, rows, thoughts = Path(source.partition("@")[0]).stem, ContentHash(), 0, 0
    for rows, row in enumerate(PACKAGED[source](), 1) if source in PACKAGED else rows_of(source):
        try:
            problem, turns = _read_row(row, columns)
            pictures = () if isinstance(row, DataRowError) else pictures_of(row, problem, source, encode)
            content.add(problem, turns[0][1] if len(turns) == 1 else turns, hashes_of(pictures))
            text = problem_text(problem)
            check_length(text, "prompt")
            check_length("".join(words for _, words in turns), "answer")
            if dropped is not None:
                thoughts += any(dropped.has_thought(words) for role, words in turns if role == ASSISTANT)
                turns = [(role, dropped(rows, words) if role == ASSISTANT else words) for role, words in turns]
            conversation = {} if isinstance(problem, str) else {MESSAGES: problem}
            answer = turns[0][1] if len(turns) == 1 else [{"role": r, "content": c} for r, c in turns]
            row = {**conversation, COMPLETION: answer}
            ids = encoded_problem(encode, problem, pictures)
            prompts.append(Prompt(f"{name}/{rows}", ids, text, row, pictures=pictures))
        except DataRowError as fault:
            faults.append(f"row {rows}: {fault}")
    if faults:
        what = f"{source}: {len(faults)} of {rows} demonstrations cannot be used"
        raise BadData(what, evidence=first_lines(faults), fix=f"correct or remove these rows; {EXAMPLE}")
    if not prompts:
        raise BadData(f"{source} holds no demonstration", evidence="0 rows", fix=EXAMPLE)
    if dropped is not None and not thoughts:
        what = (
            f"no demonstration of {source} has a thought between {dropped.thought_start!r} and {dropped.thought_end!r}"
        )
        raise BadData(
            what, evidence=f"{rows} rows", fix="set thought, beside drop_thoughts, to the two tags around a thought"
        )
    return prompts, SourceStats(
        source=source, sha256=content.digest, row_count=rows, training_count=rows, held_out_count=0
    )


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
    messages = plain_messages(messages) if isinstance(messages, list) else messages
    if not is_conversation(messages, pictures=True):
        raise DataRowError(
            f"field 'messages' is {kind_of(messages)}: it must be a list of objects with role and content"
        )
    start = len(messages) - 1  # of the answer: walk back from the end while assistant and tool alternate
    while start > 0 and messages[start - 1]["role"] == (TOOL if messages[start]["role"] == ASSISTANT else ASSISTANT):
        start -= 1
    problem, turns = messages[:start], [(m["role"], m["content"]) for m in messages[start:]]
    if count_pictures(messages[start:]):
        raise DataRowError("its answer has a picture: pictures are in the messages before it")
    if turns[-1][0] != ASSISTANT or not problem or not all(text.strip() for _, text in turns):
        raise DataRowError("its messages do not end with an answer of the assistant to a prompt, or one is empty")
    if problem[-1]["role"] == TOOL:
        raise DataRowError("two messages of the tool follow each other: write them as one")
    return problem, turns
