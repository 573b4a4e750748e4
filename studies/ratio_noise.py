"""The signal that an update keeps under noise in its ratios, against the exact gradient. Nothing is trained.

*Signal kept*: the square of the mean update along the exact gradient, by the variance of the update, relative to the
same without noise and bounds. It is the share of the answers that is left: as many answers without noise know the
direction as well. Answers and noise are those of studies/noisy_answers.py, the advantages GRPO's.
"""

import math
from collections.abc import Iterable

import numpy as np

from studies.noisy_answers import GROUP, GROUPS, Answers, Noise, Numbers, advantages, draw, scores

BATCHES = {16: 600, 64: 500, 256: 400, 1024: 160, 4096: 80}
"""The batches of each length."""
BLOCKS = 10
TOKEN = {"token 0.2 / 0.27": (0.2, 0.27), "token unclipped": (math.inf, math.inf)}
UNCLIPPED = "sequence unclipped"
SEQUENCE = {
    "sequence 3e-4 / 4e-4": (3e-4, 4e-4),
    "sequence 3e-3 / 4e-3": (3e-3, 4e-3),
    "sequence 3e-2 / 4e-2": (3e-2, 4e-2),
    UNCLIPPED: (math.inf, math.inf),
}
"""Bounds of the two ratios, as distances from 1."""
FITTED, CENTRED = "sequence 2 sd around 1", "sequence 2 sd around the median"
"""Bounds of two standard deviations of a batch's mean log-ratios: around 0, and around their median."""
NONE = Noise("none")
NOISES = (
    *(Noise(kind, size) for kind in ("recorded", "engine") for size in (0.05, 0.2, 0.5, 1.0)),
    *(Noise("churn", share) for share in (0.01, 0.1)),
)


def kept_weight(ratio: Numbers, advantage: Numbers, low: float, high: float) -> Numbers:
    """The factor of a log-prob's gradient under PPO's clip: the ratio, or 0 where the clip is active."""
    clipped = ((advantage > 0) & (ratio > 1 + high)) | ((advantage < 0) & (ratio < 1 - low))
    return np.where(clipped, 0, ratio)


def updates(answers: Answers) -> dict[str, tuple[Numbers, float]]:
    """For each ratio with its bounds, the update of each group, and the share of clipped tokens."""
    a = advantages(answers.right)
    plain, change = scores(answers), answers.log_ratio.mean(1, dtype=float)
    ratio, fits = np.exp(change), 2 * float(change.std())
    weights = {name: kept_weight(ratio, a, *bounds) for name, bounds in (*SEQUENCE.items(), (FITTED, (fits, fits)))}
    near = kept_weight(np.exp(change - np.median(change)), a, fits, fits) > 0
    weights[CENTRED] = np.where(near, ratio, 0)
    found = {name: (weight[:, None] * plain, float((weight == 0).mean())) for name, weight in weights.items()}
    tokens = np.exp(np.clip(answers.log_ratio, -20, 20))
    for name, bounds in TOKEN.items():
        weight = kept_weight(tokens, a[:, None], *bounds)
        found[name] = scores(answers, weight), float((weight == 0).mean())
    return {
        name: ((a[:, None] * score).reshape(GROUPS, GROUP, -1).mean(1) / answers.log_ratio.shape[1], clipped)
        for name, (score, clipped) in found.items()
    }


def signal(update: Numbers) -> float:
    """The squared mean along the gradient by the variance, with the sign of the mean. From the updates of groups."""
    along, variance = update[:, 0], update.var(0, ddof=1).sum()
    mean = along.mean()
    return float(np.sign(mean) * (mean**2 - along.var(ddof=1) / len(along)) / variance)


def pseudo_values(update: Numbers) -> list[float]:
    """The jackknife's pseudo-values of `signal`, over ten blocks of groups: their mean has Student's interval."""
    whole, blocks = signal(update), np.array_split(np.arange(len(update)), BLOCKS)
    return [BLOCKS * whole - (BLOCKS - 1) * signal(np.delete(update, block, 0)) for block in blocks]


Kept = dict[str, dict[str, dict[str, list[float] | float]]]
"""By noise and ratio: the pseudo-values of the signal `kept`, and the share `clipped`."""


def measure(length: int, noises: Iterable[Noise] = NOISES, batches: int | None = None) -> Kept:
    """The signal kept at a length under each noise, and without noise."""
    found, base = Kept(), math.nan
    for noise in (NONE, *noises):
        seed = (length, ("none", "recorded", "engine", "churn").index(noise.kind), round(1000 * noise.size))
        rng = np.random.default_rng(seed)
        all_updates = [updates(draw(length, noise, rng)) for _ in range(batches or BATCHES[length])]
        joined = {name: np.concatenate([x[name][0] for x in all_updates]) for name in all_updates[0]}
        if noise is NONE:
            base = signal(joined[UNCLIPPED])
        found[noise.name] = {
            name: {
                "kept": [x / base for x in pseudo_values(update)],
                "clipped": math.fsum(x[name][1] for x in all_updates) / len(all_updates),
            }
            for name, update in joined.items()
        }
    return found
