"""One's own problems: rows with a prompt and an answer, looked at before a run, and split in two."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from groupwise.data import BadData, Ids, Prompt, Usage
from groupwise.tasks.fields import Asked, Fields, words
from groupwise.tasks.rows import SHOWN, Fault, Row, rows_of
from groupwise.tasks.source_stats import ContentHash, SourceStats, counted, listed, stands_in

__all__ = ["Problems"]


@dataclass(frozen=True, slots=True)
class Problems:
    """The rows of a source, split by the hash of each prompt: a row stays on its side however the source grows.

    Of two rows or more at least one is held out and at least one is trained on. A single row is trained on.
    `given["answer"]` is the answer as the source has it: text, a number, or any other JSON value but null.
    """

    training: tuple[Prompt, ...]
    held_out: tuple[Prompt, ...]
    facts: tuple[SourceStats, ...] = ()

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
        held_out: float = 0.1,
    ) -> "Problems":
        """The problems of a file, a directory or `datasets:NAME`. `BadData` names every row that cannot be used.

        Rows count from 1. `encode` makes ids of a text, or of messages where the column holds some.
        """
        if not 0 < held_out < 1:
            raise Usage(f"held_out is {held_out}", fix="give a share between 0 and 1, such as 0.1")
        every, facts = problems_of(str(path), encode, (Fields(prompt, answer),))
        return cls.split(every, facts, held_out)

    @classmethod
    def split(cls, prompts: list[Prompt], facts: SourceStats, share: float = 0.1) -> "Problems":
        """One source, a share of it held out."""
        training, held = _split(prompts, share)
        return cls(training, held, (replace(facts, training=len(training), held_out=len(held)),))

    @property
    def entirely_held_out(self) -> "Problems":
        """Nothing to train on: what a source of its own holds out, or else all of it."""
        held = self.held_out
        if len(self.facts) == 1:
            held = tuple(sorted((*self.training, *held), key=row_of))
        facts = [replace(f, training=0, held_out=len(held)) for f in self.facts[-1:]]
        return Problems((), held, tuple(facts))

    @classmethod
    def apart(
        cls, training: tuple[list[Prompt], SourceStats], held_out: tuple[list[Prompt], SourceStats]
    ) -> "Problems":
        """Two sources, one to train on and one held out. `BadData` where they share a problem."""
        refuse_overlap(training[0], held_out[0])
        first = replace(training[1], training=len(training[0]), held_out=0)
        second = replace(held_out[1], training=0, held_out=len(held_out[0]))
        return cls(tuple(training[0]), tuple(held_out[0]), (first, second))


def problems_of(
    source: str, encode: Callable[[Any], Ids], shapes: Sequence[Fields], split: str = "train", name: str = ""
) -> tuple[list[Prompt], SourceStats]:
    """A source's problems in order, each once, and what is known of them.

    The first shape that fits the first row reads all of them. A row that asks what an earlier one asked, but for
    white space, is left out where both have one answer. `BadData` names every other row that cannot be used.
    """
    name = name or Path(source.partition("@")[0]).stem
    faults: list[tuple[int, str]] = []
    prompts: list[Prompt] = []
    first_row: dict[str, tuple[int, Any]] = {}
    repeated: list[int] = []
    content = ContentHash()
    shape: Fields | None = None
    rows = 0
    for rows, row in rows_of(source, split):
        try:
            if isinstance(row, Fault):
                raise row
            shape = shape or _fitting(row, shapes)
            asked, gold = shape.read(row)
            content.add(asked, gold)
            text = words(asked)
            earlier, same = first_row.setdefault(key_of(text), (rows, gold))
            if earlier != rows and str(same) != str(gold):
                raise Fault(f"the prompt of row {earlier} again, with another answer")
            if earlier != rows:
                repeated.append(rows)
                continue
            prompts.append(Prompt(f"{name}/{rows}", _ids(encode, asked), text, {"answer": gold}))
        except Fault as fault:
            faults.append((rows, str(fault)))
    if faults:
        seen = [f"row {row}: {why}" for row, why in faults[:SHOWN]]
        seen += [f"and {len(faults) - SHOWN} more"] * (len(faults) > SHOWN)
        what = f"{source}: {len(faults)} of {rows} rows cannot be used"
        raise BadData(what, evidence="\n".join(seen), fix=f"mend or remove these rows; {_EXAMPLE}")
    if not prompts:
        raise BadData(f"{source} holds no problem", evidence="0 rows", fix=_EXAMPLE)
    told = tuple(row_of(p) for p in prompts if stands_in(p.given["answer"], p.text))
    seen = {"rows": rows, "training": len(prompts), "held_out": 0, "repeated": tuple(repeated), "told": told}
    return prompts, SourceStats(source=source, sha256=content.digest, **seen)


def refuse_overlap(training: Sequence[Prompt], held_out: Sequence[Prompt]) -> None:
    """`BadData` naming the rows of training problems that are held out too."""
    held = {key_of(p.text): p for p in held_out}
    both = [(p, held[key]) for p in training if (key := key_of(p.text)) in held]
    if both:
        seen = [f"{a.id} and {b.id}: {a.text.strip()[:60]!r}" for a, b in both[:SHOWN]]
        fix = f"take them out of one side: {listed(tuple(row_of(a) for a, _ in both))} of the training data"
        verb = "is" if len(both) == 1 else "are"
        what = f"{counted(len(both), 'problem')} to train on {verb} held out too"
        raise BadData(what, evidence="\n".join(seen), fix=fix)


def key_of(text: str) -> str:
    """By what two problems are the same: their words, whatever the white space between them."""
    return " ".join(text.split())


def row_of(prompt: Prompt) -> int:
    """The row that a problem was read from."""
    return int(prompt.id.rpartition("/")[2])


_EXAMPLE = 'write one JSON object a row, such as {"prompt": "7*5=", "answer": 35}'


def _fitting(row: Row, shapes: Sequence[Fields]) -> Fields:
    return next((shape for shape in shapes if shape.fits(row)), shapes[0])


def _ids(encode: Callable[[Any], Ids], asked: Asked) -> Ids:
    try:
        words(asked).encode()
        ids = encode(asked)
    except Exception as error:  # a tokenizer of one's own may raise anything
        raise Fault(f"the tokenizer cannot read this prompt ({getattr(error, 'what', error)})") from error
    if not ids:
        raise Fault("the prompt has no tokens")
    return ids


def _split(prompts: list[Prompt], share: float) -> tuple[tuple[Prompt, ...], tuple[Prompt, ...]]:
    place = {p.id: int.from_bytes(sha256(p.text.strip().encode()).digest()[:8]) / 2**64 for p in prompts}
    order = sorted(place.values())
    # The bounds move only where one side would be empty.
    bound = share if len(order) == 1 else min(max(share, order[1]), order[-1])
    held = [len(order) > 1 and place[p.id] < bound for p in prompts]
    return tuple(p for p, h in zip(prompts, held) if not h), tuple(p for p, h in zip(prompts, held) if h)
