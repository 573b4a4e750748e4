"""The losses of the methods of stored answers beside those of TRL's trainers, on the same batch and weights.

    pip install 'groupwise[bench]'
    python -m benchmarks.trl_losses

It prints a table, and exits with 1 if two losses differ by more than 1e-6. TRL's ORPO has a supervised term over prompt
and answer; here TRL's term of the odds ratio is compared with ours, beside the mean log-prob of the chosen answer.
"""

import asyncio
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

import groupwise as gw
from groupwise.config.recipe import Recipe
from groupwise.config.user_code import UserCode
from groupwise.data import all_problems
from groupwise.learner import FromDirectory
from groupwise.models import (
    Decoder,
    SequenceClassifier,
    find_model,
    padding_token,
    read_model,
    read_tokenizer,
    write_model,
)
from groupwise.training.build_run import build
from groupwise.training.stored_answer_evaluation import held_out_metrics

Rows = list[dict[str, Any]]
PAIRS: Rows = [
    {"prompt": f"{a}*{b}=", "chosen": f"{a}*{b}={a * b};#{a * b}", "rejected": f"#{a * b + a}"}
    for a, b in ((2, 3), (7, 5), (9, 9), (4, 8), (6, 2))
]
DEMOS: Rows = [{"prompt": p["prompt"], "completion": p["chosen"]} for p in PAIRS]
LABELLED: Rows = [
    {"prompt": p["prompt"], "completion": p["rejected" if i % 2 else "chosen"], "label": i % 2 == 0}
    for i, p in enumerate(PAIRS)
]
MARGINS: Rows = [pair | {"margin": 0.5 * i} for i, pair in enumerate(PAIRS)]
CLOSE = 1e-6
"""The largest difference of two losses in float32, absolute or relative."""


@dataclass(frozen=True, slots=True)
class Case:
    """A method, its rows, and the trainer of TRL with the same loss: `module` has its class `NAMETrainer`."""

    method: gw.Method
    rows: Rows
    trainer: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    module: str = "trl"


CASES: dict[str, Case] = {
    "sft": Case(gw.sft(), DEMOS, "SFT"),
    "dpo": Case(gw.dpo(), PAIRS, "DPO", {"loss_type": ["sigmoid"]}),
    "ipo": Case(gw.ipo(), PAIRS, "DPO", {"loss_type": ["ipo"]}),
    "simpo": Case(
        gw.simpo(), PAIRS, "CPO", {"loss_type": "simpo", "beta": 2.0, "simpo_gamma": 0.5, "cpo_alpha": 0.0},
        "trl.experimental.cpo",
    ),
    "orpo": Case(gw.orpo(), PAIRS, "ORPO", {}, "trl.experimental.orpo"),
    "bradley_terry": Case(gw.bradley_terry(), PAIRS, "Reward"),
    "bradley_terry, centred": Case(
        gw.bradley_terry(centring=0.1), PAIRS, "Reward", {"center_rewards_coefficient": 0.1},
    ),
    "bradley_terry, margins": Case(gw.bradley_terry(), MARGINS, "Reward"),
    "kto": Case(gw.kto(), LABELLED, "KTO", {"train_sampling_strategy": "sequential"}),
}  # fmt: skip


def write_policy(directory: Path, *, score: bool) -> None:
    """Write the packaged model with noise on its weights, so that it differs from its reference; or with a `score`."""
    source = find_model("calculator")
    model = read_model(source, dtype=torch.float32)
    if score:
        assert isinstance(model, Decoder), "the packaged model is one"
        model = SequenceClassifier.on(model, padding_token(source))
        torch.nn.init.normal_(model.score.weight, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.05 * weight.std() * torch.randn(weight.shape, generator=generator)
    write_model(model, directory, tokenizer=read_tokenizer(source), source=source)


def our_loss(case: Case, model: Path, home: Path) -> float:
    """The loss of all rows as one step, which is not taken."""
    method = case.method
    if method.models:
        method = replace(method, models=(("reference", FromDirectory(str(find_model("calculator")))),))
    (home / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in case.rows))
    objects = build(Recipe(model=str(model), task=str(home / "rows.jsonl"), method=method), UserCode())
    prompts = sorted(all_problems(objects.task), key=lambda prompt: prompt.id)
    metrics = asyncio.run(held_out_metrics(objects.recipe, objects.new_learner(), prompts, objects.rollout_setting))
    return metrics["eval/loss"]


def their_loss(case: Case, model: Path, home: Path) -> float:
    """The loss of one batch of all rows, in order, by the trainer of TRL."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

    kind = AutoModelForSequenceClassification if case.trainer == "Reward" else AutoModelForCausalLM
    module = import_module(case.module)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    own = {"per_device_train_batch_size": len(case.rows), "report_to": "none", "use_cpu": True, "bf16": False}
    settings = getattr(module, f"{case.trainer}Config")(output_dir=str(home / "trl"), **own, **case.settings)
    reference = {}
    if case.method.models:
        reference["ref_model"] = AutoModelForCausalLM.from_pretrained(find_model("calculator"), dtype="float32")
    trainer = getattr(module, f"{case.trainer}Trainer")(
        model=kind.from_pretrained(model, dtype="float32"), args=settings,
        train_dataset=Dataset.from_list(case.rows), processing_class=tokenizer, **reference,
    )  # fmt: skip
    trainer.model.eval()
    (batch,) = trainer.get_train_dataloader()
    with torch.no_grad():
        if case.trainer != "ORPO":
            return float(trainer.compute_loss(trainer.model, batch))
        chosen, rejected, *_ = trainer.concatenated_forward(trainer.model, batch)
        return float(-chosen.mean() - trainer.odds_ratio_loss(chosen, rejected)[0].mean())


def losses_of(name: str, home: Path) -> tuple[float, float]:
    """Our loss and TRL's of a case. `home` is an empty directory."""
    write_policy(home / "policy", score=CASES[name].trainer == "Reward")
    return our_loss(CASES[name], home / "policy", home), their_loss(CASES[name], home / "policy", home)


def are_close(ours: float, theirs: float) -> bool:
    """Whether two losses differ by at most `CLOSE`."""
    return abs(ours - theirs) <= CLOSE * max(1.0, abs(theirs))


def main() -> int:
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    warnings.filterwarnings("ignore")
    equal = True
    print(f"{'method':<22} {'Groupwise':>12} {'TRL':>12} {'difference':>12}")
    for name in CASES:
        with tempfile.TemporaryDirectory() as directory:
            ours, theirs = losses_of(name, Path(directory))
        equal = equal and are_close(ours, theirs)
        print(f"{name:<22} {ours:>12.7f} {theirs:>12.7f} {abs(ours - theirs):>12.1e}", flush=True)
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
