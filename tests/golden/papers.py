"""The papers' equations in NumPy, as printed: padded rows [B, T] with a mask, one function per formula, J to maximise.

It shares no code with the library: no packing, no segments, no torch.
"""

import numpy as np
from numpy.typing import NDArray

from groupwise.data import Batch, Logp

Array = NDArray[np.float64]


class Rows:
    """A packed batch as padded rows. The padding is 7.5, so that using it would change results."""

    def __init__(self, batch: Batch) -> None:
        lengths = batch.sequences.lengths.tolist()
        shape = (len(batch), max(lengths))
        self.mask = np.zeros(shape, bool)
        self.length = np.array(lengths, float)
        self.group = batch.groups.index.numpy()
        self.budget = float(batch.max_new_tokens)
        columns = {"new": batch.logp.detach(), "old": batch.logp_old, "mu": batch.logp_engine, "adv": batch.advantage}
        columns["ref"] = batch[Logp("reference")]
        for name, packed in columns.items():
            table = np.full(shape, 7.5)
            start = 0
            for row, n in enumerate(lengths):
                table[row, :n] = packed[start : start + n].numpy()
                self.mask[row, :n] = True
                start += n
            setattr(self, name, table)

    new: Array
    old: Array
    mu: Array
    adv: Array
    ref: Array

    @property
    def a(self) -> Array:
        """One advantage per row."""
        return self.adv[:, 0]

    @property
    def r(self) -> Array:
        return np.exp(self.new - self.old)

    def row_mean(self, x: Array) -> Array:
        return (x * self.mask).sum(1) / self.length

    def row_sum(self, x: Array) -> Array:
        return (x * self.mask).sum(1)

    def mean_over_groups(self, per_row: Array) -> float:
        return float(np.mean([per_row[self.group == g].mean() for g in np.unique(self.group)]))


def ppo(r: Array, a: Array, low: float, high: float) -> Array:
    return np.minimum(r * a, np.clip(r, 1 - low, 1 + high) * a)


def grpo(x: Rows, eps: float, beta: float) -> float:
    """1/G sum_i 1/|o_i| sum_t [min(r A, clip(r) A) - beta (pi_ref/pi - log(pi_ref/pi) - 1)], mean over groups."""
    kl = np.exp(x.ref - x.new) - (x.ref - x.new) - 1
    return x.mean_over_groups(x.row_mean(ppo(x.r, x.adv, eps, eps) - beta * kl))


def dr_grpo(x: Rows, eps: float) -> float:
    """1/N sum_i 1/C sum_t min(r A, clip(r) A)."""
    return float((x.row_sum(ppo(x.r, x.adv, eps, eps)) / x.budget).mean())


def dapo(x: Rows, low: float, high: float) -> float:
    """1 / sum_i |o_i| sum_i sum_t min(r A, clip(r, 1 - low, 1 + high) A)."""
    return float(x.row_sum(ppo(x.r, x.adv, low, high)).sum() / x.length.sum())


def gspo(x: Rows, low: float, high: float) -> float:
    """1/G sum_i min(s A, clip(s) A), s = (pi(y) / pi_old(y)) ** (1 / |y|)."""
    s = (np.exp(x.row_sum(x.new)) / np.exp(x.row_sum(x.old))) ** (1 / x.length)
    return x.mean_over_groups(ppo(s, x.a, low, high))


def rloo(x: Rows, low: float, high: float) -> float:
    """mean_i min(rho A, clip(rho) A), rho = pi(y) / pi_old(y)."""
    rho = np.exp(x.row_sum(x.new)) / np.exp(x.row_sum(x.old))
    return float(ppo(rho, x.a, low, high).mean())


def reinforce(x: Rows) -> float:
    """1/B sum_i A_i log pi(y_i)."""
    return float((x.a * x.row_sum(x.new)).mean())


def cispo(x: Rows, low: float, high: float, frozen: Array | None = None) -> float:
    """1 / sum |o| sum sum sg[clip(r, 1 - low, 1 + high)] A log pi; `frozen` is the r that the weight is made of."""
    weight = np.clip(x.r if frozen is None else frozen, 1 - low, 1 + high)
    return float(x.row_sum(weight * x.adv * x.new).sum() / x.length.sum())


def gmpo(x: Rows, e: float) -> float:
    """1/G sum_i (prod_t min[r^sgn A, clip(r^sgn A, e^-e, e^e)]^sgn A)^(1/|o|) A, the paper's form with powers."""
    sign = np.sign(x.a)[:, None]
    powered = x.r**sign
    factor = np.where(x.mask, np.minimum(powered, np.clip(powered, np.exp(-e), np.exp(e))) ** sign, 1.0)
    return x.mean_over_groups(factor.prod(1) ** (1 / x.length) * x.a)


def holder(x: Rows, p: float, low: float, high: float) -> float:
    """1/G sum_i (1/|o| sum_t d_t^p)^(1/p) A with d the ratio clipped on the side of the advantage's sign."""
    d = np.where(x.adv > 0, np.minimum(x.r, np.exp(high)), np.maximum(x.r, np.exp(-low)))
    return x.mean_over_groups(x.row_mean(d**p) ** (1 / p) * x.a)


def sapo(x: Rows, positive: float, negative: float) -> float:
    """1/G sum_i 1/|o| sum_t 4/tau sigma(tau (r - 1)) A."""
    tau = np.where(x.adv > 0, positive, negative)
    return x.mean_over_groups(x.row_mean(4 / tau / (1 + np.exp(-tau * (x.r - 1))) * x.adv))


def with_token_tis(x: Rows, cap: float) -> float:
    """DAPO's loss, each token times min(pi_old / mu, C)."""
    omega = np.minimum(np.exp(x.old - x.mu), cap)
    return float(x.row_sum(omega * ppo(x.r, x.adv, 0.2, 0.28)).sum() / x.length.sum())


def with_sequence_tis(x: Rows, cap: float) -> float:
    """GRPO's loss, each row times min(prod pi_old / mu, C)."""
    omega = np.minimum(np.exp(x.row_sum(x.old - x.mu)), cap)
    return x.mean_over_groups(omega * x.row_mean(ppo(x.r, x.adv, 0.2, 0.2)))


def with_icepop(x: Rows, low: float, high: float) -> float:
    """GRPO's loss, each token times rho inside the band and 0 outside; it stays in the length."""
    rho = np.exp(x.old - x.mu)
    omega = np.where((rho >= low) & (rho <= high), rho, 0.0)
    return x.mean_over_groups(x.row_mean(omega * ppo(x.r, x.adv, 0.2, 0.2)))


def reinforce_pp(x: Rows, eps: float, beta: float) -> float:
    """PPO's token clip over all tokens of the batch, less beta k2."""
    k2 = (x.new - x.ref) ** 2 / 2
    return float(x.row_sum(ppo(x.r, x.adv, eps, eps) - beta * k2).sum() / x.length.sum())
