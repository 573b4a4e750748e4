"""The distribution that tokens are sampled from, and the choice of a token. Engine and learner share this code."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from groupwise.data import Sampling

__all__ = ["choose", "logprob_dtype", "logprobs", "truncated"]

BLOCK = 512
"""The number of vocabulary entries in a block: `choose` sums probabilities block by block."""


def logprob_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of log-probs for a weight dtype: at least float32.

    >>> logprob_dtype(torch.bfloat16), logprob_dtype(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.float64 if dtype == torch.float64 else torch.float32


def logprobs(logits: Float[Tensor, "rows v"], temperature: float = 1.0) -> Float[Tensor, "rows v"]:
    """`log_softmax(logits / T)`, at least in float32. T = 0 puts all probability on the first largest logit.

    >>> logprobs(torch.tensor([[1.0, 3.0, 3.0]]), 0.0).exp()
    tensor([[0., 1., 0.]])
    """
    logits = logits.to(logprob_dtype(logits.dtype))
    if temperature == 0:
        certain = torch.full_like(logits, -torch.inf)
        return certain.scatter(-1, logits.argmax(-1, keepdim=True), 0.0)
    return torch.log_softmax(logits if temperature == 1 else logits / temperature, -1)


def truncated(logits: Float[Tensor, "rows v"], sampling: Sampling) -> Float[Tensor, "rows v"]:
    """Log-probs at the sampling's temperature, after top-k, then top-p, then min-p, renormalised.

    Top-k keeps k tokens. Top-p keeps the fewest tokens whose probabilities sum to p. Min-p keeps tokens with at least
    min_p times the largest probability. Each keeps a prefix of the tokens sorted by falling probability; ties are in
    vocabulary order.

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
    mask = torch.zeros_like(keep).scatter(-1, order, keep)
    return torch.log_softmax(logp.masked_fill(~mask, -torch.inf), -1)


def choose(
    logp: Float[Tensor, "distributions v"], u: Float[Tensor, " rows"], of: Int[Tensor, " rows"] | None = None
) -> Int[Tensor, " rows"]:
    """Inverse-CDF sampling: the token at each `u` in [0, 1), in vocabulary order.

    Row i draws from distribution `of[i]`; without `of`, from distribution i. A large vocabulary is searched by blocks:
    first the block, then the token in it, so that cumulative sums run over block masses only. Sums are in float64; the
    mass of a block is summed in the dtype of `logp`. If `u` exceeds a total below 1, the last token of positive
    probability is chosen. A token of probability 0 is never chosen.

    >>> choose(torch.tensor([[0.5, 0.0, 0.5]]).log(), torch.tensor([0.0, 0.5, 0.999]), torch.zeros(3).long()).tolist()
    [0, 2, 2]
    """
    u, of = u.double(), torch.arange(len(logp), device=logp.device) if of is None else of
    if logp.shape[-1] <= 2 * BLOCK:
        return _inverse_cdf(logp.double().exp()[of], u)
    p = logp.exp()
    whole = p.shape[-1] // BLOCK
    mass = p[:, : whole * BLOCK].unflatten(-1, (whole, BLOCK)).sum(-1)
    mass = torch.cat([mass, p[:, whole * BLOCK :].sum(-1, keepdim=True)], -1).double()[of]
    block = _inverse_cdf(mass, u)
    before = (mass.cumsum(-1) - mass).gather(-1, block[:, None])[:, 0]
    token = block[:, None] * BLOCK + torch.arange(BLOCK, device=p.device)
    within = p[of[:, None], token.clamp(max=p.shape[-1] - 1)].double().masked_fill(token >= p.shape[-1], 0)
    return block * BLOCK + _inverse_cdf(within, u - before)


def _inverse_cdf(p: Float[Tensor, "rows v"], u: Float[Tensor, " rows"]) -> Int[Tensor, " rows"]:
    at = torch.searchsorted(p.cumsum(-1), u[:, None], right=True).squeeze(1)
    last = ((p > 0) * torch.arange(p.shape[-1], device=p.device)).amax(-1)
    return at.minimum(last)
