"""The engine of a masked policy: a canvas of masked cells is revealed in steps, in the trainer's process."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from groupwise.core import Usage
from groupwise.data import ENVIRONMENT, Finish, Generation, GenerationRequest
from groupwise.engines.native.attention_layouts import padded
from groupwise.engines.steps.step_engine import ROWS, SteppingEngine
from groupwise.models import MaskedPolicy, choose, lineage, uniform
from groupwise.models.masked.unmasking_actions import encode_commits, encode_knobs
from groupwise.models.masked.unmasking_schedule import masked_counts, temperatures

__all__ = ["UnmaskingEngine"]


@dataclass(eq=False)
class UnmaskingRequest:
    """A request under way: its canvas, the probability with which each cell was drawn, and its actions so far."""

    request: GenerationRequest
    future: asyncio.Future[Generation]
    canvas: Tensor
    cell_confidence: Tensor
    next_step: int = 0
    generated_token_ids: list[int] = field(default_factory=list)
    actions: list[bytes] = field(default_factory=list)
    generated_logp: list[float] = field(default_factory=list)

    def add(self, tokens: Sequence[int], path: Sequence[bytes], logp: Sequence[float]) -> None:
        self.generated_token_ids += tokens
        self.actions += path
        self.generated_logp += logp


@dataclass(frozen=True, slots=True, eq=False)
class StepDraws:
    """One step of all live samples: the knobs, and for each cell a drawn symbol with its probability at temperature 1.

    `symbol_logp` is of the symbol at the step's temperature, `knobs_logp` of the knobs.
    """

    schedule_knobs: Float[Tensor, "n k"]
    knobs_logp: Float[Tensor, " n"]
    temperature: Float[Tensor, " n"]
    symbols: Int[Tensor, "n cells"]
    symbol_logp: Float[Tensor, "n cells"]
    confidence: Float[Tensor, "n cells"]


class UnmaskingEngine(SteppingEngine[UnmaskingRequest]):
    """An `Engine` over a masked policy: each request is a whole sample.

    Its tokens are, for each step in turn: the knobs, unless the schedule is fixed, then the commits of cells from left
    to right. They decode to no text. The symbols of the finished canvas follow, which do; their origin is
    `ENVIRONMENT`. At temperature 0 nothing is random, the origin of all tokens is `ENVIRONMENT`, and knobs are their
    means. Another temperature multiplies the steps' temperature. A sample does not depend on the others: random numbers
    are keyed, and on one thread its bits are equal. Requests under way start over when weights are loaded, so that a
    sample has one version.
    """

    def __init__(self, policy: MaskedPolicy, *, seed: int, max_num_seqs: int = 256) -> None:
        super().__init__(policy, max_num_seqs=max_num_seqs)
        self._policy, self._seed = policy, seed

    def _pending_request(self, request: GenerationRequest, future: asyncio.Future[Generation]) -> UnmaskingRequest:
        shape = self._policy.shape
        return UnmaskingRequest(
            request, future, torch.full((shape.cells,), shape.symbols), torch.zeros(shape.cells).double()
        )

    def _interrupt(self, batch: Sequence[UnmaskingRequest]) -> list[UnmaskingRequest]:
        return [self._pending_request(pending.request, pending.future) for pending in batch]

    @torch.inference_mode()
    def _step(self) -> None:
        drawn = self._drawn(self._running)
        steps, cells = self._policy.unmask.steps, self._policy.shape.cells
        last = torch.tensor([pending.next_step == steps - 1 for pending in self._running])
        counts = masked_counts(drawn.schedule_knobs.cpu(), last, cells).tolist()
        for i, pending in enumerate(self._running):
            self._record(pending, drawn, i, counts[i])
            if counts[i] == 0:
                self._end(pending)
        self._running = [pending for pending in self._running if not pending.future.done()]

    def _drawn(self, batch: Sequence[UnmaskingRequest]) -> StepDraws:
        """Draw the knobs of all jobs' steps, and a symbol for each of their cells."""
        policy, n = self._policy, len(batch)
        filled = [*batch, *[batch[-1]] * (padded(n, ROWS) - n)]
        device = policy.dtype_device["device"]
        u = torch.from_numpy(np.concatenate([self._uniforms(pending) for pending in filled]).reshape(len(filled), -1))
        step = torch.tensor([pending.next_step for pending in filled], device=device)
        scale = torch.tensor([pending.request.sampling.temperature for pending in filled]).to(**policy.dtype_device)
        normal = torch.special.ndtri(u[:, -2:].clamp(min=2.0**-54)).to(scale) * (scale > 0)[:, None]
        knobs = (policy.schedule.mean[step].to(scale) + policy.schedule.std[step].to(scale) * normal).float()
        knobs_logp = policy.schedule.log_density(step, knobs) if not policy.unmask.is_fixed else torch.zeros_like(scale)
        # An action stores the temperature as float32, and the learner reads it there: round it before it is used.
        temperature = (temperatures(knobs) * torch.where(scale > 0, scale, 1.0)).float()
        words = policy.words([pending.request.context for pending in filled])
        logits = policy.predictor(torch.stack([pending.canvas for pending in filled]).to(device), words)
        logits = logits.to(policy.dtype_device["dtype"])
        law = torch.log_softmax(logits / temperature.to(logits)[:, None, None], -1)
        chosen = choose(law.flatten(0, 1).cpu(), u[:, :-2].flatten()).view(len(filled), -1)
        symbol = torch.where((scale > 0).cpu()[:, None], chosen, logits.argmax(-1).cpu())
        at = symbol[..., None].to(device)
        confidence = torch.log_softmax(logits, -1).gather(-1, at)[..., 0]
        logp = law.gather(-1, at)[..., 0]
        return StepDraws(
            *(x.cpu()[:n] for x in (knobs, knobs_logp, temperature, symbol, logp.double(), confidence.double()))
        )

    def _uniforms(self, pending: UnmaskingRequest) -> np.ndarray:
        """The uniform numbers of a job's step: one for each cell, and two for the knobs."""
        size = self._policy.shape.cells + 2
        request = pending.request
        return uniform(
            (self._seed, request.random_purpose),
            request.draw_id,
            lineage(request.stream),
            pending.next_step * size + np.arange(size),
        )

    def _record(self, pending: UnmaskingRequest, drawn: StepDraws, i: int, count: int) -> None:
        """Write a step into a sample. The `count` cells with the least confidence are masked, also earlier ones."""
        shape, before = self._policy.shape, pending.canvas
        hidden = before == shape.symbols
        canvas = torch.where(hidden, drawn.symbols[i], before)
        pending.cell_confidence = torch.where(hidden, drawn.confidence[i], pending.cell_confidence)
        canvas[pending.cell_confidence.argsort(stable=True)[:count]] = shape.symbols
        committed = (hidden & (canvas != shape.symbols)).nonzero()[:, 0]
        if not self._policy.unmask.is_fixed:
            pending.add(
                [pending.next_step],
                [encode_knobs(pending.next_step, drawn.schedule_knobs[i].numpy())],
                [float(drawn.knobs_logp[i])],
            )
        pending.add(
            (canvas[committed] + shape.first_commit).tolist(),
            encode_commits(pending.next_step, committed.numpy(), float(drawn.temperature[i]), before.numpy()),
            drawn.symbol_logp[i][committed].tolist(),
        )
        pending.canvas, pending.next_step = canvas, pending.next_step + 1

    def _end(self, pending: UnmaskingRequest) -> None:
        cells = (pending.canvas + self._policy.shape.first_symbol).tolist()
        greedy = pending.request.sampling.temperature == 0
        nothing = (float("nan"),)
        versions = (ENVIRONMENT if greedy else self.version,) * len(pending.generated_token_ids) + (ENVIRONMENT,) * len(
            cells
        )
        logp = (nothing * len(pending.generated_logp) if greedy else tuple(pending.generated_logp)) + nothing * len(
            cells
        )
        if not pending.future.done():
            pending.future.set_result(
                Generation(
                    tokens=(*pending.generated_token_ids, *cells), logp=logp, versions=versions, finish=Finish.stop,
                    actions=tuple(pending.actions),
                )
            )  # fmt: skip

    def _check(self, request: GenerationRequest) -> None:
        shape, words = self._policy.shape, request.context[: len(request.context) - request.already_generated_count]
        if not shape.takes(words):
            raise Usage(
                f"a prompt of this masked model has {shape.prompt}",
                evidence=f"the prompt has the tokens {', '.join(map(str, words))}",
                fix="use prompts of the task that the model was made for",
            )
        whole = "use the strategy Independent or AnswerAndScheduleStrategy: they request whole samples"
        if request.already_generated_count:
            tokens = request.already_generated_count
            what = f"a masked policy generates whole samples, and the request continues {tokens} tokens"
            raise Usage(what, fix=whole)
        if request.steps_per_token != 1:
            raise Usage("a masked policy takes each step of its schedule, and the request skips steps", fix=whole)
        if request.denoising_steps is not None:
            what = f"the schedule of this masked policy has {self._policy.unmask.steps} steps, and no others"
            evidence, fix = (
                f"the request has steps = {request.denoising_steps}",
                "leave out evaluate.denoising_steps: it is for flow models",
            )
            raise Usage(what, evidence=evidence, fix=fix)
        if request.limit < (longest := shape.longest(self._policy.unmask.steps)):
            what = f"an answer of this masked policy has up to {longest} tokens, and the request allows {request.limit}"
            raise Usage(what, fix=f"use sampling.max_tokens of at least {longest}")
        if request.sampling.truncated:
            raise Usage("a masked policy draws from its whole distribution", fix="leave out top_p, top_k and min_p")
