"""The share of a GPU for vLLM beside the learner, by hand."""

from dataclasses import replace

import pytest

from groupwise.config.recipe import Recipe
from groupwise.config.resolve_devices import resolved
from groupwise.core import Usage
from groupwise.engines import Vllm
from groupwise.methods import dapo
from groupwise.models import DecoderShape, Lora
from groupwise.planning.engine_share import with_engine_share
from groupwise.planning.process_memory import GIB, ProcessWork, run_memory

SHAPE = DecoderShape(
    vocabulary_size=151_936, hidden_size=896, layers=24, heads=14, kv_heads=2, head_dim=64, mlp_width=4864,
    max_positions=32_768, tied_embeddings=True, qkv_bias=True,
)  # fmt: skip
RECIPE = resolved(Recipe(method=dapo(), engine=Vllm()))
RECIPE = replace(RECIPE, machine=replace(RECIPE.machine, dtype="bfloat16"))


def share(recipe: Recipe, gib: float) -> float:
    engine = with_engine_share(recipe, SHAPE, 300, int(gib * GIB)).engine
    assert isinstance(engine, Vllm) and engine.gpu_memory_utilization != "by_plan"
    return engine.gpu_memory_utilization


def colocated(recipe: Recipe) -> Recipe:
    return replace(recipe, engine=Vllm(placement="colocated"))


def test_the_engine_takes_what_the_learner_leaves_of_nine_tenths() -> None:
    learner = run_memory(RECIPE, SHAPE, 300, ProcessWork(has_engine=False))
    kept = sum(learner.permanent_bytes.values())
    assert share(colocated(RECIPE), 80) == pytest.approx(0.9 - kept / (80 * GIB), abs=0.01)
    peak = learner.peak - learner.python_bytes
    assert peak > kept and share(RECIPE, 80) == pytest.approx(0.9 - peak / (80 * GIB), abs=0.01)


def test_an_adapter_leaves_more_for_the_engine() -> None:
    assert share(colocated(replace(RECIPE, lora=Lora())), 24) > share(colocated(RECIPE), 24)


def test_a_gpu_without_room_for_both_is_refused_with_what_helps() -> None:
    with pytest.raises(Usage, match="GiB of the GPU for the weights and one answer") as caught:
        share(RECIPE, 8)
    assert "--engine.placement colocated" in caught.value.fix and "--lora.rank" in caught.value.fix
    with pytest.raises(Usage) as caught:
        share(colocated(RECIPE), 4)
    assert caught.value.fix == "train an adapter: --lora.rank 16"


def test_a_named_share_stays() -> None:
    named = replace(RECIPE, engine=Vllm(gpu_memory_utilization=0.3))
    assert with_engine_share(named, SHAPE, 300, GIB) is named
