"""`Stored`: a strategy that samples nothing. The answers of a draw are those that its data row stores."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, ClassVar

from groupwise.core import BadData
from groupwise.data import ENVIRONMENT, WRITTEN, ContextKey, Draw, Outcome, Rollout, Sample, Sampler, Strategy, Verdict
from groupwise.tasks.row_columns import COMPLETION, REJECTED
from groupwise.tasks.stored_calls import PARTS
from groupwise.tasks.stored_rows import ASSISTANT, LABEL, TEXT, turns_of

__all__ = ["Stored"]

OTHER = "other_prompt"
"""The view of a sample under the prompt of another draw."""


@dataclass(frozen=True, slots=True)
class Stored(Strategy):
    """Uses the answers that the data row stores, one per column, as the samples of the group; samples nothing.

    Only the assistant's tokens are trained; other messages are written as an environment's replies are. An answer in
    the column `rejected`, or in a row whose `label` is false, has the outcome wrong; any other is correct. With
    `adds_other_prompt_view` each sample has the view `other_prompt`: the prompt of the next draw of the round. With
    `closes_turn` each sample ends as the chat template ends a whole conversation, which a reward model reads.
    `mark_columns` are columns with numbers; where a row has one, each token of its samples has it as a `TokenMark`.
    With `splits_pairs` a row with `chosen` and `rejected` is two rows: a `completion` with the label true, and one with
    the label false.
    """

    writes_stored_answers: ClassVar[bool] = True

    columns: tuple[str, ...] = (COMPLETION,)
    adds_other_prompt_view: bool = False
    closes_turn: bool = False
    mark_columns: tuple[str, ...] = ()
    splits_pairs: bool = False

    def __post_init__(self) -> None:
        if not self.columns or len(set(self.columns)) < len(self.columns):
            raise ValueError(f"columns is {list(self.columns)}\nname one column per answer of a group, each once")

    @property
    def row_columns(self) -> tuple[str, ...]:
        return self.columns

    @property
    def exact_group_size(self) -> int:
        """The number of samples in each group."""
        return len(self.columns)

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        starts = sampler.start(draw.prompt.token_ids, len(self.columns))
        samples = [self.sample(draw, sampler, start, name) for start, name in zip(starts, self.columns, strict=True)]
        if self.adds_other_prompt_view:
            own = draw.prompt.content_hash, draw.prompt.token_ids
            if other := next_prompt(draw, await sampler.share(own)):
                content, ids = other
                samples = [replace(s, prompt_views={OTHER: ids}, view_hashes={OTHER: content}) for s in samples]
        return Rollout(draw, tuple(samples))

    def sample(self, draw: Draw, sampler: Sampler, sample: Sample, column: str) -> Sample:
        """The answer in a column of the draw's row, written to an empty sample, with its verdict."""
        row = draw.prompt.row
        written = write_answer(sampler, sample, row[column], closes=self.closes_turn)
        marks = {name: (number_in(row, name),) * len(written.tokens) for name in self.mark_columns if name in row}
        written = replace(written, token_marks=marks)
        wanted = column != REJECTED and bool(row.get(LABEL, True))
        written = replace(written, limit=len(written.tokens))
        return written.with_verdict(Verdict(Outcome.correct if wanted else Outcome.wrong))


def number_in(row: Mapping[str, Any], name: str) -> float:
    """The number in a column of a row. `BadData` for anything else."""
    number = row[name]
    if isinstance(number, bool) or not isinstance(number, int | float) or not isfinite(number):
        raise BadData(f"the column {name!r} is {str(number)[:40]!r}: it must be a number", fix="correct or remove it")
    return float(number)


def write_answer(sampler: Sampler, sample: Sample, answer: Any, *, closes: bool) -> Sample:
    """Append a stored answer: a text, the turns of a conversation, its ids, or a whole text after its first token.

    With `closes`, the last turn ends as a conversation does.
    """
    if isinstance(answer, dict) and PARTS in answer:
        for ids, own in answer[PARTS]:
            sample = sample.insert(tuple(ids), WRITTEN if own else ENVIRONMENT)
        return sampler.write(sample, "", closes=closes)
    if isinstance(answer, dict):
        return sampler.write(sample.insert(sampler.prompt(answer[TEXT])[len(sample.context) :], WRITTEN), "")
    *earlier, (_, last) = turns_of(answer)
    for role, text in earlier:
        sample = sampler.write(sample, text) if role == ASSISTANT else sampler.append(sample, text)
    return sampler.write(sample, last, closes=closes)


def next_prompt(draw: Draw, prompts: Mapping[int, ContextKey]) -> ContextKey | None:
    """The prompt of the next draw of the round, of the last draw the first one; None for a draw alone."""
    numbers = list(prompts)
    following = numbers[(numbers.index(draw.id) + 1) % len(numbers)]
    return prompts[following] if following != draw.id else None
