"""The reference for all models: transformers' plain forward, one row per sample, nothing shared."""

import asyncio
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from groupwise.data import Batch, GenerationRequest, Ids, Sampling, pack
from groupwise.engines import NativeEngine
from groupwise.learner import forward
from tests.learner.small import rollouts
from tests.rollout.fakes import tokenizer

SMALL: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "eos_token_id": 0, "bos_token_id": None,
    "pad_token_id": None,
}  # fmt: skip
PROMPT: Ids = tuple(1 + (7 * i * i + 3 * i) % 39 for i in range(150))


def made(path: Path, kind: str, **changes: Any) -> nn.Module:
    """Save a random model of transformers with random biases and norms. A value of None drops a field."""
    fields = {name: x for name, x in {**SMALL, **changes}.items() if x is not None or name in SMALL}
    torch.manual_seed(1)
    config = getattr(transformers, f"{kind}Config")(**fields)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    model.save_pretrained(path)
    return model


def load(path: Path, dtype: torch.dtype = torch.float32, attention: str = "eager") -> nn.Module:
    """Load with transformers; assert that no tensor is missing or unexpected."""
    model, notes = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=dtype, local_files_only=True, output_loading_info=True, attn_implementation=attention
    )
    assert not any(notes.get(k) for k in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    if dtype == torch.float64 and model._can_set_experts_implementation():
        model.set_experts_implementation("eager")
    return model.eval()


def written() -> Batch:
    """Three prompts of 5 to 7 tokens with four answers each, of 0 to 40 tokens."""
    return pack(rollouts([[12, 40, 1, 0], [3, 3, 25, 8], [1, 17, 30, 2]]))


def weighed(logp: Tensor) -> Tensor:
    return (torch.linspace(-1, 2, len(logp), dtype=logp.dtype) * logp).sum()


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    """Gradients by parameter name, without the wrapper's prefix."""
    trained = [(name.removeprefix("causal."), p) for name, p in model.named_parameters() if p.requires_grad]
    names, weights = zip(*trained)
    grads = torch.autograd.grad(loss, weights, allow_unused=True)
    return {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(names, weights, grads)}


def ours(model: Any, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """Log-probs at temperature 0.7 and gradients, packed, with shared prompts."""
    logp, _ = forward(model, batch, temperature=0.7)
    return logp.detach(), gradients(model, weighed(logp))


def theirs(model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """The same by transformers, row by row."""
    rows = []
    for sample in batch.samples:
        ids = torch.tensor([[*sample.context, *sample.tokens]])
        logp = (model(ids).logits[0] / 0.7).log_softmax(-1)
        at = torch.arange(len(sample.context) - 1, ids.shape[1] - 1)
        rows.append(logp[at, ids[0, at + 1]])
    logp = torch.cat(rows)
    return logp.detach(), gradients(model, weighed(logp))


def greedy(model: Any, prompt: Ids, most: int = 24) -> Ids:
    """The engine's greedy answer to three equal requests and a shorter one."""
    engine = NativeEngine(model, tokenizer(), seed=0)
    greedy = Sampling(temperature=0.0, max_tokens=most)
    requests = [
        GenerationRequest(context=prompt, limit=most, draw_id=i, stream=(0,), sampling=greedy) for i in range(3)
    ]
    requests.append(GenerationRequest(context=prompt[:5], limit=most, draw_id=3, stream=(0,), sampling=greedy))

    async def go() -> list[Ids]:
        return [generation.tokens for generation in await asyncio.gather(*map(engine.sample, requests))]

    first, second, third, _ = asyncio.run(go())
    assert first == second == third
    return first


def generated(model: Any, prompt: Ids, most: int = 24) -> Ids:
    grads = model.generate(torch.tensor([prompt]), max_new_tokens=most, do_sample=False, pad_token_id=0)[0].tolist()
    return tuple(grads[len(prompt) :])
