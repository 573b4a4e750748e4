"""Checks that the machine fits a recipe: device, packages, memory, and where processes compute."""

import os
from importlib.util import find_spec
from pathlib import Path

import torch

from groupwise.checks.check_result import CheckResult
from groupwise.cluster.check_launch import check_launch
from groupwise.cluster.external import ExternalRank
from groupwise.config.recipe import Machine, Recipe
from groupwise.config.resolve_devices import device_label, find_device
from groupwise.config.user_code import UserCode
from groupwise.core import GroupwiseError, MissingRequirement, Usage
from groupwise.data import declares
from groupwise.engines import Native, Served, Vllm
from groupwise.engines.remote.replica_devices import gpu_count, rank_devices
from groupwise.models import base_directory
from groupwise.models.decoder.decoder import ModelSizes
from groupwise.models.decoder.varlen_attention import varlen_obstacle
from groupwise.models.model_json_files import read_json
from groupwise.planning.pipeline_memory import pipeline_memory, pipeline_plan_line
from groupwise.planning.process_memory import host_memory, refuse_beyond
from groupwise.planning.unsupported_splits import sharding_obstacles
from groupwise.runs.trackers import OPENERS
from groupwise.training.build_run import DTYPES


def check_machine(recipe: Recipe, use: UserCode, *, train: bool) -> CheckResult:
    """Errors of the device and of the packages that trackers need. More threads than cores are a warning.

    Another note has device and dtype, which `auto` may have chosen.
    """
    errors: list[GroupwiseError] = []
    notes: list[str] = []
    try:
        notes.append(machine_line(recipe.machine))
        check_launch(recipe)
        if train and recipe.cluster.launch == "external" and recipe.cluster.ranks > 1:
            ExternalRank.read(recipe.cluster.ranks)
        if recipe.cluster.launch == "local":
            rank_devices(recipe.cluster.ranks, str(find_device(recipe.machine)), gpu_count())
    except GroupwiseError as error:
        errors.append(error)
    if (cores := os.cpu_count() or 1) < (threads := recipe.machine.threads * recipe.cluster.ranks):
        what = "machine.threads is" if recipe.cluster.ranks == 1 else "machine.threads of all ranks are"
        notes.append(f"  warning: {what} {threads}, and this machine has {cores} cores: slower")
    if recipe.cluster.shard == "full" and recipe.cluster.ranks == 1:
        notes.append("  note: cluster.shard is full, and one rank holds all weights: it has no effect")
    for name in recipe.trackers:
        if ":" in name:
            try:
                _ = use.find(name) if train else None
            except GroupwiseError as error:
                errors.append(error)
        elif name not in OPENERS:
            errors.append(
                Usage(f"unknown tracker {name!r}", fix=f"the trackers are {', '.join(OPENERS)}, or my_file:MyTracker")
            )
        elif find_spec(module := OPENERS[name][0]) is None:
            fix = f"pip install 'groupwise[{name}]'"
            errors.append(MissingRequirement(f"the tracker {name} needs the package {module}", fix=fix))
    return CheckResult(errors, notes)


def machine_line(machine: Machine) -> str:
    """The device and dtype as one line for the user. Raises a `GroupwiseError` if there is no such device."""
    masters = " with float32 master weights" if machine.dtype == "bfloat16" else ""
    return f"machine: {device_label(find_device(machine))}, {machine.dtype}{masters}"


def attention_note(recipe: Recipe, directory: Path, shape: ModelSizes) -> str:
    """A line if a language model's attention on this GPU is masked, with the reason; empty if it is `varlen_attn`."""
    try:
        device = find_device(recipe.machine)
    except GroupwiseError:  # `check_machine` reports it
        return ""
    if device.type != "cuda" or shape.kind_name != "language":
        return ""
    capability = torch.cuda.get_device_capability(device)
    reason = varlen_obstacle(DTYPES[recipe.machine.dtype], shape.head_dim, capability)
    if not reason and read_json(base_directory(directory) / "config.json").get("attn_logit_softcapping"):
        reason = "varlen_attn has no soft cap"
    return reason and f"  attention with masks, whose memory may grow with the square of the length: {reason}"


def check_place(recipe: Recipe) -> list[GroupwiseError]:
    """An error for an engine, or an optimizer's state, that is out of the way while the other works, with staleness."""
    places = {
        "engine.placement is colocated: the engine cannot sample while the learner trains": (
            isinstance(recipe.engine, Served) and recipe.engine.placement == "colocated",
            "--engine.placement separate",
        ),
        "machine.optimizer_offload moves moments to the host while the engine samples": (
            recipe.machine.optimizer_offload,
            "--machine.optimizer_offload false",
        ),
    }
    staleness = recipe.cluster.max_staleness
    return [
        Usage(
            f"{what}, and cluster.max_staleness is {staleness}: both work at once",
            fix=f"use --cluster.max_staleness 0, or {other}",
        )
        for what, (applies, other) in places.items()
        if applies and staleness
    ]


def check_scores(recipe: Recipe) -> list[GroupwiseError]:
    """An error for a strategy that scores answers at a temperature at which the engine does not."""
    temperature, scores = recipe.sampling.temperature, declares(recipe.method.strategy, "scores_answers")
    if not scores or not isinstance(recipe.engine, Vllm) or temperature == 1:
        return []
    what = "the method's strategy scores answers with the engine, and vLLM scores at temperature 1 only"
    fix = "use --sampling.temperature 1, or --engine.kind Native"
    return [Usage(what, evidence=f"sampling.temperature is {temperature:g}", fix=fix)]


def check_batch_invariance(recipe: Recipe) -> list[GroupwiseError]:
    """An error on a GPU for an engine of this package that decodes without pages, and so with shapes that vary."""
    engine = recipe.engine
    if not isinstance(engine, Native) or type(engine) is Native or isinstance(engine, Vllm):
        return []
    if not engine.batch_invariant:
        return []
    try:
        on_cpu = find_device(recipe.machine).type == "cpu"
    except GroupwiseError:  # `check_machine` reports it
        return []
    what = f"engine.batch_invariant is true: the engine {type(engine).__name__} does not have it on a GPU"
    evidence = "it decodes without pages, so that a sample may depend on the others that run"
    fix = "use --engine.batch_invariant false, or --engine.kind Native"
    return [] if on_cpu else [Usage(what, evidence=evidence, fix=fix)]


def check_sharding(recipe: Recipe, shape: ModelSizes) -> None:
    """`Usage` if the learner cannot be sharded over ranks with the bits of replicas."""
    if not recipe.cluster.sharded:
        return
    if evidence := "\n".join(sharding_obstacles(recipe, shape)):
        fix = "use --cluster.shard none: each rank then holds all weights"
        raise Usage("cluster.shard is full, and this run cannot be sharded", evidence=evidence, fix=fix)


def check_pipeline_memory(recipe: Recipe, directory: Path) -> str:
    """The memory that a run of a pipeline needs, as one line for the user. `Usage` if it is more than there is."""
    memory = pipeline_memory(recipe, directory)
    refuse_beyond(recipe, memory, *available_memory(recipe.machine))
    return pipeline_plan_line(recipe, memory)


def available_memory(machine: Machine) -> tuple[int, str]:
    """The memory of the GPU or of this machine, in bytes, and its name. An unknown device counts as this machine."""
    try:
        device = find_device(machine)
    except GroupwiseError:  # `check_machine` reports it
        return host_memory(), "this machine"
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory, str(device)
    return host_memory(), "this machine"
