"""Fused log-probs and entropies under a linear head: blocks of the vocabulary, recomputed in backward."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from groupwise.models import logprob_dtype

NARROWEST = 256
"""Smallest number of vocabulary entries in a block: with fewer, the matrix product is slow."""

Pair = tuple[Float[Tensor, " n"], Float[Tensor, " n"]]


def linear_logprobs(
    hidden: Float[Tensor, "n width"],
    weight: Float[Tensor, "v width"],
    target: Int[Tensor, " n"],
    *,
    temperature: float,
    logits_at_once: int,
) -> Pair:
    """Log-probs of the targets (in the graph) and entropies (detached) under `softmax(hidden @ weight.T / T)`.

    At most about `logits_at_once` logits exist at once. Sums are rescaled to a running maximum (online softmax,
    arXiv:1805.02867). If all logits fit, their softmax is saved for backward; otherwise it is recomputed there.

    >>> logp, entropy = linear_logprobs(torch.zeros(1, 3), torch.zeros(4, 3), torch.tensor([2]), temperature=1.0,
    ...                            logits_at_once=1)
    >>> logp.exp(), entropy.exp()
    (tensor([0.2500]), tensor([4.]))
    """
    return _LinearLogprobs.apply(hidden, weight, target, temperature, logits_at_once)  # type: ignore[return-value]


class _LinearLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, target: Tensor, temperature: float, logits_at_once: int
    ) -> Pair:
        vocabulary = len(weight)
        size = max(NARROWEST, logits_at_once // len(hidden))
        blocks = [slice(at, min(at + size, vocabulary)) for at in range(0, vocabulary, size)]
        top = torch.full_like(target, -torch.inf, dtype=logprob_dtype(hidden.dtype))
        total, weighted, logit = torch.zeros_like(top), torch.zeros_like(top), torch.zeros_like(top)
        softmax = None
        for block in blocks:
            x = _logits(hidden, weight[block], temperature)
            inside, index = _in_block(target, block)
            logit = torch.where(inside, x.gather(1, index[:, None])[:, 0], logit)
            high = x.amax(-1)
            p = x.sub_(high[:, None]).exp()
            mass = p.sum(-1)
            if len(blocks) == 1:
                softmax = p / mass[:, None]
            p_log_p = p.mul_(x).sum(-1)
            peak = torch.maximum(top, high)
            fade, rise = (top - peak).exp(), (high - peak).exp()
            shift = torch.where(fade > 0, top - peak, 0)  # before the first block, top is -inf
            weighted = fade * (weighted + shift * total) + rise * (p_log_p + (high - peak) * mass)
            total = fade * total + rise * mass
            top = peak
        lse = top + total.log()
        ctx.save_for_backward(hidden, weight, target, lse, softmax)
        ctx.blocks, ctx.temperature = blocks, temperature
        entropy = total.log() - weighted / total
        ctx.mark_non_differentiable(entropy)
        return logit - lse, entropy

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, target, lse, softmax = ctx.saved_tensors
        to_hidden = torch.zeros_like(hidden) if ctx.needs_input_grad[0] else None
        to_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        grad = (grad_outputs[0] / ctx.temperature)[:, None]
        for block in ctx.blocks:
            if softmax is None:
                p = _logits(hidden, weight[block], ctx.temperature).sub_(lse[:, None]).exp_()
            else:
                p = softmax
            to_logits = p.mul(-grad) if p is softmax else p.mul_(-grad)
            inside, index = _in_block(target, block)
            to_logits.scatter_add_(1, index[:, None], grad * inside[:, None])
            to_logits = to_logits.to(hidden.dtype)
            if to_hidden is not None:
                to_hidden.addmm_(to_logits, weight[block])
            if to_weight is not None:
                torch.mm(to_logits.T, hidden, out=to_weight[block])
        return to_hidden, to_weight, None, None, None


def _logits(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """Logits divided by the temperature, at least in float32."""
    x = (hidden @ weight.T).to(logprob_dtype(hidden.dtype))
    return x if temperature == 1 else x.div_(temperature)


def _in_block(target: Tensor, block: slice) -> tuple[Tensor, Tensor]:
    """For each target token, whether it is in this block of the vocabulary, and its index there (arbitrary if not)."""
    inside = (target >= block.start) & (target < block.stop)
    return inside, (target - block.start).clamp(0, block.stop - block.start - 1)
