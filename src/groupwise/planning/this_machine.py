"""The machine that runs `groupwise plan`: its GPU by name, or its CPU as measured in less than a second."""

from collections.abc import Callable
from dataclasses import replace

import torch

from groupwise.config.recipe import Recipe
from groupwise.config.resolve_devices import find_device
from groupwise.core import MissingRequirement, Usage, counted
from groupwise.models import DecoderShape
from groupwise.models.return_freed_memory import machine_memory
from groupwise.planning.cost_model import TokenLengths
from groupwise.planning.cpu_run_duration import SLOWER, cpu_of, measured_rates, phases
from groupwise.planning.device_splits import try_placement
from groupwise.planning.gpu_cards import named_machines
from groupwise.planning.machines import PlannedMachines, on_machines
from groupwise.planning.plan_calibration import ONE

GIB = 1 << 30


def this_machine(recipe: Recipe, shape: DecoderShape | None, prompt: Callable[[], int]) -> PlannedMachines:
    """This machine: a GPU by the published rates of its name, or the CPU, whose rates are measured.

    Without a `shape` only the memory counts. `prompt` computes the longest prompt. `Usage` for a GPU without published
    rates, `MissingRequirement` if the system does not report its memory.
    """
    device = find_device(recipe.machine)
    if device.type != "cpu":
        return this_card(device)
    total = machine_memory().get("MemTotal")
    if total is None:
        fix = "describe it: --machines FILE.toml; groupwise plan --help shows one"
        raise MissingRequirement("this system does not report the size of its memory", fix=fix)
    threads = recipe.machine.threads
    label = f"this machine ({counted(threads, 'thread')})"
    bare = PlannedMachines(
        name=label,
        device_count=1,
        memory_gib=round(total / GIB, 1),
        tflops=1.0,
        memory_bandwidth_gb_s=1.0,
        device_type="cpu",
        rates_source="unused",
    )
    return bare if shape is None else with_measured_rates(bare, on_machines(recipe, bare), shape, prompt())


def with_measured_rates(machines: PlannedMachines, recipe: Recipe, shape: DecoderShape, prompt: int) -> PlannedMachines:
    """The CPU with its rates as measured now, and with factors by which a plan has the seconds of `run_duration`."""
    rates = measured_rates(recipe.machine.dtype, recipe.machine.threads)
    one = replace(cpu_of(shape, rates), name=machines.name, memory_gib=machines.memory_gib)
    sampled, learned = phases(recipe, shape, prompt, rates)
    trial = try_placement(
        ONE, 0, recipe, shape, one, TokenLengths(prompt_tokens=prompt, answer_lengths=(recipe.sampling.max_tokens,))
    )
    answers = recipe.prompts * recipe.method.group_size
    operations = rates.matmul_flops_per_second / 1e9
    text = f"measured now: {operations:,.0f} GFLOP/s, {rates.memory_read_bytes_per_second / 1e9:,.1f} GB/s"
    return replace(
        one,
        sampling_time_factor=SLOWER * sampled(answers) / trial.sampling(),
        learning_time_factor=SLOWER * learned / trial.learning,
        rates_source=f"{text}, and by the ratio of measured runs to these rates",
    )


def this_card(device: torch.device) -> PlannedMachines:
    """This machine's GPU: the memory that torch reports, and the published rates of its name."""
    properties = torch.cuda.get_device_properties(device)
    try:
        card = named_machines(properties.name)
    except Usage as error:
        fix = "describe it: --machines FILE.toml; groupwise plan --help shows one"
        raise Usage(f"the rates of {properties.name} are not known", evidence=error.what, fix=fix) from None
    return replace(card, name=f"this machine's {card.name}", memory_gib=round(properties.total_memory / GIB, 1))
