"""The lengths of wrong and of right answers: at the end of runs, and when they come apart."""

from collections.abc import Mapping, Sequence

from studies.study import LEAST_TOKENS, Estimate, Measured

WRONG, RIGHT, CUT = "completions/mean_length_wrong", "completions/mean_length_correct", "completions/clipped_ratio"
LAST = 5
"""The iterations at the end that are compared."""
APART = 10
"""The tokens by which wrong answers are longer, for the first iteration at which they are."""
Curve = Mapping[int, tuple[float, float]]
"""The length of wrong and of right answers at each iteration of a run that has both."""


def gaps(m: Measured) -> dict[str, Estimate]:
    """The length of wrong minus right answers at the end, by arm."""
    return {key: wrong.minus(right, LEAST_TOKENS) for key, (wrong, right) in ends(m).items()}


def ends(m: Measured) -> dict[str, tuple[Estimate, Estimate]]:
    """The length of wrong and of right answers at the end, by arm."""
    last = len(m.runs(next(iter(m.arms)))[0].tokens)
    return {
        key: (m.mean(key, WRONG, last - LAST + 1, last), m.mean(key, RIGHT, last - LAST + 1, last)) for key in m.arms
    }


def curves(m: Measured, key: str) -> list[Curve]:
    """The lengths in each run of an arm."""
    return [{i: (x, run.metrics[RIGHT][i]) for i, x in run.metrics[WRONG].items() if i in run.metrics[RIGHT]}
            for run in m.runs(key)]  # fmt: skip


def until_apart(runs: Sequence[Curve]) -> str:
    """The first iteration whose wrong answers are over `APART` tokens longer; or how many runs have one."""
    firsts = [next((i for i, (wrong, right) in sorted(run.items()) if wrong - right > APART), 0) for run in runs]
    return str(Estimate(tuple(map(float, firsts)))) if all(firsts) else f"in {sum(map(bool, firsts))} of {len(firsts)}"
