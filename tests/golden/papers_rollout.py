"""The methods of the family `rollout`, transcribed from their papers and specifications.

Their strategies have tests of their own; here all answers are to the plain prompt.
"""

from collections.abc import Callable

import numpy as np

from groupwise.methods import (
    Method,
    bubblespec,
    expo,
    fission_grpo,
    freshness_per,
    guide_grpo,
    hill,
    hora,
    igrpo,
    knapsack_rl,
    latr,
    masa,
    murphy,
    rest_rl,
    rgr_grpo,
    s_grpo,
    sage_hint,
    scaf_grpo,
    selective_rollout,
    syn_grpo,
    ton,
    train_long_think_short,
    vade,
)
from tests.golden.papers_reward import dual_clipped, group_mean, shaped_where_written, token_mean
from tests.golden.whole_path import Answer, Groups, clip, every, k3, live, scores, smaller, trained, trained_tokens, z


def paper_grpo_by_groups(groups: Groups):
    return group_mean(groups, [list(z(scores(group))) for group in groups])


def paper_grpo_by_tokens(groups: Groups):
    return token_mean(groups, [list(z(scores(group))) for group in groups])


def paper_sage(groups: Groups):
    z0 = [(scores(g) - scores(g).mean()) / (scores(g).std() + 1e-6) for g in groups]
    return token_mean(groups, [list(a) for a in z0], 0.2, 0.28)


def paper_expo(groups: Groups):
    return group_mean(groups, [list(z(scores(group))) for group in groups], 0.04)


def paper_hill(groups: Groups):
    return token_mean(groups, [list(z(scores(group))) for group in groups], 0.2, 0.28)


def paper_latr(groups: Groups):
    return token_mean(groups, [list(z(scores(group))) for group in groups], kl=0.01)


def paper_rgr(groups: Groups):
    return shaped_where_written(groups, [list(z(scores(group))) for group in groups])


def paper_guide(groups: Groups):
    """The old policy is the engine's."""
    total = 0.0
    for group in groups:
        for o, a in trained(group, z(scores(group))):
            r = np.exp(clip(o.l - o.mu, -20, 20))
            total += smaller(r * a, clip(r, 0.8, 1.2) * a).sum() / len(o.l) / live(group)
    return total / live(groups)


def paper_murphy(groups: Groups):
    """The credited score of an answer is a part that the tests give it."""
    rewards = [np.array([o.part("returned") for o in group]) for group in groups]
    return group_mean(groups, [list(z(r)) for r in rewards], 0.04)


def paper_fission(groups: Groups):
    """The format weight is 2 at the start of a run."""
    rewards = [np.array([2.0 * o.readable + 2.0 * o.score for o in group]) for group in groups]
    return token_mean(groups, [list((r - r.mean()) / (r.std() + 1e-6)) for r in rewards])


def paper_freshness(groups: Groups, iteration: Groups, dual: float = 0.0):
    """An answer has the importance weight that the tests give it. All its tokens have its reward.

    The old policy is the engine's.
    """
    per_token = np.concatenate([np.full(len(o.l), o.score) for o in every(iteration)])
    total = 0.0
    for o in every(groups):
        a = (o.score - per_token.mean()) / (per_token.std() + 1e-8)
        r = np.exp(clip(o.l - o.mu, -20, 20))
        gain = smaller(r * a, clip(r, 0.8, 1.2) * a)
        if dual and a < 0:
            gain = np.where(np.real(gain) < dual * a, dual * a, gain)
        total += o.part("replay") * gain.sum()
    return total / trained_tokens(groups)


def paper_rest(groups: Groups):
    rewards = [np.array([o.score + 0.001 * (not o.cut) for o in group]) for group in groups]
    return token_mean(groups, [list((r - r.mean()) / (r.std(ddof=1) + 1e-4)) for r in rewards])


def paper_syn(groups: Groups):
    """The diversity reward of an answer is a part that the tests give it."""
    rewards = [np.array([o.score + o.readable + 0.5 * o.part("diverse") for o in group]) for group in groups]
    return group_mean(groups, [list(z(r)) for r in rewards])


def paper_s_grpo(groups: Groups):
    """The exits are in the order of a part that the tests give the answers."""
    advantages = []
    for group in groups:
        r, found = np.zeros(len(group)), 0
        for i in sorted(range(len(group)), key=lambda i, group=group: group[i].part("exit")):
            if group[i].right:
                r[i] = 2.0**-found
                found += 1
        advantages.append(list(r - r.mean()))
    return token_mean(groups, advantages)


def paper_train_long(groups: Groups, budget: float = 256.0):
    def reward(o: Answer) -> float:
        return 0.3 * o.right + 0.6 * (o.n / budget if o.n <= budget else max((2 * budget - o.n) / budget, 0))

    return group_mean(groups, [list(z(np.array([reward(o) for o in group]))) for group in groups], 0.04)


def paper_dual_clip(groups: Groups, bound: float = np.inf):
    """The token mean of PPO's dual clip, with z-scores within a bound."""
    pairs = [(o, a) for group in groups for o, a in zip(group, z(scores(group)).clip(-bound, bound))]
    return sum(dual_clipped(o, a).sum() for o, a in pairs) / trained_tokens(groups)


def paper_ton(groups: Groups):
    """A reward for the outcome and one for the form. The ratio is 1: its gradient is that of log pi."""
    total = 0.0
    for group in groups:
        r = np.array([float(o.right) + o.readable for o in group])
        for o, a in trained(group, (r - r.mean()) / (r.std(ddof=1) + 1e-4)):
            total += (o.l * a - 0.04 * k3(o)).mean()
    return total / live(every(groups))


def paper_selective(groups: Groups):
    """Each turn of the model weighs the same."""
    total, turns = 0.0, 0
    for group in groups:
        r = scores(group)
        for o, a in zip(group, (r - r.mean()) / (r.std() + 1e-8)):
            total += sum(a * o.l[turn].mean() for turn in o.turns)
            turns += len(o.turns)
    return total / turns


PAPERS: dict[str, tuple[Callable[[Groups], complex], Method, float]] = {
    "bubblespec": (paper_grpo_by_tokens, bubblespec(), 0.3),
    "igrpo": (paper_grpo_by_groups, igrpo(), 0.3),
    "sage_hint": (paper_sage, sage_hint(), 0.3),
    "scaf_grpo": (paper_grpo_by_tokens, scaf_grpo(), 0.3),
    "guide_grpo": (paper_guide, guide_grpo(), 0.3),
    "expo": (paper_expo, expo(), 0.3),
    "murphy": (paper_murphy, murphy(), 0.3),
    "fission_grpo": (paper_fission, fission_grpo(), 0.3),
    "freshness_per": (paper_freshness, freshness_per(), 0.3),
    "rest_rl": (paper_rest, rest_rl(), 0.3),
    "syn_grpo": (paper_syn, syn_grpo(), 0.3),
    "latr": (paper_latr, latr(), 0.3),
    "hill": (paper_hill, hill(), 0.3),
    "rgr_grpo": (paper_rgr, rgr_grpo(), 0.3),
    "s_grpo": (paper_s_grpo, s_grpo(), 0.3),
    "train_long_think_short": (paper_train_long, train_long_think_short(), 0.3),
    "vade": (paper_expo, vade(), 0.3),
    "hora": (paper_expo, hora(), 0.3),
    "knapsack_rl": (paper_dual_clip, knapsack_rl(), 0.3),
    "masa": (paper_dual_clip, masa(), 0.3),
    "ton": (paper_ton, ton(), 0.3),
    "selective_rollout": (paper_selective, selective_rollout(), 0.3),
}
"""Transcription, method, and a spread of log-ratios at which its bounds are active on some tokens only."""

VARIANTS: dict[str, tuple[Callable[[Groups], complex], Method, float]] = {
    "train_long_think_short, budget 4": (
        lambda groups: paper_train_long(groups, 4.0), train_long_think_short(budget_tokens=4.0), 0.3
    ),
    "knapsack_rl, bound 1": (lambda groups: paper_dual_clip(groups, 1.0), knapsack_rl(bound=1.0), 0.3),
    "masa with ratios up to 20": (paper_dual_clip, masa(), 2.0),
}  # fmt: skip
"""Variants of the methods, under names of their own."""
