"""The methods of the family `ratio`, transcribed from their papers and specifications."""

from collections.abc import Callable

import numpy as np

from groupwise.methods import (
    Method,
    cispo,
    ctpo,
    dhpo,
    dispo,
    etr,
    gmpo,
    gspo,
    gspo_token,
    holder_po,
    luspo,
    mdpo,
    sapo,
    sspo,
    train_inference_mismatch,
    vespo,
)
from tests.golden.whole_path import Answer, Groups, clip, every, live, scores, sg, smaller, trained, trained_tokens, z


def larger(a, b):
    return np.where(np.real(a) >= np.real(b), a, b)


def geometric(gap):
    """The geometric mean of ratios, whose log is bounded by 20."""
    return np.exp(clip(gap.mean(), -20, 20))


def geometric_per_token(o: Answer, tokens: list[int] | None = None):
    """GSPO-token's ratio over some tokens: the value of the geometric mean, the gradient of each token."""
    positions = list(range(len(o.l))) if tokens is None else tokens
    return sg(geometric((o.l - o.old)[positions])) * np.exp(o.l[positions]) / sg(np.exp(o.l[positions]))


def paper_gspo(groups: Groups):
    total = 0.0
    for group in groups:
        for o, a in trained(group, z(scores(group))):
            s = geometric(o.l - o.old)
            total += smaller(s * a, clip(s, 1 - 3e-4, 1 + 4e-4) * a) / live(group)
    return total / live(groups)


def paper_luspo(groups: Groups):
    total = 0.0
    for group in groups:
        for o, a in trained(group, z(scores(group))):
            s = geometric(o.l - o.old)
            total += len(o.l) * smaller(s * a, clip(s, 1 - 2e-3, 1 + 2.5e-3) * a) / live(group)
    return total / live(groups)


def paper_vespo(groups: Groups):
    total = 0.0
    for group in groups:
        for o, a in trained(group, z(scores(group))):
            k, decay = (2.0, 3.0) if a >= 0 else (3.0, 2.0)
            w = sg(np.exp(clip(np.log(o.r).sum(), -20, 20)))
            total += w**k * np.exp(decay * (1 - w)) * a * o.l.sum()
    return total / trained_tokens(groups)


def paper_gspo_token(groups: Groups):
    total = 0.0
    for group in groups:
        for o, a in trained(group, z(scores(group))):
            s = geometric_per_token(o)
            total += smaller(s * a, clip(s, 1 - 3e-4, 1 + 4e-4) * a).sum() / len(o.l) / live(group)
    return total / live(groups)


def paper_cispo(groups: Groups, mask: tuple[float, float] | None = None):
    total = 0.0
    for group in groups:
        for o, a in trained(group, z(scores(group))):
            live = np.ones(len(o.l))
            if mask:
                r = np.real(o.r)
                live = np.where(((a > 0) & (r > 1 + mask[1])) | ((a < 0) & (r < 1 - mask[0])), 0.0, 1.0)
            total += (live * sg(np.minimum(sg(o.r), 5.0)) * a * o.l).sum()
    return total / trained_tokens(groups)


def paper_dispo(groups: Groups):
    total = 0.0
    for group in groups:
        for o, a in trained(group, z(scores(group))):
            low, high = (0.8, 1.28) if o.right else (0.0, 5.0)
            total += (sg(clip(o.r, low, high)) * a * o.l).sum()
    return total / trained_tokens(groups)


def paper_gmpo(groups: Groups):
    """As printed, with powers of the sign; the mean is over the answers of a step, whatever their groups."""
    total = 0.0
    for group in groups:
        for o, a in trained(group, z(scores(group))):
            sign = 1 if a > 0 else -1
            power = o.r**sign
            inner = smaller(power, clip(power, np.exp(-0.4), np.exp(0.4))) ** sign
            total += np.prod(inner) ** (1 / len(o.l)) * a
    return total / live(every(groups))


def paper_gmpo_of_the_sum(groups: Groups):
    total = 0.0
    for group in groups:
        for o, a in trained(group, z(scores(group))):
            gap = np.log(o.r).sum()
            gap = smaller(gap, 0.4 + 0 * gap) if a > 0 else larger(gap, -0.4 + 0 * gap)
            total += np.exp(gap / len(o.l)) * a
    return total / live(every(groups))


def paper_sapo(groups: Groups):
    total = 0.0
    for group in groups:
        for o, a in trained(group, z(scores(group))):
            tau = 1.0 if a > 0 else 1.05
            total += (4 / tau / (1 + np.exp(-tau * (o.r - 1))) * a).sum() / len(o.l) / live(group)
    return total / live(groups)


def paper_etr(groups: Groups):
    total = 0.0
    for group in groups:
        p = np.mean([o.right for o in group])
        for o, a in trained(group, z(scores(group))):
            scale = clip((1 + 0.5 * (abs(a) - 1)) * (1 + 0.5 * (4 * p * (1 - p) - 0.5)), 0.5, 2.0)
            near = clip(o.r, 1 - 0.2 * scale, 1 + 0.2 * scale)
            total += smaller(o.r * a, near * a).sum() / len(o.l) / live(group)
    return total / live(groups)


def paper_dhpo(groups: Groups, guided: bool = False, separate: bool = False):
    total = 0.0
    for group in groups:
        for o, a in trained(group, z(scores(group))):
            w = o.h / o.h.max() if guided else 0.5
            r, s = o.r, geometric_per_token(o)
            r_near, s_near = clip(r, 0.8, 1.28), clip(s, 1 - 3e-4, 1 + 4e-4)
            if separate:
                gain = w * smaller(r * a, r_near * a) + (1 - w) * smaller(s * a, s_near * a)
            else:
                gain = smaller((w * r + (1 - w) * s) * a, (w * r_near + (1 - w) * s_near) * a)
            total += gain.sum() / len(o.l) / live(group)
    return total / live(groups)


def paper_sspo(groups: Groups):
    total = 0.0
    for group in groups:
        for o, a in trained(group, z(scores(group))):
            for sentence in o.sentences:
                s = geometric_per_token(o, sentence)
                k = np.clip(o.h[sentence].mean() / o.h.mean(), 0.5, 1.5)
                near = clip(s, 1 - 0.05 * k, 1 + 0.05 * k)
                total += smaller(s * a, near * a).sum() / len(o.l) / live(group)
    return total / live(groups)


def sequence_tis(o: Answer, cap: float):
    return min(np.exp((o.old - o.mu).sum()), cap)


def paper_ctpo(groups: Groups):
    total = 0.0
    for group in groups:
        for o, a in trained(group, z(scores(group))):
            k = clip(np.cumsum(clip(np.real(o.l) - o.old, -20, 20)), -20, 10)
            position = np.arange(1, len(o.l) + 1) ** 0.5
            log = k + o.l - sg(o.l)
            near = np.exp(clip(log, -0.025 * position, 0.05 * position))
            gain = smaller(np.exp(log) * a, near * a)
            if a < 0:
                gain = larger(gain, np.exp(0.05 * position) * a)
            total += sequence_tis(o, 5.0) * gain.sum()
    return total / trained_tokens(groups)


def z_of_the_code(rewards: np.ndarray) -> np.ndarray:
    return (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-8)


def paper_holder_po(groups: Groups, p: float = 2.0, tokens_first: bool = False):
    total = 0.0
    for group in groups:
        for o, a in trained(group, z_of_the_code(scores(group))):
            r = o.r
            if tokens_first:
                r = smaller(r, clip(r, 0.8, 1.2)) if a >= 0 else larger(r, clip(r, 0.8, 1.2))
            rho = (r**p).mean() ** (1 / p)
            gain = rho * a if tokens_first else smaller(rho * a, clip(rho, 0.8, 1.2) * a)
            total += gain / live(group)
    return total / live(groups)


def paper_mdpo(groups: Groups, iteration: Groups):
    rewards = scores(every(iteration))
    total = 0.0
    for o in every(groups):
        a = (o.score - rewards.mean()) / (rewards.std() + 1e-8)
        total += (o.r * a - (o.r * np.log(o.r) - o.r + 1)).sum()
    return total / trained_tokens(groups)


def paper_mdpo_squared(groups: Groups):
    total, count = 0.0, 0
    for group in groups:
        for o, a in trained(group, scores(group) - scores(group).mean()):
            total -= ((o.l - o.old).sum() - a) ** 2
            count += 1
    return total / count


def paper_mismatch(weights: Callable[[Answer, Groups], np.ndarray]):
    """GRPO without KL, times a weight per token."""

    def paper(groups: Groups):
        total = 0.0
        for group in groups:
            for o, a in trained(group, z(scores(group))):
                gain = weights(o, groups) * smaller(o.r * a, clip(o.r, 0.8, 1.2) * a)
                total += gain.sum() / len(o.l) / live(group)
        return total / live(groups)

    return paper


def rho(o: Answer) -> np.ndarray:
    return np.exp(o.old - o.mu)


def icepop(o: Answer, groups: Groups) -> np.ndarray:
    return np.where((rho(o) >= 0.5) & (rho(o) <= 5), rho(o), 0.0)


def sequence_mis(o: Answer, groups: Groups) -> np.ndarray:
    product = np.prod(rho(o))
    return np.full(len(o.l), product if product <= 3 else 0.0)


def sequence_mask_tis(o: Answer, groups: Groups) -> np.ndarray:
    mean = np.prod(rho(o)) ** (1 / len(o.l))
    return rho(o) if 0.5 <= mean <= 5 else np.zeros(len(o.l))


def normalised(o: Answer, groups: Groups) -> np.ndarray:
    weights = np.concatenate([np.minimum(rho(x), 2.0) for x in every(groups)])
    return np.minimum(rho(o), 2.0) / weights.mean()


def paper_v3_2(groups: Groups):
    total = 0.0
    for group in groups:
        for o, a in trained(group, z(scores(group))):
            if a < 0 and np.mean(o.mu - np.real(o.l)) > 0.1:
                continue
            total += smaller(o.r * a, clip(o.r, 0.8, 1.2) * a).sum() / len(o.l) / live(group)
    return total / live(groups)


PAPERS: dict[str, tuple[Callable[[Groups], complex], Method, float]] = {
    "gspo": (paper_gspo, gspo(), 6e-4),
    "gspo_token": (paper_gspo_token, gspo_token(), 6e-4),
    "luspo": (paper_luspo, luspo(), 4e-3),
    "vespo": (paper_vespo, vespo(), 0.3),
    "cispo": (paper_cispo, cispo(), 1.5),
    "gmpo": (paper_gmpo, gmpo(), 0.5),
    "sapo": (paper_sapo, sapo(), 0.8),
    "dispo": (paper_dispo, dispo(), 0.5),
    "etr": (paper_etr, etr(), 0.3),
    "dhpo": (paper_dhpo, dhpo(), 0.2),
    "sspo": (paper_sspo, sspo(), 0.05),
    "ctpo": (paper_ctpo, ctpo(), 0.05),
    "holder_po": (paper_holder_po, holder_po(), 0.3),
    "mdpo": (paper_mdpo, mdpo(), 0.3),
    "train_inference_mismatch": (
        paper_mismatch(lambda o, groups: np.minimum(rho(o), 2.0)), train_inference_mismatch(), 0.3
    ),
}  # fmt: skip
"""Transcription, method, and a spread of log-ratios at which its bounds are active on some tokens only."""

VARIANTS: dict[str, tuple[Callable[[Groups], complex], Method, float]] = {
    "cispo, masked": (lambda groups: paper_cispo(groups, (0.2, 0.28)), cispo(masked=(0.2, 0.28)), 0.3),
    "gmpo, sum": (paper_gmpo_of_the_sum, gmpo(clamped_unit="sequence"), 0.3),
    "dhpo, by entropy": (lambda groups: paper_dhpo(groups, guided=True), dhpo(entropy_guided=True), 0.2),
    "holder_po, tokens": (lambda groups: paper_holder_po(groups, tokens_first=True), holder_po(form="token"), 0.3),
    "holder_po, p = -2": (lambda groups: paper_holder_po(groups, -2.0), holder_po(start_value=-2.0), 0.3),
    "mdpo, squared": (paper_mdpo_squared, mdpo(form="squared"), 0.3),
    "sequence_tis": (
        paper_mismatch(lambda o, groups: np.full(len(o.l), sequence_tis(o, 2.0))),
        train_inference_mismatch(correction="sequence_tis"), 0.3
    ),
    "icepop": (paper_mismatch(icepop), train_inference_mismatch(correction="icepop"), 0.3),
    "sequence_mis": (paper_mismatch(sequence_mis), train_inference_mismatch(correction="sequence_mis"), 0.3),
    "sequence_mask_tis": (
        paper_mismatch(sequence_mask_tis), train_inference_mismatch(correction="sequence_mask_tis"), 0.3
    ),
    "normalised": (paper_mismatch(normalised), train_inference_mismatch(correction="normalised"), 0.3),
    "v3.2": (paper_v3_2, train_inference_mismatch(correction="v3.2"), 0.3),
}  # fmt: skip
"""Variants of the methods, under names of their own."""
