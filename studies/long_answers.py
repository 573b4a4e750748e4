"""Long answers: does GSPO learn more than GRPO where its paper makes the claim? GSPO, arXiv:2507.18071, section 4.

Stated before the runs. The paper's claim is about answers of thousands of tokens; the other studies have 14 to 72. Here
a demonstration has about 290 tokens, of which a tenth decides whether it is right and the rest is a filler of four
equally likely signs (studies/long_sums.py), as in the exact study (studies/signal_kept.py). That study says which noise
of the old log-probs is a regime of the claim at 64 and at 256 tokens: a normal number of standard deviation 1 on each
token, of which GSPO keeps 0.5 of the signal and GRPO 0.22. With bounds a hundred times as wide the ratio of a sequence
keeps 0.71 at 256 tokens. The engine records log-probs with that noise (studies/noisy_engine.py), and they are the old
ones. Four minibatches. Each seed has its own warm start, from three first models in turn.

Compared, within a seed: the share of right answers over the last six of 12 iterations, GSPO minus GRPO, each at its
best of four rates. First with the bounds of the papers, second with GSPO's a hundred times as wide. Both are expected
to be shown, the second with the larger difference; a difference below 0.03 does not count. Answers have to have 200
tokens on average.

Pilots of GSPO, of at most four iterations on seed 99, came before this statement, to find a warm start; they do not
count, and none of GRPO was made. After that of now 0.17 of the answers are right, two thirds of the groups have a
signal, answers have 225 tokens on average, and the budget cuts 0.28 of them. The warm start
costs skill: the packaged model is right more often.

With short answers and noise of sd 3 on a tenth of the tokens GSPO is ahead at a rate of 3e-4, and *undecided* at the
best rates (studies/noisy_logprobs.py). Signal kept is not yet learning: if these claims are not shown, the exact study
does not predict training here.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from groupwise.config.recipe import Recipe
from studies.claim import Claim
from studies.clip_fraction import BOUNDS
from studies.engine_logprobs import EXACT
from studies.long_sums import BASES
from studies.noisy_logprobs import RATES
from studies.stable_rates import RIGHT
from studies.study import Arm

LAST, OVER = 12, 6
LENGTH, CUT = "completions/mean_length", "completions/clipped_ratio"
BASE = ("task = studies/long_sums", "held_out = studies/long_sums/test.jsonl",
        'verifier = {kind = "Regex", match_whole_text = true}',
        "model = @long", f"iterations = {LAST}", "prompts = 8", "method.group_size = 8",
        "method.minibatches = 4", "optimizer.lr_scheduler = constant", "sampling.max_tokens = 384",
        "evaluate.problems = 8", EXACT,
        'engine = {kind = "noisy_engine:Noisy", sd = 1.0, fraction = 1.0, max_logprob_diff = 100.0}',
        "method.old_logprobs = engine")  # fmt: skip
WIDE = ("method.objective.surrogate.low = 3e-2", "method.objective.surrogate.high = 4e-2")


def arm(label: str, method: str, bounds: tuple[str, ...]) -> Arm:
    """A method with its bounds, on long answers with noisy log-probs."""
    return Arm(label=label, method=method, task="calculator", settings=(*BASE, *bounds))


def claim(
    name: str,
    text: str,
    sides: tuple[Arm, Arm],
    bases: Mapping[str, Callable[[int, Path], Recipe]],
    bounds: tuple[tuple[str, ...], ...] = ((),),
) -> Claim:
    """GSPO minus GRPO on long answers that start from some bases, with the best of some bounds of GSPO."""
    return Claim(
        name=name,
        text=text,
        sides=sides,
        bounds=bounds,
        rates=RATES,
        metric=RIGHT,
        first=LAST - OVER + 1,
        last=LAST,
        least=0.03,
        beside=(LENGTH, CUT),
        bases=bases,
        use=("studies/noisy_engine.py",),
        acted=(LENGTH, 200.0),
    )


GRPO = arm("GRPO", "grpo", BOUNDS["grpo"])
CLAIMS = (
    claim("long-noisy", "with answers of over 200 tokens and noisy old log-probs GSPO learns more than GRPO",
          (arm("GSPO", "gspo", BOUNDS["gspo"]), GRPO), BASES),
    claim("long-noisy-wide", "the same with bounds of GSPO a hundred times as wide",
          (arm("GSPO, wide", "gspo", WIDE), GRPO), BASES),
)  # fmt: skip
