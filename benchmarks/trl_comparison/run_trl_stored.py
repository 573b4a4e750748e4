"""One run of TRL's SFTTrainer or DPOTrainer at its fastest fair settings. Prints a line of JSON.

    python -m benchmarks.trl_comparison.run_trl_stored sft

float32, SDPA, fused AdamW, no gradient checkpointing, no logging, no saving, no progress bar. The rows come in the
order of Groupwise's run. Reference log-probs are computed at each step, as in Groupwise.
"""

import json
import os
import tempfile
from contextlib import suppress
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import torch
import transformers
from benchmarks.trl_comparison.paths import model_of, prompts_of
from benchmarks.trl_comparison.regimes import STORED, Regime
from benchmarks.trl_comparison.run_options import run_options
from benchmarks.trl_comparison.settings import stored_settings
from benchmarks.trl_comparison.stopwatch import Stopwatch, versions
from benchmarks.trl_comparison.turns import NoMoreTurns, print_json
from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

IGNORED = -100
"""The label of a token that is not trained."""


class Counted(transformers.Trainer):
    """Counts the trained tokens of a step, and adds up the losses of its micro-batches, which TRL has divided."""

    trained, loss = 0, 0.0

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        mask = inputs["labels"] != IGNORED if "labels" in inputs else inputs["completion_mask"]
        self.trained += int(mask.sum())
        return super().compute_loss(model, inputs, *args, **kwargs)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().training_step(*args, **kwargs)
        self.loss += float(loss)
        return loss


class CountedSFT(Counted, SFTTrainer):
    """SFTTrainer with the counts."""


class CountedDPO(Counted, DPOTrainer):
    """DPOTrainer with the counts."""


class Timed(TrainerCallback):
    """Measures each step, with the loading of its rows."""

    trainer: Counted

    def __init__(self, watch: Stopwatch) -> None:
        self.watch = watch

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.watch.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.watch.note(tokens=self.trainer.trained, loss=self.trainer.loss)
        self.trainer.trained, self.trainer.loss = 0, 0.0
        if state.global_step < state.max_steps:
            self.watch.begin()
        else:
            self.watch.end()


def measure(regime: Regime, *, iterations: int, seed: int, config: dict[str, Any], watch: Stopwatch) -> dict[str, Any]:
    """Run and time the regime."""
    model = model_of(regime)
    rows = [json.loads(line) for line in prompts_of(regime, seed).read_text().splitlines()]
    trainer_type, config_type = (CountedSFT, SFTConfig) if regime.loss == "sft" else (CountedDPO, DPOConfig)
    with tempfile.TemporaryDirectory() as directory:
        timed = Timed(watch)
        timed.trainer = trainer_type(
            model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa"),
            args=config_type(output_dir=directory, seed=seed, **config),
            train_dataset=Dataset.from_list(rows[: iterations * regime.prompts]),
            processing_class=PreTrainedTokenizerFast.from_pretrained(model),
            callbacks=[timed],
        )
        with suppress(NoMoreTurns):
            timed.trainer.train()
    return watch.as_json()


def main(argv: list[str] | None = None) -> None:
    parser = run_options("Run a regime of stored answers in TRL", STORED)
    parser.add_argument("--micro-batch", type=int, help="instead of the regime's")
    a = parser.parse_args(argv)
    torch.set_num_threads(a.threads)
    transformers.utils.logging.set_verbosity_error()
    regime = STORED[a.regime]
    iterations = a.iterations or regime.warmup + regime.timed
    config = stored_settings(regime, iterations=iterations, micro_batch=a.micro_batch or regime.micro_batch)
    about = {"system": "trl", "regime": regime.letter, "threads": a.threads}
    packages = versions("trl", "transformers", "accelerate", "datasets", "torch", "numpy")
    watch = Stopwatch(regime.turns if a.turns else (), {**about, "versions": packages, "settings": config})
    print_json(measure(regime, iterations=iterations, seed=a.seed, config=config, watch=watch))


if __name__ == "__main__":
    main()
