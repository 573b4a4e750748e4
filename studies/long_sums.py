"""The problems of the claims about long answers, in studies/long_sums: `python -m studies.long_sums` writes the files.

They are sums of four operands like those of the packaged task. An answer is that of the packaged demonstrations, with
its steps or guessed, and then a long filler without any effect, as in the exact study (studies/noisy_answers.py). A
token of the filler is one of four equally likely signs. After about 30 of them stands the next digit, from 1 to 9, and
the answer ends after the 9. So it has about 290 tokens, of which a tenth or less decide whether it is right.

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
from groupwise.tasks import demonstrations as packaged_demonstrations
from groupwise.tasks.calculator import solve
from groupwise.tasks.sums import first_problems

OPERANDS, SHOWN = 4, 0.35
"""The operands of a problem, and the share of demonstrations that write their steps."""
SIGNS, MARKS, APART = "+-*=", "123456789", (26, 34)
"""The signs of a filler, its digits, and the least and most signs before a digit."""
TRAINING, HELD_OUT, DEMONSTRATIONS = 512, 128, 512
FOLDER = Path(__file__).with_name("long_sums")
POSITIONS = 512
STEPS, PER_STEP = 120, 8
"""The steps of the warm start, and the demonstrations of a step."""


def filler(random: Random) -> str:
    """Random signs, with the digits from 1 to 9 between them.

    >>> filler(Random(0))[:36]
    """
    return "".join("".join(random.choices(SIGNS, k=random.randint(*APART))) + mark for mark in MARKS)


def demonstrations() -> Iterator[dict[str, object]]:
    """Answers to random problems, with or without their steps, right or guessed, and with a filler."""
    random = Random("demonstrations of long sums")
    for prompt, answer in packaged_demonstrations(0, DEMONSTRATIONS, SHOWN):
        yield {"prompt": prompt, "answer": answer + filler(random)}


def rows(count: int, operands: int, *, held_out: bool) -> Iterator[dict[str, object]]:
    """The first problems. The answer is a pattern of all right answers: the first result decides."""
    for problem in first_problems(operands, count, held_out=held_out):
        yield {"prompt": problem, "answer": rf"[^#]*#{solve(problem)[1]}(?!\d).*"}


def files() -> dict[str, str]:
    """The texts of the files, by name."""
    parts = {
        "train": rows(TRAINING, OPERANDS, held_out=False),
        "test": rows(HELD_OUT, OPERANDS, held_out=True),
        "demonstrations": demonstrations(),
    }
    return {f"{name}.jsonl": "".join(json.dumps(row) + "\n" for row in part) for name, part in parts.items()}


def with_positions(model: Path, home: Path) -> Path:
    """The folder of a copy of a model with `POSITIONS` positions, which is made once. It has no weights for them."""
    if not home.is_dir():
        unfinished = home.with_suffix(".unfinished")
        copytree(model, unfinished, dirs_exist_ok=True)
        config = unfinished / "config.json"
        sizes = json.loads(config.read_text("utf-8")) | {"max_position_embeddings": POSITIONS}
        config.write_text(json.dumps(sizes), encoding="utf-8")
        unfinished.rename(home)
    return home


def base(seed: int, folder: Path) -> Recipe:
    """The recipe whose run makes the base of a seed. Writes the model with more positions into the folder."""
    number = seed % WHOLE.bases
    first = first_model("calculator", number, folder.parent / "models") if number else find_model("calculator")
    home = with_positions(Path(first), folder / f"long-{number}")
    fields = [("iterations", "0"), ("evaluate.problems", "1"), ("seed", str(seed))]
    start = WarmStart(
        demonstrations=str(FOLDER / "demonstrations.jsonl"),
        steps=STEPS,
        prompts=PER_STEP,
        optimizer=AdamW(lr=7e-4, warmup_steps=10, lr_scheduler="cosine"),
    )
    return replace(read_recipe(find_recipe("calculator"), fields), model=str(home), warm_start=start)


BASES = {"@long": base}
"""The name of this model in the settings of a run."""


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
