"""The share of a GPU's memory that vLLM may take, beside the learner on the same GPU."""

from dataclasses import replace
from math import floor

from groupwise.config.recipe import Recipe
from groupwise.core import Usage
from groupwise.engines import Vllm
from groupwise.engines.vllm.vllm_replicas import OWN_GPU
from groupwise.models import DecoderShape
from groupwise.planning.process_memory import BYTES, GIB, ProcessWork, key_value_bytes, run_memory


def with_engine_share(recipe: Recipe, shape: DecoderShape, context: int, gpu_bytes: int) -> Recipe:
    """The recipe of a run whose engine is on the learner's GPU, of `gpu_bytes`, with the engine's share as a number.

    That is `OWN_GPU` less the learner's predicted memory: its peak, or what it keeps while an engine that sleeps
    beside it (`placement = "colocated"`) samples. `context` is the longest prompt, in tokens. `Usage` if the weights
    and one answer do not fit in it.
    """
    engine = recipe.engine
    if not isinstance(engine, Vllm) or engine.gpu_memory_utilization != "by_plan":
        return recipe
    learner = run_memory(recipe, shape, context, ProcessWork(has_engine=False))
    kept = learner.peak - learner.python_bytes
    if engine.placement == "colocated":
        kept = sum(learner.permanent_bytes.values()) + sum(learner.phase_bytes.get("publishing", {}).values())
    share = floor(100 * (OWN_GPU - kept / gpu_bytes)) / 100
    size = BYTES[recipe.machine.dtype]
    needed = learner.parameter_count * size + (context + recipe.sampling.max_tokens) * key_value_bytes(shape, size)
    if share * gpu_bytes < needed:
        what = f"the engine needs {needed / GIB:.1f} GiB of the GPU for the weights and one answer"
        evidence = f"the GPU has {gpu_bytes / GIB:.1f} GiB, and the learner takes {kept / GIB:.1f} GiB of it"
        fix = "train an adapter: --lora.rank 16"
        if engine.placement == "separate":
            fix = f"use --engine.placement colocated\nor {fix}"
        raise Usage(what, evidence=evidence, fix=fix)
    return replace(recipe, engine=replace(engine, gpu_memory_utilization=share))
