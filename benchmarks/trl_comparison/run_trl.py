"""One run of TRL's GRPOTrainer at its fastest fair settings. Prints a line of JSON.

    python -m benchmarks.trl_comparison.run_trl a

float32, SDPA, fused AdamW, no gradient checkpointing, no reference model, no logging, no saving, no progress bar.

If a regime forces lengths, a stopping criterion that compares the length of each row replaces the one that searches for
the end token at each position. Padding after the end is removed before TRL counts lengths. This is no more work than
before. The generation loop and everything after it are TRL's.
"""

import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TRL_EXPERIMENTAL_SILENCE": "1"}

import torch
import transformers
from benchmarks.trl_comparison.paths import model_of, prompts_of
from benchmarks.trl_comparison.regimes import ALL_REGIMES, Regime
from benchmarks.trl_comparison.rewards import calculator, parity
from benchmarks.trl_comparison.run_options import run_options
from benchmarks.trl_comparison.settings import settings
from benchmarks.trl_comparison.stopwatch import Stopwatch, versions
from benchmarks.trl_comparison.turns import NoMoreTurns, print_json
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    StoppingCriteriaList,
    TrainerCallback,
)
from trl import GRPOConfig, GRPOTrainer

NO_TOKEN = -1


class ForcedLength(StoppingCriteria):
    """Ends a row at its forced length; transformers then pads it, as after an end token."""

    eos_token_id = NO_TOKEN  # transformers reads this to learn that rows end individually

    def __init__(self, ends: torch.Tensor) -> None:
        self.ends = ends

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return self.ends <= input_ids.shape[1]


class Timed(GRPOTrainer):
    """TRL's trainer with a stopwatch, and with forced lengths if the regime has them."""

    watch: Stopwatch
    regime: Regime

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self.watch.begin()
        with self.watch.phase("sample"):
            output = super()._generate_and_score_completions(inputs)
        trained = int(self.accelerator.gather(output["completion_mask"].sum()).sum())
        lengths = self.regime.lengths_of(len(self.watch.iterations))
        assert lengths is None or trained == sum(lengths), f"{trained} tokens, {sum(lengths)} were forced"
        self.watch.note(tokens=trained, reward=self._metrics["train"]["reward"][-1])
        return output

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        with self.watch.phase("learn"):  # counts as learning, although TRL computes old log-probs before the rewards
            return super()._get_per_token_logps_and_entropies(*args, **kwargs)

    def _generate_single_turn(self, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
        lengths = self.regime.lengths_of(len(self.watch.iterations))
        if lengths is None:
            return super()._generate_single_turn(prompt_ids, *args, **kwargs)
        assert all(len(ids) == self.regime.prompt_tokens for ids in prompt_ids), (
            "prompts differ from those of the regime"
        )
        first = self.accelerator.process_index * len(prompt_ids)  # each process has a slice of the rows
        lengths = lengths[first : first + len(prompt_ids)]
        ends = torch.tensor(lengths) + max(map(len, prompt_ids))
        self.model._get_stopping_criteria = lambda *_, **__: StoppingCriteriaList([ForcedLength(ends)])
        completions, logps = super()._generate_single_turn(prompt_ids, *args, **kwargs)
        return [ids[:n] for ids, n in zip(completions, lengths, strict=True)], logps


class EndOfTraining(TrainerCallback):
    """Ends the last iteration of the stopwatch when training ends."""

    def __init__(self, watch: Stopwatch) -> None:
        self.watch = watch

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        self.watch.end()


def reward_of(regime: Regime) -> Any:
    """The regime's reward function for TRL."""

    def grade(completions: Sequence[str], answer: Sequence[int], **_: Any) -> list[float]:
        return [calculator(text, gold) for text, gold in zip(completions, answer, strict=True)]

    def even_sum(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
        return list(map(parity, completion_ids))

    return grade if regime.net is None else even_sum


def measure(regime: Regime, *, iterations: int, seed: int, config: dict[str, Any], watch: Stopwatch) -> dict[str, Any]:
    """Run and time the regime."""
    model = model_of(regime)
    rows = [json.loads(line) for line in prompts_of(regime, seed).read_text().splitlines()]
    with tempfile.TemporaryDirectory() as directory:
        trainer = Timed(
            model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa"),
            reward_funcs=reward_of(regime),
            args=GRPOConfig(output_dir=directory, seed=seed, **config),
            train_dataset=Dataset.from_list(rows[: iterations * regime.prompts]),
            processing_class=PreTrainedTokenizerFast.from_pretrained(
                model
            ),  # AutoTokenizer chooses by the model family
            callbacks=[EndOfTraining(watch)],
        )
        trainer.watch, trainer.regime = watch, regime
        if regime.lengths is not None:
            trainer.eos_token_ids = [NO_TOKEN]
        with suppress(NoMoreTurns):
            trainer.train()
        memory = torch.tensor([watch.floor, watch.peak], dtype=torch.float64)
        floor, most = trainer.accelerator.gather(memory).view(-1, 2).sum(0).tolist()  # sums over all processes
    return {**watch.as_json(), "floor_mib": floor, "peak_mib": most}


def main(argv: list[str] | None = None) -> None:
    parser = run_options("Run one regime in TRL", ALL_REGIMES)
    parser.add_argument("--micro-batch", type=int, help="instead of the regime's")
    parser.add_argument("--frugal", action="store_true", help="with gradient checkpointing")
    parser.add_argument("--continuous", action="store_true", help="with transformers' continuous batching")
    a = parser.parse_args(argv)
    torch.set_num_threads(a.threads)
    transformers.utils.logging.set_verbosity_error()
    regime = ALL_REGIMES[a.regime]
    iterations, processes = a.iterations or regime.warmup + regime.timed, int(os.environ.get("WORLD_SIZE", 1))
    best = settings(regime, iterations=iterations, micro_batch=a.micro_batch or regime.micro_batch, processes=processes)
    options = {"gradient_checkpointing": a.frugal, "use_transformers_continuous_batching": a.continuous}
    several = {"ddp_backend": "gloo"} if processes > 1 else {}
    config = best | options | several
    about = {"system": "trl", "regime": regime.letter, "threads": a.threads, "processes": processes}
    packages = versions("trl", "transformers", "accelerate", "datasets", "torch", "numpy")
    watch = Stopwatch(regime.turns if a.turns else (), {**about, "versions": packages, "settings": config})
    result = measure(regime, iterations=iterations, seed=a.seed, config=config, watch=watch)
    if int(os.environ.get("RANK", 0)) == 0:
        print_json(result)


if __name__ == "__main__":
    main()
