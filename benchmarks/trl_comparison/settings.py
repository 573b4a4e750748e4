"""TRL's configuration for a regime, at its fastest fair settings. Standard library only."""

from typing import Any

from benchmarks.trl_comparison.regimes import Regime


def settings(regime: Regime, *, iterations: int, micro_batch: int, processes: int) -> dict[str, Any]:
    """Arguments of GRPOConfig for a regime."""
    steps = iterations * regime.minibatches * regime.epochs
    accumulation = regime.minibatch // (micro_batch * processes)
    return {
        "loss_type": "dapo" if regime.loss == "dapo" else "grpo",
        "importance_sampling_level": "sequence" if regime.loss == "gspo" else "token",
        "epsilon": regime.low,
        "epsilon_high": regime.high,
        "beta": 0.0,
        "scale_rewards": "group",
        "num_generations": regime.group,
        "num_iterations": regime.epochs,
        "max_completion_length": regime.max_tokens,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "steps_per_generation": accumulation * regime.minibatches,
        "shuffle_dataset": False,
        **trainer_settings(regime, steps, micro_batch, accumulation),
    }


def stored_settings(regime: Regime, *, iterations: int, micro_batch: int) -> dict[str, Any]:
    """Arguments of SFTConfig or DPOConfig for a regime of stored answers; a micro-batch counts rows."""
    own = {"shuffle_dataset": False, "completion_only_loss": True} if regime.loss == "sft" else {"beta": 0.1}
    return {
        **own,
        "max_length": None,
        "train_sampling_strategy": "sequential",
        **trainer_settings(regime, iterations, micro_batch, regime.prompts // micro_batch),
    }


def trainer_settings(regime: Regime, steps: int, micro_batch: int, accumulation: int) -> dict[str, Any]:
    """The arguments that all trainers share: the sizes of a step, the optimizer, and no output."""
    return {
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": accumulation,
        "max_steps": steps,
        "learning_rate": regime.lr,
        "lr_scheduler_type": regime.decay,
        "optim": "adamw_torch_fused",
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_epsilon": 1e-8,
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "gradient_checkpointing": False,
        "bf16": False,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }
