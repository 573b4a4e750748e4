"""Held-out accuracy, pass@k and maj@k of a model, with intervals over problems."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from groupwise.data import (
    ACCURACY,
    ACCURACY_GREEDY,
    INTERVALS,
    SCORE,
    SCORE_GREEDY,
    UNVERIFIABLE_HELD_OUT,
    Finish,
    Outcome,
    Rollout,
    Sample,
)
from groupwise.evaluation.conversation_metrics import describe_conversations
from groupwise.evaluation.interval import interval, score_interval

NO_OUTCOMES = "the verifier gives scores: set the smallest correct score, such as --correct_threshold 1.0"
NO_VERDICT = "no answer could be judged"
NO_VOTE = "the verifier does not return the answer that it read"
KS = (2, 4, 8, 16, 32, 64)
"""The values of k for pass@k and maj@k; those above the number of answers per problem are left out."""
GRADED = tuple(outcome for outcome in Outcome if outcome is not Outcome.unverifiable)
"""The outcomes of answers that could be judged."""
MOST_VOTES = 1000
"""The most answers per problem for which maj@k is computed: C(1000, 500) still fits a float."""


@dataclass(frozen=True, slots=True)
class ProblemTally:
    """The counts of one problem's answers: all, the right ones, and how often each distinct wrong one occurs.

    `wrong_counts` counts each distinct wrong answer; None if the verifier does not return the answer that it read.
    Malformed and unverifiable answers are not right and have no vote.

    >>> ProblemTally("p", answer_count=5, correct_count=2, wrong_counts=(2,)).share
    0.4
    """

    id: str
    answer_count: int
    correct_count: int
    wrong_counts: tuple[int, ...] | None = ()

    @property
    def share(self) -> float:
        """The share of right answers; 0 without answers, so that the problem stays in the mean."""
        return self.correct_count / self.answer_count if self.answer_count else 0.0

    def pass_at(self, k: int) -> float:
        """Unbiased pass@k: the chance that at least one of `k` answers, drawn without replacement, is right.

        `1 - C(n - c, k) / C(n, k)` (arXiv:2107.03374, equation 1). ValueError if there are fewer than k answers.
        """
        self._at_least(k, "pass")
        return 1 - math.comb(self.answer_count - self.correct_count, k) / math.comb(self.answer_count, k)

    def maj_at(self, k: int) -> float:
        """Unbiased maj@k: the chance that the right answer wins the vote of `k` answers, drawn without replacement.

        Exact over all choices of k. Answers that tie for most votes win equally often. Without votes, no answer is
        right. ValueError if there are fewer than k answers, or if votes are not available.

        >>> ProblemTally("p", answer_count=3, correct_count=1, wrong_counts=(1, 1)).maj_at(3)
        0.3333333333333333
        """
        self._at_least(k, "maj")
        if self.wrong_counts is None or self.answer_count > MOST_VOTES:
            reason = NO_VOTE if self.wrong_counts is None else f"more than {MOST_VOTES} answers to a problem"
            raise ValueError(f"maj@{k} is not available: {reason}")
        invalid = self.answer_count - self.correct_count - sum(self.wrong_counts)
        return majority(self.correct_count, tuple(sorted(self.wrong_counts)), invalid)[k]

    @property
    def has_votes(self) -> bool:
        """Whether maj@k can be computed: the verifier gave answers to vote with, and there are not too many."""
        return self.wrong_counts is not None and self.answer_count <= MOST_VOTES

    def _at_least(self, k: int, what: str) -> None:
        if k > self.answer_count:
            raise ValueError(f"{what}@{k} needs at least {k} answers per problem; this one has {self.answer_count}")


@lru_cache(maxsize=4096)
def majority(right: int, others: tuple[int, ...], invalid: int) -> tuple[float, ...]:
    """The chance that the right answer wins the vote of k answers, for k from 0 to all answers.

    The sum runs over the votes `r` for the right answer. Every other answer has fewer votes, or r votes and ties.
    `ways[tied][votes]` counts the choices in which the others have `votes` votes in total and `tied` of them have r.
    `invalid` answers have no vote.
    """
    n = right + sum(others) + invalid
    won = np.zeros(n + 1)
    for r in range(1, right + 1):
        able = sum(size >= r for size in others)
        ways = np.zeros((able + 1, n + 1))
        ways[0, 0] = 1
        for size in others:
            extended = np.zeros_like(ways)
            for votes in range(min(size, r) + 1):
                tie = int(votes == r)
                extended[tie:, votes:] += math.comb(size, votes) * ways[: able + 1 - tie, : n + 1 - votes]
            ways = extended
        shared = (ways / np.arange(1, able + 2)[:, None]).sum(0)
        for unused in range(invalid + 1):
            weight = math.comb(right, r) * math.comb(invalid, unused)
            won[r + unused :] += weight * shared[: n + 1 - r - unused]
    return tuple(float(won[k] / math.comb(n, k)) for k in range(n + 1))


def tally(rollout: Rollout) -> ProblemTally:
    """Count all answers to one problem, the right ones, and the votes for each distinct wrong one."""
    outcomes = [(s.verdict, s.verdict.outcome if s.verdict else Outcome.unverifiable) for s in answer_samples(rollout)]
    wrong = [verdict.answer for verdict, outcome in outcomes if verdict and outcome is Outcome.wrong]
    others = None if None in wrong else tuple(sorted(Counter(wrong).values(), reverse=True))
    right = sum(outcome is Outcome.correct for _, outcome in outcomes)
    return ProblemTally(rollout.draw.prompt.id, len(outcomes), right, others)


def answer_samples(rollout: Rollout) -> list[Sample]:
    """The samples with the role `answer`, without the hints or judgements that a strategy may add."""
    return [s for s in rollout.samples if s.role == "answer"]


@dataclass(frozen=True, slots=True)
class IntervalEstimate:
    """A number with its 95 % interval over problems."""

    value: float
    low: float
    high: float


def columns(tallies: Sequence[ProblemTally], ks: Sequence[int] = ()) -> dict[str, list[float]]:
    """The figures of each single problem: its share of right answers, and pass@k and maj@k for each k.

    A k above the number of answers of some problem is left out. So is maj@k if votes are unknown or too many.
    """
    ks = [k for k in ks if all(k <= t.answer_count for t in tallies)]
    values = {"avg": [t.share for t in tallies]} | {f"pass@{k}": [t.pass_at(k) for t in tallies] for k in ks}
    if all(t.has_votes for t in tallies):
        values |= {f"maj@{k}": [t.maj_at(k) for t in tallies] for k in ks}
    return values


def figures(tallies: Sequence[ProblemTally], n: int, ks: Sequence[int] = ()) -> dict[str, IntervalEstimate]:
    """The figures of an evaluation: avg@n, pass@k and maj@k, each a mean over problems with its interval."""
    values = columns(tallies, ks)
    intervals = interval(*map(np.array, values.values()))
    names = [f"avg@{n}", *list(values)[1:]]
    return {
        name: IntervalEstimate(mean(column), *ends) for name, column, ends in zip(names, values.values(), intervals)
    }


def has_verdicts(rollouts: Sequence[Rollout]) -> bool:
    """Whether at least one answer could be judged: its verdict is not `unverifiable`."""
    verdicts = (s.verdict for f in rollouts for s in answer_samples(f))
    return any(v is not None and v.outcome is not Outcome.unverifiable for v in verdicts)


def has_scores(rollouts: Sequence[Rollout]) -> bool:
    """Whether some verdicts carry a score."""
    return any(s.verdict is not None and s.verdict.score is not None for f in rollouts for s in answer_samples(f))


def has_outcomes(rollouts: Sequence[Rollout]) -> bool:
    """Whether accuracy is defined: no answer has only a score, without being correct or wrong."""
    verdicts = (s.verdict for f in rollouts for s in answer_samples(f))
    return not any(v is not None and v.outcome is Outcome.scored for v in verdicts)


def problem_scores(rollouts: Sequence[Rollout]) -> list[float]:
    """For each problem the mean score of its answers; `Verdict.value` for a verdict without a score."""
    return [mean([s.verdict.value if s.verdict else 0.0 for s in answer_samples(f)]) for f in rollouts]


def mean_score(rollouts: Sequence[Rollout]) -> IntervalEstimate:
    """The mean over problems of the mean score of their answers."""
    values = problem_scores(rollouts)
    return IntervalEstimate(mean(values), *score_interval(np.array(values)))


def average(rollouts: Sequence[Rollout]) -> IntervalEstimate:
    """The mean over problems of the share of right answers."""
    return figures([tally(f) for f in rollouts], 1)["avg@1"]


def mean(values: Sequence[float]) -> float:
    """The mean of the values; 0 if there are none."""
    return math.fsum(values) / max(1, len(values))


def counts(rollouts: Sequence[Rollout]) -> dict[str, int]:
    """The numbers of correct, wrong, malformed, unverifiable, scored, truncated and missing answers."""
    samples = [s for f in rollouts for s in answer_samples(f)]
    by = Counter(s.verdict.outcome if s.verdict else Outcome.unverifiable for s in samples)
    return {**{name: by[Outcome[name]] for name in ("correct", "wrong", "malformed", "unverifiable")},
            **({"scored": by[Outcome.scored]} if by[Outcome.scored] else {}),
            "truncated": sum(s.finish is Finish.length for s in samples),
            "missing": sum(max(0, f.draw.n - len(answer_samples(f))) for f in rollouts)}  # fmt: skip


def causes(rollouts: Sequence[Rollout]) -> dict[str, int]:
    """The causes of unverifiable answers with their counts, the most frequent first."""
    verdicts = [s.verdict for f in rollouts for s in answer_samples(f) if s.verdict]
    return dict(Counter(v.cause for v in verdicts if v.outcome is Outcome.unverifiable).most_common())


def lengths(rollouts: Sequence[Rollout]) -> dict[str, dict[str, float]]:
    """For each outcome: the number of answers, and their mean, median and largest length in tokens."""
    by: dict[str, list[int]] = {}
    for rollout in rollouts:
        for sample in answer_samples(rollout):
            outcome = sample.verdict.outcome if sample.verdict else Outcome.unverifiable
            by.setdefault(outcome.name, []).append(len(sample.tokens))
    return {
        o.name: {
            "answers": len(x), "mean": mean(x), "median": float(np.median(x)), "longest": max(x)
        }
        for o in (Outcome.correct, Outcome.wrong, Outcome.malformed, Outcome.unverifiable, Outcome.scored)
        if (x := by.get(o.name))
    }  # fmt: skip


def scores(greedy: Sequence[Rollout], sampled: Sequence[Rollout]) -> dict[str, float]:
    """The held-out metrics of a run: accuracy and score, of sampled and of greedy answers, with intervals.

    They are accuracies if the verdicts have outcomes, and mean scores if they carry scores. With several answers to
    each problem there is also pass@k, without an interval. Without a held-out problem
    there are none. Without a judged answer there is no accuracy and no score.
    """
    if not greedy and not sampled:
        return {}
    figures: dict[str, IntervalEstimate] = {}
    passes: dict[int, float] = {}
    rollouts = (*greedy, *sampled)
    if has_verdicts(rollouts) and has_outcomes(rollouts):
        figures |= {ACCURACY: average(sampled), ACCURACY_GREEDY: average(greedy)}
        passes = mean_passes(sampled)
    if has_scores(rollouts):
        figures |= {SCORE: mean_score(sampled), SCORE_GREEDY: mean_score(greedy)}
    count = counts(sampled)
    lengths = [len(s.tokens) for f in sampled for s in answer_samples(f)]
    return {
        **{
            metric: value
            for name, figure in figures.items()
            for metric, value in zip((name, *INTERVALS[name]), (figure.value, figure.low, figure.high))
        },
        **{f"eval/pass@{k}": value for k, value in passes.items()},
        UNVERIFIABLE_HELD_OUT: count["unverifiable"] / max(1, len(lengths)),
        "eval/truncated": count["truncated"] / max(1, len(lengths)),
        "eval/mean_length": sum(lengths) / max(1, len(lengths)),
        **{f"eval/subscores/{name}": x for name, x in mean_subscores(sampled, GRADED).items()},
        **{f"eval/subscores_of_correct/{name}": x for name, x in mean_subscores(sampled, (Outcome.correct,)).items()},
        **{f"eval/{name}": share for name, share in describe_conversations(sampled).items()},
    }


def mean_passes(rollouts: Sequence[Rollout]) -> dict[int, float]:
    """The mean over problems of pass@k, for each k in `KS` that no problem has fewer answers than."""
    tallies = [tally(f) for f in rollouts]
    most = min((t.answer_count for t in tallies), default=0)
    return {k: mean([t.pass_at(k) for t in tallies]) for k in KS if k <= most}


def mean_subscores(rollouts: Sequence[Rollout], outcomes: Collection[Outcome]) -> Mapping[str, float]:
    """The mean of each subscore, such as a format score, over the answers with one of these outcomes.

    A verdict without the subscore counts as 0. Empty if there is no such answer.
    """
    verdicts = [s.verdict for f in rollouts for s in answer_samples(f) if s.verdict]
    verdicts = [v for v in verdicts if v.outcome in outcomes]
    names = sorted({name for v in verdicts for name in v.subscores})
    return {name: mean([v.subscores.get(name, 0.0) for v in verdicts]) for name in names}
