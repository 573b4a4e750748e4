"""The methods of the family `contrast`, transcribed from their papers and specifications."""

from collections.abc import Callable

import numpy as np

from groupwise.methods import (
    Method,
    dagrpo,
    on_policy_distillation,
    popo,
    real,
    refine,
    reg_grpo,
    srpo,
    trpa,
    veripo,
)
from tests.golden.papers_reward import group_mean
from tests.golden.whole_path import BUDGET, Answer, Groups, clip, scores, sg, smaller, z


def log_ratio(o: Answer):
    return (o.l - o.old).mean()


def split(group: list[Answer]) -> tuple[list[Answer], list[Answer]]:
    return [o for o in group if o.score == 1], [o for o in group if o.score != 1]


def paper_real(groups: Groups, product: bool = False):
    total = 0.0
    for group in groups:
        right, wrong = split(group)
        if not right or not wrong:
            continue
        up = sum(np.exp(log_ratio(o) / 0.5) for o in wrong)
        down = sum(np.exp(-log_ratio(o) / 0.5) for o in right)
        total -= np.log(1 + up * down) if product else np.log(1 + up) + np.log(1 + down)
    return total / len(groups)


def paper_real_binary(groups: Groups):
    total, count = 0.0, 0
    for group in groups:
        right, wrong = split(group)
        if not right or not wrong:
            continue
        total += sum(-np.log(1 + np.exp(-log_ratio(o) / 0.5)) for o in right)
        total += sum(-np.log(1 + np.exp(log_ratio(o) / 0.5)) for o in wrong)
        count += len(group)
    return total / count


def paper_reg_grpo(groups: Groups):
    total = 0.0
    for group in groups:
        r = scores(group)
        a = (r - r.mean()) / (r.std() + 1e-4)
        d = np.array([(o.l - o.old).sum() for o in group])
        away = d - d.mean()
        predicted = away / (np.sqrt((away**2).mean()) + 1e-4)
        for o, x, y in zip(group, a, predicted):
            kl = np.exp(o.ref - o.l) - (o.ref - o.l) - 1
            total += (-((x - y) ** 2) - 0.04 * kl.mean()) / len(group)
    return total / len(groups)


def paper_trpa(groups: Groups):
    gains, kl, tokens = [], 0.0, 0
    for group in groups:
        right, wrong = split(group)
        for i in right:
            for j in wrong:
                h = 2.5 * 0.1 * ((i.l - i.ref).mean() - (j.l - j.ref).mean())
                gains.append(-np.log(1 + np.exp(-h)))
        for o in group:
            kl += (np.exp(o.old - o.l) - (o.old - o.l) - 1).sum()
            tokens += len(o.l)
    return sum(gains) / len(gains) - 1e-3 * kl / tokens


def paper_dagrpo(groups: Groups):
    """Without written answers, and before the filter, it is GRPO with a token mean."""
    pairs = [(o, a) for group in groups for o, a in zip(group, z(scores(group)))]
    total = sum(smaller(o.r * a, clip(o.r, 0.8, 1.2) * a).sum() for o, a in pairs)
    return total / sum(len(o.l) for o, _ in pairs)


def paper_srpo(groups: Groups):
    """The divergences do not depend on the sampled token's log-prob, so they only add a constant here."""
    wrong = [o for group in groups for o in group if o.score != 1]
    mean = np.concatenate([np.exp(-o.hq) for o in wrong]).mean()
    total, tokens = 0.0, 0
    for group in groups:
        for o, a in zip(group, scores(group) - scores(group).mean()):
            tokens += len(o.l)
            if o.score == 1:
                total += smaller(o.r * a, clip(o.r, 0.8, 1.28) * a).sum()
            else:
                total -= (np.exp(-o.hq) / mean * o.d).sum()
    return total / tokens


def paper_distillation(groups: Groups, early: bool = False):
    total, tokens = 0.0, 0
    for group in groups:
        for o in group:
            a = o.q - o.old
            if early:
                before = np.cumsum(np.abs(a)) - np.abs(a)
                a = a * (1 + 0.5 * (1 - before / np.abs(a).sum()))
            total += (o.r * a).sum()
            tokens += len(o.l)
    return total / tokens


def paper_popo(groups: Groups):
    """All answers of a group: the filter that keeps the correct ones comes before."""
    total = 0.0
    for group in groups:
        w = np.array([np.exp(sg(o.l).mean() - o.old.mean()) for o in group])
        total += sum(x * o.l.mean() for x, o in zip(w / w.sum(), group))
    return total / len(groups)


def paper_refine(groups: Groups):
    total, tokens = 0.0, 0
    for group in groups:
        r = np.array([(o.score + 1 - (o.part - o.score) ** 2) / 4 for o in group])
        for o, a in zip(group, (r - r.mean()) / (r.std(ddof=1) + 1e-4)):
            total += smaller(o.r * a, clip(o.r, 0.8, 1.2) * a).sum()
            tokens += len(o.l)
    return total / tokens


def passes(o: Answer) -> bool:
    """Correct, complete, consistent, and not repetitive."""
    grams = [tuple(o.tokens[t : t + 4]) for t in range(len(o.l) - 3)]
    repeated = sum(gram in grams[:i] for i, gram in enumerate(grams))
    return o.score == 1 and not o.cut and o.part >= 0.5 and repeated <= len(grams) / 2


def paper_veripo(groups: Groups):
    gains = []
    for group in groups:
        level = [1 + len(o.l) / BUDGET if passes(o) else 0.0 for o in group]
        for i, better in enumerate(group):
            for j, worse in enumerate(group):
                if level[i] > level[j]:
                    gap = (better.l - better.ref).sum() - (worse.l - worse.ref).sum()
                    gains.append(-np.log(1 + np.exp(-0.1 * gap)))
    return sum(gains) / len(gains)


def paper_veripo_search(groups: Groups):
    return group_mean(groups, [list(z(np.array([o.score + 0.5 * o.part for o in group]))) for group in groups])


PAPERS: dict[str, tuple[Callable[[Groups], complex], Method, float]] = {
    "real": (paper_real, real(), 0.3),
    "reg_grpo": (paper_reg_grpo, reg_grpo(), 0.3),
    "trpa": (paper_trpa, trpa(), 0.3),
    "dagrpo": (paper_dagrpo, dagrpo(), 0.3),
    "srpo": (paper_srpo, srpo(), 0.3),
    "on_policy_distillation": (paper_distillation, on_policy_distillation(), 0.3),
    "popo": (paper_popo, popo(), 0.3),
    "refine": (paper_refine, refine(confidence="chain_true"), 0.3),
    "veripo": (paper_veripo, veripo(), 0.3),
}
"""Transcription, method, and a spread of log-ratios at which its bounds are active on some tokens only."""

VARIANTS: dict[str, tuple[Callable[[Groups], complex], Method, float]] = {
    "real, product": (lambda groups: paper_real(groups, product=True), real(form="product"), 0.3),
    "real, binary": (paper_real_binary, real(form="binary"), 0.3),
    "iw-opd": (lambda groups: paper_distillation(groups, early=True), on_policy_distillation(form="iw-opd"), 0.3),
    "veripo, search": (paper_veripo_search, veripo(phase="search", form="chain_true"), 0.3),
}
"""Variants of the methods, under names of their own."""
