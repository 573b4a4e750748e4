"""KL and JS divergences between two models' distributions over the vocabulary, without all logits at once."""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from groupwise.core import Usage
from groupwise.data import Backbone
from groupwise.learner.forward import LOGITS_AT_ONCE
from groupwise.models import logprobs

AT_ONCE = 3
"""The number of probability vectors in memory per token: for a JS divergence of both models and their mixture."""


def divergence(
    model: Backbone,
    hidden: Float[Tensor, "n width"],
    other: Backbone,
    other_hidden: Float[Tensor, "n other_width"],
    *,
    alpha: float,
    temperature: float,
    logits_at_once: int = LOGITS_AT_ONCE,
) -> Float[Tensor, " n"]:
    """The divergence between two models' distributions at each token, with gradient to `hidden` and the policy's head.

    `other` gets no gradient. Rows are computed in chunks of at most `logits_at_once` numbers, and backward recomputes
    each chunk. `Usage` if the heads have different vocabularies.
    """
    if not len(hidden):
        return hidden.sum(-1)  # keeps the graph
    with torch.no_grad():
        sizes = [head(rows[:1]).shape[-1] for head, rows in ((model.head, hidden), (other.head, other_hidden))]
    if sizes[0] != sizes[1]:
        what = "a divergence needs two models with the same number of logits"
        raise Usage(
            what, evidence=f"{sizes[0]} and {sizes[1]}", fix="use a reference or teacher with the policy's vocabulary"
        )

    def chunk(rows: Tensor, other_rows: Tensor) -> Tensor:
        with torch.no_grad():
            q = _finite(logprobs(other.head(other_rows), temperature))
        return between(_finite(logprobs(model.head(rows), temperature)), q, alpha)

    size = max(1, logits_at_once // (AT_ONCE * sizes[0]))
    chunks = [
        checkpoint(chunk, hidden[i : i + size], other_hidden[i : i + size], use_reentrant=False)
        for i in range(0, len(hidden), size)
    ]
    return torch.cat(chunks)


def between(p: Float[Tensor, "n v"], q: Float[Tensor, "n v"], alpha: float) -> Float[Tensor, " n"]:
    """The divergence of two distributions, given as log-probs: KL(q|p) for `alpha` 0, KL(p|q) for 1, else JS.

    >>> p, q = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.25, 0.75]]).log()
    >>> between(p, q, 1.0), between(p, q, 0.0)
    (tensor([0.1438]), tensor([0.1308]))
    """
    if alpha == 0:
        return (q.exp() * (q - p)).sum(-1)
    if alpha == 1:
        return (p.exp() * (p - q)).sum(-1)
    m = torch.logaddexp(q + math.log(alpha), p + math.log1p(-alpha))
    return alpha * (q.exp() * (q - m)).sum(-1) + (1 - alpha) * (p.exp() * (p - m)).sum(-1)


def _finite(logp: Float[Tensor, "n v"]) -> Float[Tensor, "n v"]:
    """Log-probs with -inf replaced by a large negative number, so that `0 * log 0` is 0."""
    return logp.clamp(min=torch.finfo(logp.dtype).min / 4)
