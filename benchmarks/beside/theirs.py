"""One run of TRL's GRPOTrainer at its best honest setting for time. Prints one line of JSON.

    python -m benchmarks.beside.theirs a

float32, SDPA, fused AdamW, no gradient checkpointing, no reference model, no logging, no saving, no progress bar.

Where a regime forces lengths, the criterion that looks for the end token at every position gives way to one that looks
whether the row is long enough, and the pads behind the end are cut off before TRL counts lengths: no more work than the
one it replaces. The generation loop and everything after it are TRL's.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TRL_EXPERIMENTAL_SILENCE": "1"}

import torch
import transformers
from benchmarks.beside.files import model_of, prompts_of
from benchmarks.beside.regimes import WORKS, Regime
from benchmarks.beside.rewards import calculator, parity
from benchmarks.beside.settings import settings
from benchmarks.beside.turns import Over, said
from benchmarks.beside.watch import Watch, versions
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


class Reached(StoppingCriteria):
    """A row is done once it has its forced length; transformers then pads it, as it does after an end token."""

    eos_token_id = NO_TOKEN  # by which transformers knows that rows end on their own

    def __init__(self, ends: torch.Tensor) -> None:
        self.ends = ends

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return self.ends <= input_ids.shape[1]


class Timed(GRPOTrainer):
    """TRL's trainer with a watch, and with forced lengths where the regime has them."""

    watch: Watch
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
        with self.watch.phase("learn"):  # old log-probs are learning, though TRL reads them before the rewards
            return super()._get_per_token_logps_and_entropies(*args, **kwargs)

    def _generate_single_turn(self, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
        lengths = self.regime.lengths_of(len(self.watch.iterations))
        if lengths is None:
            return super()._generate_single_turn(prompt_ids, *args, **kwargs)
        assert all(len(ids) == self.regime.prompt_tokens for ids in prompt_ids), "prompts are not those of the regime"
        first = self.accelerator.process_index * len(prompt_ids)  # of several processes each has a stretch of the rows
        lengths = lengths[first : first + len(prompt_ids)]
        ends = torch.tensor(lengths) + max(map(len, prompt_ids))
        self.model._get_stopping_criteria = lambda *_, **__: StoppingCriteriaList([Reached(ends)])
        completions, logps = super()._generate_single_turn(prompt_ids, *args, **kwargs)
        return [ids[:n] for ids, n in zip(completions, lengths, strict=True)], logps


class AtEnd(TrainerCallback):
    """The last iteration ends with the training."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        self.watch.end()


def reward_of(regime: Regime) -> Any:
    """The regime's verdict in TRL's form."""

    def graded(completions: Sequence[str], answer: Sequence[int], **_: Any) -> list[float]:
        return [calculator(text, gold) for text, gold in zip(completions, answer, strict=True)]

    def even(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
        return list(map(parity, completion_ids))

    return graded if regime.net is None else even


def measure(regime: Regime, *, iterations: int, seed: int, told: dict[str, Any], watch: Watch) -> dict[str, Any]:
    """The run, timed."""
    model = model_of(regime)
    rows = [json.loads(line) for line in prompts_of(regime, seed).read_text().splitlines()]
    with tempfile.TemporaryDirectory() as directory:
        trainer = Timed(
            model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa"),
            reward_funcs=reward_of(regime),
            args=GRPOConfig(output_dir=directory, seed=seed, **told),
            train_dataset=Dataset.from_list(rows[: iterations * regime.prompts]),
            processing_class=PreTrainedTokenizerFast.from_pretrained(model),  # the Auto one goes by the family
            callbacks=[AtEnd(watch)],
        )
        trainer.watch, trainer.regime = watch, regime
        if regime.lengths is not None:
            trainer.eos_token_ids = [NO_TOKEN]
        with suppress(Over):
            trainer.train()
        memory = torch.tensor([watch.floor, watch.peak], dtype=torch.float64)
        floor, most = trainer.accelerator.gather(memory).view(-1, 2).sum(0).tolist()  # of all processes
    return {**watch.told(), "floor_mib": floor, "peak_mib": most}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="TRL's side of one regime, as one line of JSON.")
    parser.add_argument("regime", choices=WORKS, metavar="REGIME", help="its letter")
    parser.add_argument("--iterations", type=int, help="other than the regime's warm-up and timed ones")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--micro-batch", type=int, help="other than the regime's")
    parser.add_argument("--frugal", action="store_true", help="with gradient checkpointing")
    parser.add_argument("--continuous", action="store_true", help="with transformers' continuous batching")
    parser.add_argument("--turns", action="store_true", help="after the warm-up, wait for a line before each turn")
    a = parser.parse_args(argv)
    torch.set_num_threads(a.threads)
    transformers.utils.logging.set_verbosity_error()
    regime = WORKS[a.regime]
    iterations, processes = a.iterations or regime.warmup + regime.timed, int(os.environ.get("WORLD_SIZE", 1))
    best = settings(regime, iterations=iterations, micro_batch=a.micro_batch or regime.micro_batch, processes=processes)
    asked = {"gradient_checkpointing": a.frugal, "use_transformers_continuous_batching": a.continuous}
    several = {"ddp_backend": "gloo"} if processes > 1 else {}
    told = best | asked | several
    about = {"system": "trl", "regime": regime.letter, "threads": a.threads, "processes": processes}
    used = versions("trl", "transformers", "accelerate", "datasets", "torch", "numpy")
    watch = Watch(regime.turns if a.turns else (), {**about, "versions": used, "settings": told})
    found = measure(regime, iterations=iterations, seed=a.seed, told=told, watch=watch)
    if int(os.environ.get("RANK", 0)) == 0:
        said(found)


if __name__ == "__main__":
    main()
