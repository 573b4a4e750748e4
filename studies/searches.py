"""The problems of the study of useful length, in studies/searches: `python -m studies.searches` writes the files.

A problem such as `4;7;3#25=` has three numbers and a target. An answer tries pairs of signs, each worked out from left
to right, as often as it likes, and ends with a pair: `4+7=11;11*3=33;4*7=28;28-3=25;#*-`. It is right if its last pair
makes the target. So one more try can find the target, and a longer answer can be worth its length. A demonstration
stops at a hit, and gives up after a miss with probability `GIVES_UP`.
"""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from random import Random

SIGNS, NUMBERS, LARGEST, LEAST = "+-*", range(2, 10), 49, 4
"""Signs, numbers, the largest result of a step, and the least count of pairs of signs that stay within it."""
TRAINING, HELD_OUT, DEMONSTRATIONS = 512, 128, 4096
GIVES_UP, TRIES = 0.35, 6
FOLDER = Path(__file__).with_name("searches")
Problem = tuple[int, int, int, int]
"""Three numbers and a target."""


def computed(a: int, sign: str, b: int) -> int:
    """The result of a step."""
    return {"+": a + b, "-": a - b, "*": a * b}[sign]


def tries(a: int, b: int, c: int) -> dict[str, tuple[str, int]]:
    """For each pair of signs whose results are from 0 to `LARGEST`: the try as text, and its result.

    >>> tries(4, 7, 3)["*-"]
    ('4*7=28;28-3=25;', 25)
    """
    found = {}
    for first, second in product(SIGNS, repeat=2):
        middle = computed(a, first, b)
        last = computed(middle, second, c)
        if 0 <= middle <= LARGEST and 0 <= last <= LARGEST:
            found[first + second] = f"{a}{first}{b}={middle:02};{middle:02}{second}{c}={last:02};", last
    return found


def problems() -> list[Problem]:
    """All problems, in a random order."""
    numbers = [(*abc, tries(*abc)) for abc in product(NUMBERS, repeat=3)]
    found = [(a, b, c, n) for a, b, c, t in numbers if len(t) >= LEAST for n in sorted({n for _, n in t.values()})]
    Random("searches").shuffle(found)
    return found


def written(problem: Problem) -> str:
    """Write a problem as text.

    >>> written((4, 7, 3, 5))
    '4;7;3#05='
    """
    a, b, c, target = problem
    return f"{a};{b};{c}#{target:02}="


def row(problem: Problem) -> dict[str, str]:
    """A problem as a row. Its answer is a pattern of all right answers."""
    right = [re.escape(signs) for signs, (_, n) in tries(*problem[:3]).items() if n == problem[3]]
    return {"prompt": written(problem), "answer": f"[^#]*#(?:{'|'.join(right)})"}


def demonstrations(among: list[Problem]) -> Iterator[Mapping[str, str]]:
    """Searches with random tries, some of which end without a hit."""
    random = Random("demonstrations of searches")
    for _ in range(DEMONSTRATIONS):
        problem = random.choice(among)
        table, text = tries(*problem[:3]), ""
        for i in range(1, TRIES + 1):
            signs = random.choice(list(table))
            text += table[signs][0]
            if table[signs][1] == problem[3] or random.random() < GIVES_UP or i == TRIES:
                yield {"prompt": written(problem), "answer": f"{text}#{signs}"}
                break


def files() -> dict[str, str]:
    """The texts of the files, by name. No demonstration is of a held-out problem."""
    held_out, others = problems()[:HELD_OUT], problems()[HELD_OUT:]
    parts = {"train": map(row, others[:TRAINING]), "test": map(row, held_out), "demonstrations": demonstrations(others)}
    return {f"{name}.jsonl": "".join(json.dumps(x) + "\n" for x in part) for name, part in parts.items()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
