"""The methods of the family `reward`, transcribed from their papers and specifications."""

import math
from collections.abc import Callable

import numpy as np

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
from tests.golden.whole_path import (
    BUDGET,
    Answer,
    Groups,
    clip,
    every,
    k3,
    live,
    scores,
    sg,
    smaller,
    trained,
    trained_tokens,
    z,
)

Advantages = list[list[float | np.ndarray]]
"""One number per answer, or one per token."""


def clipped(o: Answer, a: float | np.ndarray, low: float = 0.2, high: float = 0.2):
    return smaller(o.r * a, clip(o.r, 1 - low, 1 + high) * a)


def dual_clipped(o: Answer, a: float):
    """PPO's term; for a negative advantage not below 10 A."""
    gain = smaller(o.r * a, clip(o.r, 0.8, 1.28) * a)
    return gain if a >= 0 else np.where(np.real(gain) < 10 * a, 10 * a, gain)


def token_mean(groups: Groups, advantages: Advantages, low: float = 0.2, high: float = 0.2, kl: float = 0.0):
    pairs = [pair for group, row in zip(groups, advantages, strict=True) for pair in trained(group, row)]
    return sum((clipped(o, a, low, high) - kl * k3(o)).sum() for o, a in pairs) / trained_tokens(groups)


def shaped_where_written(groups: Groups, advantages: Advantages):
    """PPO's clip, and LUFFY's `p / (p + 0.1)` for the tokens of a written answer, which has no old policy."""
    total = 0.0
    for o, a in (pair for group, row in zip(groups, advantages, strict=True) for pair in trained(group, row)):
        p = np.exp(o.l)
        total += (p / (p + 0.1) * a).sum() if o.written else clipped(o, a).sum()
    return total / trained_tokens(groups)


def group_mean(groups: Groups, advantages: Advantages, kl: float = 0.0):
    total = 0.0
    for group, row in zip(groups, advantages, strict=True):
        for o, a in trained(group, row):
            total += (clipped(o, a) - kl * k3(o)).sum() / len(o.l) / live(group)
    return total / live(groups)


def of(groups: Groups, advantage: dict[Answer, float]) -> Advantages:
    """The advantages of some groups among those of the iteration."""
    return [[advantage[o] for o in group] for group in groups]


def z_of_part(group: list[Answer], name: str) -> np.ndarray:
    """The z-score of a part of the verdicts over those that have it; 0 for the others."""
    stated = np.array([o.part(name) for o in group if name in o.subscores])
    return np.array([(o.part(name) - stated.mean()) / (stated.std(ddof=1) + 1e-6) if name in o.subscores else 0.0
                     for o in group]) if len(stated) > 1 else np.zeros(len(group))  # fmt: skip


def paper_gdpo(groups: Groups, iteration: Groups):
    sums = {o: x for group in iteration for o, x in zip(group, z(scores(group)) + z_of_part(group, "chain_true"))}
    white = np.array(list(sums.values()))
    return token_mean(groups, of(groups, {o: (x - white.mean()) / (white.std(ddof=1) + 1e-4) for o, x in sums.items()}))


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
    both = [z(scores(group)) + multiplier * z_of_part(group, "chain_true") for group in groups]
    return group_mean(groups, [list(row) for row in both])


def paper_grpo_care(groups: Groups):
    """The answer is the text after the last full stop. A number that rounding puts below a mean equals it."""
    total = 0.0
    for group in groups:
        acc = scores(group)
        p = []
        for o in group:
            dot = max((t for t in range(o.n) if t % 3 == 2), default=o.n)
            inside = [o.ref[i] for i, t in enumerate(o.token_index) if t > dot]
            p.append(min(math.exp(sum(inside) / (len(inside) + 1e-6)), 0.95))
        good = [i for i in range(len(group)) if acc[i] > 0.1 and acc[i] >= acc.mean() - 1e-9]
        mean = np.mean([p[i] for i in good]) if good else math.inf
        r = np.array([acc[i] + 0.5 * acc[i] * (i in good and p[i] >= mean - 1e-9) for i in range(len(group))])
        for o, x in trained(group, (r - r.mean()) / (r.std(ddof=1) + 1e-4)):
            total += (o.r * x).sum() / len(o.l) / live(group)
    return total / live(groups)


def paper_drpo(groups: Groups):
    """A group is contrasted if it has right and wrong answers; an answer without a token has no log-prob."""
    total, drift = 0.0, 0.0
    for group in groups:
        drift += sum((o.old - o.l).sum() for o in group)
        right = [o for o in group if o.right]
        wrong = [o for o in group if not o.right and len(o.l)]
        if not right or not wrong:
            continue
        w = np.exp([(1 - o.n / BUDGET) / 0.1 for o in right])
        rival = 10 * np.log(np.mean([np.exp(o.l.mean() / 10) for o in wrong]))
        total += sum(x * (o.l.mean() - rival) for x, o in zip(w / w.sum(), right))
    kl = drift / trained_tokens(groups)
    return total / len(groups) - sg(1e3 * max(np.real(kl) - 1e-4, 0)) * kl


def paper_grpo_lambda(groups: Groups, iteration: Groups):
    rates = [np.mean([o.right for o in group]) for group in iteration]
    best = sorted(range(len(rates)), key=lambda i: -rates[i])[: math.ceil(0.2 * len(rates))]
    advantages: Advantages = []
    for group in groups:
        r = np.array([float(o.right) for o in group])
        if iteration.index(group) in best:
            lengths = np.array([o.n for o in group if o.right], float)
            std = lengths.std(ddof=1) if len(lengths) > 1 else 0.0
            far = [(o.n - lengths.mean()) / (std + 1e-6) for o in group]
            r = np.array([o.right * (1 - 0.2 / (1 + math.exp(-f))) for o, f in zip(group, far)])
        advantages.append(list(z(r)))
    return group_mean(groups, advantages, 0.04)


def paper_riskpo(groups: Groups, iteration: Groups):
    """Bundles of five prompts; their quantiles, since nothing is tracked before the first iteration.

    A bundle has as many draws as its smallest group has answers; further answers belong to none.
    """
    advantage: dict[Answer, float] = {}
    for bundle in (iteration[:5], iteration[5:]):
        count = min(map(len, bundle))
        x = np.array([scores(group)[:count] for group in bundle])
        r = x.sum(0)
        low, high = np.quantile(r, 0.2), np.quantile(r, 0.8)
        u = (np.maximum(r - low, 0) - np.maximum(r - high, 0)) / (0.6 + 1e-6)
        v = -np.maximum(low - r, 0) / (0.2 + 1e-6)
        a = (1.5 * v + u) / 2.5 / (r.std(ddof=1) + 1e-6)
        above = x - np.array([[scores(group).mean()] for group in bundle])
        total = above.sum(0)
        shares = np.where(np.abs(total) <= 1e-6, 1 / len(bundle), above / np.where(total, total, 1))
        advantage |= {o: share * y for group, row in zip(bundle, shares) for o, share, y in zip(group, row, a)}
    return token_mean(groups, [[advantage.get(o, 0.0) for o in group] for group in groups])


def paper_tempo(groups: Groups):
    advantages: Advantages = []
    for group in groups:
        r = scores(group)
        normal = (r - r.mean()) / (r.std() + 1e-6)

        def value(prefix: list[int], group=group, normal=normal) -> float:
            return float(np.mean([x for o, x in zip(group, normal) if o.tokens[: len(prefix)] == prefix]))

        advantages.append(
            [
                np.array([x + value(o.tokens[: t + 1]) - value(o.tokens[:t]) for t in o.token_index])
                for o, x in zip(group, normal)
            ]
        )
    return group_mean(groups, advantages)


def paper_unlikeliness(groups: Groups):
    """An answer without a token is the least likely."""
    advantages: Advantages = []
    for group in groups:
        likelihood = [o.old.mean() if len(o.l) else -math.inf for o in group]
        rank = [sorted(likelihood).index(x) for x in likelihood]
        advantages.append(list(z(np.array([o.right * (1 - 0.25 * k / len(group)) for o, k in zip(group, rank)]))))
    return token_mean(groups, advantages, kl=0.1)


def paper_noisy_verifier(groups: Groups):
    return token_mean(groups, [[o.right - 0.9 for o in group] for group in groups])


def paper_noisy_backward(groups: Groups, iteration: Groups):
    r = {o: (o.right - 0.1) / 0.8 for o in every(iteration)}
    white = np.array(list(r.values()))
    return token_mean(groups, of(groups, {o: (x - white.mean()) / (white.std(ddof=1) + 1e-8) for o, x in r.items()}))


def paper_trust_grpo(groups: Groups):
    advantages: Advantages = []
    for group in groups:
        part = {o: o.part("chain_true") for o in group}
        right, wrong = ([part[o] for o in group if (o.score >= 0.5) == side] for side in (True, False))
        trust = min(1.0, math.exp(np.mean(right) - np.mean(wrong))) if right and wrong else 1.0
        advantages.append(list(z(np.array([o.score + trust * 0.3 * part[o] for o in group]))))
    return group_mean(groups, advantages, 0.04)


def paper_posterior_grpo(groups: Groups, gated: bool = True):
    r = [np.array([o.right + (o.right or not gated) * o.part("chain_true") for o in group]) for group in groups]
    return token_mean(groups, [list(z(row)) for row in r], 0.2, 0.28)


def paper_multi_objective(groups: Groups, weights: dict[str, float]):
    """A part that a verdict does not have is left out of its weighted mean."""
    advantages: Advantages = []
    for group in groups:
        stated = [[name for name in weights if name in o.subscores] for o in group]
        sums = [sum(weights[name] * o.part(name) for name in names) for o, names in zip(group, stated)]
        r = np.array([x / (sum(weights[name] for name in names) or 1) for x, names in zip(sums, stated)])
        advantages.append(list((r - r.mean()) / (r.std(ddof=1) + 1e-4)))
    return group_mean(groups, advantages, 0.04)


def paper_format_length(groups: Groups):
    """A malformed answer has no form, and gains nothing by its length."""

    def reward(o: Answer) -> float:
        x = o.n / BUDGET
        curve = 1 - (1 - x / 0.5) ** 2 if x <= 0.5 else 1 - 2 * ((x - 0.5) / 0.5) ** 2
        return 1 + curve if o.readable else min(curve, 0)

    return token_mean(groups, [list(z(np.array([reward(o) for o in group]))) for group in groups], kl=1e-3)


def paper_gigpo(groups: Groups):
    """A turn is in the state that the environment's last tokens tell. Each turn weighs the same."""
    total, count = 0.0, 0
    for group in groups:
        states: dict[tuple, list[float]] = {}
        turns = []
        for o, a in zip(group, z(10 * scores(group))):
            end = 0
            for k, turn in enumerate(o.turns):
                state = (k > 0, *o.tokens[end : o.token_index[turn[0]]])
                reward = 10 * o.score * 0.95 ** (len(o.turns) - 1 - k)
                states.setdefault(state, []).append(reward)
                turns.append((o, turn, a, state, reward))
                end = o.token_index[turn[-1]] + 1
        for o, turn, a, state, reward in turns:
            same = np.array(states[state])
            step = (reward - same.mean()) / (same.std(ddof=1) + 1e-6) if len(same) > 1 else 0.0
            total += (clipped(o, a + step) - 0.01 * k3(o))[turn].mean()
            count += 1
    return total / count


def paper_asym_grpo(groups: Groups):
    advantages: Advantages = []
    for group in groups:
        p = np.mean([o.right for o in group])
        row = [0.0] * len(group)
        if 0 < p < 1:
            row = [((1 - p) / p) ** 0.75 if o.right else -((p / (1 - p)) ** 0.5) for o in group]
        advantages.append(row)
    return token_mean(groups, advantages, 0.2, 0.28)


def paper_spo(groups: Groups, iteration: Groups):
    """The tracked success rate of each answer's prompt is a subscore of its verdict."""
    a = {o: o.right - o.part("baseline") for o in every(iteration)}
    x = np.array(list(a.values()))
    total = sum(dual_clipped(o, (a[o] - x.mean()) / (x.std(ddof=1) + 1e-8)).sum() for o in every(groups))
    return total / trained_tokens(groups)


PAPERS: dict[str, tuple[Callable[[Groups], complex], Method, float]] = {
    "gdpo": (paper_gdpo, gdpo(), 0.3),
    "ngrpo": (paper_ngrpo, ngrpo(), 0.3),
    "seed_grpo": (paper_seed_grpo, seed_grpo(), 0.3),
    "fgrpo": (paper_fgrpo, fgrpo(), 0.3),
    "grpo_care": (paper_grpo_care, grpo_care(answer_start=".", answer_end=""), 0.3),
    "drpo": (paper_drpo, drpo(), 0.3),
    "grpo_lambda": (paper_grpo_lambda, grpo_lambda(), 0.3),
    "riskpo": (paper_riskpo, riskpo(), 0.3),
    "tempo": (paper_tempo, tempo(), 0.3),
    "unlikeliness": (paper_unlikeliness, unlikeliness(), 0.3),
    "noisy_verifier": (paper_noisy_verifier, noisy_verifier(), 0.3),
    "trust_grpo": (paper_trust_grpo, trust_grpo(), 0.3),
    "posterior_grpo": (paper_posterior_grpo, posterior_grpo(), 0.3),
    "multi_objective_grpo": (
        lambda groups: paper_multi_objective(groups, {"chain_true": 1.0}),
        multi_objective_grpo(),
        0.3,
    ),
    "format_length": (paper_format_length, format_length(), 0.3),
    "gigpo": (paper_gigpo, gigpo(), 0.3),
    "asym_grpo": (paper_asym_grpo, asym_grpo(), 0.3),
    "spo": (paper_spo, spo(), 0.3),
}
"""Transcription, method, and a spread of log-ratios at which its bounds are active on some tokens only."""

VARIANTS: dict[str, tuple[Callable[[Groups], complex], Method, float]] = {
    "noisy_verifier, backward": (paper_noisy_backward, noisy_verifier(correction="backward"), 0.3),
    "multi_objective_grpo, two parts": (
        lambda groups: paper_multi_objective(groups, {"chain_true": 3.0, "other": 1.0}),
        multi_objective_grpo(weights=(("chain_true", 3.0), ("other", 1.0))),
        0.3,
    ),
    "posterior_grpo, ungated": (lambda groups: paper_posterior_grpo(groups, False), posterior_grpo(gated=False), 0.3),
}
"""Variants of the methods, under names of their own."""
