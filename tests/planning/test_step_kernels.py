"""The kernels of a decoding step by formula are those that the pretended GPU counts."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from groupwise.config.recipe import Machine, Recipe
from groupwise.engines import Native, NativeEngine, PagedEngine
from groupwise.engines.native.paged_batch import PagedBatch
from groupwise.engines.native.running_batch import RunningBatch
from groupwise.methods import grpo
from groupwise.models import DecoderShape
from groupwise.planning.cost_model import step_seconds
from groupwise.planning.decoding_step_kernels import LAUNCH, step_kernels
from groupwise.planning.machines import PlannedMachines
from tests.pretended_gpu import counted, pretended_gpu
from tests.rollout.fakes import decoder, generate, prompt_of, request, without_end_token

LARGE = {"vocabulary_size": 1500, "head_dim": 16}


def planned(shape: DecoderShape, dtype: str, rows: int = 8) -> int:
    machine = Machine(device="cuda", dtype=dtype)  # type: ignore[arg-type]
    recipe = Recipe(method=grpo(group_size=4), machine=machine, prompts=8, engine=Native(max_num_seqs=rows))
    return step_kernels(recipe, shape)


def counts_of(
    build: Callable[..., NativeEngine], batch: type, dtype: torch.dtype, rows: int = 8,
    **changes: bool,
) -> tuple[int, DecoderShape]:  # fmt: skip
    """The kernels of the second step of groups of four, and the model's shape."""
    counts, decode = [], batch.decode
    with pytest.MonkeyPatch.context() as patch, pretended_gpu() as device:

        def call(self):
            with counted() as one:
                counts.append(one)
                return decode(self)

        patch.setattr(batch, "decode", call)
        model = decoder(dtype, **(LARGE | changes)).to(device)
        engine = build(model, without_end_token(), seed=1, max_num_seqs=rows)
        asks = [request(i // 4, context=prompt_of(i // 4, 300), stream=(i,), limit=3) for i in range(rows)]
        generate(engine, asks)
    return counts[1].kernels, model.shape


@pytest.mark.parametrize("qk_norm", [False, True])
def test_with_pages(qk_norm: bool) -> None:
    kernels, shape = counts_of(PagedEngine, PagedBatch, torch.bfloat16, qk_norm=qk_norm)
    assert kernels == planned(shape, "bfloat16")
    assert planned(replace(shape, layers=28), "bfloat16") == {False: 687, True: 743}[qk_norm]


@pytest.mark.parametrize(("rows", "qk_norm"), [(8, False), (12, True)])
def test_without_pages_they_grow_with_the_prompts(rows: int, qk_norm: bool) -> None:
    kernels, shape = counts_of(NativeEngine, RunningBatch, torch.float32, rows, qk_norm=qk_norm)
    assert kernels == planned(shape, "float32", rows)


def test_a_plan_takes_the_counted_kernels_unless_the_machines_have_seconds() -> None:
    recipe = Recipe(method=grpo(), machine=Machine(device="cuda", dtype="bfloat16"))
    machines = PlannedMachines(
        name="card", device_count=1, memory_gib=80, tflops=1.0, memory_bandwidth_gb_s=1.0, rates_source="made up"
    )
    shape = decoder(**LARGE).shape
    assert step_seconds(recipe, shape, machines) == LAUNCH * step_kernels(recipe, shape)
    assert step_seconds(recipe, shape, replace(machines, decode_step_overhead_ms=2.5)) == 2.5e-3
