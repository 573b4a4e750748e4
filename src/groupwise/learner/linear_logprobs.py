"""The law of a linear head at chosen tokens: the vocabulary goes by in blocks, and comes by again on the way back."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from groupwise.models import logprob_dtype

NARROWEST = 256
"""Entries of the vocabulary in a block, at least: below that a matrix product is slow."""

Pair = tuple[Float[Tensor, " n"], Float[Tensor, " n"]]


def linear_logprobs(
    hidden: Float[Tensor, "n width"],
    weight: Float[Tensor, "v width"],
    target: Int[Tensor, " n"],
    *,
    temperature: float,
    logits_at_once: int,
) -> Pair:
    """Log-probs of the targets (in the graph) and entropies (outside it) under `softmax(hidden @ weight.T / T)`.

    Never more than about `logits_at_once` logits are alive. The sums run along with their maximum (online softmax,
    arXiv:1805.02867); where all logits fit, their softmax is kept for the way back, else it is computed again.

    >>> logp, entropy = linear_logprobs(torch.zeros(1, 3), torch.zeros(4, 3), torch.tensor([2]), temperature=1.0,
    ...                            logits_at_once=1)
    >>> logp.exp(), entropy.exp()
    (tensor([0.2500]), tensor([4.]))
    """
    return _LinearLaw.apply(hidden, weight, target, temperature, logits_at_once)  # type: ignore[return-value]


class _LinearLaw(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, target: Tensor, temperature: float, logits_at_once: int
    ) -> Pair:
        vocabulary = len(weight)
        size = max(NARROWEST, logits_at_once // len(hidden))
        blocks = [slice(at, min(at + size, vocabulary)) for at in range(0, vocabulary, size)]
        top = torch.full_like(target, -torch.inf, dtype=logprob_dtype(hidden.dtype))
        total, weighted, said, kept = torch.zeros_like(top), torch.zeros_like(top), torch.zeros_like(top), None
        for block in blocks:
            x = _logits(hidden, weight[block], temperature)
            own, place = _here(target, block)
            said = torch.where(own, x.gather(1, place[:, None])[:, 0], said)
            high = x.amax(-1)
            p = x.sub_(high[:, None]).exp()
            mass = p.sum(-1)
            if len(blocks) == 1:
                kept = p / mass[:, None]
            bent = p.mul_(x).sum(-1)  # of p log p: what the entropy lacks
            peak = torch.maximum(top, high)
            fade, rise = (top - peak).exp(), (high - peak).exp()
            sunk = torch.where(fade > 0, top - peak, 0)  # the first block has nothing before it
            weighted = fade * (weighted + sunk * total) + rise * (bent + (high - peak) * mass)
            total = fade * total + rise * mass
            top = peak
        base = top + total.log()
        ctx.save_for_backward(hidden, weight, target, base, kept)
        ctx.blocks, ctx.temperature = blocks, temperature
        entropy = total.log() - weighted / total
        ctx.mark_non_differentiable(entropy)
        return said - base, entropy

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, target, base, kept = ctx.saved_tensors
        to_hidden = torch.zeros_like(hidden) if ctx.needs_input_grad[0] else None
        to_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        along = (grad_outputs[0] / ctx.temperature)[:, None]
        for block in ctx.blocks:
            if kept is None:
                p = _logits(hidden, weight[block], ctx.temperature).sub_(base[:, None]).exp_()
            else:
                p = kept
            pull = p.mul(-along) if p is kept else p.mul_(-along)
            own, here = _here(target, block)
            pull.scatter_add_(1, here[:, None], along * own[:, None])
            pull = pull.to(hidden.dtype)
            if to_hidden is not None:
                to_hidden.addmm_(pull, weight[block])
            if to_weight is not None:
                torch.mm(pull.T, hidden, out=to_weight[block])
        return to_hidden, to_weight, None, None, None


def _logits(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """Logits over the temperature, at least in float32."""
    x = (hidden @ weight.T).to(logprob_dtype(hidden.dtype))
    return x if temperature == 1 else x.div_(temperature)


def _here(target: Tensor, block: slice) -> tuple[Tensor, Tensor]:
    """Which targets lie in the block, and each one's place in it (any place for those outside)."""
    own = (target >= block.start) & (target < block.stop)
    return own, (target - block.start).clamp(0, block.stop - block.start - 1)
