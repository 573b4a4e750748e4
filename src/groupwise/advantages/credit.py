"""Credit assignment: turns one advantage per sample into one advantage per token, over all samples of an iteration."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from groupwise.data import Batch, Credit, Logp, Segments, credit

__all__ = ["WhitenedTokens", "every_token"]


@credit
def every_token(x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " n"]:
    """Each token gets its sample's advantage."""
    return b.sequences.spread(x)


@dataclass(frozen=True, slots=True)
class WhitenedTokens(Credit):
    """Another credit's advantages, whitened over all trained tokens: `(A - mean) / (std + eps)`.

    REINFORCE++, arXiv:2501.03262. A mask takes its tokens out of mean and std, unless it reads the advantage.

    Caveat with a group baseline: a group whose answers are all correct has advantage 0 before whitening, but not after
    it if length correlates with reward, because 0 is then not the mean over tokens.
    """

    base_credit: Credit = every_token
    ddof: int = 0
    eps: float = 1e-8

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " n"]:
        credit = self.base_credit(x, b)
        return Segments(torch.zeros_like(b.sequences.index), 1).zscore(credit, ddof=self.ddof, eps=self.eps)


def last_of_sample(b: Batch) -> Bool[Tensor, " n"]:
    """For each token, whether it is the last trained token of its sample."""
    index = b.sequences.index
    last = torch.ones_like(index, dtype=torch.bool)
    last[:-1] = index[1:] != index[:-1]
    return last


def token_rewards(x: Float[Tensor, " s"], b: Batch, *, kl: float, model: str) -> Float[Tensor, " n"]:
    """Reward per token: `-kl (log pi_old - log model)` at each token, plus the sample's reward at its last token."""
    reward = torch.where(last_of_sample(b), b.sequences.spread(x), 0.0)
    return reward - kl * (b.logp_old - b[Logp(model)]) if kl else reward


def discounted(x: Float[Tensor, " n"], index: Int[Tensor, " n"], gamma: float) -> Float[Tensor, " n"]:
    """Discounted sums from each token to the end of its segment, in log2(n) vectorised passes over the n tokens.

    A running sum divided by `gamma^t` would overflow within a few hundred tokens.
    """
    reach = 1
    while reach < len(x):
        ahead = torch.where(index[reach:] == index[:-reach], x[reach:], 0.0)
        x = torch.cat([x[:-reach] + gamma**reach * ahead, x[-reach:]])
        reach *= 2
    return x
