"""The first and the last rung of DAPO's ladder at equal tokens. A part of studies/ladder.py.

Stated after the runs of the other part, and before the runs of this one. There all five techniques end higher in equal
iterations, and generate 1.4 times the tokens of naive GRPO. Here both run at 3e-4, which each chose there on tuning
seeds, on ten seeds that no rung has run with, in turn from three first models. The last rung is evaluated every second
iteration; 512 held-out problems are answered once each.

Compared, within a seed: the sampled held-out accuracy of the last rung where it has generated as many tokens as naive
GRPO in all its iterations, counting the answers that were thrown away, linear between two evaluations, minus that of
naive GRPO after its last iteration. There is one look, with an interval of 97.8 %; below 0.02 no difference counts.

Four runs of each, with the seeds 102, 105, 108 and 111 and evaluations every fifth iteration, were looked at before.
"""

from dataclasses import replace

from groupwise.certificates.effect_plans import merged
from studies.study import LEAST_ACCURACY, Arm, Estimate, Measured, cost, table

SEEDS = range(120, 130)
SAMPLED, LAST = "eval/accuracy", 30
ONCE, OFTEN = ("evaluate.problems = 512", "evaluate.samples = 1"), ("evaluate.every = 2",)
HEAD = ("compared at", "naive GRPO", "all five techniques", "difference", "seeds", "result")


def ends(naive: Arm, whole: Arm) -> dict[str, Arm]:
    """Both rungs with their evaluations. Naive GRPO is read at its end alone."""
    return {
        "naive": replace(naive, settings=merged(naive.settings, ONCE)),
        "whole": replace(whole, settings=merged(whole.settings, ONCE, OFTEN)),
    }


def at_equal_tokens(m: Measured) -> Estimate:
    """The accuracy of the last rung where it has generated the tokens of naive GRPO; at its end if it never does."""
    budgets = (sum(run.tokens) for run in m.runs("naive"))
    runs = zip(m.runs("whole"), budgets, strict=True)
    return m.estimate((run.at_tokens(SAMPLED, tokens) for run, tokens in runs), SAMPLED)


def gain(m: Measured) -> Estimate:
    """The accuracy that all five techniques add at equal tokens."""
    return at_equal_tokens(m).minus(m.mean("naive", SAMPLED, LAST, LAST), LEAST_ACCURACY)


def comparison(m: Measured, above: str, below: str) -> str:
    """The table of both rungs, at equal iterations and at equal tokens. Only the second is compared here."""
    naive, whole = (m.mean(key, SAMPLED, LAST, LAST) for key in ("naive", "whole"))
    more = gain(m)
    rows = [
        ("equal iterations", naive, whole, whole.minus(naive), len(m.seeds), ""),
        ("equal tokens", naive, at_equal_tokens(m), more, len(m.seeds), more.result(above, below)),
    ]
    tokens = [sum(sum(run.tokens) for run in m.runs(key)) for key in ("naive", "whole")]
    times = f"All five techniques generate {tokens[1] / tokens[0]:.1f} times the tokens of naive GRPO."
    return f"{table(HEAD, rows)}\n\n{times}\n\n{cost(m)}"
