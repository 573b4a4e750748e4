"""The methods of the family `start`, transcribed from their papers."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from groupwise.methods import (
    Method,
    dapo,
    dr_grpo,
    grpo,
    grpo_process,
    ppo,
    reinforce,
    reinforce_pp,
    reinforce_pp_baseline,
    remax,
    rloo,
)
from groupwise.objective import complete
from tests.golden.whole_path import (
    BUDGET,
    Answer,
    Groups,
    clip,
    every,
    k3,
    live,
    scores,
    smaller,
    trained,
    trained_tokens,
    z,
)


def paper_grpo(groups: Groups):
    total = 0.0
    for group in groups:
        for o, a in trained(group, z(scores(group))):
            u = smaller(o.r * a, clip(o.r, 0.8, 1.2) * a) - 0.04 * k3(o)
            total += u.sum() / len(o.l) / live(group)
    return total / live(groups)


def paper_dr_grpo(groups: Groups):
    total, count = 0.0, 0
    for group in groups:
        rewards = np.array([0.0 if o.cut else o.score for o in group])
        for o, a in zip(group, rewards - rewards.mean()):
            total += smaller(o.r * a, clip(o.r, 0.8, 1.2) * a).sum() / BUDGET
            count += 1
    return total / count


def paper_dapo(groups: Groups, cache: int = 2, complete: bool = False):
    """The buffer is a fifth of the budget, rounded. The length of an answer has the environment's tokens, too.

    With `complete`, truncated answers are left out of the loss: the ablation of section 3.4.
    """
    total = 0.0
    for group in groups:
        rewards = []
        for o in group:
            over = 0.0 if o.n <= o.limit - cache else ((o.limit - cache) - o.n) / cache
            rewards.append((1.0 if o.right else -1.0) + over)
        for o, a in zip(group, z(np.array(rewards))):
            total += smaller(o.r * a, clip(o.r, 0.8, 1.28) * a).sum() * (not (complete and o.cut))
    return total / sum(len(o.l) for o in every(groups) if not (complete and o.cut))


def paper_rloo(groups: Groups):
    total, count = 0.0, 0
    for group in groups:
        rewards = np.array([o.score - 0.03 * (o.old - o.ref).sum() for o in group])
        for i, o in enumerate(group):
            others = [rewards[j] for j in range(len(group)) if j != i]
            total += (rewards[i] - np.mean(others)) * o.l.sum()
            count += 1
    return total / count


def paper_reinforce_pp(groups: Groups, iteration: Groups):
    def returns(o: Answer) -> np.ndarray:
        return np.array([o.score - 0.01 * (o.old - o.ref)[t:].sum() for t in range(len(o.l))])

    white = np.concatenate([returns(o) for o in every(iteration)])
    total = 0.0
    for o in every(groups):
        a = (returns(o) - white.mean()) / (white.std() + 1e-8)
        total += smaller(o.r * a, clip(o.r, 0.8, 1.2) * a).sum()
    return total / trained_tokens(groups)


def paper_reinforce(groups: Groups, iteration: Groups):
    r = scores(every(iteration))
    total = sum((o.score - r.mean()) / (r.std(ddof=1) + 1e-8) * o.l.sum() for o in every(groups))
    return total / len(every(groups))


def paper_reinforce_pp_baseline(groups: Groups, iteration: Groups):
    centred = {o: x for group in iteration for o, x in zip(group, scores(group) - scores(group).mean())}
    per_token = np.concatenate([np.full(len(o.l), x) for o, x in centred.items()])
    total = 0.0
    for o in every(groups):
        a = (centred[o] - per_token.mean()) / (per_token.std(ddof=1) + 1e-8)
        total += (smaller(o.r * a, clip(o.r, 0.8, 1.2) * a) - 1e-3 * (o.l - o.ref) ** 2 / 2).sum()
    return total / trained_tokens(groups)


def paper_remax(groups: Groups):
    """The baseline of each answer is a subscore of its verdict."""
    return sum((o.score - o.part("baseline")) * o.l.sum() for o in every(groups)) / len(every(groups))


def gae(o: Answer) -> np.ndarray:
    """GAE from the critic's values, with a KL per token in the reward; the tokens of an environment are left out."""
    row, following = [], 0.0
    for t in reversed(range(len(o.l))):
        last = t == len(o.l) - 1
        r = (o.score if last else 0.0) - 0.05 * (o.old[t] - o.ref[t])
        delta = r + (0.0 if last else o.v[t + 1]) - o.v[t]
        following = delta + 0.95 * following
        row.append(following)
    return np.array(row[::-1])


def paper_ppo(groups: Groups, iteration: Groups):
    """Whitened over all tokens of the iteration."""
    white = np.concatenate([gae(o) for o in every(iteration)])
    total = 0.0
    for o in every(groups):
        a = (gae(o) - white.mean()) / (white.std() + 1e-8)
        total += smaller(o.r * a, clip(o.r, 0.8, 1.2) * a).sum()
    return total / trained_tokens(groups)


def paper_grpo_process(groups: Groups, outcome: float = 0.0):
    total = 0.0
    for group in groups:
        steps = np.array([r for o in group for r in o.steps.values()])
        for o, a in trained(group, z(scores(group))):
            r = (np.array(list(o.steps.values())) - steps.mean()) / (steps.std(ddof=1) + 1e-6)
            ends = np.array(list(o.steps))
            credit = np.array([r[ends >= t].sum() + outcome * a for t in range(len(o.l))])
            u = smaller(o.r * credit, clip(o.r, 0.8, 1.2) * credit) - 0.04 * k3(o)
            total += u.sum() / len(o.l) / live(group)
    return total / live(groups)


PAPERS: dict[str, tuple[Callable[[Groups], complex], Method, float]] = {
    "grpo": (paper_grpo, grpo(), 0.3),
    "dr_grpo": (paper_dr_grpo, dr_grpo(), 0.3),
    "dapo": (paper_dapo, dapo(), 0.3),
    "rloo": (paper_rloo, rloo(), 0.3),
    "reinforce_pp": (paper_reinforce_pp, reinforce_pp(), 0.3),
    "reinforce": (paper_reinforce, reinforce(), 0.3),
    "reinforce_pp_baseline": (paper_reinforce_pp_baseline, reinforce_pp_baseline(), 0.3),
    "remax": (paper_remax, remax(), 0.3),
    "ppo": (paper_ppo, ppo(), 0.3),
    "grpo_process": (paper_grpo_process, grpo_process(), 0.3),
}
"""Transcription, method, and a spread of log-ratios at which its bounds are active on some tokens only."""

VARIANTS: dict[str, tuple[Callable[[Groups], complex], Method, float]] = {
    "dapo, complete answers": (
        lambda groups: paper_dapo(groups, complete=True), replace(dapo(), mask=(complete,)), 0.3
    ),
    "grpo_process, with outcomes": (
        lambda groups: paper_grpo_process(groups, 0.5), grpo_process(outcome=0.5), 0.3
    ),
}  # fmt: skip
"""Variants of the methods, under names of their own."""
