"""Names of TRL and verl that a user may write for a field or a method, with the names here (docs/coming-from.md)."""

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["FIELD_HINTS", "OTHER_NAMES"]

OTHER_NAMES = MappingProxyType(
    {
        "batch_size": "prompts",
        "beta": "method.objective.penalties",
        "bf16": "machine.dtype",
        "clip_ratio_high": "method.objective.surrogate.high",
        "clip_ratio_low": "method.objective.surrogate.low",
        "epsilon": "method.objective.surrogate.low",
        "epsilon_high": "method.objective.surrogate.high",
        "generation_batch_size": "prompts",
        "learning_rate": "optimizer.lr",
        "lr": "optimizer.lr",
        "lr_scheduler_type": "optimizer.decay",
        "mask_truncated_completions": "method.mask",
        "max_completion_length": "sampling.max_tokens",
        "max_grad_norm": "optimizer.clip",
        "max_response_length": "sampling.max_tokens",
        "max_steps": "iterations",
        "num_generations": "method.group_size",
        "num_iterations": "method.epochs",
        "ppo_epochs": "method.epochs",
        "ppo_mini_batch_size": "method.minibatches",
        "report_to": "sinks",
        "reward_funcs": "verifier",
        "steps_per_generation": "method.minibatches",
        "temperature": "sampling.temperature",
        "torch_dtype": "machine.dtype",
        "train_batch_size": "prompts",
        "warmup_steps": "optimizer.warmup",
    }
)
"""The dotted path of the field here, by the last word of the option in TRL or verl."""
FIELD_HINTS: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(
        ("load_in_4bit", "load_in_8bit", "quantization_config"),
        "leave it out: quantised weights cannot be trained; an adapter needs the least memory: "
        "--lora.rank 16 --machine.dtype bfloat16",
    )
)
"""The fix for an option that has no field here."""
