"""The plan of a run on given machines: memory of each process, seconds, the best split, or the nearest recipe."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from groupwise.config.recipe import Recipe
from groupwise.core import Usage
from groupwise.engines import Vllm
from groupwise.models import DecoderShape
from groupwise.planning.cost_model import TokenLengths, draw_lengths
from groupwise.planning.device_splits import DevicePlacement, SimulatedPlacement, any_fits, try_all
from groupwise.planning.fit_in_memory import Change, nearest_changes
from groupwise.planning.machines import MOST_DEVICES, PlannedMachines, on_machines
from groupwise.planning.process_memory import ProcessMemoryPrediction, run_memory
from groupwise.planning.read_model_shape import MixtureOfExpertsShape, weights_of

NEAR = 0.02
"""Trials whose tokens per second differ by at most this share count as equally fast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """The plan of a run: `simulated_placements` has one for each staleness, and is empty if nothing fits.

    Then `recipe_changes` lead to the nearest recipe that fits (None if there is none), and `devices` is the smallest
    number of devices, as a power of two times the given one, on which the recipe fits unchanged (0 if there is none).
    Without `every`, only splits that this version runs are planned; `fits_beyond`: another one fits, which it refuses.
    """

    recipe: Recipe
    model_shape: DecoderShape
    machines: PlannedMachines
    token_lengths: TokenLengths
    simulated_placements: tuple[SimulatedPlacement, ...]
    recipe_changes: tuple[Change, ...] | None = ()
    smallest_device_count: int = 0
    plans_unsupported_splits: bool = False
    unsupported_split_fits: bool = False

    @property
    def weights(self) -> int:
        """The number of the model's weights."""
        return weights_of(self.model_shape)

    @property
    def best(self) -> SimulatedPlacement:
        """The trial with the smallest staleness among those that are about as fast as the fastest."""
        return smallest_staleness(self.simulated_placements)

    @property
    def one_version(self) -> SimulatedPlacement:
        """The best trial with staleness 0 or 1, in which each sample has one version."""
        return smallest_staleness([trial for trial in self.simulated_placements if trial.max_staleness <= 1])

    @property
    def bits_vary(self) -> str:
        """Why two equal runs may differ though each sample has one version; empty if they write equal bytes.

        Equal bytes are promised on one CPU thread per process (docs/reproducibility.md).
        """
        machine = self.recipe.machine
        causes = {
            "sums on a GPU have no fixed order": machine.device != "cpu",
            "sums of several threads depend on the rows beside them": machine.threads > 1,
            "vLLM's kernels may depend on the requests beside them": isinstance(self.recipe.engine, Vllm),
            "the rows beside a token change the last bits of its experts": isinstance(
                self.model_shape, MixtureOfExpertsShape
            ),
        }
        return "; ".join(cause for cause, applies in causes.items() if applies)

    def memories(self, placement: DevicePlacement) -> dict[str, ProcessMemoryPrediction]:
        """The memory of each kind of process of a placement."""
        context = self.token_lengths.prompt_tokens
        processes = placement.processes.items()
        return {name: run_memory(self.recipe, self.model_shape, context, process) for name, process in processes}

    @property
    def placements(self) -> list[DevicePlacement]:
        """The simulated placements; without one, all devices do both, which does not fit."""
        found = {trial.placement: None for trial in self.simulated_placements}
        machines, every = self.machines, self.plans_unsupported_splits
        count, hosts = (machines.all_devices, machines.host_count) if every else (1, 1)
        return list(found) or [
            DevicePlacement(
                device_count=count, generator_devices=count, learner_devices=count, tensor_parallel=1, host_count=hosts
            )
        ]


def smallest_staleness(trials: Sequence[SimulatedPlacement]) -> SimulatedPlacement:
    """The trial with the smallest staleness whose tokens per second are within `NEAR` of the most."""
    most = max(trial.rate for trial in trials)
    return min((trial for trial in trials if trial.rate >= most * (1 - NEAR)), key=lambda trial: trial.max_staleness)


def plan_run(
    recipe: Recipe, shape: DecoderShape, machines: PlannedMachines, prompt: int, *, every: bool = False
) -> RunPlan:
    """Plan a run. `prompt` is the longest prompt in tokens. `Usage` for a run that the plan does not model.

    With `every`, also splits of the devices that this version does not run.
    """
    recipe = on_machines(recipe, machines)
    if recipe.lora is not None and isinstance(shape, MixtureOfExpertsShape):
        raise Usage("an adapter on a mixture of experts is not modelled", fix="plan it without lora")
    if recipe.machine.quantization and isinstance(shape, MixtureOfExpertsShape):
        raise Usage("a mixture of experts has no weights in 4 bits here", fix="plan it without machine.quantization")
    longest = prompt + recipe.sampling.max_tokens
    if longest > shape.max_positions:
        what = f"prompt and answer may have {longest:,} tokens, and the model takes {shape.max_positions:,}"
        raise Usage(what, fix="lower sampling.max_tokens, or lengths.prompt in the machine file")
    lengths = draw_lengths(machines.assumed_lengths, prompt, recipe.sampling.max_tokens)
    trials = tuple(try_all(recipe, shape, machines, lengths, every=every))
    plan = RunPlan(
        recipe=recipe,
        model_shape=shape,
        machines=machines,
        token_lengths=lengths,
        simulated_placements=trials,
        plans_unsupported_splits=every,
    )
    plan = replace(
        plan,
        unsupported_split_fits=not every and machines.all_devices > 1 and any_fits(recipe, shape, prompt, machines),
    )
    if trials:
        return plan
    changes = nearest_changes(
        recipe, shape, lambda other: any_fits(other, shape, prompt, machines, every=every), prompt
    )
    return replace(
        plan, recipe_changes=changes, smallest_device_count=enough_devices(recipe, shape, machines, prompt, every=every)
    )


def enough_devices(recipe: Recipe, shape: DecoderShape, machines: PlannedMachines, prompt: int, *, every: bool) -> int:
    """The smallest number of devices on which a recipe fits: the given number times a power of two; 0 for none.

    Several hosts become more hosts.
    """
    more = replace(machines, link_bandwidth_gb_s=min(machines.link_bandwidth_gb_s, 1e6))  # one device may have no link
    grows = "device_count" if machines.host_count == 1 else "host_count"
    while 2 * more.all_devices <= MOST_DEVICES:
        more = replace(more, **{grows: 2 * getattr(more, grows)})
        if any_fits(recipe, shape, prompt, more, every=every):
            return more.all_devices
    return 0
