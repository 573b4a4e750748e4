"""Log-probs of chosen tokens: what samples begin with in common forwarded once, all logits never at once."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from groupwise.data import Backbone, Batch, LinearHead
from groupwise.learner.linear_logprobs import linear_logprobs
from groupwise.models import Shared, logprobs

__all__ = ["forward"]

LOGITS_AT_ONCE = 1 << 22
"""Logits alive at the same time: 16 MiB in float32. Beyond it the head runs in parts, recomputed on the way back."""


def forward(
    model: Backbone,
    batch: Batch,
    *,
    temperature: float,
    logits_at_once: int = LOGITS_AT_ONCE,
    through: Callable[[Backbone, Batch, Shared], Tensor] | None = None,
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """`logp` (in the graph) and entropy in nats (outside it) of every trainable token of the batch, at the temperature.

    The law is the full softmax of `logits / temperature`: the one that the engine samples from in training. `through`
    says how hidden states come about where that is not the model's plain forward.
    """
    device = batch.place.device
    layout = Shared.of([s.context for s in batch.samples], [s.tokens for s in batch.samples], device=device)
    starts = batch.length.cumsum(0) - batch.length
    rows = batch.sequences.spread(starts) + batch.place
    # Samples that still agree say the same of a token: of pairs of what predicts and what is said, each counts once.
    many = len(layout.tokens)
    pairs, back = (layout.target[rows] * many + layout.source[rows]).unique(return_inverse=True)
    source, target = pairs % many, pairs // many
    hidden = model(layout.tokens, layout) if through is None else through(model, batch, layout)
    hidden = hidden.index_select(0, source)  # whose gradient has one order
    bound = {"temperature": temperature, "logits_at_once": logits_at_once}
    if isinstance(model, LinearHead) and len(rows):
        logp, entropy = linear_logprobs(hidden, model.unembedding, target, **bound)
    else:
        logp, entropy = chosen(model.head, hidden, target, **bound)
    return logp.index_select(0, back), entropy.index_select(0, back)


def chosen(
    head: Callable[[Tensor], Tensor],
    hidden: Float[Tensor, "n width"],
    target: Int[Tensor, " n"],
    *,
    temperature: float,
    logits_at_once: int,
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Log-probs and entropies of the targets under any head, by chunks of rows that bound the logits alive."""

    def part(rows: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        law = logprobs(head(rows), temperature)
        with torch.no_grad():
            entropy = -(law.exp() * law.clamp(min=torch.finfo(law.dtype).min)).sum(-1)
        return law.gather(-1, ids[:, None])[:, 0], entropy

    if not len(target):
        empty = hidden.sum(-1)  # keeps the graph, so that an empty microbatch has a gradient of zero
        return empty, empty.detach()
    with torch.no_grad():
        vocabulary = head(hidden[:1]).shape[-1]
    size = max(1, logits_at_once // vocabulary)
    if len(target) <= size:
        return part(hidden, target)
    microbatches = [
        checkpoint(part, hidden[i : i + size], target[i : i + size], use_reentrant=False)
        for i in range(0, len(target), size)
    ]
    logp, entropy = zip(*microbatches)
    return torch.cat(logp), torch.cat(entropy)
