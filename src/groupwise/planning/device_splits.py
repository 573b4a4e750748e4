"""Simulates a run with each split of the devices into generators and learners, and with each bound on the staleness."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from groupwise.config.recipe import Recipe
from groupwise.engines import Native
from groupwise.models import DecoderShape
from groupwise.planning.cost_model import TokenLengths, times_of
from groupwise.planning.fit_in_memory import cached_tokens_that_fit, fits
from groupwise.planning.machines import PlannedMachines
from groupwise.planning.process_memory import ProcessWork
from groupwise.planning.simulator import SimulationResult, SimulationSetup, simulate
from groupwise.planning.unsupported_splits import hosts_obstacle, split_obstacle

LAGS = (0, 1, 2, 4)
"""The bounds on the staleness that are tried: 0 is synchronous; with 0 or 1 each sample has one version."""
SPLITS = 7
"""The most splits into generators and learners that are tried."""
MEASURED = 3
"""Iterations of a simulation that count: the same ones, with the same lengths, for each staleness and split."""
WARM = 4
"""The first iterations of a simulation, which do not count."""
ALONE = 2
"""Iterations of a simulation of sampling alone."""
LEAST = 512
"""A simulation has at least this many samples per iteration, or the whole iteration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlacement:
    """The work of the devices: `generator_devices` sample and `learner_devices` learn.

    If all do both, the two are equal.

    An engine spans `tensor_parallel` devices. The devices are those of `host_count` equal hosts. The ranks of the
    learner are on the first one, or on as many whole hosts as they need; engines are on all other devices.
    """

    device_count: int
    generator_devices: int
    learner_devices: int
    tensor_parallel: int
    host_count: int = 1

    @property
    def together(self) -> bool:
        """Whether each device samples and learns in turn."""
        return self.generator_devices + self.learner_devices > self.device_count

    @property
    def engines(self) -> int:
        """The number of engines."""
        return self.generator_devices // self.tensor_parallel

    @property
    def host_devices(self) -> int:
        """The number of devices of a host."""
        return self.device_count // self.host_count

    @property
    def learner_hosts(self) -> int:
        """The number of hosts with ranks of the learner."""
        return -(-self.learner_devices // self.host_devices)

    @property
    def engine_hosts(self) -> int:
        """The number of hosts with engines alone."""
        return self.host_count - self.learner_hosts

    @property
    def local_engines(self) -> int:
        """The number of engines that the run starts beside its ranks."""
        return self.engines - self.engine_hosts * self.host_devices // self.tensor_parallel

    @property
    def processes(self) -> dict[str, ProcessWork]:
        """The kinds of processes by name."""
        ranks, split, engines = self.learner_devices, self.tensor_parallel, self.engines
        if self.together:
            return {"both": ProcessWork(learner_rank_count=ranks, tensor_parallel=split, run_engine_count=engines)}
        learner = ProcessWork(has_engine=False, learner_rank_count=ranks)
        return {
            "learner": learner,
            "engine": ProcessWork(has_learner=False, tensor_parallel=split, run_engine_count=engines),
        }

    @property
    def label(self) -> str:
        """The placement in words: `8 do both`, `6 generate, 2 learn`."""
        return (
            f"{self.device_count} do both"
            if self.together
            else f"{self.generator_devices} generate, {self.learner_devices} learn"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPlacement:
    """A simulated placement. `run_scale`: the run has this many times the prompts and engines of the simulation."""

    placement: DevicePlacement
    simulation_setup: SimulationSetup
    run_scale: float
    simulation: SimulationResult

    @property
    def max_staleness(self) -> int:
        """The bound on the staleness."""
        return self.simulation_setup.max_staleness

    @property
    def warm(self) -> int:
        """The number of first iterations that do not count."""
        return WARM

    @property
    def seconds(self) -> float:
        """Seconds per iteration."""
        return self.simulation.seconds(self.warm)

    @property
    def learning(self) -> float:
        """The mean seconds of learning from an iteration."""
        tokens = self.simulation.trained_tokens_by_iteration[self.warm :]
        return (
            self.simulation_setup.learn_token_seconds * sum(tokens) / len(tokens)
            + self.simulation_setup.optimizer_step_seconds
        )

    def sampling(self) -> float:
        """Seconds of sampling an iteration alone, simulated without a learner."""
        alone = replace(
            self.simulation_setup,
            learn_token_seconds=0.0,
            optimizer_step_seconds=0.0,
            publish_seconds=0.0,
            max_staleness=0,
        )
        return simulate(alone, ALONE).publish_times[-1] / ALONE

    @property
    def rate(self) -> float:
        """Trained tokens per second, prompts included."""
        return self.simulation.rate(self.warm) * self.run_scale


def placements(
    recipe: Recipe, shape: DecoderShape, context: int, machines: PlannedMachines, *, together: bool, every: bool = True
) -> Iterator[DevicePlacement]:
    """The placements that fit in memory, each with the smallest engine that fits.

    With `together` all devices do both; else there are at most `SPLITS` splits, from few generators to many. Without
    `every`, those that this version does not run are left out, and a power of two of the devices learn.
    """
    found = _fitting(recipe, shape, context, machines, together=together, every=every)
    yield from (p for p in found if every or not obstacle(p, recipe, shape))


def obstacle(placement: DevicePlacement, recipe: Recipe, shape: DecoderShape) -> str:
    """Why this version does not run a placement; empty if it does."""
    return split_obstacle(
        recipe, shape, learners=placement.learner_devices, split=placement.tensor_parallel, together=placement.together
    ) or hosts_obstacle(
        recipe, hosts=placement.host_count, host_devices=placement.host_devices, learners=placement.learner_devices,
        split=placement.tensor_parallel, together=placement.together,
    )  # fmt: skip


def _fitting(
    recipe: Recipe, shape: DecoderShape, context: int, machines: PlannedMachines, *, together: bool, every: bool
) -> Iterator[DevicePlacement]:
    """The placements that fit in memory. Without `every`, a power of two of the devices learn."""
    count, hosts = machines.all_devices, machines.host_count
    splits = [1 << i for i in range(count.bit_length())]
    if not together and count == 1:
        return
    if together:
        options = (
            DevicePlacement(
                device_count=count,
                generator_devices=count // s * s,
                learner_devices=count,
                tensor_parallel=s,
                host_count=hosts,
            )
            for s in splits
        )
        yield from [p for p in options if fitting(p, recipe, shape, context, machines)][:1]
        return
    for split in splits:
        engine = ProcessWork(has_learner=False, tensor_parallel=split, run_engine_count=max(1, count // 2 // split))
        if fits(recipe, shape, context, machines, engine):
            step = max(split, -(-count // (SPLITS + 1) // split) * split)
            powers = [1 << k for k in reversed(range((count - 1).bit_length()))][:SPLITS]
            rest = [count - learners for learners in powers if not (count - learners) % split]
            for generators in range(step, count, step) if every else rest:
                p = DevicePlacement(
                    device_count=count,
                    generator_devices=generators,
                    learner_devices=count - generators,
                    tensor_parallel=split,
                    host_count=hosts,
                )
                if fitting(p, recipe, shape, context, machines):
                    yield p
            return


def fitting(
    placement: DevicePlacement, recipe: Recipe, shape: DecoderShape, context: int, machines: PlannedMachines
) -> bool:
    """Whether all processes of a placement fit in memory."""
    return all(fits(recipe, shape, context, machines, process) for process in placement.processes.values())


def any_fits(
    recipe: Recipe, shape: DecoderShape, context: int, machines: PlannedMachines, *, every: bool = True
) -> bool:
    """Whether a recipe fits on these machines in any placement; without `every`, in one that this version runs."""
    return any(
        next(placements(recipe, shape, context, machines, together=together, every=every), None)
        for together in (True, False)
    )


def try_placement(
    placement: DevicePlacement,
    max_staleness: int,
    recipe: Recipe,
    shape: DecoderShape,
    machines: PlannedMachines,
    lengths: TokenLengths,
) -> SimulatedPlacement:
    """Simulate a placement. Large runs are simulated at a scale: with a part of the prompts and engines."""
    group, answers = recipe.method.group_size, lengths.answer_lengths
    divisor = scale_of(placement.engines, recipe.prompts * group)
    prompts = max(1, round(recipe.prompts / divisor))
    processes = placement.processes
    sampling = processes.get("engine") or processes["both"]
    learning = times_of(recipe, shape, machines, lengths, processes.get("learner") or processes["both"])
    decoding = times_of(recipe, shape, machines, lengths, sampling, receivers=max(1, placement.engine_hosts))
    setup = SimulationSetup(
        engine_count=placement.engines // divisor,
        max_num_seqs=running_requests(recipe, shape, machines, lengths, sampling),
        decode_step_seconds=decoding.decode_step_seconds,
        decode_row_seconds=decoding.decode_row_seconds,
        prompts_per_iteration=prompts,
        group_size=group,
        prompt_tokens=lengths.prompt_tokens,
        sample_length=lambda draw, sample: answers[(draw * group + sample) % len(answers)],
        learn_token_seconds=learning.learn_token_seconds * recipe.prompts / prompts,
        optimizer_step_seconds=learning.optimizer_step_seconds,
        publish_seconds=decoding.publish_seconds,
        max_staleness=max_staleness,
    )
    simulation = simulate(setup, WARM + MEASURED)
    return SimulatedPlacement(
        placement=placement, simulation_setup=setup, run_scale=recipe.prompts / prompts, simulation=simulation
    )


def running_requests(
    recipe: Recipe, shape: DecoderShape, machines: PlannedMachines, lengths: TokenLengths, process: ProcessWork
) -> int:
    """The most running requests of an engine: at most `max_num_seqs`, and as many of mean length as its cache holds."""
    engine = recipe.engine if isinstance(recipe.engine, Native) else Native()
    cached = min(
        cached_tokens_that_fit(recipe, shape, lengths.prompt_tokens, machines, process), engine.kv_cache_tokens
    )
    return max(1, min(engine.max_num_seqs, int(cached / lengths.live)))


def scale_of(engines: int, samples: int) -> int:
    """The largest divisor of the number of engines that leaves at least `LEAST` samples per iteration, or 1.

    >>> scale_of(engines=16, samples=8192), scale_of(engines=8, samples=1024)
    (16, 2)
    """
    return max((d for d in range(1, engines + 1) if engines // d * d == engines and samples // d >= LEAST), default=1)


def try_all(
    recipe: Recipe, shape: DecoderShape, machines: PlannedMachines, lengths: TokenLengths, *, every: bool
) -> list[SimulatedPlacement]:
    """Simulate staleness 0 with all devices doing both, and each larger one with its best split: one trial for each.

    All splits are tried with staleness 1; with larger lags only those next to the best one so far. Without `every`,
    splits that this version does not run are left out.
    """

    def trials(max_staleness: int, tried: Iterable[DevicePlacement]) -> list[SimulatedPlacement]:
        return [try_placement(p, max_staleness, recipe, shape, machines, lengths) for p in tried]

    best = trials(0, placements(recipe, shape, lengths.prompt_tokens, machines, together=True, every=every))
    splits = list(placements(recipe, shape, lengths.prompt_tokens, machines, together=False, every=every))
    near = splits
    for max_staleness in LAGS[1:] if splits else ():
        best.append(max(trials(max_staleness, near), key=lambda trial: trial.rate))
        at = splits.index(best[-1].placement)
        near = splits[max(0, at - 1) : at + 2]
    return best
