"""`FlowPolicy`: a flow model as a trainable policy, whose tokens are denoising steps."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from groupwise.core import Usage
from groupwise.data import Batch, Entropy, Ids, Logp, NeededMeasure
from groupwise.models.flow.denoising_actions import Pixels, decode_action
from groupwise.models.flow.denoising_noise import DenoisingNoise, wide
from groupwise.models.flow.denoising_settings import DenoisingSettings
from groupwise.models.flow.flow_measures import ForwardProcessLoss, StepConstantMeasure, StepKL, VelocityDifference
from groupwise.models.flow.velocity_network import END, FlowShape, VelocityNetwork
from groupwise.models.token_sampling import logprob_dtype

__all__ = ["FlowPolicy", "FrozenPipelineParts", "log_density"]

TokenStates = Float[Tensor, " n *state"]


@runtime_checkable
class FrozenPipelineParts(Protocol):
    """The frozen parts of a pipeline around its network: the scheduler's times, and the decoder of final states."""

    def times(self, steps: int) -> tuple[float, ...]: ...

    def picture(self, state: Float[Tensor, "*state"]) -> Pixels: ...


class FlowPolicy(nn.Module):
    """A velocity network, by default a small one, and the way in which it denoises. It is a `Policy` of the learner.

    A trained token is a step with noise: a Gaussian action, whose log-prob is the mean of the log-densities of its
    numbers. A written token is a step of the forward process: its log-prob is the log-prob of the true velocity
    under a unit Gaussian around the predicted one, up to a constant.
    """

    compiled = False
    diffusers_adapter = True
    """Adapters are written in the format of diffusers."""

    velocity: nn.Module

    def __init__(
        self,
        shape: FlowShape,
        denoise: DenoisingSettings = DenoisingSettings(),  # noqa: B008
        velocity: nn.Module | None = None,
        surroundings: FrozenPipelineParts | None = None,
    ) -> None:
        super().__init__()
        self.shape, self.denoise, self.surroundings = shape, denoise, surroundings
        self.velocity = velocity or VelocityNetwork(shape)
        self._recompute = False

    @property
    def recompute(self) -> bool:
        """Whether blocks are recomputed in backward (activation checkpointing), which large networks can do."""
        return self._recompute

    @recompute.setter
    def recompute(self, wanted: bool) -> None:
        self._recompute = wanted
        if wanted:
            network: Any = self.velocity
            network.recompute()

    @property
    def adapter_host(self) -> nn.Module:
        """The module that gets adapters: the transformer of a pipeline, or this module."""
        return getattr(self.velocity, "transformer", self)

    @property
    def dtype_device(self) -> dict[str, Any]:
        """The device and the dtype of states, means and log-probs: at least float32, also with bfloat16 weights."""
        weight = next(self.parameters())
        return {"device": weight.device, "dtype": logprob_dtype(weight.dtype)}

    @property
    def times(self) -> tuple[float, ...]:
        """The time before each step, and 0 after the last one. A pipeline has its scheduler's times."""
        return self.times_of(self.denoise)

    def times_of(self, denoise: DenoisingSettings) -> tuple[float, ...]:
        """The times of another denoising."""
        return denoise.times if self.surroundings is None else self.surroundings.times(denoise.steps)

    def picture(self, state: Float[Tensor, "*state"]) -> Pixels | None:
        """The decoded picture of a final state; None for a model whose states are not latents."""
        return None if self.surroundings is None else self.surroundings.picture(state)

    def words(self, prompts: Sequence[Ids]) -> Int[Tensor, "n prompt_length"]:
        """The words of prompts as rows of equal length."""
        prompt_length = max(map(len, prompts), default=0)
        rows = [(*words, *[END] * (prompt_length - len(words))) for words in prompts]
        return torch.tensor(rows, dtype=torch.long, device=self.dtype_device["device"]).view(len(rows), prompt_length)

    def measure(
        self, batch: Batch, wanted: Sequence[NeededMeasure], side_models: Mapping[str, Any]
    ) -> dict[NeededMeasure, Float[Tensor, " n"]]:
        """Numbers per trained token. `Usage` for a measure that a flow model does not have."""
        steps = TrainedDenoisingSteps.of(batch, self)
        forward = steps.forward
        # Leaves: the learner runs backward for each microbatch, also for one that a mask emptied.
        numbers = {m: torch.zeros_like(steps.step_times, requires_grad=torch.is_grad_enabled()) for m in wanted}
        for which, kind in ((~forward, DenoisingMeasures), (forward, RenoisingMeasures)):
            if bool(which.any()):
                part = kind(steps.take(which), self, side_models)
                numbers = {m: x.masked_scatter(which, part(m).to(x)) for m, x in numbers.items()}
        return numbers


@dataclass(frozen=True, slots=True, eq=False)
class TrainedDenoisingSteps:
    """The trained steps of a batch: times, words, and the arrays of their actions."""

    step_times: Float[Tensor, " n"]
    next_times: Float[Tensor, " n"]
    prompt_tokens: Int[Tensor, "n prompt_length"]
    step_actions: tuple[Float[Tensor, " count *state"], ...]

    @classmethod
    def of(cls, batch: Batch, policy: FlowPolicy) -> "TrainedDenoisingSteps":
        rows = list(zip(batch.sequences.index.tolist(), batch.index_in_sample.tolist()))
        samples, dtype_device = batch.samples, policy.dtype_device
        spans = list(pairwise(policy.times))
        times = torch.tensor([spans[samples[s].tokens[i]] for s, i in rows], **dtype_device).view(-1, 2)
        words = policy.words([samples[s].context for s, _ in rows])
        actions = tuple(
            torch.from_numpy(np.array(decode_action(samples[s].actions[i]))).to(**dtype_device) for s, i in rows
        )
        return cls(times[:, 0], times[:, 1], words, actions)

    @property
    def forward(self) -> Tensor:
        """For each step, whether it belongs to the forward process: its action is noise and data."""
        return torch.tensor([len(a) == 2 for a in self.step_actions], dtype=torch.bool, device=self.step_times.device)

    def take(self, which: Tensor) -> "TrainedDenoisingSteps":
        actions = tuple(a for a, chosen in zip(self.step_actions, which.tolist()) if chosen)
        return TrainedDenoisingSteps(self.step_times[which], self.next_times[which], self.prompt_tokens[which], actions)


class StepMeasures:
    """The measures of steps of one kind. Each velocity is computed once; only the policy's is in the graph."""

    step_kind_label: str
    velocity_states: TokenStates
    """The states at which velocities are computed."""
    measure_functions: Mapping[type, Callable[[Any], Tensor]]

    def __init__(self, steps: TrainedDenoisingSteps, policy: FlowPolicy, side_models: Mapping[str, Any]) -> None:
        self.steps, self.policy, self.side_models = steps, policy, side_models
        self.arrays = torch.stack(steps.step_actions).unbind(1)
        self._velocities: dict[str, TokenStates] = {}
        self.prepare()

    def prepare(self) -> None:
        """Set `velocity_states` and `measure_functions`."""
        raise NotImplementedError

    def velocity(self, model: str = "policy") -> TokenStates:
        """The velocity of a model at the states before the steps."""
        if model not in self._velocities:
            now, words = self.steps.step_times, self.steps.prompt_tokens
            with torch.set_grad_enabled(model == "policy" and torch.is_grad_enabled()):
                network = self.policy.velocity if model == "policy" else self.side_models[model].velocity
                self._velocities[model] = network(self.velocity_states, now, words)
        return self._velocities[model]

    def __call__(self, measure: Any) -> Float[Tensor, " n"]:
        computed = self.measure_functions.get(type(measure))
        if computed is None:
            raise Usage(
                f"a flow policy does not compute the measure {measure} at {self.step_kind_label}",
                fix="remove the component that needs it, or use a method of the family flow: groupwise methods",
            )
        return computed(measure)


class DenoisingMeasures(StepMeasures):
    """Measures of denoising steps with noise: state before, state after, and the engine's mean."""

    step_kind = "a denoising step"

    def prepare(self) -> None:
        self.velocity_states = self.arrays[0]
        self.measure_functions = {
            Logp: lambda m: log_density(self.arrays[1], *self.step(m.model)),
            Entropy: lambda m: self.std.log() + 0.5 * math.log(2 * math.pi * math.e),
            StepKL: self.kl,
            StepConstantMeasure: self.constant,
            VelocityDifference: lambda m: mean_square(self.velocity() - self.velocity(m.model)),
        }

    def step(self, model: str) -> tuple[TokenStates, Float[Tensor, " n"]]:
        """Mean and standard deviation of the steps under a model."""
        return self.policy.denoise.noise(
            self.velocity_states, self.velocity(model), self.steps.step_times, self.steps.next_times
        )

    @cached_property
    def std(self) -> Float[Tensor, " n"]:
        return self.step("policy")[1].detach()

    def constant(self, measure: StepConstantMeasure) -> Float[Tensor, " n"]:
        match measure.step_quantity:
            case "dt":
                return self.steps.step_times - self.steps.next_times
            case "std":
                return self.std
            case "sensitivity":
                return sensitivity(
                    self.policy.denoise.noise, self.velocity_states, self.steps.step_times, self.steps.next_times
                )

    def kl(self, measure: StepKL) -> Float[Tensor, " n"]:
        other = self.arrays[2] if measure.model == "policy" else self.step(measure.model)[0]
        return mean_square((self.step("policy")[0] - other) / wide(self.std, other)) / 2


class RenoisingMeasures(StepMeasures):
    """Measures of steps of the forward process: noise and data."""

    step_kind = "a step of the forward process"

    def prepare(self) -> None:
        now = wide(self.steps.step_times, self.arrays[0])
        self.velocity_states = (1 - now) * self.arrays[1] + now * self.arrays[0]
        self.measure_functions = {
            Logp: lambda m: -mean_square(self.velocity(m.model) - (self.arrays[0] - self.arrays[1])) / 2,
            Entropy: lambda m: torch.full_like(self.steps.step_times, 0.5 * math.log(2 * math.pi * math.e)),
            StepConstantMeasure: lambda m: (
                self.steps.step_times if m.step_quantity == "dt" else torch.ones_like(self.steps.step_times)
            ),
            ForwardProcessLoss: self.implicit_error,
            VelocityDifference: lambda m: mean_square(self.velocity() - self.velocity(m.model)),
        }

    def implicit_error(self, measure: ForwardProcessLoss) -> Float[Tensor, " n"]:
        mixture = measure.beta * self.velocity() + (1 - measure.beta) * self.velocity(measure.model)
        error = self.velocity_states - wide(self.steps.step_times, mixture) * mixture - self.arrays[1]
        return mean_square(error) / error.detach().abs().flatten(1).mean(1).clamp(min=1e-5)


def log_density(x: TokenStates, mean: TokenStates, std: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """The mean, over the numbers of each state, of their log-densities under a Gaussian. Flow-GRPO's log-prob."""
    return -mean_square((x - mean) / wide(std, x)) / 2 - std.log() - 0.5 * math.log(2 * math.pi)


@torch.no_grad()
def sensitivity(
    noise: DenoisingNoise, like: TokenStates, now: Float[Tensor, " n"], then: Float[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """`|d mean / d velocity| / std` of steps. The mean is linear in state and velocity. 1 where that is not finite."""
    zero = torch.zeros_like(like)
    mean, std = noise(zero, zero + 1, now, then)
    ratio = mean.flatten(1)[:, 0].abs() / std
    return torch.where(ratio.isfinite() & (std > 0), ratio, 1.0)


def mean_square(x: TokenStates) -> Float[Tensor, " n"]:
    return x.flatten(1).square().mean(1)
