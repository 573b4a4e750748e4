"""Losses of stored answers equal those of TRL's trainers on the same batch. Needs TRL: `make bench` installs it."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import groupwise as gw
from groupwise.config.recipe import Recipe
from groupwise.config.user_code import UserCode
from groupwise.data import all_problems
from groupwise.learner import FromDirectory
from groupwise.models import Tokenizer, find_model, read_model, read_tokenizer, write_model
from groupwise.training.build_run import build
from groupwise.training.stored_answer_evaluation import held_out_metrics
from tests.commands.test_bad_input import rows

trl = pytest.importorskip("trl", reason="needs TRL: pip install 'groupwise[bench]'")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("home")]

PAIRS = [
    {"prompt": f"{a}*{b}=", "chosen": f"{a}*{b}={a * b};#{a * b}", "rejected": f"#{a * b + a}"}
    for a, b in ((2, 3), (7, 5), (9, 9), (4, 8), (6, 2))
]
DEMOS = [{"prompt": p["prompt"], "completion": p["chosen"]} for p in PAIRS]
LABELLED = [
    {"prompt": p["prompt"], "completion": p["rejected" if i % 2 else "chosen"], "label": i % 2 == 0}
    for i, p in enumerate(PAIRS)
]
CLOSE = 1e-6
"""The largest difference of two losses in float32, absolute or relative."""


def policy(directory: Path) -> tuple[Path, Tokenizer]:
    """The packaged model with noise on its weights, so that it differs from its reference."""
    source = find_model("calculator")
    model, tokenizer = read_model(source, dtype=torch.float32), read_tokenizer(source)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.05 * weight.std() * torch.randn(weight.shape, generator=generator)
    write_model(model, directory, tokenizer=tokenizer, source=source)
    return directory, tokenizer


async def our_loss(method: gw.Method, data: list[dict[str, Any]], model: Path) -> float:
    """The loss of all rows as one step, which is not taken."""
    if method.models:
        method = replace(method, models=(("reference", FromDirectory(str(find_model("calculator")))),))
    objects = build(Recipe(model=str(model), task=rows("rows.jsonl", *data), method=method), UserCode())
    prompts = sorted(all_problems(objects.task), key=lambda prompt: prompt.id)
    metrics = await held_out_metrics(objects.recipe, objects.new_learner(), prompts, objects.rollout_setting)
    return metrics["eval/loss"]


def their_loss(name: str, data: list[dict[str, Any]], model: Path, **settings: Any) -> float:
    """The loss of one batch of all rows, in order, by a trainer of TRL."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    own = {"per_device_train_batch_size": len(data), "report_to": "none", "use_cpu": True, "bf16": False}
    arguments = getattr(trl, f"{name}Config")(output_dir="trl", **own, **settings)
    reference = {}
    if name != "SFT":
        reference["ref_model"] = AutoModelForCausalLM.from_pretrained(find_model("calculator"), dtype="float32")
    trainer = getattr(trl, f"{name}Trainer")(
        model=AutoModelForCausalLM.from_pretrained(model, dtype="float32"), args=arguments,
        train_dataset=Dataset.from_list(data), processing_class=tokenizer, **reference,
    )  # fmt: skip
    trainer.model.eval()
    (batch,) = trainer.get_train_dataloader()
    with torch.no_grad():
        return float(trainer.compute_loss(trainer.model, batch))


CASES: dict[str, tuple[Callable[[], gw.Method], list[dict[str, Any]], str, dict[str, Any]]] = {
    "sft": (gw.sft, DEMOS, "SFT", {}),
    "dpo": (gw.dpo, PAIRS, "DPO", {"loss_type": ["sigmoid"]}),
    "ipo": (gw.ipo, PAIRS, "DPO", {"loss_type": ["ipo"]}),
    "kto": (gw.kto, LABELLED, "KTO", {"train_sampling_strategy": "sequential"}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_losses_are_equal(name: str, tmp_path: Path) -> None:
    method, data, trainer, settings = CASES[name]
    model, _ = policy(tmp_path / "policy")
    ours, theirs = asyncio.run(our_loss(method(), data, model)), their_loss(trainer, data, model, **settings)
    assert ours == pytest.approx(theirs, abs=CLOSE, rel=CLOSE) and ours != pytest.approx(math.log(2), abs=1e-3)
