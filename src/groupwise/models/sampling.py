"""The law that tokens are drawn from, and drawing from it: what engine and learner must agree on."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from groupwise.data import Sampling

__all__ = ["choose", "logprob_dtype", "logprobs", "truncated"]

BLOCK = 512
"""Entries of the vocabulary whose mass is summed as one."""


def logprob_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of log-probs under weights of this one: at least float32.

    >>> logprob_dtype(torch.bfloat16), logprob_dtype(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.float64 if dtype == torch.float64 else torch.float32


def logprobs(logits: Float[Tensor, "rows v"], temperature: float = 1.0) -> Float[Tensor, "rows v"]:
    """`log_softmax(logits / T)`, at least in float32. T = 0 is certainty of the largest logit, the first of equals.

    >>> logprobs(torch.tensor([[1.0, 3.0, 3.0]]), 0.0).exp()
    tensor([[0., 1., 0.]])
    """
    logits = logits.to(logprob_dtype(logits.dtype))
    if temperature == 0:
        certain = torch.full_like(logits, -torch.inf)
        return certain.scatter(-1, logits.argmax(-1, keepdim=True), 0.0)
    return torch.log_softmax(logits if temperature == 1 else logits / temperature, -1)


def truncated(logits: Float[Tensor, "rows v"], sampling: Sampling) -> Float[Tensor, "rows v"]:
    """The law at the sampling's temperature, cut by top-k, then top-p, then min-p, and renormalised.

    Top-k keeps k tokens, top-p the fewest whose probabilities reach p, min-p those of at least min_p times the
    largest. Each is a beginning of the tokens in falling order, equals in the order of the vocabulary.

    >>> truncated(torch.tensor([[0.1, 0.6, 0.3]]).log(), Sampling(top_p=0.7)).exp()
    tensor([[0.0000, 0.6667, 0.3333]])
    """
    logp = logprobs(logits, sampling.temperature)
    if not sampling.truncated:
        return logp
    falling, order = logp.double().sort(dim=-1, descending=True, stable=True)
    p = falling.exp()
    if sampling.top_k:
        p[:, sampling.top_k :] = 0
    p /= p.sum(-1, keepdim=True)
    keep = (p > 0) & (p >= sampling.min_p * p[:, :1])
    if sampling.top_p < 1:
        keep[:, 1:] &= p.cumsum(-1)[:, :-1] < sampling.top_p
    kept = torch.zeros_like(keep).scatter(-1, order, keep)
    return torch.log_softmax(logp.masked_fill(~kept, -torch.inf), -1)


def choose(
    logp: Float[Tensor, "laws v"], u: Float[Tensor, " rows"], of: Int[Tensor, " rows"] | None = None
) -> Int[Tensor, " rows"]:
    """The token at each `u` in [0, 1) of a cumulative law, in the order of the vocabulary.

    Row i draws from law `of[i]`; without `of`, each from its own. A block of the vocabulary is found first, then the
    token in it: only the masses of blocks are ever summed over the whole vocabulary. Summed in float64, inside a block
    of a large vocabulary in the law's dtype. A `u` beyond a sum that falls short of 1 gives the last token of positive
    probability, and no token of probability 0 is ever chosen.

    >>> choose(torch.tensor([[0.5, 0.0, 0.5]]).log(), torch.tensor([0.0, 0.5, 0.999]), torch.zeros(3).long()).tolist()
    [0, 2, 2]
    """
    u, of = u.double(), torch.arange(len(logp), device=logp.device) if of is None else of
    if logp.shape[-1] <= 2 * BLOCK:
        return _at(logp.double().exp()[of], u)
    p = logp.exp()
    whole = p.shape[-1] // BLOCK
    mass = p[:, : whole * BLOCK].unflatten(-1, (whole, BLOCK)).sum(-1)
    mass = torch.cat([mass, p[:, whole * BLOCK :].sum(-1, keepdim=True)], -1).double()[of]
    block = _at(mass, u)
    before = (mass.cumsum(-1) - mass).gather(-1, block[:, None])[:, 0]
    place = block[:, None] * BLOCK + torch.arange(BLOCK, device=p.device)
    inside = p[of[:, None], place.clamp(max=p.shape[-1] - 1)].double().masked_fill(place >= p.shape[-1], 0)
    return block * BLOCK + _at(inside, u - before)


def _at(p: Float[Tensor, "rows v"], u: Float[Tensor, " rows"]) -> Int[Tensor, " rows"]:
    at = torch.searchsorted(p.cumsum(-1), u[:, None], right=True).squeeze(1)
    last = ((p > 0) * torch.arange(p.shape[-1], device=p.device)).amax(-1)
    return at.minimum(last)
