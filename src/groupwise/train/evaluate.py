"""Numbers that can be trusted about a model on problems it was not trained on."""

import math
from collections.abc import Mapping, Sequence

from groupwise.data import Family, Finish, Outcome

Z = 1.959963984540054
"""The normal law's 97.5 % point: intervals hold 95 %."""


def average(families: Sequence[Family]) -> tuple[float, float, float]:
    """avg@n, the mean over problems of the share of right answers, with its 95 % interval over problems.

    Wilson's interval at the effective number of problems `m (1 - m) / (s^2 / P)`, with s^2 the variance of the
    problems' shares: for one answer a problem it is Wilson's own, and it stays honest where every problem came out the
    same. An answer that could not be judged counts as wrong.

    >>> [round(x, 3) for x in average([])]
    [0.0, 0.0, 1.0]
    """
    shares = [sum(right(f)) / len(f.samples) for f in families if f.samples]
    problems = len(shares)
    if not problems:
        return 0.0, 0.0, 1.0
    mean = math.fsum(shares) / problems
    variance = math.fsum((x - mean) ** 2 for x in shares) / problems
    effective = mean * (1 - mean) / (variance / problems) if variance > 0 else float(problems)
    centre = (mean + Z**2 / (2 * effective)) / (1 + Z**2 / effective)
    half = Z / (1 + Z**2 / effective) * math.sqrt(mean * (1 - mean) / effective + Z**2 / (4 * effective**2))
    return mean, max(0.0, centre - half), min(1.0, centre + half)


def pass_at(families: Sequence[Family], k: int) -> float:
    """Unbiased pass@k: the chance that one of k answers, drawn without replacement from a problem's n, is right.

    `1 - C(n - c, k) / C(n, k)`, averaged over problems (arXiv:2107.03374, equation 1). ValueError where k > n.
    """
    chances = []
    for family in families:
        n, c = len(family.samples), sum(right(family))
        if k > n:
            raise ValueError(f"pass@{k} needs at least {k} answers a problem, and there are {n}")
        chances.append(1 - math.comb(n - c, k) / math.comb(n, k))
    return math.fsum(chances) / max(1, len(chances))


def counts(families: Sequence[Family]) -> dict[str, int]:
    """How many answers were correct, wrong, malformed, unverifiable and truncated."""
    samples = [s for f in families for s in f.samples]
    by = {o.name: sum(s.verdict is not None and s.verdict.outcome is o for s in samples) for o in Outcome}
    return {**{name: by[name] for name in ("correct", "wrong", "malformed", "unverifiable")},
            "truncated": sum(s.finish is Finish.length for s in samples)}  # fmt: skip


def scores(greedy: Sequence[Family], sampled: Sequence[Family]) -> dict[str, float]:
    """The metrics of an evaluation: sampled at the training law, and greedy, each with its interval over problems."""
    accuracy, low, high = average(sampled)
    best, best_low, best_high = average(greedy)
    answers = sum(len(f.samples) for f in sampled)
    return {
        "eval/accuracy": accuracy,
        "eval/low": low,
        "eval/high": high,
        "eval/accuracy_greedy": best,
        "eval/low_greedy": best_low,
        "eval/high_greedy": best_high,
        "eval/unverifiable": counts(sampled)["unverifiable"] / max(1, answers),
        "eval/truncated": counts(sampled)["truncated"] / max(1, answers),
        "eval/mean_length": sum(len(s.tokens) for f in sampled for s in f.samples) / max(1, answers),
        **{f"eval/{name}": share for name, share in parts_of_right(sampled).items()},
    }


def parts_of_right(families: Sequence[Family]) -> Mapping[str, float]:
    """Means of the verdicts' named parts over right answers: what a task tells besides right and wrong."""
    verdicts = [s.verdict for f in families for s in f.samples if s.verdict and s.verdict.outcome is Outcome.correct]
    names = sorted({name for v in verdicts for name in v.parts})
    return {name: sum(v.parts.get(name, 0.0) for v in verdicts) / len(verdicts) for name in names}


def right(family: Family) -> list[bool]:
    return [s.verdict is not None and s.verdict.outcome is Outcome.correct for s in family.samples]
