"""The kernels of the learner by formula are those that the pretended GPU counts."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from groupwise.config.recipe import Machine, Recipe
from groupwise.data import pack
from groupwise.learner import AdamW, AdamW8bit, Learner
from groupwise.learner.quantized_moments import on_device
from groupwise.methods import grpo, gspo
from groupwise.models import DecoderShape, Lora
from groupwise.models.lora import attach
from groupwise.planning.cost_model import TokenLengths, learning_kernels, times_of, update_seconds
from groupwise.planning.decoding_step_kernels import LAUNCH
from groupwise.planning.learner_kernels import MEASURES, NO_MEASURES, forward_kernels, optimizer_step_kernels
from groupwise.planning.machines import PlannedMachines
from groupwise.planning.process_memory import ProcessWork
from groupwise.training.loop import learn
from tests.learner.small import SHAPE, model, rollouts
from tests.pretended_gpu import counted, pretended_gpu

ANSWERS = [[9, 5, 12, 3], [7, 7, 2, 11]]
PAIRS = sum(map(sum, ANSWERS))
MICROBATCHES = {4096: 1, 40: 2, 12: 8}


def recipe_of(**changes: Any) -> Recipe:
    method = replace(gspo(group_size=4), minibatches=1)
    return Recipe(**{"method": method, "prompts": 2, "machine": Machine(device="cuda", dtype="bfloat16"), **changes})


def counts_of(recipe: Recipe, shape: DecoderShape, context: int = 5) -> tuple[int, int]:
    """The kernels of an iteration's measures, and of its optimizer step."""
    with pretended_gpu() as device:
        policy = model(getattr(torch, recipe.machine.dtype), shape=shape).to(device)
        if recipe.lora:
            attach(policy, recipe.lora, seed=0)
        if isinstance(recipe.optimizer, AdamW8bit):
            _ = [on_device(device, signed=signed) for signed in (True, False)]  # made once in a process
        policy.model.recompute = recipe.machine.gradient_checkpointing
        learner = Learner(policy, optimizer=recipe.optimizer, steps=4, side_models=recipe.method.models)
        take, steps = learner.step, []

        def step(*arguments: Any) -> Any:
            with counted() as one:
                steps.append(one)
                return take(*arguments)

        learner.step = step  # type: ignore[method-assign]
        with counted() as every:
            learn(recipe, recipe.method, learner, pack(rollouts(ANSWERS, limit=64, context=context)), 0)
    assert len(steps) == 1
    return every.kernels - steps[0].kernels, steps[0].kernels


def machine(**changes: Any) -> Machine:
    return Machine(**{"device": "cuda", "dtype": "bfloat16", **changes})


PLAIN = {"qk_norm": False}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "one layer": ({}, {"layers": 1}, 5),
    "three layers": ({}, {"layers": 3}, 5),
    "two microbatches": ({"machine": machine(microbatch_tokens=40)}, {}, 5),
    "eight microbatches, separate head": ({"machine": machine(microbatch_tokens=12)}, {"tied_embeddings": False}, 5),
    "biases": ({"machine": machine(microbatch_tokens=40)}, PLAIN | {"qkv_bias": True}, 5),
    "float32": ({"machine": machine(dtype="float32")}, PLAIN, 5),
    "float32, norms, two microbatches": ({"machine": machine(dtype="float32", microbatch_tokens=40)}, {}, 5),
    "gradient checkpointing": ({"machine": machine(gradient_checkpointing=True)}, {}, 5),
    "long prompts": ({}, {"layers": 1, "max_positions": 2048}, 1100),
    "several blocks of logits": ({}, {"layers": 1, "vocabulary_size": 300_000}, 5),
    "an adapter": ({"lora": Lora(rank=2)}, {}, 5),
    "an adapter without norms": ({"lora": Lora(rank=2), "machine": machine(microbatch_tokens=12)}, PLAIN, 5),
    "8-bit moments": ({"optimizer": AdamW8bit(lr=1e-2)}, PLAIN, 5),
}


@pytest.mark.parametrize("name", CASES)
def test_an_optimizer_step(name: str) -> None:
    changes, sizes, context = CASES[name]
    recipe, shape = recipe_of(**{"optimizer": AdamW(lr=1e-2), **changes}), replace(SHAPE, **sizes)
    count = MICROBATCHES.get(recipe.machine.microbatch_tokens, 1)
    planned = optimizer_step_kernels(
        recipe, shape, microbatches=count, answer_tokens=PAIRS // count, prompt=context + 1
    )  # fmt: skip
    assert counts_of(recipe, shape, context)[1] == planned


@pytest.mark.parametrize(("dtype", "tokens"), [("bfloat16", 4096), ("bfloat16", 12), ("float32", 40)])
def test_the_forward_of_a_reference_model(dtype: str, tokens: int) -> None:
    recipe = recipe_of(method=grpo(group_size=4), machine=machine(dtype=dtype, microbatch_tokens=tokens))
    count = MICROBATCHES[tokens]
    measured = counts_of(recipe, SHAPE)[0] - counts_of(recipe_of(machine=recipe.machine), SHAPE)[0]
    assert measured == MEASURES - NO_MEASURES + count * forward_kernels(recipe, SHAPE, answer_tokens=PAIRS // count)


def test_a_plan_counts_all_steps_of_an_iteration() -> None:
    lengths = TokenLengths(prompt_tokens=5, answer_lengths=(7,))
    recipe = recipe_of(machine=machine(microbatch_tokens=4096))
    step = optimizer_step_kernels(recipe, SHAPE, microbatches=1, answer_tokens=56, prompt=5)
    assert learning_kernels(recipe, SHAPE, lengths, 1) == step + NO_MEASURES
    card = PlannedMachines(
        name="card", device_count=1, memory_gib=80, tflops=1.0, memory_bandwidth_gb_s=1.0, rates_source="made up"
    )
    seconds = times_of(recipe, SHAPE, card, lengths, ProcessWork()).optimizer_step_seconds - update_seconds(
        recipe, SHAPE, card, 5, 1
    )
    assert seconds == pytest.approx(LAUNCH * (step + NO_MEASURES))
    twice = recipe_of(method=replace(gspo(group_size=4), minibatches=2), machine=recipe.machine)
    half = optimizer_step_kernels(twice, SHAPE, microbatches=1, answer_tokens=28, prompt=5)
    forward = forward_kernels(twice, SHAPE, answer_tokens=28)
    assert learning_kernels(twice, SHAPE, lengths, 1) == 2 * half + MEASURES + 2 * forward
    assert learning_kernels(recipe_of(machine=Machine(device="cpu")), SHAPE, lengths, 1) == 0
