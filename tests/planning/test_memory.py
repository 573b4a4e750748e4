"""The memory of a run: each part against a number computed by hand."""

from dataclasses import replace
from pathlib import Path

import pytest

from groupwise.config.devices import resolved
from groupwise.config.text import read_recipe
from groupwise.data import Usage
from groupwise.learner.forward import LOGITS_AT_ONCE
from groupwise.learner.linear_logprobs import NARROWEST as NARROWEST_BLOCK
from groupwise.models import Lora, Shape
from groupwise.planning import memory as planning
from groupwise.planning.memory import (
    PROCESS,
    activations,
    adapter_weights,
    host_memory,
    plan_line,
    refuse_beyond,
    run_memory,
)

SHAPE = Shape(
    vocabulary=100, width=8, layers=2, heads=2, kv_heads=1, head_dim=4, inner=16, positions=64, tied=True
)  # fmt: skip
LAYER = 8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 16 + 2 * 8  # q, k and v, o, MLP, norms
WEIGHTS = 100 * 8 + 2 * LAYER + 8
SETTINGS = {"method.minibatches": "2", "method.group_size": "4", "prompts": "4", "sampling.max_tokens": "10"}
RECIPE = resolved(read_recipe("method = 'dapo'", [*SETTINGS.items(), ("evaluate.problems", "2")]))


def test_parts_in_float32() -> None:
    memory = run_memory(RECIPE, SHAPE, 6)
    assert memory.total == memory.trained == WEIGHTS
    assert (memory.weights, memory.optimizer, memory.gradients) == (4 * WEIGHTS, 8 * WEIGHTS, 4 * WEIGHTS)
    assert memory.side_models == 0
    tokens = 2 * (6 + 4 * 10)  # two prompts of a step, each with four answers
    layer = 4 * 8 + 2 * (8 + 4) + 4 * 16
    assert memory.activations == 4 * tokens * (2 * layer + 3 * 8 + 2 * 16)
    assert memory.logits == 3 * 4 * tokens * 100
    assert memory.engine == 4 * (16 * (6 + 10) + 4 * 6) * 2 * 2 * 4  # 16 rows and 4 prompts; 2 layers, keys and values
    assert memory.samples == 16 * 10 * planning.TOKEN
    always = PROCESS + memory.weights + memory.optimizer + memory.samples
    assert memory.peak == always + max(memory.gradients + memory.activations + memory.logits, memory.engine)


def test_bfloat16_has_float32_masters() -> None:
    half = replace(RECIPE, machine=replace(RECIPE.machine, dtype="bfloat16"))
    memory, full = run_memory(half, SHAPE, 6), run_memory(RECIPE, SHAPE, 6)
    assert (memory.weights, memory.optimizer, memory.gradients) == (2 * WEIGHTS, 12 * WEIGHTS, 6 * WEIGHTS)
    assert memory.activations * 2 == full.activations and memory.engine * 2 == full.engine


def test_an_adapter_trains_its_own_weights() -> None:
    lora = Lora(rank=3, targets=("q_proj", "down_proj"))
    adapter = 2 * 3 * ((8 + 8) + (16 + 8))
    assert adapter_weights(SHAPE, lora) == adapter
    memory = run_memory(replace(RECIPE, lora=lora), SHAPE, 6)
    assert (memory.total, memory.trained, memory.optimizer) == (WEIGHTS + adapter, adapter, 8 * adapter)


def test_a_reference_is_a_copy() -> None:
    recipe = resolved(read_recipe("method = 'grpo'"))
    assert run_memory(recipe, SHAPE, 6).side_models == 4 * WEIGHTS
    lora = Lora(rank=3, targets=("q_proj",))
    assert run_memory(replace(recipe, lora=lora), SHAPE, 6).side_models == 4 * adapter_weights(SHAPE, lora)


def test_a_microbatch_bounds_activations_and_recompute_lowers_them() -> None:
    small = replace(RECIPE, machine=replace(RECIPE.machine, microbatch_tokens=32))
    assert run_memory(small, SHAPE, 6).activations == 4 * activations(SHAPE, 32, recompute=False)
    layer = 4 * 8 + 2 * (8 + 4) + 4 * 16
    assert activations(SHAPE, 5, recompute=True) == 5 * (2 * 8 + layer + 3 * 8 + 2 * 16)
    assert activations(replace(SHAPE, qk_norm=True), 1, recompute=False) - activations(SHAPE, 1, recompute=False) == 24


def test_the_constants_are_those_of_the_learner() -> None:
    assert (planning.LOGITS, planning.NARROWEST) == (LOGITS_AT_ONCE, NARROWEST_BLOCK)


def test_a_run_beyond_the_machine_is_refused_with_the_largest_part() -> None:
    memory = run_memory(RECIPE, SHAPE, 6)
    refuse_beyond(memory, memory.peak)
    with pytest.raises(Usage, match=r"this run needs about 0.3 GiB") as error:
        refuse_beyond(memory, memory.peak - 1)
    assert error.value.fix == planning.FIXES["logits"]
    huge = run_memory(replace(RECIPE, prompts=10**10), SHAPE, 6)
    with pytest.raises(Usage) as error:
        refuse_beyond(huge, 64 << 30)
    assert error.value.fix == planning.FIXES["samples"]


def test_the_plan_in_one_line() -> None:
    line = plan_line(RECIPE, run_memory(RECIPE, SHAPE, 6))
    assert line == "plan: 1,992 weights, 16 answers and at most 160 tokens per iteration, about 0.3 GiB of memory"


def test_a_control_group_limits_the_machine(tmp_path: Path) -> None:
    limit, none = tmp_path / "limit", tmp_path / "none"
    limit.write_text("4096\n")
    none.write_text("max\n")
    assert host_memory(limit) == 4096 < host_memory(none) == host_memory(tmp_path / "missing")
