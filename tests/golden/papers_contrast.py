"""The methods of the family `contrast`, transcribed from their papers and specifications."""

from collections.abc import Callable

import numpy as np

from groupwise.methods import Method, dagrpo, on_policy_distillation, popo, real, refine, reg_grpo, srpo, trpa, veripo
from tests.golden.papers_reward import group_mean, shaped_where_written
from tests.golden.whole_path import (
    BUDGET,
    Answer,
    Groups,
    clip,
    every,
    k3,
    k3_of,
    live,
    scores,
    sg,
    smaller,
    trained,
    trained_tokens,
    z,
)


def log_ratio(o: Answer):
    return (o.l - o.old).mean()


def split(group: list[Answer]) -> tuple[list[Answer], list[Answer]]:
    """The right and the other answers; one without a token has no likelihood to compare."""
    return [o for o in group if o.right and len(o.l)], [o for o in group if not o.right and len(o.l)]


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
        count += len(right) + len(wrong)
    return total / max(count, 1)


def paper_reg_grpo(groups: Groups):
    total = 0.0
    for group in groups:
        r = scores(group)
        a = (r - r.mean()) / (r.std() + 1e-4)
        d = np.array([(o.l - o.old).sum() for o in group])
        away = d - d.mean()
        predicted = away / (np.sqrt((away**2).mean()) + 1e-4)
        for o, (x, y) in trained(group, zip(a, predicted)):
            total += (-((x - y) ** 2) - 0.04 * k3(o).mean()) / live(group)
    return total / live(groups)


def paper_trpa(groups: Groups):
    """The better of two answers is the readable or the right one."""
    gains, kl = [], 0.0
    for group in groups:
        level = {o: 2 * o.right + o.readable for o in group if len(o.l)}
        for i in level:
            for j in level:
                if level[i] > level[j]:
                    h = (2.5 if i.right else 1.0) * 0.1 * ((i.l - i.ref).mean() - (j.l - j.ref).mean())
                    gains.append(-np.log(1 + np.exp(-h)))
        kl += sum(k3_of(o.old - o.l).sum() for o in group)
    return sum(gains) / max(len(gains), 1) - 1e-3 * kl / trained_tokens(groups)


def paper_dagrpo(groups: Groups):
    return shaped_where_written(groups, [list(z(np.array([float(o.right) for o in group]))) for group in groups])


def paper_srpo(groups: Groups):
    """The divergences do not depend on the sampled token's log-prob, so they only add a constant here."""
    mean = np.concatenate([np.exp(-o.hq) for o in every(groups) if not o.right]).mean()
    total = 0.0
    for group in groups:
        for o, a in zip(group, scores(group) - scores(group).mean()):
            if o.right:
                total += smaller(o.r * a, clip(o.r, 0.8, 1.28) * a).sum()
            else:
                total -= (np.exp(-o.hq) / mean * o.d).sum()
    return total / trained_tokens(groups)


def paper_distillation(groups: Groups, early: bool = False):
    total = 0.0
    for o in every(groups):
        a = o.q - o.old
        if early and len(o.l):
            before = np.cumsum(np.abs(a)) - np.abs(a)
            a = a * (1 + 0.5 * (1 - before / np.abs(a).sum()))
        total += (o.r * a).sum()
    return total / trained_tokens(groups)


def paper_popo(groups: Groups):
    """The filter keeps the correct answers."""
    total = 0.0
    for group in groups:
        some = [o for o in group if len(o.l)]
        if not some:
            continue
        w = np.array([np.exp(sg(o.l).mean() - o.old.mean()) for o in some])
        total += sum(x * o.l.mean() for x, o in zip(w / w.sum(), some))
    return total / len(groups)


def paper_refine(groups: Groups):
    """An answer that states no confidence has 1/2, less 1."""
    total = 0.0
    for group in groups:
        brier = [
            1 - (o.part("confidence") - o.right) ** 2 if "confidence" in o.subscores else 1 - 1 / 4 - 1 for o in group
        ]
        r = np.array([(o.right + x) / 4 for o, x in zip(group, brier)])
        for o, a in zip(group, (r - r.mean()) / (r.std(ddof=1) + 1e-4)):
            total += smaller(o.r * a, clip(o.r, 0.8, 1.2) * a).sum()
    return total / trained_tokens(groups)


def passes(o: Answer) -> bool:
    """Correct, complete, consistent, and not repetitive."""
    grams = [tuple(o.tokens[t : t + 4]) for t in range(o.n - 3)]
    repeated = sum(gram in grams[:i] for i, gram in enumerate(grams))
    return o.right and not o.cut and o.part("chain_true") >= 0.5 and repeated <= len(grams) / 2


def paper_veripo(groups: Groups):
    gains = []
    for group in groups:
        level = {o: 1 + o.n / BUDGET if passes(o) else 0.0 for o in group if len(o.l)}
        for better in level:
            for worse in level:
                if level[better] > level[worse]:
                    gap = (better.l - better.ref).sum() - (worse.l - worse.ref).sum()
                    gains.append(-np.log(1 + np.exp(-0.1 * gap)))
    return sum(gains) / max(len(gains), 1)


def paper_veripo_search(groups: Groups):
    return group_mean(groups, [list(z(np.array([o.right + 0.5 * o.part("other") for o in group]))) for group in groups])


PAPERS: dict[str, tuple[Callable[[Groups], complex], Method, float]] = {
    "real": (paper_real, real(), 0.3),
    "reg_grpo": (paper_reg_grpo, reg_grpo(), 0.3),
    "trpa": (paper_trpa, trpa(), 0.3),
    "dagrpo": (paper_dagrpo, dagrpo(), 0.3),
    "srpo": (paper_srpo, srpo(), 0.3),
    "on_policy_distillation": (paper_distillation, on_policy_distillation(), 0.3),
    "popo": (paper_popo, popo(), 0.3),
    "refine": (paper_refine, refine(), 0.3),
    "veripo": (paper_veripo, veripo(), 0.3),
}
"""Transcription, method, and a spread of log-ratios at which its bounds are active on some tokens only."""

VARIANTS: dict[str, tuple[Callable[[Groups], complex], Method, float]] = {
    "real, product": (lambda groups: paper_real(groups, product=True), real(loss_form="product"), 0.3),
    "real, binary": (paper_real_binary, real(loss_form="binary"), 0.3),
    "iw-opd": (lambda groups: paper_distillation(groups, early=True), on_policy_distillation(form="iw-opd"), 0.3),
    "veripo, search": (paper_veripo_search, veripo(phase="search", form="other"), 0.3),
}
"""Variants of the methods, under names of their own."""
