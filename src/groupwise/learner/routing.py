"""The experts of a mixture under training: whose choice of them counts, and how evenly they are used."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch, Usage
from groupwise.models import Experts, Routes, Shared

__all__ = ["Routing", "check_routing", "mixture"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """What is done about the experts of a mixture.

    `replay` sends the tokens of an iteration's steps to the experts that were chosen by the old policy, in the
    `learner`'s reading (R2, arXiv:2512.01374) or by the `engine` when it sampled (R3, arXiv:2510.11370; the old
    log-probs then go there, too). The weights of the experts are the current router's, so that it still learns.
    `balance` is the coefficient of the load-balancing loss (Switch, arXiv:2101.03961, equations 4 to 6); 0: none. The
    configuration of Qwen3-MoE calls it `router_aux_loss_coef`.
    """

    replay: Literal["none", "learner", "engine"] = "none"
    balance: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.balance < float("inf"):
            raise ValueError(f"balance is {self.balance}\ntake a coefficient from 0 on, such as 0.001")


class RoutedForward:
    """One microbatch's way through the experts: pass it to `forward`, then ask it."""

    def __init__(self, experts: Experts, *, follow: bool = False, weigh: bool = False) -> None:
        self.experts, self.follow, self.weigh = experts, follow, weigh

    def __call__(self, model: Any, batch: Batch, layout: Shared) -> Float[Tensor, "n width"]:
        """Hidden states of the layout, its tokens sent where `batch.routes` says, if they are to follow that."""
        self.rows, device = rows_of(batch, layout), layout.tokens.device
        given = None
        if any(batch.routes):
            known = np.full((len(layout.tokens), self.experts.routers, self.experts.each), -1, np.int16)
            for lines, rows in zip(batch.routes, self.rows):
                known[rows[: len(lines)]] = self.experts.read(lines[: len(rows)])
            given = torch.from_numpy(known).to(device)
        self.routes = Routes(self.experts, given, follow=self.follow, weigh=self.weigh)
        self.uses = torch.tensor([r for rows in self.rows for r in rows], dtype=torch.long, device=device)
        self.uses = self.uses.bincount(minlength=len(layout.tokens))  # a shared token counts for each of its samples
        return model(layout.tokens, layout, routes=self.routes)

    def written(self) -> list[tuple[bytes, ...]]:
        """Where each sample's tokens went."""
        lines = self.experts.written(self.routes.ids) if len(self.uses) else ()
        return [tuple(lines[r] for r in rows) for rows in self.rows]

    @torch.no_grad()
    def changed(self) -> tuple[int, int]:
        """Choices of the routers that were not made when the routes were written, and of how many that are known."""
        given = self.routes.given
        if given is None:
            return 0, 0
        changed, known = 0, self.uses * (given[:, 0, 0] >= 0)
        for number, chosen in self.routes.chosen.items():
            new = (chosen[:, :, None] != given[:, number, None, :]).all(-1).sum(-1)
            changed += int((new * known).sum())
        return changed, int(known.sum()) * self.experts.routers * self.experts.each

    @torch.no_grad()
    def load(self) -> Float[Tensor, "routers count"]:
        """How many tokens went to each expert."""
        load = torch.zeros(self.experts.routers, self.experts.count, dtype=torch.float64, device=self.uses.device)
        uses = self.uses.double()[:, None].expand(-1, self.experts.each)
        for number, sent in self.routes.sent.items():
            load[number].index_add_(0, sent.flatten(), uses.flatten())
        return load

    def balance(self, load: Float[Tensor, "routers count"], tokens: int) -> Float[Tensor, ""]:
        """This microbatch's part of `count * sum over experts of (token share) (mean probability)`, mean over routers.

        In the graph through the probabilities alone, in which it is linear: with `load` and `tokens` of the whole step,
        microbatches add up to the step. transformers pools the routers first, so that one may make up for another.
        """
        total = torch.zeros((), device=load.device)
        for number, logits in self.routes.logits.items():
            p = logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)
            fraction = (load[number] / tokens).to(p.dtype)
            total = total + ((p @ fraction) * self.uses).sum()
        return total * (self.experts.count / (tokens * self.experts.routers))


class StepRouting:
    """All trips of one step: what its routers chose, and the loss that evens out their load.

    Every token that a sample's log-probs depend on counts once for that sample, its prompt's tokens, too.
    """

    def __init__(self, model: Any, routing: Routing, microbatches: Sequence[Batch]) -> None:
        self.experts = mixture(model)
        self.routing = routing
        self.changed, self.choices, self.balance = 0, 0, 0.0
        self._load: Tensor | None = None
        self._tokens = sum(len(s.context) + len(s.tokens) - 1 for b in microbatches for s in b.samples if s.tokens)
        if self.experts is not None and routing.balance and len(microbatches) > 1:
            self._load = sum(self._counted(model, microbatch) for microbatch in microbatches)  # type: ignore[assignment]

    def forward_pass(self) -> RoutedForward | None:
        """For the next microbatch; None where there are no experts."""
        if self.experts is None:
            return None
        return RoutedForward(self.experts, follow=self.routing.replay != "none", weigh=self.routing.balance > 0)

    def add(self, trip: RoutedForward | None) -> Float[Tensor, ""] | None:
        """What a microbatch that was forwarded adds to the loss beside its objective; None if nothing."""
        if trip is None:
            return None
        changed, choices = trip.changed()
        self.changed, self.choices = self.changed + changed, self.choices + choices
        if not self.routing.balance or not len(trip.uses):
            return None
        load = trip.load() if self._load is None else self._load
        part = trip.balance(load, self._tokens)
        self.balance += float(part.detach())
        return self.routing.balance * part

    @torch.no_grad()
    def _counted(self, model: Any, microbatch: Batch) -> Tensor:
        """Tokens per expert: the load of the whole step is needed before its first microbatch has a gradient."""
        trip = self.forward_pass()
        assert trip is not None
        contexts, tokens = zip(*((s.context, s.tokens) for s in microbatch.samples))
        trip(model, microbatch, Shared.of(contexts, tokens, device=microbatch.place.device))
        return trip.load()


def check_routing(routing: Routing, experts: Experts | None) -> None:
    """That a model has the experts that a method speaks of. Raises `Usage`."""
    if routing == Routing() or experts is not None:
        return
    raise Usage(
        "method.routing is for mixtures of experts, and this model has no routers that are known",
        evidence=f"{routing}; a known router weighs the experts of its choice by a softmax, and all layers' are alike",
        fix="leave method.routing out, or take a mixture such as Qwen3-MoE or Mixtral",
    )


def mixture(model: Any) -> Experts | None:
    """The experts of a model whose routing can be written down and replayed."""
    return getattr(model, "experts", None)


def rows_of(batch: Batch, layout: Shared) -> list[list[int]]:
    """Where in the layout each sample's context and tokens stand, in their order; its last token stands nowhere."""
    rows, source, first = [], layout.source.tolist(), 0
    for sample in batch.samples:
        own, first = source[first : first + len(sample.tokens)], first + len(sample.tokens)
        rows.append([*range(own[0] - len(sample.context) + 1, own[0] + 1), *own[1:]] if own else [])
    return rows
