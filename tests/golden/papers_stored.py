"""Transcriptions of the methods of stored answers: likelihood, preference pairs, labelled answers."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from groupwise.methods import IdentityPreference, Method, bradley_terry, dpo, ipo, kto, orpo, sft, simpo
from groupwise.objective import Objective, pair_mean
from tests.golden.whole_path import Answer, Groups, every, live, mean, trained_tokens


def log_sigmoid(x):
    return -np.log(1 + np.exp(-x))


def mean_over_pairs(groups: Groups, gain: Callable[[Answer, Answer], complex]) -> complex:
    """The mean gain over the pairs of a group's answers with different scores."""
    gains = []
    for group in groups:
        members = [o for o in group if len(o.l)]
        gains += [gain(w, l) for w in members for l in members if w.score > l.score]
    return sum(gains) / max(len(gains), 1)


def log_ratio(o: Answer):
    return (o.l - o.ref).sum()


def paper_sft(groups: Groups):
    return sum(o.score * o.l.sum() for o in every(groups)) / trained_tokens(groups)


def paper_dpo(groups: Groups):
    return mean_over_pairs(groups, lambda w, l: log_sigmoid(0.1 * (log_ratio(w) - log_ratio(l))))


def paper_ipo(groups: Groups):
    return mean_over_pairs(groups, lambda w, l: -((mean(w.l - w.ref) - mean(l.l - l.ref) - 1 / 0.2) ** 2))


def paper_ipo_sum(groups: Groups):
    return mean_over_pairs(groups, lambda w, l: -((log_ratio(w) - log_ratio(l) - 1 / 0.2) ** 2))


def paper_simpo(groups: Groups):
    return mean_over_pairs(groups, lambda w, l: log_sigmoid(2.0 * mean(w.l) - 2.0 * mean(l.l) - 0.5))


def paper_orpo(groups: Groups):
    def odds(o: Answer):
        p = np.exp(mean(o.l))
        return p / (1 - p)

    return mean_over_pairs(groups, lambda w, l: mean(w.l) + 0.1 * log_sigmoid(np.log(odds(w) / odds(l))))


def score(o: Answer):
    return o.l.sum()


def paper_bradley_terry(groups: Groups):
    return mean_over_pairs(groups, lambda w, l: log_sigmoid(score(w) - score(l)))


def paper_bradley_terry_full(groups: Groups):
    def gain(w: Answer, l: Answer) -> complex:
        return log_sigmoid(score(w) - score(l) - 0.5) - 0.01 * (score(w) + score(l)) ** 2

    return mean_over_pairs(groups, gain)


def paper_kto(groups: Groups):
    members = [o for o in every(groups) if len(o.l)]
    z = max(np.mean([(o.hq - o.d).sum() for o in members]), 0.0)
    values = [1 / (1 + np.exp(-0.1 * (1 if o.score > 0.5 else -1) * (log_ratio(o) - z))) - 1 for o in members]
    return sum(values) / live(members)


PAPERS: dict[str, tuple[Callable[[Groups], complex], Method, float]] = {
    "sft": (paper_sft, sft(), 0.3),
    "dpo": (paper_dpo, dpo(), 0.3),
    "ipo": (paper_ipo, ipo(), 0.3),
    "simpo": (paper_simpo, simpo(), 0.3),
    "orpo": (paper_orpo, orpo(), 0.0),
    "kto": (paper_kto, kto(), 0.3),
    "bradley_terry": (paper_bradley_terry, bradley_terry(), 0.3),
}
"""Transcription, method, and the spread of log-ratios. ORPO: none, since a positive log-prob has no odds."""

SUM = Objective(surrogate=IdentityPreference(token_reduction="sum"), aggregate=pair_mean)
VARIANTS: dict[str, tuple[Callable[[Groups], complex], Method, float]] = {
    "ipo, sum": (paper_ipo_sum, replace(ipo(), objective=SUM), 0.3),
    "bradley_terry, margin and centring": (paper_bradley_terry_full, bradley_terry(margin=0.5, centring=0.01), 0.3),
}
"""Variants of the methods, under names of their own."""
