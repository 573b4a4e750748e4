"""Names of TRL, verl and earlier recipes that a user may write, with the names here (docs/coming-from.md)."""

import re
from collections.abc import Mapping
from types import MappingProxyType

__all__ = [
    "EARLIER_FIELDS",
    "FIELD_HINTS",
    "OTHER_NAMES",
    "OTHER_VALUES",
    "other_name_fix",
    "other_value_fix",
    "verifier_fix",
]

LOW, HIGH, PENALTIES = (f"method.objective.{name}" for name in ("surrogate.low", "surrogate.high", "penalties"))
WEIGHTS, BUDGET, MICROBATCH = "method.objective.weights", "sampling.max_tokens", "machine.microbatch_tokens"
OTHER_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "batch_size": "prompts",
        "beta": PENALTIES,
        "bf16": "machine.dtype",
        "chat_template_kwargs": "template_arguments",
        "clip_ratio": LOW,
        "clip_ratio_c": "method.objective.surrogate",
        "clip_ratio_high": HIGH,
        "clip_ratio_low": LOW,
        "dataset_name": "task",
        "enable_gradient_checkpointing": "machine.gradient_checkpointing",
        "entropy_coef": PENALTIES,
        "entropy_coeff": PENALTIES,
        "epsilon": LOW,
        "epsilon_high": HIGH,
        "eval_steps": "evaluate.every",
        "filter_groups.enable": "method.filter",
        "generation_batch_size": "prompts",
        "grad_clip": "optimizer.max_grad_norm",
        "gradient_accumulation_steps": MICROBATCH,
        "gradient_checkpointing": "machine.gradient_checkpointing",
        "importance_sampling_level": "method.objective.surrogate.ratio",
        "kl_coef": "method.shaping",
        "kl_loss_coef": PENALTIES,
        "kl_loss_type": PENALTIES,
        "learning_rate": "optimizer.lr",
        "load_best_model_at_end": "evaluate.best_metric",
        "logger": "trackers",
        "lora_alpha": "lora.alpha",
        "lora_r": "lora.rank",
        "lora_rank": "lora.rank",
        "lora_target_modules": "lora.targets",
        "loss_agg_mode": "method.objective.aggregate",
        "lr": "optimizer.lr",
        "lr_scheduler_type": "optimizer.lr_scheduler",
        "lr_warmup_steps": "optimizer.warmup_steps",
        "mask_truncated_completions": "method.mask",
        "max_completion_length": BUDGET,
        "max_grad_norm": "optimizer.max_grad_norm",
        "max_num_gen_batches": "method.max_refills",
        "max_response_length": BUDGET,
        "max_steps": "iterations",
        "metric_for_best_model": "evaluate.best_metric",
        "model.path": "model",
        "model_name_or_path": "model",
        "norm_adv_by_std_in_grpo": "method.advantage",
        "num_generations": "method.group_size",
        "num_iterations": "method.epochs",
        "num_train_epochs": "iterations",
        "optim": "optimizer",
        "optimizer_offload": "machine.optimizer_offload",
        "overlong_buffer_cfg": "method.shaping",
        "per_device_train_batch_size": MICROBATCH,
        "ppo_epochs": "method.epochs",
        "ppo_max_token_len_per_gpu": MICROBATCH,
        "ppo_micro_batch_size_per_gpu": MICROBATCH,
        "ppo_mini_batch_size": "method.minibatches",
        "prompt_key": "columns.prompt",
        "ref_model_mixup_alpha": "method.models",
        "ref_model_sync_steps": "method.models",
        "report_to": "trackers",
        "reward_funcs": "verifier",
        "reward_weights": "verifier",
        "rollout.n": "method.group_size",
        "rollout_is": WEIGHTS,
        "rollout_is_threshold": WEIGHTS,
        "save_freq": "save.every",
        "save_steps": "save.every",
        "save_total_limit": "save.keep",
        "scale_rewards": "method.advantage",
        "steps_per_generation": "method.minibatches",
        "sync_ref_model": "method.models",
        "temperature": "sampling.temperature",
        "test_freq": "evaluate.every",
        "torch_compile": "machine.compile",
        "torch_dtype": "machine.dtype",
        "total_epochs": "iterations",
        "total_training_steps": "iterations",
        "train_batch_size": "prompts",
        "train_files": "task",
        "use_bias_correction_kl": PENALTIES,
        "use_kl_in_reward": "method.shaping",
        "use_kl_loss": PENALTIES,
        "val_files": "held_out",
        "val_kwargs": "evaluate.samples",
        "vllm_importance_sampling_correction": WEIGHTS,
        "vllm_importance_sampling_mode": WEIGHTS,
        "warmup_steps": "optimizer.warmup_steps",
        "weight_decay": "optimizer.weight_decay",
    }
)
"""The dotted path of the field here, by the last words of the option in TRL or verl."""

ONE_DEVICE = "leave it out: one process trains on one device"
RESUME = "leave it out: groupwise resume RUN continues a run"
NAME_THE_METHOD = "name the method, such as --method grpo; groupwise methods lists them"
LONG_PROMPTS = "write max_prompt_tokens: longer prompts are left out, and none is cut"
FIELD_HINTS: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(
        ("load_in_4bit", "load_in_8bit", "quantization_config"),
        "leave it out: quantised weights cannot be trained; an adapter needs the least memory: "
        "--lora.rank 16 --machine.dtype bfloat16",
    )
    | dict.fromkeys(("adv_estimator", "loss_mode", "loss_type"), NAME_THE_METHOD)
    | dict.fromkeys(("n_gpus_per_node", "nnodes", "tensor_model_parallel_size"), ONE_DEVICE)
    | dict.fromkeys(("resume_from_checkpoint", "resume_mode"), RESUME)
    | dict.fromkeys(("push_to_hub", "hub_model_id"), "use the command-line option --push OWNER/NAME")
    | dict.fromkeys(("run_name", "experiment_name"), "use the command-line option --name NAME")
    | dict.fromkeys(("output_dir", "default_local_dir"), "use the command-line option --out DIR")
    | dict.fromkeys(("use_vllm", "vllm_mode", "gpu_memory_utilization"), "leave it out: the engine shares the weights")
    | {"max_seq_length": f"leave it out: no prompt is cut; {BUDGET} bounds answers"}
    | dict.fromkeys(("max_prompt_length", "filter_overlong_prompts"), LONG_PROMPTS)
    | dict.fromkeys(("top_p", "top_k", "min_p"), "in eval and sample only: --sampling.top_p, .top_k, .min_p")
    | {"custom_reward_function": "use the command-line options --verifier my_file:grade --use my_file.py"}
)
"""The fix for an option that has no field here, or more than one."""
EARLIER_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "also": "extra_tasks",
        "cluster.lag": "cluster.max_staleness",
        "cluster.lanes": "cluster.reduction_lanes",
        "engine.cache_tokens": "engine.kv_cache_tokens",
        "engine.max_gap": "engine.max_logprob_diff",
        "engine.place": "engine.placement",
        "engine.rows": "engine.max_num_seqs",
        "evaluate.best": "evaluate.best_metric",
        "evaluate.by": "evaluate.by_column",
        "machine.recompute": "machine.gradient_checkpointing",
        "method.proximal": "method.old_logprobs",
        "method.refill": "method.max_refills",
        "method.routing": "method.router_replay",
        "method.trains": "method.trained_roles",
        "optimizer.clip": "optimizer.max_grad_norm",
        "optimizer.decay": "optimizer.lr_scheduler",
        "optimizer.warmup": "optimizer.warmup_steps",
        "save.model_every": "save.export_every",
        "sinks": "trackers",
    }
)
"""The name of a field by its name in earlier recipes of this project."""
OTHER_VALUES: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("cluster.launch", "given"): "external",
        ("engine.placement", "apart"): "separate",
        ("engine.placement", "same"): "colocated",
        ("method.old_logprobs", "recomputed"): "learner",
        ("method.old_logprobs", "sampled"): "engine",
        ("method.router_replay", "R2"): "learner",
        ("method.router_replay", "R3"): "engine",
    }
)
"""The value of a field by its name in verl or in earlier recipes."""
MOST_WORDS = max(name.count(".") + 1 for name in (*OTHER_NAMES, *FIELD_HINTS))
ROWS = "docs/coming-from.md has a row for each option of TRL and verl"


def other_value_fix(path: str, value: object) -> str:
    """The fix for a value that has another name in verl or in earlier recipes; empty for any other value.

    >>> other_value_fix("method.router_replay", "R3")
    "write 'engine', its name here"
    """
    name = OTHER_VALUES.get((path, value)) if isinstance(value, str) else None
    return f"write {name!r}, its name here" if name else ""


def other_name_fix(path: str) -> str:
    """The fix for an option of TRL or verl, or an earlier name of a field, by its dotted path; empty for another name.

    An earlier name counts as a whole. Of an option, the longest end of the path counts, then that of the table above.

    >>> other_name_fix("actor_rollout_ref.rollout.n"), other_name_fix("reward_kwargs.overlong_buffer_cfg.len")
    ('write method.group_size, its name here', 'write method.shaping, its name here')
    >>> other_name_fix("promts")
    ''
    """
    earlier = (name for name in EARLIER_FIELDS if f"{path}.".startswith(f"{name}."))
    if name := next(earlier, ""):
        return f"write {EARLIER_FIELDS[name]}, its name here"
    words = path.split(".")
    for end in range(len(words), 0, -1):
        for start in range(max(0, end - MOST_WORDS), end):
            name = ".".join(words[start:end])
            if name in OTHER_NAMES:
                return f"write {OTHER_NAMES[name]}, its name here"
            if name in FIELD_HINTS:
                return FIELD_HINTS[name]
    return ""


FORMER_VERIFIERS = {"several": "combined", "flipping": "noisy", "glyphs": "glyph_patches"}
"""The names of verifiers by names that they had before."""
COMBINED = """\
write a table:
[verifier]
kind = "Combined"
members = [{ name = "answer", verifier = "math" }, { name = "shape", verifier = "format", weight = 0.2 }]"""
ARGUMENT = re.compile(r"""(\w+)\s*=\s*("[^"]*"|'[^']*'|[^,()]+)""")


def verifier_fix(text: str) -> str:
    """The fix for a verifier in the notation of a call, or with a former name: the table to write; else empty.

    >>> verifier_fix("math(answer='first', symbolic=False)")
    'write a table: verifier = { kind = "math", answer = "first", symbolic = false }'
    >>> verifier_fix("flipping")
    'write noisy, its name here'
    >>> verifier_fix("math")
    ''
    """
    name, bracket, rest = text.partition("(")
    new = FORMER_VERIFIERS.get(name.strip(), name.strip())
    if not bracket:
        return f"write {new}, its name here" if new != name else ""
    if new == "combined":
        return COMBINED
    fields = [f'kind = "{new}"', *(f"{match[1]} = {_as_toml(match[2])}" for match in ARGUMENT.finditer(rest))]
    return f"write a table: verifier = {{ {', '.join(fields)} }}"


def _as_toml(value: str) -> str:
    """A plain value of Python as TOML; a name becomes a string."""
    text = value.strip().strip("'\"")
    if text in ("True", "False"):
        return text.lower()
    return text if re.fullmatch(r"[-+\d.eE]+", text) else f'"{text}"'
