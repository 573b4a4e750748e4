"""The engine of a flow policy: denoising in the trainer's process; samples enter and leave at any step."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

import torch
from torch import Tensor

from groupwise.core import Usage
from groupwise.data import ENVIRONMENT, Finish, Generation, GenerationRequest, Ids
from groupwise.engines.native.attention_layouts import padded
from groupwise.engines.steps.step_engine import ROWS, SteppingEngine
from groupwise.models import DenoisingSettings, FlowPolicy, lineage
from groupwise.models.flow.counter_based_normals import LARGE, normals
from groupwise.models.flow.denoising_actions import decode_action, encode_action
from groupwise.models.flow.denoising_noise import euler, wide
from groupwise.models.flow.flow_policy import log_density

__all__ = ["DenoisingEngine"]


@dataclass(eq=False)
class DenoisingRequest:
    """A request under way: its state, the number of its next step, and its tokens and actions so far."""

    request: GenerationRequest
    future: asyncio.Future[Generation]
    denoising_settings: DenoisingSettings
    next_step: int
    latent: Tensor | None
    generated_token_ids: list[int] = field(default_factory=list)
    actions: list[bytes] = field(default_factory=list)
    generated_logp: list[float] = field(default_factory=list)
    noise_flags: list[bool] = field(default_factory=list)

    @classmethod
    def of(
        cls, request: GenerationRequest, future: asyncio.Future[Generation], denoise: DenoisingSettings
    ) -> "DenoisingRequest":
        """A request at its first step, or after the last action of its path. It may ask for another number of steps."""
        if request.denoising_steps is not None:
            denoise = replace(denoise, steps=request.denoising_steps)
        if not request.previous_actions:
            return cls(request, future, denoise, 0, None)
        state = torch.from_numpy(decode_action(request.previous_actions[-1])[1].copy())
        return cls(request, future, denoise, request.context[-1] + 1, state)

    @property
    def words(self) -> Ids:
        """The prompt's words, without the steps so far."""
        return self.request.context[: len(self.request.context) - self.request.already_generated_count]

    @property
    def end(self) -> int:
        """The number of the step after its next one, which may span several. The last one spans all that are left."""
        stride, steps = self.request.steps_per_token, self.denoising_settings.steps
        return self.next_step + stride if self.next_step + 2 * stride <= steps else steps

    @property
    def noisy_step(self) -> bool:
        """Whether its next step has noise."""
        return self.request.sampling.temperature > 0 and self.denoising_settings.has_noise(self.next_step)


class DenoisingEngine(SteppingEngine[DenoisingRequest]):
    """An `Engine` over a flow policy: each token is a denoising step.

    A step with noise has its weights version as origin, a deterministic one `ENVIRONMENT`: it is no action and not
    trained. At temperature 0 all steps are deterministic, and only the first state is random; another temperature
    multiplies the noise, and log-probs stay the policy's. Forks of a sample have its first state. Where a
    request has a `stride`, a token is the number of the last step that it spans. A sample does not depend on the
    others: random numbers are keyed, and on one thread states are bit-identical. When weights are loaded, running
    requests end with the finish `cut` and their steps so far.
    """

    def __init__(self, policy: FlowPolicy, *, seed: int, max_num_seqs: int = 256) -> None:
        super().__init__(policy, max_num_seqs=max_num_seqs)
        self._policy, self._seed = policy, seed
        large = prod(policy.shape.state_shape) >= LARGE  # pictures whose memory bounds the rows
        self._multiple = min(ROWS, max_num_seqs) if large else ROWS

    def _pending_request(self, request: GenerationRequest, future: asyncio.Future[Generation]) -> DenoisingRequest:
        return DenoisingRequest.of(request, future, self._policy.denoise)

    def _interrupt(self, batch: Sequence[DenoisingRequest]) -> list[DenoisingRequest]:
        for pending in batch:
            self._end(pending, Finish.cut)
        return []

    @torch.inference_mode()
    def _step(self) -> None:
        """Take one step of every live sample. Finished samples leave."""
        batch, policy = self._running, self._policy
        if starting := [pending for pending in batch if pending.latent is None]:
            for pending, state in zip(starting, self._normals(starting, first=True), strict=True):
                pending.latent = state
        dtype_device, times = (
            policy.dtype_device,
            {pending.denoising_settings: policy.times_of(pending.denoising_settings) for pending in batch},
        )
        spans = [
            (times[pending.denoising_settings][pending.next_step], times[pending.denoising_settings][pending.end])
            for pending in batch
        ]
        fill = padded(len(batch), self._multiple) - len(batch)
        before = torch.stack([*(pending.latent for pending in batch), *[batch[-1].latent] * fill]).to(**dtype_device)  # type: ignore[list-item]
        now, then = torch.tensor([*spans, *[spans[-1]] * fill]).to(**dtype_device).unbind(1)
        words = policy.words([*(pending.words for pending in batch), *[batch[-1].words] * fill])
        velocity = policy.velocity(before, now, words)
        mean, std = policy.denoise.noise(before, velocity, now, then)
        noisy = [pending.noisy_step for pending in batch]
        mask = torch.tensor([*noisy, *[False] * fill], device=dtype_device["device"])
        mean = torch.where(wide(mask, mean), mean, euler(before, velocity, now, then))
        after = mean.clone()
        if any(noisy):
            chosen = [pending for pending, has_noise in zip(batch, noisy, strict=True) if has_noise]
            noise = self._normals(chosen, first=False).to(mean)
            amount = torch.tensor([pending.request.sampling.temperature for pending in chosen]).to(std)
            after[mask] += wide(std[mask] * amount, noise) * noise
        logp = torch.where(mask, log_density(after, mean, std), torch.nan)
        self._record(before, after, mean, logp, noisy)

    def _record(self, before: Tensor, after: Tensor, mean: Tensor, logp: Tensor, noisy: Sequence[bool]) -> None:
        """Write a step into the samples, and end those that it finishes."""
        arrays = [x.float().cpu().numpy() for x in (before, after, mean)]
        for i, (pending, has_noise, density) in enumerate(zip(self._running, noisy, logp.tolist())):
            last = pending.next_step == pending.denoising_settings.steps - 1
            picture = self._policy.picture(after[i]) if last else None
            pending.actions.append(encode_action(*(x[i] for x in arrays), picture=picture))
            pending.generated_logp.append(density)
            pending.noise_flags.append(has_noise)
            pending.latent = after[i].float()
            pending.next_step = pending.end
            pending.generated_token_ids.append(pending.next_step - 1)
            if pending.next_step == pending.denoising_settings.steps:
                self._end(pending, Finish.stop)
            elif len(pending.actions) == pending.request.limit:
                self._end(pending, Finish.length)
        self._running = [pending for pending in self._running if not pending.future.done()]

    def _normals(self, batch: Sequence[DenoisingRequest], *, first: bool) -> Tensor:
        """The normal numbers of these samples' first states, or of the noise of their present steps."""
        shape = self._policy.shape.state_shape
        numbers = torch.empty(len(batch), prod(shape))
        purposes = [pending.request.random_purpose for pending in batch]
        for purpose in set(purposes):
            rows = [i for i, p in enumerate(purposes) if p == purpose]
            draws = [batch[i].request.draw_id for i in rows]
            streams = [lineage(batch[i].request.stream[:1] if first else batch[i].request.stream) for i in rows]
            steps = [0 if first else batch[i].next_step + 1 for i in rows]
            numbers[rows] = normals((self._seed, purpose), draws, streams, steps, prod(shape))
        return numbers.view(-1, *shape)

    def _end(self, pending: DenoisingRequest, finish: Finish) -> None:
        if not pending.future.done():
            origins = tuple(self.version if noisy else ENVIRONMENT for noisy in pending.noise_flags)
            result = Generation(
                tokens=tuple(pending.generated_token_ids),
                logp=tuple(pending.generated_logp),
                versions=origins,
                finish=finish,
                actions=tuple(pending.actions),
            )
            pending.future.set_result(result)

    def _check(self, request: GenerationRequest) -> None:
        if request.steps_per_token < 1 or (request.steps_per_token > 1 and request.sampling.temperature > 0):
            raise ValueError(
                f"a generation request has steps of length {request.steps_per_token} at temperature "
                f"{request.sampling.temperature}: its stride must be at least 1, and above 1 only at temperature 0"
            )
        words = request.context[: len(request.context) - request.already_generated_count]
        if not self._policy.shape.takes(words):
            raise Usage(
                f"a prompt of this flow model has {self._policy.shape.prompt}",
                evidence=f"the prompt has the tokens {', '.join(map(str, words))}",
                fix="use prompts of the task that the model was made for",
            )
        if request.already_generated_count and not request.previous_actions:
            raise Usage("steps of a flow policy continue from actions", fix="send Sample.actions in the request")
