"""Calibrates the seconds of a plan by the measured seconds of a finished run."""

from dataclasses import replace
from pathlib import Path
from statistics import median

from groupwise.config.recipe import Recipe
from groupwise.core import Usage
from groupwise.data import SEND_SECONDS, SENT_BYTES
from groupwise.engines import Served
from groupwise.models import DecoderShape
from groupwise.planning.cost_model import TokenLengths
from groupwise.planning.device_splits import DevicePlacement, try_placement
from groupwise.planning.machines import PlannedMachines, on_machines
from groupwise.runs.json_lines import read_lines
from groupwise.runs.run_layout import RunLayout, iteration_files

SAMPLE, LEARN = "seconds/sample", "seconds/learn"
CONNECTING = 0.1
"""Seconds of connecting to a host and of closing, for each version of the weights (docs/plan.md)."""
SHORT = 10 * CONNECTING
"""If a version was sent in fewer seconds, more than a tenth of them are those of connecting."""
ONE = DevicePlacement(device_count=1, generator_devices=1, learner_devices=1, tensor_parallel=1)


def calibrated(
    machines: PlannedMachines, run: Path, recipe: Recipe, shape: DecoderShape, prompt: int
) -> PlannedMachines:
    """The machines with factors by which a plan of this finished run has its measured seconds.

    The run used one device, which sampled and learned in turn; or it sent weights to engines on other hosts: then only
    the rate of sending is taken from it. `recipe` and `shape` are its own, `prompt` is its longest prompt. `Usage` for
    another run.
    """
    if sent := sent_weights(run):
        rate, seconds = sum(size for size, _ in sent) / sum(taken for _, taken in sent), median(x for _, x in sent)
        source = f"{machines.rates_source}; weights sent at {rate / 1e9:.3g} GB/s to a host, measured in {run.name}"
        if seconds < SHORT:
            shares = f"{seconds:.2g} s for each version, of which about {CONNECTING:g} s connect"
            source += f" (in {shares}: low for larger weights)"
        return replace(machines, publish_bandwidth_gb_s=rate / 1e9, rates_source=source)
    check_measurable(run, recipe)
    sampling, learning = phase_seconds(run)
    files = [path for _, path in iteration_files(RunLayout(run).samples, (".jsonl",))]
    answers = [line["length"] for path in files for line in read_lines(path)]
    if not (sampling and learning and answers):
        what = f"{run} has no iteration with timings and samples"
        raise Usage(what, fix="name a run that has finished at least one iteration")
    one = replace(machines, device_count=1, host_count=1, sampling_time_factor=1.0, learning_time_factor=1.0)
    trial = try_placement(
        ONE, 0, on_machines(recipe, one), shape, one, TokenLengths(prompt_tokens=prompt, answer_lengths=tuple(answers))
    )
    sampling, learning = sampling / trial.sampling(), learning / trial.learning
    rates = f"{machines.rates_source}; seconds of {run.name}: sampling x {sampling:.2f}, learning x {learning:.2f}"
    return replace(machines, sampling_time_factor=sampling, learning_time_factor=learning, rates_source=rates)


def check_measurable(run: Path, recipe: Recipe) -> None:
    """`Usage` unless the run sampled and learned in turn, in one process."""
    several = recipe.cluster.ranks > 1 or recipe.cluster.max_staleness or isinstance(recipe.engine, Served)
    if several:
        what = f"{run} has several processes, or samples ahead: the seconds of its phases are not those of one device"
        fix = "name a run with one rank, no staleness, and engine.kind Native, or one with engines on other hosts"
        raise Usage(what, fix=fix)


def sent_weights(run: Path) -> list[tuple[float, float]]:
    """The bytes and the seconds of each iteration in which a run sent weights, added over hosts; empty without one."""
    lines = read_lines(RunLayout(run).timings)
    return [(line[SENT_BYTES], line[SEND_SECONDS]) for line in lines if line.get(SENT_BYTES) and line.get(SEND_SECONDS)]


def phase_seconds(run: Path) -> tuple[float, float]:
    """The median seconds of sampling and of learning, without the first iteration, if there are others. 0 for none."""
    timings = [line for line in read_lines(RunLayout(run).timings) if SAMPLE in line and LEARN in line]
    timings = timings[1:] or timings  # the first one imports modules
    if not timings:
        return 0.0, 0.0
    return median(line[SAMPLE] for line in timings), median(line[LEARN] for line in timings)
