"""Expert choices of a mixture of experts in training: their replay, and the load of each expert."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from groupwise.core import Usage
from groupwise.data import Batch, Sample
from groupwise.learner.distributed import Ranks
from groupwise.learner.gradient_lane_sums import joined
from groupwise.models import ChosenExperts, MixtureOfExpertsSizes, PrefixPacking

__all__ = ["RouterReplay", "check_routing", "mixture", "routes_experts"]

Lines = tuple[bytes, ...]
"""The experts of each token of a sample, in the format of `batch.routes`."""


RouterReplay = Literal["none", "learner", "engine"]
"""Trains a mixture of experts with the experts that an earlier forward pass chose.

The tokens of an iteration's steps go to the experts that the old policy chose: in the `learner`, as it computed the old
log-probs (R2, arXiv:2512.01374), or in the `engine`, as it sampled (R3, arXiv:2510.11370; the old log-probs then use
these experts, too). The current router computes the experts' weights, so it still learns.
"""


class RoutedForward:
    """One microbatch's forward through a mixture: pass it to `forward`, then read its routes."""

    def __init__(self, experts: MixtureOfExpertsSizes, *, replay: bool = False, keep_logits: bool = False) -> None:
        self.experts, self.replay, self.keep_logits = experts, replay, keep_logits

    def __call__(self, model: Any, batch: Batch, layout: PrefixPacking) -> Float[Tensor, "n width"]:
        """Forward the model: its hidden states. With `replay`, tokens go to the experts in `batch.routes`."""
        self.rows, device = rows_of(batch, layout), layout.tokens.device
        recorded = None
        if any(batch.routes):
            ids = np.full((len(layout.tokens), self.experts.router_count, self.experts.experts_per_token), -1, np.int16)
            for lines, rows in zip(batch.routes, self.rows):
                ids[rows[: len(lines)]] = self.experts.decode(lines[: len(rows)])
            recorded = torch.from_numpy(ids).to(device)
        self.routes = ChosenExperts(self.experts, recorded, replay=self.replay, keep_logits=self.keep_logits)
        self.uses = torch.tensor([r for rows in self.rows for r in rows], dtype=torch.long, device=device)
        self.uses = self.uses.bincount(minlength=len(layout.tokens))  # a shared token counts for each of its samples
        return model(layout.tokens, layout, routes=self.routes)

    def encoded_routes(self) -> list[tuple[bytes, ...]]:
        """The experts of each sample's tokens as bytes, in the format of `batch.routes`."""
        lines = self.experts.encode(self.routes.ids) if len(self.uses) else ()
        return [tuple(lines[r] for r in rows) for rows in self.rows]

    @torch.no_grad()
    def changed(self) -> tuple[int, int]:
        """The number of router choices that differ from the recorded ones, and the number of recorded choices."""
        recorded = self.routes.recorded
        if recorded is None:
            return 0, 0
        changed, uses = 0, self.uses * (recorded[:, 0, 0] >= 0)
        for router, chosen in self.routes.chosen.items():
            new = (chosen[:, :, None] != recorded[:, router, None, :]).all(-1).sum(-1)
            changed += int((new * uses).sum())
        return changed, int(uses.sum()) * self.experts.router_count * self.experts.experts_per_token

    @torch.no_grad()
    def load(self) -> Float[Tensor, "routers count"]:
        """The number of tokens that each expert computed."""
        load = torch.zeros(
            self.experts.router_count, self.experts.expert_count, dtype=torch.float64, device=self.uses.device
        )
        uses = self.uses.double()[:, None].expand(-1, self.experts.experts_per_token)
        for router, used in self.routes.used.items():
            load[router].index_add_(0, used.flatten(), uses.flatten())
        return load

    def balance(self, load: Float[Tensor, "routers count"], tokens: int) -> Float[Tensor, ""]:
        """This microbatch's term of `count * sum over experts of (token share) (mean probability)`, mean over routers.

        Only the probabilities are in the graph. The loss is linear in them: with `load` and `tokens` of the whole step,
        microbatches add up to the step. transformers pools all routers first, so one router can offset another.
        """
        total = torch.zeros((), device=load.device)
        for router, logits in self.routes.logits.items():
            p = logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)
            fraction = (load[router] / tokens).to(p.dtype)
            total = total + ((p @ fraction) * self.uses).sum()
        return total * (self.experts.expert_count / (tokens * self.experts.router_count))


class StepRouting:
    """Forward passes of one step of a mixture of experts: counts expert choices that differ from recorded ones."""

    def __init__(self, model: Any, replay: RouterReplay, *, keep_logits: bool = False) -> None:
        self.experts, self.keep_logits = mixture(model), keep_logits
        self.replay = replay != "none"

    def forward_pass(self) -> RoutedForward | None:
        """The recorder of expert choices for the next microbatch's forward pass; None for a dense model."""
        if self.experts is None:
            return None
        return RoutedForward(self.experts, replay=self.replay, keep_logits=self.keep_logits)

    def choices_of(self, routed: RoutedForward | None) -> tuple[int, int]:
        """The number of a microbatch's expert choices that differ from recorded ones, and of all recorded choices."""
        return routed.changed() if routed is not None else (0, 0)


def joined_routes(
    ranks: Ranks, experts: MixtureOfExpertsSizes, mine: Sequence[Sequence[Lines]], positions: Sequence[int]
) -> list[Shaped[Tensor, "positions width"]]:
    """The routes of all microbatches as bytes, from the routes of the microbatches that this rank computed.

    `positions` are the numbers of routed positions of all microbatches.
    """
    width = experts.router_count * experts.experts_per_token * np.dtype(np.int16).itemsize
    data = [bytearray(b"".join(row for lines in microbatch for row in lines)) for microbatch in mine]
    parts = [torch.frombuffer(x, dtype=torch.uint8) if x else torch.empty(0, dtype=torch.uint8) for x in data]
    every = joined(ranks, parts, [count * width for count in positions])
    return [part.view(-1, width) for part in every]


def routes_of_samples(routes: Sequence[Shaped[Tensor, "positions width"]], samples: Sequence[Sample]) -> list[Lines]:
    """The routes of each sample, from those of all positions in the order of the samples."""
    rows = [row.tobytes() for part in routes for row in part.numpy()]
    ends = accumulate(map(routed_positions, samples), initial=0)
    return [tuple(rows[start:end]) for start, end in pairwise(ends)]


def routed_positions(sample: Sample) -> int:
    """The number of a sample's tokens that have routes: those of context and answer, but the last."""
    return len(sample.context) + len(sample.tokens) - 1 if sample.tokens else 0


def routes_experts(replay: RouterReplay, auxiliary: Sequence[Any]) -> bool:
    """Whether a method needs a mixture of experts: for the replay of expert choices, or for a loss on router logits."""
    return replay != "none" or any(getattr(part, "needs_router_logits", False) for part in auxiliary)


def check_routing(replay: RouterReplay, auxiliary: Sequence[Any], experts: MixtureOfExpertsSizes | None) -> None:
    """Raise Usage if a method needs expert routing (replay, balance loss) and the model is not a known mixture."""
    if experts is not None or not routes_experts(replay, auxiliary):
        return
    raise Usage(
        "method.router_replay and RouterBalance need a mixture of experts, and this model has no supported routers",
        evidence=f"method.router_replay is {replay!r}; a supported router weights its experts by a softmax, and the "
        "routers of all layers are alike",
        fix="leave method.router_replay and RouterBalance out, or take a mixture such as Qwen3-MoE or Mixtral",
    )


def mixture(model: Any) -> MixtureOfExpertsSizes | None:
    """The experts of a model whose routing can be recorded and replayed; None for any other model."""
    return getattr(model, "experts", None)


def rows_of(batch: Batch, layout: PrefixPacking) -> list[list[int]]:
    """The packed index of each token of a sample's context and answer, in order, without the answer's last token."""
    rows, source, first = [], layout.predicting_indices.tolist(), 0
    for sample in batch.samples:
        indices, first = source[first : first + len(sample.tokens)], first + len(sample.tokens)
        rows.append([*range(indices[0] - len(sample.context) + 1, indices[0] + 1), *indices[1:]] if indices else [])
    return rows
