"""A small random mixture of experts, and its routers' choices per sample."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from groupwise.data import Batch
from groupwise.models import find_model, read_model, read_tokenizer
from groupwise.models.decoder.transformers_model import TransformersBackbone
from tests.models.plain import made

FIELDS: dict[str, Any] = {
    "head_dim": 12, "moe_intermediate_size": 16, "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True,
}  # fmt: skip


def mixture(path: Path, dtype: torch.dtype = torch.float64, **changes: Any) -> TransformersBackbone:
    """Qwen3-MoE with two layers of eight experts, two per token."""
    path.mkdir(exist_ok=True)
    made(path, "Qwen3Moe", **{**FIELDS, **changes})
    model = read_model(path, dtype=dtype)
    assert isinstance(model, TransformersBackbone)
    return model


def routers(model: nn.Module) -> list[Any]:
    return [m for m in model.modules() if type(m).__name__ == "Qwen3MoeTopKRouter"]


def alone(model: nn.Module, batch: Batch) -> list[list[tuple[Tensor, Tensor]]]:
    """For each sample, router by router, its logits and choices of context and tokens but the last: each read alone.

    By the plain forward of transformers, which hooks of ours hear but do not change.
    """
    outputs: list[tuple[Tensor, Tensor]] = []
    hooks = [r.register_forward_hook(lambda _, __, out: outputs.append((out[0], out[2]))) for r in routers(model)]
    causal: Any = getattr(model, "causal", model)
    implementation, forwards = causal.config._attn_implementation, []
    causal.set_attn_implementation("eager")
    for sample in batch.samples:
        outputs.clear()
        if sample.tokens:
            causal(torch.tensor([[*sample.context, *sample.tokens[:-1]]]), use_cache=False)
        forwards.append(list(outputs))
    causal.set_attn_implementation(implementation)
    for hook in hooks:
        hook.remove()
    return forwards


def trainable(path: Path, **changes: Any) -> Path:
    """A random model with the tokenizer of the packaged task."""
    tokenizer = read_tokenizer(find_model("calculator"))
    path.mkdir(exist_ok=True)
    words = {"vocab_size": tokenizer.backend_tokenizer.get_vocab_size(), "eos_token_id": min(tokenizer.eos_ids)}
    made(path, "Qwen3Moe", **{**FIELDS, **words, **changes})
    tokenizer.save(path)
    return path
