"""The task made of a user's rows: validated before the run, then split into training and held-out problems."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from groupwise.core import BadData, Usage, counted, first_lines
from groupwise.data import Ids, Picture, Prompt
from groupwise.data.pictures import hash_of_pictures
from groupwise.tasks.data_sets import HUB
from groupwise.tasks.read_rows import SHOWN, TABLES, DataRowError, Row, check_length, fix_of, rows_of
from groupwise.tasks.row_columns import Problem, RowColumns, method_of_stored, problem_text
from groupwise.tasks.row_pictures import hashes_of, pictures_of, without_pictures
from groupwise.tasks.source_stats import ContentHash, SourceStats, contains_answer, listed
from groupwise.tasks.stored_calls import tools_of, with_tools

__all__ = ["RowsTask", "listed_tokens"]

SHARE = 0.1
"""The share of the rows of one source that is held out."""


@dataclass(frozen=True, slots=True)
class RowsTask:
    """The problems of a source, split by the hash of each prompt: a row keeps its side when the source grows.

    With two rows or more, each side has at least one. A single row is a training row. A prompt's `row["answer"]` is the
    answer in the source: text, a number, or any other JSON value except null. `row` also has the other columns of the
    source that are plain JSON and at most 10,000 characters long.
    """

    training: tuple[Prompt, ...]
    held_out: tuple[Prompt, ...]
    source_stats: tuple[SourceStats, ...] = ()

    def __len__(self) -> int:
        return len(self.training)

    def __getitem__(self, index: int) -> Prompt:
        return self.training[index]

    @classmethod
    def read(
        cls,
        path: str | Path,
        encode: Callable[[Any], Ids],
        *,
        prompt: str = "prompt",
        answer: str = "answer",
        held_out: float = SHARE,
        whole_rows: bool = False,
    ) -> "RowsTask":
        """The problems of a file, a directory or `datasets:NAME`. `BadData`, with the first faults, for unusable rows.

        Rows count from 1. `encode` makes ids of a text, or of messages if the column holds messages. With `whole_rows`
        they need no column, and keep all (`RowColumns.whole`).
        """
        if not 0 < held_out < 1:
            raise Usage(f"held_out is {held_out}: it needs 0 < held_out < 1", fix="set it to a share such as 0.1")
        prompts, stats = read_problems(str(path), encode, (RowColumns(prompt, answer, keeps_whole_row=whole_rows),))
        return cls.split(prompts, stats, held_out)

    @classmethod
    def split(cls, prompts: list[Prompt], stats: SourceStats, share: float = SHARE) -> "RowsTask":
        """Split one source's problems: a share of them is held out, chosen by the hash of the prompt."""
        training, held_out = _split(prompts, share)
        return cls(training, held_out, (replace(stats, training_count=len(training), held_out_count=len(held_out)),))

    @property
    def entirely_held_out(self) -> "RowsTask":
        """The same data for evaluation only: the separate held-out source if there is one, else all rows."""
        held_out = self.held_out
        if len(self.source_stats) == 1:
            held_out = tuple(sorted((*self.training, *held_out), key=row_of))
        stats = [replace(s, training_count=0, held_out_count=len(held_out)) for s in self.source_stats[-1:]]
        return RowsTask((), held_out, tuple(stats))

    @property
    def entirely_training(self) -> "RowsTask":
        """The same data to train on only, evaluated on other problems: all rows, except of a held-out source."""
        if len(self.source_stats) != 1:
            return self
        training = tuple(sorted((*self.training, *self.held_out), key=row_of))
        return RowsTask(training, (), (replace(self.source_stats[0], training_count=len(training), held_out_count=0),))

    def of_at_most(self, tokens: int) -> "RowsTask":
        """The problems whose prompts have at most this many tokens. Rows of one source are split again.

        `BadData` if no problem is left, to train on or held out, where there was one.
        """
        sides = self.training, self.held_out
        long = [[p for p in side if len(p.token_ids) > tokens] for side in sides]
        kept = [tuple(p for p in side if len(p.token_ids) <= tokens) for side in sides]
        if not any(long):
            return self
        if len(self.source_stats) == 1 and self.training and any(kept):
            kept = list(_split(sorted((*kept[0], *kept[1]), key=row_of), SHARE))
        stats = []
        for one, owned in zip(self.source_stats, [(0, 1)] if len(self.source_stats) == 1 else [(0,), (1,)]):
            every = [p for i in owned for p in sides[i]]
            if every and not any(kept[i] for i in owned):
                fix = f"raise max_prompt_tokens to {min(len(p.token_ids) for p in every)} or more"
                what = f"{one.source} has no prompt of at most {tokens:,} tokens"
                raise BadData(what, evidence=listed_tokens(every), fix=fix)
            rows = tuple(sorted({row_of(p) for i in owned for p in long[i]}))
            training, held_out = (len(kept[i]) if i in owned else 0 for i in (0, 1))
            stats.append(replace(one, training_count=training, held_out_count=held_out, too_long_rows=rows))
        return RowsTask(kept[0], kept[1], tuple(stats))

    @classmethod
    def from_two(
        cls, training: tuple[list[Prompt], SourceStats], held_out: tuple[list[Prompt], SourceStats]
    ) -> "RowsTask":
        """The problems of a training source and of a held-out source. `BadData` if they share a problem."""
        refuse_overlap(training[0], held_out[0])
        first = replace(training[1], training_count=len(training[0]), held_out_count=0)
        second = replace(held_out[1], training_count=0, held_out_count=len(held_out[0]))
        return cls(tuple(training[0]), tuple(held_out[0]), (first, second))


def read_problems(
    source: str, encode: Callable[[Any], Ids], layouts: Sequence[RowColumns], split: str = "train", name: str = ""
) -> tuple[list[Prompt], SourceStats]:
    """Read the problems of a source of data rows, each once, and their statistics.

    The first layout that fits the first row reads all rows. A row with the problem and the answer of an earlier row is
    left out; white space does not count. `BadData`, with the first faults, for rows that cannot be used, such as a
    repeated problem with another answer.
    """
    name = name or Path(source.partition("@")[0]).stem
    faults: list[tuple[int, DataRowError]] = []
    prompts: list[Prompt] = []
    first_row: dict[str, tuple[int, Any]] = {}
    repeated: list[int] = []
    content = ContentHash()
    omitted: set[str] = set()
    layout: RowColumns | None = None
    stored = ""
    rows = 0
    for rows, row in rows_of(source, split):
        try:
            if isinstance(row, DataRowError):
                raise row
            layout = layout or _fitting(row, layouts)
            problem, gold = layout.read(row)
            pictures = pictures_of(row, problem, source, encode)
            row = without_pictures(row) if pictures else row
            extra, left_out = layout.extra(row)
            omitted |= left_out
            content.add(problem, gold, extra | hashes_of(pictures))
            text = problem_text(problem)
            check_length(text, "prompt")
            check_length(str(gold), "answer")
            earlier, earlier_gold = first_row.setdefault(_identity(text, pictures), (rows, gold))
            if earlier != rows and str(earlier_gold) != str(gold):
                raise DataRowError(f"it repeats the prompt of row {earlier} with another answer")
            if earlier != rows:
                repeated.append(rows)
                continue
            conversation = {} if isinstance(problem, str) else {"messages": problem}
            columns = {**extra, **conversation, **({} if gold is None else {"answer": gold})}
            ids = (
                encoded_problem(with_tools(encode, tools_of(row)), problem, pictures)
                if layout.has_problem(row) or not layout.keeps_whole_row
                else ()
            )
            prompts.append(Prompt(f"{name}/{rows}", ids, text, columns, pictures=pictures))
        except DataRowError as fault:
            faults.append((rows, fault))
            if layout is not None and isinstance(row, dict) and not layout.fits(row):
                stored = stored or method_of_stored(row)
    if faults:
        evidence = first_lines([f"row {row}: {why}" for row, why in faults])
        what = f"{source}: {len(faults)} of {rows:,} rows cannot be used"
        fix = stored or fix_of([fault.fix for _, fault in faults], _example(source))
        raise BadData(what, evidence=evidence, fix=fix)
    if not prompts:
        raise BadData(f"{source} holds no problem", evidence="0 rows", fix=_example(source))
    return prompts, SourceStats(
        source=source,
        sha256=content.digest,
        row_count=rows,
        training_count=len(prompts),
        held_out_count=0,
        repeated_rows=tuple(repeated),
        omitted_columns=tuple(sorted(omitted)),
        answer_in_prompt_rows=tuple(
            row_of(p) for p in prompts if "answer" in p.row and contains_answer(p.text, p.row["answer"])
        ),
    )


def _identity(text: str, pictures: Sequence[Picture] = ()) -> str:
    """A text that equal problems share: their text up to white space, and their pictures."""
    return f"{key_of(text)} {hash_of_pictures(pictures)}" if pictures else key_of(text)


def refuse_overlap(training: Sequence[Prompt], held_out: Sequence[Prompt]) -> None:
    """`BadData` with the rows of training problems that are held out too."""
    held = {_identity(p.text, p.pictures): p for p in held_out}
    pairs = [(p, held[key]) for p in training if (key := _identity(p.text, p.pictures)) in held]
    if pairs:
        evidence = [f"{a.id} and {b.id}: {a.text.strip()[:60]!r}" for a, b in pairs[:SHOWN]]
        fix = f"take them out of one side: {listed(tuple(row_of(a) for a, _ in pairs))} of the training data"
        verb = "is" if len(pairs) == 1 else "are"
        what = f"{counted(len(pairs), 'problem')} to train on {verb} held out too"
        raise BadData(what, evidence="\n".join(evidence), fix=fix)


def key_of(text: str) -> str:
    """The text with runs of white space as one space: problems with equal keys are the same problem."""
    return " ".join(text.split())


def listed_tokens(prompts: Sequence[Prompt]) -> str:
    """The lengths of prompts as text, one line each; of many, only the first few in the order of their rows.

    >>> listed_tokens([Prompt("rows/7", (1, 2), "1+1=")])
    "rows/7: 2 tokens, '1+1='"
    """
    ordered = sorted(prompts, key=lambda p: (p.id.rpartition("/")[0], len(p.id), p.id))
    return first_lines([f"{p.id}: {len(p.token_ids):,} tokens, {p.text.strip()[:40]!r}" for p in ordered])


def row_of(prompt: Prompt) -> int:
    """The number of the data row from which a problem was read: two problems, if it is a pair that was split.

    >>> row_of(Prompt("rows/7", (1, 2), "1+1=")), row_of(Prompt("rows/7/chosen", (1, 2), "1+1="))
    (7, 7)
    """
    return next(int(part) for part in reversed(prompt.id.split("/")) if part.isdecimal())


def _example(source: str) -> str:
    """What a source of rows looks like.

    >>> _example("sums.csv")
    'the first line names the columns, and each other line is a row: prompt,answer and 7*5=,35'
    """
    if source.endswith(TABLES):
        return "the first line names the columns, and each other line is a row: prompt,answer and 7*5=,35"
    if source.endswith(".parquet") or source.startswith(HUB):
        return "a row has a text or messages in the column prompt, and its gold answer in the column answer"
    return 'write one JSON object per row, such as {"prompt": "7*5=", "answer": 35}'


def _fitting(row: Row, layouts: Sequence[RowColumns]) -> RowColumns:
    return next((layout for layout in layouts if layout.fits(row)), layouts[0])


class PromptEncodingError(DataRowError):
    """A prompt that template or tokenizer refuse. `fix` is their advice, empty without one."""

    def __init__(self, error: Exception) -> None:
        why = f"the tokenizer cannot read this prompt ({getattr(error, 'what', error)})"
        super().__init__(why, str(getattr(error, "fix", "")))


def encoded_problem(encode: Callable[..., Ids], problem: Problem, pictures: Sequence[Picture] = ()) -> Ids:
    """The ids of a problem in its template. Raises `DataRowError`."""
    try:
        problem_text(problem).encode()
        ids = encode(problem, pictures=pictures) if pictures else encode(problem)
    except Exception as error:  # a user's tokenizer may raise any exception
        raise PromptEncodingError(error) from error
    if not ids:
        raise DataRowError("the prompt has no tokens")
    return ids


def _split(prompts: list[Prompt], share: float) -> tuple[tuple[Prompt, ...], tuple[Prompt, ...]]:
    texts = {p.id: p.text.strip() + p.content_hash for p in prompts}
    position = {name: int.from_bytes(sha256(text.encode()).digest()[:8]) / 2**64 for name, text in texts.items()}
    order = sorted(position.values())
    # The bound moves only if one side would be empty.
    bound = share if len(order) == 1 else min(max(share, order[1]), order[-1])
    held = [len(order) > 1 and position[p.id] < bound for p in prompts]
    return tuple(p for p, h in zip(prompts, held) if not h), tuple(p for p, h in zip(prompts, held) if h)
