"""The problems of the study of difficulty, in studies/levels: `python -m studies.levels` writes the files.

They are sums like those of the packaged task. The level of a problem is the number of its operands. The demonstrations
show the steps, always for easy sums, in half of the middle ones, and in one of 32 hard ones; without them, the model
has to guess. So after a warm start the levels differ in the share of right answers, and all can be learned.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from groupwise.tasks.sums import first_problems, worked

LEVELS = {"easy": (4, 32), "middle": (5, 16), "hard": (6, 1)}
"""For each level: the number of operands, and how many of 32 demonstrations show the steps."""
TRAINING, HELD_OUT, CYCLE = 256, 64, 32
FOLDER = Path(__file__).with_name("levels")


def problems(first: int, count: int, *, held_out: bool) -> Iterator[dict[str, object]]:
    """Problems of the three levels in turn, from the number `first` of the packaged order."""
    for i in range(first, first + count):
        for level, (operands, _) in LEVELS.items():
            problem = first_problems(operands, first + count, held_out=held_out)[i]
            yield {"prompt": problem, "answer": worked(problem)["answer"], "level": level}


def demonstrations() -> Iterator[dict[str, object]]:
    """Right answers to problems that are neither trained on nor held out, with or without their steps."""
    for i, row in enumerate(problems(TRAINING, TRAINING, held_out=False)):
        _, shown = LEVELS[str(row["level"])]
        with_steps = i // len(LEVELS) % CYCLE < shown
        yield {**row, "answer": worked(str(row["prompt"]))["solution"] if with_steps else f"#{row['answer']}"}


def files() -> dict[str, str]:
    """The texts of the files, by name."""
    rows = {
        "train": problems(0, TRAINING, held_out=False),
        "test": problems(0, HELD_OUT, held_out=True),
        "demonstrations": demonstrations(),
    }
    return {f"{name}.jsonl": "".join(json.dumps(row) + "\n" for row in part) for name, part in rows.items()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
