"""Log-probs and entropies of a batch's tokens. Shared prefixes are forwarded once; logits are computed in chunks."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from groupwise.data import Backbone, Batch, DistributionMeasure, HasLinearHead
from groupwise.learner.linear_logprobs import linear_logprobs
from groupwise.models import PrefixPacking, logprobs

__all__ = ["forward"]

LOGITS_AT_ONCE = 1 << 22
"""The most logits in memory at once: 16 MiB in float32. Above it the head runs in chunks, recomputed in backward."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenStates:
    """The hidden states that predict a batch's tokens, without the repetitions of samples with a shared prefix."""

    hidden: Float[Tensor, "pairs width"]
    target: Int[Tensor, " pairs"]
    state_of_token: Int[Tensor, " n"]
    """For each trainable token, the index of its (hidden state, target) pair."""


def hidden_states(
    model: Backbone, batch: Batch, through: Callable[[Backbone, Batch, PrefixPacking], Tensor] | None = None
) -> TokenStates:
    """Run the model on a batch; returns the hidden states that predict its trainable tokens.

    `through` replaces the model's forward pass.
    """
    device = batch.index_in_sample.device
    samples = batch.samples
    layout = PrefixPacking.of(
        [s.context for s in samples],
        [s.tokens for s in samples],
        contents=[s.content_hash for s in samples],
        device=device,
    )
    starts = batch.length.cumsum(0) - batch.length
    rows = batch.sequences.spread(starts) + batch.index_in_sample
    # Samples with a shared prefix repeat the same (hidden state, target) pair; compute each distinct pair once.
    packed = len(layout.tokens)
    pairs, pair = (layout.target_tokens[rows] * packed + layout.predicting_indices[rows]).unique(return_inverse=True)
    hidden = model(layout.tokens, layout) if through is None else through(model, batch, layout)
    hidden = hidden.index_select(0, pairs % packed)  # its gradient is summed in a fixed order
    return TokenStates(hidden, pairs // packed, pair)


def token_logprobs(
    model: Backbone, states: TokenStates, *, temperature: float, logits_at_once: int = LOGITS_AT_ONCE
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Log-probs (in the graph) and entropies in nats (detached) of the tokens.

    The distribution is the full softmax of `logits / temperature`, which the engine samples from in training.
    """
    bound = {"temperature": temperature, "logits_at_once": logits_at_once}
    if isinstance(model, HasLinearHead) and len(states.target):
        logp, entropy = linear_logprobs(states.hidden, model.unembedding, states.target, **bound)
    else:
        logp, entropy = chunked_logprobs(model.head, states.hidden, states.target, **bound)
    return logp.index_select(0, states.state_of_token), entropy.index_select(0, states.state_of_token)


def forward(
    model: Backbone,
    batch: Batch,
    *,
    temperature: float,
    logits_at_once: int = LOGITS_AT_ONCE,
    through: Callable[[Backbone, Batch, PrefixPacking], Tensor] | None = None,
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Log-probs (in the graph) and entropies in nats (detached) of every trainable token of the batch.

    See `hidden_states` and `token_logprobs`.
    """
    states = hidden_states(model, batch, through)
    return token_logprobs(model, states, temperature=temperature, logits_at_once=logits_at_once)


@torch.no_grad()
def of_distributions(
    model: Backbone,
    states: TokenStates,
    measure: DistributionMeasure,
    *,
    temperature: float,
    logits_at_once: int = LOGITS_AT_ONCE,
) -> Float[Tensor, " n"]:
    """A number per token that is computed from the whole distribution, such as the entropy, in chunks of logits."""
    if not len(states.target):
        return states.hidden.sum(-1).index_select(0, states.state_of_token)
    size = max(1, logits_at_once // model.head(states.hidden[:1]).shape[-1])
    chunks = [
        measure(logprobs(model.head(rows), temperature), ids)
        for rows, ids in zip(states.hidden.split(size), states.target.split(size))
    ]
    return torch.cat(chunks).index_select(0, states.state_of_token)


def chunked_logprobs(
    head: Callable[[Tensor], Tensor],
    hidden: Float[Tensor, "n width"],
    target: Int[Tensor, " n"],
    *,
    temperature: float,
    logits_at_once: int,
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Log-probs and entropies of the targets under any head, in chunks of rows of at most `logits_at_once` logits."""

    def chunk(rows: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        logp = logprobs(head(rows), temperature)
        with torch.no_grad():
            entropy = -(logp.exp() * logp.clamp(min=torch.finfo(logp.dtype).min)).sum(-1)
        return logp.gather(-1, ids[:, None])[:, 0], entropy

    if not len(target):
        return chunk(hidden, target)  # keeps model and head in the graph: an empty microbatch has a gradient of zero
    with torch.no_grad():
        vocabulary = head(hidden[:1]).shape[-1]
    size = max(1, logits_at_once // vocabulary)
    if len(target) <= size:
        return chunk(hidden, target)
    chunks = [
        checkpoint(chunk, hidden[i : i + size], target[i : i + size], use_reentrant=False)
        for i in range(0, len(target), size)
    ]
    logp, entropy = zip(*chunks)
    return torch.cat(logp), torch.cat(entropy)
