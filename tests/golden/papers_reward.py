"""The methods of the family `reward`, transcribed from their papers and specifications."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from groupwise.advantages import AgainstPart, Whitened
from groupwise.methods import (
    Method,
    asym_grpo,
    drpo,
    fgrpo,
    format_length,
    gdpo,
    gigpo,
    grpo_care,
    grpo_lambda,
    multi_objective_grpo,
    ngrpo,
    noisy_verifier,
    posterior_grpo,
    riskpo,
    seed_grpo,
    spo,
    tempo,
    trust_grpo,
    unlikeliness,
)
from tests.golden.whole_path import BUDGET, Answer, Groups, clip, scores, sg, smaller, z

Advantages = list[list[float | np.ndarray]]
"""One number per answer, or one per token."""


def clipped(o: Answer, a: float | np.ndarray, low: float = 0.2, high: float = 0.2):
    return smaller(o.r * a, clip(o.r, 1 - low, 1 + high) * a)


def dual_clipped(o: Answer, a: float):
    """PPO's term; for a negative advantage not below 10 A."""
    gain = smaller(o.r * a, clip(o.r, 0.8, 1.28) * a)
    return gain if a >= 0 else np.where(np.real(gain) < 10 * a, 10 * a, gain)


def k3(o: Answer):
    return np.exp(o.ref - o.l) - (o.ref - o.l) - 1


def answers(groups: Groups, advantages: Advantages) -> Iterator[tuple[Answer, float | np.ndarray]]:
    for group, row in zip(groups, advantages):
        yield from zip(group, row)


def token_mean(groups: Groups, advantages: Advantages, low: float = 0.2, high: float = 0.2, kl: float = 0.0):
    total = sum((clipped(o, a, low, high) - kl * k3(o)).sum() for o, a in answers(groups, advantages))
    return total / sum(len(o.l) for group in groups for o in group)


def group_mean(groups: Groups, advantages: Advantages, kl: float = 0.0):
    total = 0.0
    for group, row in zip(groups, advantages):
        for o, a in zip(group, row):
            total += (clipped(o, a) - kl * k3(o)).sum() / len(o.l) / len(group)
    return total / len(groups)


def paper_gdpo(groups: Groups):
    sums = [z(scores(group)) + z(np.array([o.part for o in group])) for group in groups]
    every = np.concatenate(sums)
    return token_mean(groups, [list((s - every.mean()) / (every.std(ddof=1) + 1e-4)) for s in sums])


def paper_ngrpo(groups: Groups):
    advantages: Advantages = []
    for group in groups:
        r = np.append(scores(group), 1.0)
        advantages.append(list((r[:-1] - r.mean()) / (r.std(ddof=1) + 1e-6)))
    return token_mean(groups, advantages, 0.16, 0.24)


def paper_seed_grpo(groups: Groups):
    total, count = 0.0, 0
    for group in groups:
        shares = [np.mean([o.said == said for o in group]) for said in {o.said for o in group}]
        entropy = -np.mean(np.log(shares))
        for o, a in zip(group, scores(group) - scores(group).mean()):
            total += clipped(o, a * np.exp(-entropy / math.log(len(group)))).sum() / BUDGET
            count += 1
    return total / count


def paper_fgrpo(groups: Groups, multiplier: float = 0.0):
    """At the start of a run the multipliers are 0."""
    both = [z(scores(group)) + multiplier * z(np.array([o.part for o in group])) for group in groups]
    return group_mean(groups, [list(row) for row in both])


def paper_grpo_care(groups: Groups):
    """The answer is the text after the last full stop."""
    total = 0.0
    for group in groups:
        acc = scores(group)
        p = []
        for o in group:
            dot = max((t for t in range(len(o.l)) if t % 3 == 2), default=None)
            inside = [] if dot is None else list(range(dot + 1, len(o.l)))
            p.append(min(math.exp(sum(o.ref[t] for t in inside) / (len(inside) + 1e-6)), 0.95))
        good = [i for i in range(len(group)) if acc[i] > 0.1 and acc[i] >= acc.mean()]
        mean = np.mean([p[i] for i in good]) if good else math.inf
        r = np.array([acc[i] + 0.5 * acc[i] * (i in good and p[i] >= mean) for i in range(len(group))])
        a = (r - r.mean()) / (r.std(ddof=1) + 1e-4)
        total += sum((o.r * x).sum() / len(o.l) for o, x in zip(group, a)) / len(group)
    return total / len(groups)


def paper_drpo(groups: Groups):
    total, drift, tokens = 0.0, 0.0, 0
    for group in groups:
        right, wrong = [o for o in group if o.score == 1], [o for o in group if o.score != 1]
        for o in group:
            drift += (o.old - o.l).sum()
            tokens += len(o.l)
        if not right or not wrong:
            continue
        w = np.exp([(1 - len(o.l) / BUDGET) / 0.1 for o in right])
        rival = 10 * np.log(np.mean([np.exp(o.l.mean() / 10) for o in wrong]))
        total += sum(x * (o.l.mean() - rival) for x, o in zip(w / w.sum(), right))
    kl = drift / tokens
    return total / len(groups) - sg(1e3 * max(np.real(kl) - 1e-4, 0)) * kl


def paper_grpo_lambda(groups: Groups):
    rates = [scores(group).mean() for group in groups]
    best = sorted(range(len(groups)), key=lambda i: -rates[i])[: math.ceil(0.2 * len(groups))]
    advantages: Advantages = []
    for i, group in enumerate(groups):
        r = scores(group)
        if i in best:
            lengths = np.array([len(o.l) for o in group if o.score == 1], float)
            std = lengths.std(ddof=1) if len(lengths) > 1 else 0.0
            far = [(len(o.l) - lengths.mean()) / (std + 1e-6) for o in group]
            r = np.array([o.score * (1 - 0.2 / (1 + math.exp(-f))) for o, f in zip(group, far)])
        advantages.append(list(z(r)))
    return group_mean(groups, advantages, 0.04)


def paper_riskpo(groups: Groups):
    """One bundle of four prompts; its quantiles, since nothing is tracked before the first iteration."""
    draws = np.array([scores(group) for group in groups])
    r = draws.sum(0)
    low, high = np.quantile(r, 0.2), np.quantile(r, 0.8)
    u = (np.maximum(r - low, 0) - np.maximum(r - high, 0)) / (0.6 + 1e-6)
    v = -np.maximum(low - r, 0) / (0.2 + 1e-6)
    a = (1.5 * v + u) / 2.5 / (r.std(ddof=1) + 1e-6)
    above = draws - draws.mean(1, keepdims=True)
    shares = np.where(np.abs(above.sum(0)) <= 1e-6, 1 / len(groups), above / np.where(above.sum(0), above.sum(0), 1))
    return token_mean(groups, [list(a * row) for row in shares])


def paper_tempo(groups: Groups):
    advantages: Advantages = []
    for group in groups:
        r = scores(group)
        normal = (r - r.mean()) / (r.std() + 1e-6)

        def value(prefix: list[int], group=group, normal=normal) -> float:
            return float(np.mean([x for o, x in zip(group, normal) if o.tokens[: len(prefix)] == prefix]))

        advantages.append(
            [
                np.array([x + value(o.tokens[: t + 1]) - value(o.tokens[:t]) for t in range(len(o.l))])
                for o, x in zip(group, normal)
            ]
        )
    return group_mean(groups, advantages)


def paper_unlikeliness(groups: Groups):
    advantages: Advantages = []
    for group in groups:
        likelihood = [o.old.mean() for o in group]
        rank = [sorted(likelihood).index(x) for x in likelihood]
        advantages.append(list(z(np.array([o.score * (1 - 0.25 * k / len(group)) for o, k in zip(group, rank)]))))
    return token_mean(groups, advantages, kl=0.1)


def paper_noisy_verifier(groups: Groups):
    return token_mean(groups, [[o.score - 0.9 for o in group] for group in groups])


def paper_noisy_backward(groups: Groups):
    r = [[(o.score - 0.1) / 0.8 for o in group] for group in groups]
    every = np.concatenate(r)
    return token_mean(groups, [list((np.array(row) - every.mean()) / (every.std(ddof=1) + 1e-8)) for row in r])


def paper_trust_grpo(groups: Groups):
    advantages: Advantages = []
    for group in groups:
        right, wrong = ([o.part for o in group if (o.score >= 0.5) == side] for side in (True, False))
        trust = min(1.0, math.exp(np.mean(right) - np.mean(wrong))) if right and wrong else 1.0
        advantages.append(list(z(np.array([o.score + trust * 0.3 * o.part for o in group]))))
    return group_mean(groups, advantages, 0.04)


def paper_posterior_grpo(groups: Groups, gated: bool = True):
    r = [np.array([o.score + (o.score if gated else 1) * o.part for o in group]) for group in groups]
    return token_mean(groups, [list(z(row)) for row in r], 0.2, 0.28)


def paper_multi_objective(groups: Groups):
    parts = [np.array([o.part for o in group]) for group in groups]
    return group_mean(groups, [list((r - r.mean()) / (r.std(ddof=1) + 1e-4)) for r in parts], 0.04)


def paper_format_length(groups: Groups):
    def reward(o: Answer) -> float:
        x = len(o.l) / BUDGET
        return 1 + (1 - (1 - x / 0.5) ** 2 if x <= 0.5 else 1 - 2 * ((x - 0.5) / 0.5) ** 2)

    return token_mean(groups, [list(z(np.array([reward(o) for o in group]))) for group in groups], kl=1e-3)


def paper_gigpo(groups: Groups):
    """Each answer is one turn after the prompt, so all turns of a group are in one state. Each turn weighs the same."""
    turns = [pair for group in groups for pair in zip(group, 2 * z(10 * scores(group)))]
    return sum((clipped(o, a) - 0.01 * k3(o)).mean() for o, a in turns) / len(turns)


def paper_asym_grpo(groups: Groups):
    advantages: Advantages = []
    for group in groups:
        p = scores(group).mean()
        row = [0.0] * len(group)
        if 0 < p < 1:
            row = [((1 - p) / p) ** 0.75 if o.score == 1 else -((p / (1 - p)) ** 0.5) for o in group]
        advantages.append(row)
    return token_mean(groups, advantages, 0.2, 0.28)


def paper_spo(groups: Groups):
    """The tracked success rate of each answer's prompt is a part of its verdict."""
    pairs = [(o, o.score - o.part) for group in groups for o in group]
    x = np.array([a for _, a in pairs])
    total = sum(dual_clipped(o, (a - x.mean()) / (x.std(ddof=1) + 1e-8)).sum() for o, a in pairs)
    return total / sum(len(o.l) for o, _ in pairs)


PAPERS: dict[str, tuple[Callable[[Groups], complex], Method, float]] = {
    "gdpo": (paper_gdpo, gdpo(), 0.3),
    "ngrpo": (paper_ngrpo, ngrpo(), 0.3),
    "seed_grpo": (paper_seed_grpo, seed_grpo(), 0.3),
    "fgrpo": (paper_fgrpo, fgrpo(), 0.3),
    "grpo_care": (paper_grpo_care, grpo_care(opens=".", closes=""), 0.3),
    "drpo": (paper_drpo, drpo(), 0.3),
    "grpo_lambda": (paper_grpo_lambda, grpo_lambda(), 0.3),
    "riskpo": (paper_riskpo, riskpo(), 0.3),
    "tempo": (paper_tempo, tempo(), 0.3),
    "unlikeliness": (paper_unlikeliness, unlikeliness(), 0.3),
    "noisy_verifier": (paper_noisy_verifier, noisy_verifier(), 0.3),
    "trust_grpo": (paper_trust_grpo, trust_grpo(), 0.3),
    "posterior_grpo": (paper_posterior_grpo, posterior_grpo(), 0.3),
    "multi_objective_grpo": (paper_multi_objective, multi_objective_grpo(), 0.3),
    "format_length": (paper_format_length, format_length(), 0.3),
    "gigpo": (paper_gigpo, gigpo(), 0.3),
    "asym_grpo": (paper_asym_grpo, asym_grpo(), 0.3),
    "spo": (paper_spo, replace(spo(), advantage=(AgainstPart("chain_true"), Whitened())), 0.3),
}
"""Transcription, method, and a spread of log-ratios at which its bounds are active on some tokens only."""

VARIANTS: dict[str, tuple[Callable[[Groups], complex], Method, float]] = {
    "noisy_verifier, backward": (paper_noisy_backward, noisy_verifier(correction="backward"), 0.3),
    "posterior_grpo, ungated": (lambda groups: paper_posterior_grpo(groups, False), posterior_grpo(gated=False), 0.3),
}
"""Variants of the methods, under names of their own."""
