"""Numbers that can be trusted about a model on problems it was not trained on."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from groupwise.data import Finish, Outcome, Rollout, Sample
from groupwise.evaluation.conversations import describe_conversations
from groupwise.evaluation.interval import interval

NO_VOTE = "the verifier does not tell what it read as the answer"
MOST_VOTES = 1000
"""Answers to a problem that a vote is counted for, at most: C(1000, 500) still fits a float."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What one problem's answers came to: how many there are, how many are right, and the votes of the wrong ones.

    `others` has, for each different wrong answer, how often it was given; None where the verifier does not tell what it
    read. Malformed and unverifiable answers are not right and have no vote.

    >>> Tally("p", answers=5, right=2, others=(2,)).share
    0.4
    """

    id: str
    answers: int
    right: int
    others: tuple[int, ...] | None = ()

    @property
    def share(self) -> float:
        """The share of right answers; 0 where there is no answer, so that a problem never leaves the mean."""
        return self.right / self.answers if self.answers else 0.0

    def passes(self, k: int) -> float:
        """Unbiased pass@k: the chance that one of `k` answers, drawn without replacement, is right.

        `1 - C(n - c, k) / C(n, k)` (arXiv:2107.03374, equation 1). ValueError where there are fewer than k answers.
        """
        self._at_least(k, "pass")
        return 1 - math.comb(self.answers - self.right, k) / math.comb(self.answers, k)

    def agrees(self, k: int) -> float:
        """Unbiased maj@k: the chance that the right answer wins the vote of `k` answers, drawn without replacement.

        Exact over all choices of k. Of the answers tied for most votes each wins as often; where nobody votes,
        nothing is right. ValueError where there are fewer than k answers, or votes are not known.

        >>> Tally("p", answers=3, right=1, others=(1, 1)).agrees(3)
        0.3333333333333333
        """
        self._at_least(k, "maj")
        if self.others is None or self.answers > MOST_VOTES:
            why = NO_VOTE if self.others is None else f"more than {MOST_VOTES} answers to a problem"
            raise ValueError(f"maj@{k} cannot be had: {why}")
        silent = self.answers - self.right - sum(self.others)
        return majority(self.right, tuple(sorted(self.others)), silent)[k]

    @property
    def votes(self) -> bool:
        """Whether maj@k can be had."""
        return self.others is not None and self.answers <= MOST_VOTES

    def _at_least(self, k: int, what: str) -> None:
        if k > self.answers:
            raise ValueError(f"{what}@{k} needs at least {k} answers a problem, and there are {self.answers}")


@lru_cache(maxsize=4096)
def majority(right: int, others: tuple[int, ...], silent: int) -> tuple[float, ...]:
    """The chance that the right answer wins the vote of k answers, for k from 0 to all of them.

    Choices are counted by how many votes `r` the right answer gets: every other one gets fewer, or as many and is tied.
    `ways[tied][votes]` is how often the others cast so many votes with so many tied at r.
    """
    n = right + sum(others) + silent
    won = np.zeros(n + 1)
    for r in range(1, right + 1):
        able = sum(size >= r for size in others)
        ways = np.zeros((able + 1, n + 1))
        ways[0, 0] = 1
        for size in others:
            more = np.zeros_like(ways)
            for votes in range(min(size, r) + 1):
                tie = int(votes == r)
                more[tie:, votes:] += math.comb(size, votes) * ways[: able + 1 - tie, : n + 1 - votes]
            ways = more
        shared = (ways / np.arange(1, able + 2)[:, None]).sum(0)
        for quiet in range(silent + 1):
            weight = math.comb(right, r) * math.comb(silent, quiet)
            won[r + quiet :] += weight * shared[: n + 1 - r - quiet]
    return tuple(float(won[k] / math.comb(n, k)) for k in range(n + 1))


def tally(rollout: Rollout) -> Tally:
    """What a rollout's answers came to."""
    outcomes = [(s.verdict, s.verdict.outcome if s.verdict else Outcome.unverifiable) for s in answered(rollout)]
    wrong = [verdict.answer for verdict, outcome in outcomes if verdict and outcome is Outcome.wrong]
    others = None if None in wrong else tuple(sorted(Counter(wrong).values(), reverse=True))
    right = sum(outcome is Outcome.correct for _, outcome in outcomes)
    return Tally(rollout.draw.prompt.id, len(outcomes), right, others)


def answered(rollout: Rollout) -> list[Sample]:
    """The samples that are answers: not the notes, hints or judgements that a strategy may bring besides."""
    return [s for s in rollout.samples if s.role == "answer"]


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with its 95 % interval over problems."""

    value: float
    low: float
    high: float


def columns(tallies: Sequence[Tally], ks: Sequence[int] = ()) -> dict[str, list[float]]:
    """The share of right answers of each problem, and its pass@k and maj@k for each k.

    What cannot be had is left out: a k beyond some problem's answers, and votes that are not known or too many.
    """
    ks = [k for k in ks if all(k <= t.answers for t in tallies)]
    found = {"avg": [t.share for t in tallies]} | {f"pass@{k}": [t.passes(k) for t in tallies] for k in ks}
    if all(t.votes for t in tallies):
        found |= {f"maj@{k}": [t.agrees(k) for t in tallies] for k in ks}
    return found


def figures(tallies: Sequence[Tally], n: int, ks: Sequence[int] = ()) -> dict[str, Figure]:
    """avg@n, and pass@k and maj@k for each k, as means over problems: of each of the `columns`."""
    found = columns(tallies, ks)
    ends = interval(*map(np.array, found.values()))
    names = [f"avg@{n}", *list(found)[1:]]
    return {name: Figure(mean(column), *ends) for name, column, ends in zip(names, found.values(), ends)}


def average(rollouts: Sequence[Rollout]) -> Figure:
    """The mean over problems of the share of right answers."""
    return figures([tally(f) for f in rollouts], 1)["avg@1"]


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / max(1, len(values))


def counts(rollouts: Sequence[Rollout]) -> dict[str, int]:
    """How many answers were correct, wrong, malformed, unverifiable, truncated; how many that were asked for miss."""
    samples = [s for f in rollouts for s in answered(f)]
    by = Counter(s.verdict.outcome if s.verdict else Outcome.unverifiable for s in samples)
    return {**{name: by[Outcome[name]] for name in ("correct", "wrong", "malformed", "unverifiable")},
            "truncated": sum(s.finish is Finish.length for s in samples),
            "missing": sum(max(0, f.draw.n - len(answered(f))) for f in rollouts)}  # fmt: skip


def causes(rollouts: Sequence[Rollout]) -> dict[str, int]:
    """Why answers could not be judged, and how often, the most frequent first."""
    verdicts = [s.verdict for f in rollouts for s in answered(f) if s.verdict]
    return dict(Counter(v.cause for v in verdicts if v.outcome is Outcome.unverifiable).most_common())


def lengths(rollouts: Sequence[Rollout]) -> dict[str, dict[str, float]]:
    """Of the answers with each outcome: how many there are, and their mean, median and largest number of tokens."""
    by: dict[str, list[int]] = {}
    for rollout in rollouts:
        for sample in answered(rollout):
            outcome = sample.verdict.outcome if sample.verdict else Outcome.unverifiable
            by.setdefault(outcome.name, []).append(len(sample.tokens))
    return {
        o.name: {
            "answers": len(x), "mean": mean(x), "median": float(np.median(x)), "longest": max(x)
        }
        for o in (Outcome.correct, Outcome.wrong, Outcome.malformed, Outcome.unverifiable)
        if (x := by.get(o.name))
    }  # fmt: skip


def scores(greedy: Sequence[Rollout], sampled: Sequence[Rollout]) -> dict[str, float]:
    """The metrics of an evaluation: sampled at the training law, and greedy, each with its interval over problems."""
    accuracy, best = average(sampled), average(greedy)
    count = counts(sampled)
    lengths = [len(s.tokens) for f in sampled for s in answered(f)]
    return {
        "eval/accuracy": accuracy.value,
        "eval/low": accuracy.low,
        "eval/high": accuracy.high,
        "eval/accuracy_greedy": best.value,
        "eval/low_greedy": best.low,
        "eval/high_greedy": best.high,
        "eval/unverifiable": count["unverifiable"] / max(1, len(lengths)),
        "eval/truncated": count["truncated"] / max(1, len(lengths)),
        "eval/mean_length": sum(lengths) / max(1, len(lengths)),
        **{f"eval/{name}": share for name, share in parts_of_right(sampled).items()},
        **{f"eval/{name}": share for name, share in describe_conversations(sampled).items()},
    }


def parts_of_right(rollouts: Sequence[Rollout]) -> Mapping[str, float]:
    """Means of the verdicts' named parts over right answers: what a task tells besides right and wrong."""
    verdicts = [s.verdict for f in rollouts for s in answered(f) if s.verdict]
    verdicts = [v for v in verdicts if v.outcome is Outcome.correct]
    names = sorted({name for v in verdicts for name in v.parts})
    return {name: sum(v.parts.get(name, 0.0) for v in verdicts) / len(verdicts) for name in names}
