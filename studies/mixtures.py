"""Base models made from nothing, after a warm start: a tiny Qwen3-MoE of transformers, and its dense twin."""

import json
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from groupwise.config.packaged import find_recipe
from groupwise.config.recipe import Recipe, WarmStart
from groupwise.config.recipe_toml import read_recipe
from groupwise.learner import AdamW
from groupwise.models import find_model, read_tokenizer
from groupwise.runs.atomic_writes import write_file
from groupwise.tasks import demonstrations

SIZES = {
    "hidden_size": 96, "intermediate_size": 96, "moe_intermediate_size": 24, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24, "num_experts": 64, "num_experts_per_tok": 8,
    "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}  # fmt: skip
TWIN = {
    "hidden_size": 96, "intermediate_size": 192, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 24, "max_position_embeddings": 128, "tie_word_embeddings": True,
}  # fmt: skip
"""The dense twin. A token uses as many weights as in the mixture: a width of 192 in place of eight experts of 24."""
SPARSE = SIZES | {"num_hidden_layers": 6, "num_experts": 32, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
SPARSE_TWIN = TWIN | {"num_hidden_layers": 6, "intermediate_size": 96}
"""A mixture with two active experts, and its twin."""
STEPS, PER_STEP, SHARE = 700, 64, 0.35
"""The steps of the warm start, the demonstrations of a step, and the share of those that write their steps."""
FIRST = 5
"""The random weights of seed 0. An earlier attempt at the study, whose rates informed those of now, had 0 to 4."""


def mixture(seed: int, folder: Path) -> Recipe:
    """The recipe whose run makes the mixture of a seed. Writes random weights and demonstrations into the folder."""
    return _base("mixture", SIZES, seed, folder)


def twin(seed: int, folder: Path) -> Recipe:
    """The same for the dense twin of that mixture: with the same demonstrations in the same order."""
    return _base("twin", TWIN, seed, folder)


def sparse(seed: int, folder: Path) -> Recipe:
    """The same for a mixture with two active experts."""
    return _base("sparse", SPARSE, seed, folder)


def sparse_twin(seed: int, folder: Path) -> Recipe:
    """The same for its dense twin."""
    return _base("sparse_twin", SPARSE_TWIN, seed, folder)


BASES = {"@base": mixture, "@twin": twin, "@sparse": sparse, "@sparse_twin": sparse_twin}
"""The names of these models in the settings of a run."""


def _base(kind: str, sizes: Mapping[str, Any], seed: int, folder: Path) -> Recipe:
    settings = (sizes, STEPS, PER_STEP, SHARE, FIRST)
    home = folder / f"{kind}-{sha256(repr(settings).encode()).hexdigest()[:6]}-{seed}"
    rows = home / "demonstrations.jsonl"
    if not rows.is_file():  # it is written last
        _write_weights(sizes, FIRST + seed, home)
        pairs = demonstrations(FIRST + seed, STEPS * PER_STEP, SHARE)
        lines = (json.dumps({"prompt": prompt, "answer": answer}) for prompt, answer in pairs)
        write_file(rows, "".join(f"{line}\n" for line in lines).encode())
    fields = [("iterations", "0"), ("evaluate.problems", "128"), ("seed", str(FIRST + seed))]
    start = WarmStart(
        demonstrations=str(rows),
        steps=STEPS,
        prompts=PER_STEP,
        optimizer=AdamW(lr=3e-3, betas=(0.9, 0.99), weight_decay=0.01, warmup_steps=50, lr_scheduler="cosine"),
    )
    return replace(read_recipe(find_recipe("calculator"), fields), model=str(home), warm_start=start)


def _write_weights(sizes: Mapping[str, Any], seed: int, home: Path) -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

    tokenizer = read_tokenizer(find_model("calculator"))
    ids = {"eos_token_id": min(tokenizer.eos_ids), "bos_token_id": None, "pad_token_id": None}
    vocabulary = tokenizer.backend_tokenizer.get_vocab_size()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if "num_experts" in sizes:
            model = Qwen3MoeForCausalLM(Qwen3MoeConfig(vocab_size=vocabulary, **sizes, **ids))
        else:
            model = Qwen3ForCausalLM(Qwen3Config(vocab_size=vocabulary, **sizes, **ids))
    model.save_pretrained(home)
    tokenizer.save(home)
