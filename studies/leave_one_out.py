"""DAPO without a technique, each on a task on which the technique has something to do. arXiv:2503.14476.

Stated before the runs. The paper's table adds the techniques one after another, and so does studies/ladder.py. That
says little of one technique: its step is measured on top of those below it. Here DAPO runs with all of its techniques
and with one undone. The atlas has the same on one task, `hinted_sums`, for all techniques, and each is *undecided*
there: the upper bound clips 0.6 % of the tokens. So each has another task, and a figure of the side without the
technique, over its first five iterations, below which the comparison says nothing:

- *Clip-higher* (0.28 in place of 0.2) is for rare right tokens, while entropy falls. The packaged model of
  `hinted_sums` answers 1 in 14 problems right, since it begins its steps rarely: one token of an answer decides. With
  16 minibatches and four epochs at least 0.01 of the tokens have to be clipped at the high side.
- *The punishment of overlong answers* is for answers that the budget cuts. The base of `wordy_sums` says each step once
  to three times; a budget of 30 tokens holds every answer that says them once. It has to cut at least 0.2 of the
  answers.
- *The token mean* is for answers of different lengths: `wordy_sums` with its budget of 72. The longest answer of an
  iteration has to have at least 50 tokens.

Dynamic sampling has its own page (docs/studies/dynamic-sampling.md), also at equal CPU seconds.

Compared, within a seed: sampled held-out accuracy over 512 problems after the last of 20 iterations, DAPO minus DAPO
without the technique, each at its best of four rates. DAPO is expected to be higher; a difference below 0.03 does not
count. Beside it: entropy, length and cut answers in the last iteration.

Pilots on seed 99 at a rate of 1e-4 came before this statement and do not count. They were to see whether a technique
has something to do, and no run with it was looked at. Without clip-higher 0.018 of the tokens are clipped high, while
entropy falls from 0.27 to 0.02. Without the punishment a budget of 28 cuts 0.29 of the answers, one of 32 cuts 0.24,
and with 72 the longest answer has 67 tokens.
"""

from studies.claim import Claim
from studies.noisy_logprobs import RATES
from studies.study import Arm

LAST, LEAST = 20, 0.03
ACCURACY, ENTROPY, LENGTH, CUT = "eval/accuracy", "entropy", "completions/mean_length", "completions/clipped_ratio"
LONGEST, HIGH = "completions/max_length", "clip_ratio/high_mean"
BASE = (f"iterations = {LAST}", "prompts = 16", "method.group_size = 8", "optimizer.lr_scheduler = constant",
        "evaluate.problems = 512")  # fmt: skip
FOUR = (*BASE, "method.minibatches = 4")
PLAIN = 'method.shaping = [{kind = "Correctness", correct_reward = 1.0, wrong_reward = -1.0}]'


def claim(
    name: str, technique: str, task: str, settings: tuple[str, ...], undone: str, acted: tuple[str, float]
) -> Claim:
    """DAPO minus DAPO without a technique, on a task."""
    return Claim(
        name=f"dapo-{name}",
        text=f"DAPO loses accuracy without {technique}, on {task}",
        sides=(
            Arm(label="DAPO", method="dapo", task=task, settings=settings),
            Arm(label="without", method="dapo", task=task, settings=(*settings, undone)),
        ),
        rates=RATES,
        metric=ACCURACY,
        first=LAST,
        last=LAST,
        least=LEAST,
        beside=(ENTROPY, LENGTH, CUT),
        acted=acted,
    )


CLAIMS = (
    claim("clip-higher", "clip-higher", "hinted_sums",
          (*BASE, "method.minibatches = 16", "method.epochs = 4", "sampling.max_tokens = 64"),
          "method.objective.surrogate.high = 0.2", (HIGH, 0.01)),
    claim("overlong", "the punishment of overlong answers", "wordy_sums", (*FOUR, "sampling.max_tokens = 30"), PLAIN,
          (CUT, 0.2)),
    claim("token-mean", "the token mean", "wordy_sums", FOUR, "method.objective.aggregate = sequence_mean",
          (LONGEST, 50.0)),
)  # fmt: skip
