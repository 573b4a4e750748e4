"""Sampling for all rows at once on a GPU: each row has its own temperature, truncation and keyed random number.

The numbers are those of `groupwise.models.token_sampling` and `philox`, computed by operations that do not depend on
which rows run: no loop over distributions, no wait for the device, and no float64 matrix of rows and vocabulary.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from groupwise.data import Sampling
from groupwise.models import choose, logprob_dtype

MASK = 0xFFFFFFFF
MULTIPLIERS, WEYL = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)
"""The constants of Philox4x32."""
TINY = 5e-324
"""The min-p of a row without one: no token of positive probability is below it."""


def row_logprobs(
    logits: Float[Tensor, "rows v"], temperature: Float[Tensor, " rows"], *, greedy: bool
) -> Float[Tensor, "rows v"]:
    """`log_softmax(logits / T)` with a temperature per row. `greedy`: some are 0, all probability on the first maximum.

    >>> row_logprobs(torch.tensor([[1.0, 3.0, 3.0]] * 2), torch.tensor([0.0, 1.0]), greedy=True).exp().round(decimals=2)
    tensor([[0.0000, 1.0000, 0.0000],
            [0.0600, 0.4700, 0.4700]])
    """
    logits = logits.to(logprob_dtype(logits.dtype))
    temperature = temperature.to(logits.dtype)[:, None]
    if not greedy:
        return torch.log_softmax(logits / temperature, -1)
    certain = torch.full_like(logits, -torch.inf).scatter_(-1, logits.argmax(-1, keepdim=True), 0.0)
    logp = torch.log_softmax(logits / temperature.where(temperature > 0, 1), -1)
    return certain.where(temperature == 0, logp)


def row_bounds(samplings: Sequence[Sampling], vocabulary: int) -> Float[np.ndarray, "4 rows"]:
    """Temperature, and the bounds that `row_truncated` takes, as rows of numbers.

    Top-p keeps tokens up to the first whose cumulative probability reaches p: for `choose`, the largest number below p;
    2 without top-p. Top-k without a bound is the vocabulary. Min-p is a log.
    """
    rows = [
        (s.temperature, np.nextafter(s.top_p, 0) if s.top_p < 1 else 2, s.top_k or vocabulary, np.log(s.min_p or TINY))
        for s in samplings
    ]
    return np.ascontiguousarray(np.array(rows, np.float64).reshape(-1, 4).T)


def largest_needed(samplings: Iterable[Sampling], vocabulary: int) -> int | None:
    """The number of largest log-probs that `row_truncated` needs for these rows: a power of two, or the vocabulary.

    None if no row is truncated; 0 if min-p alone does it. Top-p without top-k needs the whole vocabulary.

    >>> top = [Sampling(top_k=20, top_p=0.9)], [Sampling(min_p=0.1), Sampling()], [Sampling(top_p=0.9)], [Sampling()]
    >>> [largest_needed(samplings, 1000) for samplings in top]
    [32, 0, 1000, None]
    """
    cut = [s for s in samplings if s.truncated]
    if not cut:
        return None
    most = max(vocabulary if s.top_p < 1 and not s.top_k else s.top_k for s in cut)
    return min(1 << (most - 1).bit_length(), vocabulary) if most else 0


def row_truncated(logp: Float[Tensor, "rows v"], bounds: Float[Tensor, "3 rows"], most: int) -> Float[Tensor, "rows v"]:
    """`truncated` with the bounds of each row from `row_bounds`: top-p, top-k, min-p.

    `most` is from `largest_needed`: so many largest log-probs are selected, and only the whole vocabulary is sorted, in
    the dtype of `logp`. The last token that top-p keeps is where the inverse of the cumulative distribution at p lies:
    `choose`, whose sums over a large vocabulary are in float64 over blocks. Of tokens that are as probable, those
    first in the vocabulary are kept.

    >>> bounds = torch.from_numpy(row_bounds([Sampling(top_p=0.7)], 3))[1:]
    >>> row_truncated(torch.tensor([[0.1, 0.6, 0.3]]).log(), bounds, 3).exp()
    tensor([[0.0000, 0.6667, 0.3333]])
    """
    below, top_k, floor = bounds[..., None].unbind()
    if not most:
        return _kept(logp, logp >= logp.amax(-1, keepdim=True) + floor)
    whole = most == logp.shape[-1]
    falling = logp.sort(dim=-1, descending=True).values if whole else logp.topk(most, dim=-1).values
    at = torch.arange(most, device=logp.device)
    within = torch.log_softmax(falling.masked_fill(at >= top_k, -torch.inf), -1)
    last = choose(within, below[:, 0])[:, None]
    bound = falling.gather(-1, last)
    ties = last + 1 - (falling > bound).sum(-1, keepdim=True)
    equal = logp == bound
    prefix = (logp > bound) | (equal & (equal.cumsum(-1, dtype=torch.int32) <= ties))
    if not whole:
        prefix |= (top_k > most) & (below > 1)
    return _kept(logp, prefix & (logp >= falling[:, :1] + floor))


def _kept(logp: Float[Tensor, "rows v"], keep: Bool[Tensor, "rows v"]) -> Float[Tensor, "rows v"]:
    return torch.log_softmax(logp.where(keep, -torch.inf), -1)


def row_uniforms(
    seed: int, purpose: Int[Tensor, " rows"], draw: Int[Tensor, " rows"], stream: Int[Tensor, " rows"],
    at: Int[Tensor, " rows"], ahead: int,
) -> Float[Tensor, "ahead rows"]:  # fmt: skip
    """`uniform` on the device, for `ahead` positions from `at` on. Streams are the 64 bits of an int64.

    >>> from groupwise.models import uniform
    >>> one, zero = torch.tensor([3]), torch.tensor([0])
    >>> row_uniforms(7, zero, one, one, zero, 2)[:, 0].tolist() == uniform((7, 0), 3, 3, [0, 1]).tolist()
    True
    """
    t = at + torch.arange(ahead, device=at.device)[:, None]
    draw, low, high = (x.expand_as(t) for x in (draw, stream & MASK, stream >> 32 & MASK))
    key = torch.full_like(purpose, seed & MASK), seed >> 32 ^ purpose * 0x9E3779B1 & MASK
    words = _philox((draw, low, high, t), key)
    return ((words[0] << 21) | (words[1] >> 11)).double() * 2.0**-53


def _philox(counter: Sequence[Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The first two words of Philox4x32-10 in int64: products wrap at 64 bits, and their words are masked."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        even, odd = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1 = (odd >> 32 & MASK) ^ c1 ^ k0, odd & MASK
        c2, c3 = (even >> 32 & MASK) ^ c3 ^ k1, even & MASK
        k0, k1 = k0 + WEYL[0] & MASK, k1 + WEYL[1] & MASK
    return c0, c1
