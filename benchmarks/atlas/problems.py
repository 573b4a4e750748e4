"""Rows of comparisons that no packaged task fits, in folders beside this file: `python -m benchmarks.atlas.problems`.

*repeats*: 72 sums, half with three operands and half with six, so that a run meets each several times. A curriculum
that learns how often a prompt is answered right needs that. *stored_sums*: sums with a worked solution, which is also
the chosen answer, and a rejected one, a wrong guess. *slips*: pairs of solutions that differ in the result of the last
step, so that neither length nor form tells which one is right.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random

from groupwise.tasks.sums import first_problems, in_turns, near, worked

FOLDER = Path(__file__).parent
OPERANDS = (3, 6)
REPEATED, HELD_OUT = 36, 128
"""Problems of *repeats* for each number of operands: to train on, and held-out ones."""
STORED_OPERANDS, STORED, STORED_HELD_OUT = 5, 512, 512


def repeats(count: int, *, held_out: bool) -> Iterable[Mapping[str, object]]:
    """Sums of each number of operands in turn."""
    problems = in_turns([first_problems(n, count, held_out=held_out) for n in OPERANDS])
    return ({"prompt": problem, "answer": worked(problem)["answer"]} for problem in problems)


def stored_sums(count: int, *, held_out: bool) -> Iterable[Mapping[str, object]]:
    """Sums with stored answers."""
    for problem in first_problems(STORED_OPERANDS, count, held_out=held_out):
        row = worked(problem)
        answer, solution = row["answer"], row["solution"]
        wrong = f"#{near(answer, Random(problem))}"
        yield {"prompt": problem, "answer": answer, "completion": solution, "chosen": solution, "rejected": wrong}


def slips(count: int, *, held_out: bool) -> Iterable[Mapping[str, object]]:
    """Pairs of a worked solution and one with a slip in its last step."""
    for row in stored_sums(count, held_out=held_out):
        steps, _, last = str(row["chosen"]).rpartition("=")
        wrong = str(row["rejected"]).removeprefix("#")
        assert last == f"{row['answer']};#{row['answer']}", "the last step ends with the answer"
        yield {"prompt": row["prompt"], "chosen": row["chosen"], "rejected": f"{steps}={wrong};#{wrong}"}


def files() -> dict[str, dict[str, str]]:
    """The texts of the files, by folder and name."""
    rows = {
        "repeats": (repeats(REPEATED, held_out=False), repeats(HELD_OUT, held_out=True)),
        "stored_sums": (stored_sums(STORED, held_out=False), stored_sums(STORED_HELD_OUT, held_out=True)),
        "slips": (slips(STORED, held_out=False), slips(STORED_HELD_OUT, held_out=True)),
    }
    return {
        folder: {f"{name}.jsonl": lines(part) for name, part in zip(("train", "test"), parts, strict=True)}
        for folder, parts in rows.items()
    }


def lines(rows: Iterable[Mapping[str, object]]) -> str:
    """Rows as JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    for folder, texts in files().items():
        (FOLDER / folder).mkdir(exist_ok=True)
        for name, text in texts.items():
            (FOLDER / folder / name).write_text(text, encoding="utf-8")
