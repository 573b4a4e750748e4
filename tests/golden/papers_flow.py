"""Flow-GRPO, GRPO-Guard and DiffusionNFT, transcribed from their specifications: loops in NumPy over samples and steps.

The velocity is `x W + t b + c[word]`, so that a derivative by W is a complex step. Nothing here is from the library.
"""

import math
from dataclasses import dataclass

import numpy as np


@dataclass
class Field:
    """A linear velocity field; `w` may be complex."""

    w: np.ndarray
    b: np.ndarray
    c: np.ndarray

    def __call__(self, x, t, word):
        return x @ self.w + t * self.b + self.c[word]


@dataclass
class Step:
    """A step of a sample: times, word, states before and after, and the mean of the sampler; or noise and data."""

    t: float
    s: float
    word: int
    x: np.ndarray
    y: np.ndarray
    mean: np.ndarray


def flow_step(x, v, t, s, a=0.7):
    """Flow-GRPO's stochastic step: mean and S."""
    dt = s - t
    sigma = a * math.sqrt(t / (1 - (t if t < 1 else s)))
    mean = x * (1 + sigma**2 / (2 * t) * dt) + v * (1 + sigma**2 * (1 - t) / (2 * t)) * dt
    return mean, sigma * math.sqrt(-dt)


def cps_step(x, v, t, s, a):
    std = s * math.sin(a * math.pi / 2)
    return (1 - s) * (x - t * v) + math.sqrt(s**2 - std**2) * (x + (1 - t) * v), std


def sage_variance(t, s, eta=1.0):
    return eta**2 * (-(t - s) + math.log((1 - s) / (1 - min(t, 0.997))))


def log_density(y, mean, std):
    return (-((y - mean) ** 2) / (2 * std**2) - math.log(std) - 0.5 * math.log(2 * math.pi)).mean()


def group_scores(r):
    """The advantages of a group: population std plus 1e-4, within +-5."""
    r = np.array(r)
    return np.clip((r - r.mean()) / (r.std() + 1e-4), -5, 5)


def clipped(a, rho, c):
    """`max(-A rho, -A clip(rho, 1 - c, 1 + c))`, by the real parts."""
    near = 1 - c if rho.real < 1 - c else 1 + c if rho.real > 1 + c else rho
    return max(-a * rho, -a * near, key=lambda x: np.real(x))


def paper_flow_grpo(groups, new, old, ref, c=1e-4, beta=0.04):
    total, count = 0.0, 0
    for samples, rewards in groups:
        for steps, a in zip(samples, group_scores(rewards)):
            for k in steps:
                mean, std = flow_step(k.x, new(k.x, k.t, k.word), k.t, k.s)
                mean_old, mean_ref = (flow_step(k.x, f(k.x, k.t, k.word), k.t, k.s)[0] for f in (old, ref))
                rho = np.exp(log_density(k.y, mean, std) - log_density(k.y, mean_old, std))
                s2 = std**2 / (k.t - k.s)
                total += clipped(a, rho, c) + beta * ((mean - mean_ref) ** 2).mean() / (2 * s2)
                count += 1
    return total / count


def paper_grpo_guard(groups, new, old, ref, c=2e-6):
    total, count = 0.0, 0
    for samples, rewards in groups:
        for steps, a in zip(samples, group_scores(rewards)):
            for k in steps:
                mean, std = flow_step(k.x, new(k.x, k.t, k.word), k.t, k.s)
                mean_old = flow_step(k.x, old(k.x, k.t, k.word), k.t, k.s)[0]
                bias = ((mean - k.mean) ** 2).mean() / (2 * std**2)
                rho = np.exp(std * (log_density(k.y, mean, std) - log_density(k.y, mean_old, std) + bias))
                total += clipped(a, rho, c) / (k.t - k.s)
                count += 1
    return total / count


def paper_diffusion_nft(groups, new, old, ref, beta=1.0, most=5.0, kappa=1e-4):
    total, count = 0.0, 0
    for samples, rewards in groups:
        for steps, a in zip(samples, group_scores(rewards)):
            r = min(max(a / (2 * most) + 0.5, 0), 1)
            for k in steps:
                noise, data = k.x, k.y
                x = (1 - k.t) * data + k.t * noise
                v, v_old, v_ref = (f(x, k.t, k.word) for f in (new, old, ref))
                losses = []
                for mixed in (beta * v + (1 - beta) * v_old, (1 + beta) * v_old - beta * v):
                    error = x - k.t * mixed - data
                    losses.append((error**2).mean() / max(np.abs(error.real).mean(), 1e-5))
                total += most / beta * (r * losses[0] + (1 - r) * losses[1]) + kappa * ((v - v_ref) ** 2).mean()
                count += 1
    return total / count
