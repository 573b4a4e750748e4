"""The problems of the claims about long answers, in studies/long_sums: `python -m studies.long_sums` writes the files.

They are sums of four operands like those of the packaged task. A demonstration says its three steps again and again,
in the same order, until it has at least `LEAST` tokens, and ends with the result. Half of them misread one operand, so
that the result is wrong. So every answer is long, and few of its tokens decide whether it is right.

The packaged model takes 128 tokens at once, so the base of a seed is that model with more positions (it has no weights
for them), or one that was trained as it with another seed, after a warm start on the demonstrations.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from shutil import copytree

from benchmarks.atlas.first_models import first_model

from groupwise.certificates.effect_plans import WHOLE
from groupwise.config.packaged import find_recipe
from groupwise.config.recipe import Recipe, WarmStart
from groupwise.config.recipe_toml import read_recipe
from groupwise.learner import AdamW
from groupwise.models import find_model
from groupwise.tasks.calculator import solve
from groupwise.tasks.sums import first_problems

OPERANDS, LEAST, MISREAD = 4, 256, 0.5
"""The operands of a problem, the least tokens of an answer, and the share of demonstrations with a misread operand."""
TRAINING, HELD_OUT, DEMONSTRATIONS = 512, 128, 768
FOLDER = Path(__file__).with_name("long_sums")
POSITIONS = 512
STEPS, PER_STEP = 100, 16
"""The steps of the warm start, and the demonstrations of a step."""


def answer(problem: str) -> str:
    """The steps of a problem, said until they have `LEAST` tokens, and its result. A character is a token.

    >>> text = answer("7*5+8-9=")
    >>> len(text), text[:24], text[-10:]
    (279, '7*5=35;35+8=43;43-9=34;7', '3-9=34;#34')
    """
    steps, result = solve(problem)
    return steps * -(-LEAST // len(steps)) + f"#{result}"


def misread(problem: str, random: Random) -> str:
    """The problem with another operand, and another result that is not negative at any step.

    >>> misread("7*5+8-9=", Random(0))
    '7*5+8-8='
    """
    while True:
        at = 2 * random.randrange(OPERANDS)
        other = f"{problem[:at]}{random.randint(2, 9)}{problem[at + 1 :]}"
        steps, result = solve(other)
        if "=-" not in steps and result != solve(problem)[1]:
            return other


def demonstrations() -> Iterator[dict[str, object]]:
    """Long answers to problems that are neither trained on nor held out, half of them wrong."""
    random = Random("demonstrations of long sums")
    for problem in first_problems(OPERANDS, TRAINING + DEMONSTRATIONS, held_out=False)[TRAINING:]:
        read = misread(problem, random) if random.random() < MISREAD else problem
        yield {"prompt": problem, "answer": answer(read)}


def rows(count: int, *, held_out: bool) -> Iterator[dict[str, object]]:
    """The first problems with their results."""
    for problem in first_problems(OPERANDS, count, held_out=held_out):
        yield {"prompt": problem, "answer": solve(problem)[1]}


def files() -> dict[str, str]:
    """The texts of the files, by name."""
    parts = {
        "train": rows(TRAINING, held_out=False),
        "test": rows(HELD_OUT, held_out=True),
        "demonstrations": demonstrations(),
    }
    return {f"{name}.jsonl": "".join(json.dumps(row) + "\n" for row in part) for name, part in parts.items()}


def base(seed: int, folder: Path) -> Recipe:
    """The recipe whose run makes the base of a seed. Writes the model with more positions into the folder."""
    number = seed % WHOLE.bases
    home = folder / f"long-{number}"
    if not home.is_dir():
        first = first_model("calculator", number, folder.parent / "models") if number else find_model("calculator")
        unfinished = home.with_suffix(".unfinished")
        copytree(first, unfinished, dirs_exist_ok=True)
        config = unfinished / "config.json"
        sizes = json.loads(config.read_text("utf-8")) | {"max_position_embeddings": POSITIONS}
        config.write_text(json.dumps(sizes), encoding="utf-8")
        unfinished.rename(home)
    fields = [("iterations", "0"), ("evaluate.problems", "1"), ("seed", str(seed))]
    start = WarmStart(
        demonstrations=str(FOLDER / "demonstrations.jsonl"),
        steps=STEPS,
        prompts=PER_STEP,
        optimizer=AdamW(lr=2e-3, warmup_steps=10, lr_scheduler="cosine"),
    )
    return replace(read_recipe(find_recipe("calculator"), fields), model=str(home), warm_start=start)


BASES = {"@long": base}
"""The name of this model in the settings of a run."""


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
