"""Long answers that can be learned: does GSPO learn more than GRPO there? GSPO, arXiv:2507.18071, section 4.

Stated before the runs. Under the noise of studies/long_answers.py neither method learns in twelve iterations, nor did
GRPO in pilots without noise, since the warm start on a random filler costs the model its skill. So here the filler is
one sign, which costs none: `#18` or `2+9=11;...#18`, and then signs up to the limit of 256 tokens. The first result
decides. The sums are those of `hinted_sums`, of five operands. After the warm start about a tenth of the answers
write their steps, of which two thirds are right, and the others guess, of which one in twelve is. So a method learns
here to write the steps, in the first 30 tokens; the other 220 have no effect, as in the exact study
(studies/signal_kept.py), which says that of all its noises one of standard deviation 1 on the recorded log-prob of each
token is a regime of the claim at every length. That noise is on these (studies/noisy_engine.py), and they are the old
log-probs. Four minibatches.

Compared, within a seed: the share of right answers over the last six of 12 iterations, GSPO minus GRPO. Each takes its
best of four rates, and GSPO its best of three bounds: of its paper, ten and a hundred times as wide. GSPO is expected
to be higher; a difference below 0.03 does not count. Answers have to have 200 tokens on average.

A second claim, with the bounds of the paper alone, was added when the first was shown, and before its own fresh runs:
whether it is the ratio of a sequence that helps, or bounds that fit its spread. So was a third one, for the same reason
on the other side: GRPO has the bounds of its paper above, which that noise hits most. Here it has ones that let through
nearly every ratio; the exact study has GRPO keep 0.37 of the signal without bounds, and 0.22 with them.

Pilots on seed 99 came before this statement, and do not count: without noise GRPO at 1e-4 went from 0.16 to 0.55, with
noise from 0.15 to 0.39, and GSPO with the bounds of its paper at 3e-4 from 0.18 to between 0.42 and 0.56.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

from benchmarks.atlas.first_models import first_model

from groupwise.certificates.effect_plans import WHOLE
from groupwise.config.packaged import find_recipe
from groupwise.config.recipe import Recipe, WarmStart
from groupwise.config.recipe_toml import read_recipe
from groupwise.learner import AdamW
from groupwise.models import find_model
from groupwise.tasks.calculator import solve
from groupwise.tasks.hinted_sums import RIGHT_GUESSES
from groupwise.tasks.sums import near, random_problem, steps_of
from studies.clip_fraction import BOUNDS
from studies.engine_logprobs import EXACT
from studies.gspo_regimes import WIDER, WIDEST
from studies.long_answers import LAST, claim
from studies.long_sums import rows, with_positions
from studies.study import Arm

FOLDER = Path(__file__).with_name("tailed_sums")
OPERANDS, SHOWN = 5, 0.15
"""The operands of a problem, and the share of demonstrations that write their steps."""
DEMONSTRATIONS, STEPS, PER_STEP = 1024, 300, 8
SIGN, SIGNS, LIMIT = "=", 260, 256
"""The sign of a filler, how many of them a demonstration has, and the tokens that an answer may have."""
OPEN = (
    "method.objective.penalties = []",
    "method.objective.surrogate.low = 0.99",
    "method.objective.surrogate.high = 99.0",
)
"""Bounds of GRPO that let through nearly every ratio."""
BASE = ("task = studies/tailed_sums", "held_out = studies/tailed_sums/test.jsonl",
        'verifier = {kind = "Regex", match_whole_text = true}',
        "model = @tailed", f"iterations = {LAST}", "prompts = 16", "method.group_size = 8",
        "method.minibatches = 4", "optimizer.lr_scheduler = constant", f"sampling.max_tokens = {LIMIT}",
        "evaluate.problems = 8", EXACT,
        'engine = {kind = "noisy_engine:Noisy", sd = 1.0, fraction = 1.0, max_logprob_diff = 100.0}',
        "method.old_logprobs = engine")  # fmt: skip


def demonstrations() -> Iterator[dict[str, object]]:
    """Answers to random problems: worked out, or guessed as in the packaged demonstrations, and then the filler."""
    random = Random("demonstrations of tailed sums")
    for _ in range(DEMONSTRATIONS):
        problem = random_problem(random, (OPERANDS,))
        result = solve(problem)[1]
        if random.random() < SHOWN:
            begun = "".join(steps_of(problem))
        else:
            begun, result = "", result if random.random() < RIGHT_GUESSES else near(result, random)
        yield {"prompt": problem, "answer": f"{begun}#{result}{SIGN * SIGNS}"}


def files() -> dict[str, str]:
    """The texts of the files, by name."""
    parts = {
        "train": rows(512, OPERANDS, held_out=False),
        "test": rows(128, OPERANDS, held_out=True),
        "demonstrations": demonstrations(),
    }
    return {f"{name}.jsonl": "".join(json.dumps(row) + "\n" for row in part) for name, part in parts.items()}


def base(seed: int, folder: Path) -> Recipe:
    """The recipe whose run makes the base of a seed. Writes the model with more positions into the folder."""
    number = seed % WHOLE.bases
    first = first_model("hinted_sums", number, folder.parent / "models") if number else find_model("hinted_sums")
    home = with_positions(Path(first), folder / f"tailed-{number}")
    start = WarmStart(
        demonstrations=str(FOLDER / "demonstrations.jsonl"),
        steps=STEPS,
        prompts=PER_STEP,
        optimizer=AdamW(lr=1e-3, warmup_steps=10, lr_scheduler="cosine"),
    )
    fields = [("iterations", "0"), ("evaluate.problems", "1"), ("seed", str(seed))]
    return replace(read_recipe(find_recipe("calculator"), fields), model=str(home), warm_start=start)


BASES = {"@tailed": base}
"""The name of this model in the settings of a run."""


def arm(label: str, method: str, settings: tuple[str, ...] = ()) -> Arm:
    """A method on these answers."""
    return Arm(label=label, method=method, task="calculator", settings=(*BASE, *settings))


GSPO, GRPO = arm("GSPO", "gspo"), arm("GRPO", "grpo", BOUNDS["grpo"])
ALL_BOUNDS = (BOUNDS["gspo"], WIDER, WIDEST)
CLAIMS = (
    claim("tailed-noisy",
          "with answers of 250 tokens that can be learned and noisy old log-probs GSPO learns more than GRPO",
          (GSPO, GRPO), BASES, ALL_BOUNDS),
    claim("tailed-noisy-paper", "the same with the bounds of GSPO's paper", (GSPO, GRPO), BASES, (BOUNDS["gspo"],)),
    claim("tailed-noisy-open", "the same as the first, against GRPO with bounds that let through nearly every ratio",
          (GSPO, arm("GRPO", "grpo", OPEN)), BASES, ALL_BOUNDS),
)  # fmt: skip


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
