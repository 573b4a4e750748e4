"""Which experts the tokens of one forward go to: written down as the routers choose, and given where it is wanted.

A router of transformers says (logits, weights of the chosen, the chosen). A hook behind each hears that, and puts other
experts in the place of the chosen; their weights are then those that the router itself would have given them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

__all__ = ["Experts", "Routes", "experts_of"]

UNKNOWN = -1
"""Stands for the experts of a token that nobody wrote down: it goes where its router sends it."""

Lines = tuple[bytes, ...]
"""The experts of tokens one after the other, an int16 for each choice of each router; empty where unknown."""


@dataclass(frozen=True, slots=True)
class Experts:
    """What a mixture has: so many routers, each of which sends a token to `each` of its `count` experts."""

    routers: int
    each: int
    count: int

    def written(self, ids: Int[Tensor, "n routers each"]) -> Lines:
        """A line a token."""
        return tuple(row.tobytes() for row in ids.to("cpu", torch.int16).numpy())

    def read(self, lines: Sequence[bytes]) -> np.ndarray:
        """The lines as numbers [n, routers, each] again.

        >>> mixture = Experts(routers=1, each=2, count=8)
        >>> mixture.read((*mixture.written(torch.tensor([[[3, 5]]])), b"")).tolist()
        [[[3, 5]], [[-1, -1]]]
        """
        ids = np.full((len(lines), self.routers, self.each), UNKNOWN, np.int16)
        known = [i for i, line in enumerate(lines) if line]
        ids[known] = np.frombuffer(b"".join(lines), np.int16).reshape(len(known), self.routers, self.each)
        return ids


class Routes:
    """The experts of one forward, router by router, once it is done.

    `given` are experts that its tokens once went to; with `follow` they go there again. `weigh` keeps the logits.
    """

    def __init__(
        self, experts: Experts, given: Int[Tensor, "n routers each"] | None = None, *, follow: bool = False,
        weigh: bool = False,
    ) -> None:  # fmt: skip
        self.experts, self.given, self.weigh = experts, given, weigh
        self.follow = follow and given is not None
        self.chosen: dict[int, Int[Tensor, "n each"]] = {}
        """What each router would choose."""
        self.sent: dict[int, Int[Tensor, "n each"]] = {}
        """Where the tokens went."""
        self.logits: dict[int, Float[Tensor, "n count"]] = {}

    @property
    def ids(self) -> Int[Tensor, "n routers each"]:
        """Where the tokens went, in all routers."""
        return torch.stack([self.sent[i] for i in range(self.experts.routers)], 1).to(torch.int16)

    def turn(self, number: int, normalised: bool, said: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """What a router says, and what it should have said."""
        logits, weights, chosen = said
        self.chosen[number] = self.sent[number] = chosen
        if self.weigh:
            self.logits[number] = logits
        if not self.follow:
            return said
        assert self.given is not None
        given = self.given[:, number].long()
        self.sent[number] = sent = torch.where(given == UNKNOWN, chosen, given)
        return logits, gates(logits, sent, normalised).to(weights.dtype), sent


def gates(logits: Float[Tensor, "n count"], chosen: Int[Tensor, "n each"], normalised: bool) -> Float[Tensor, "n each"]:
    """The softmax at the chosen, where `normalised` over them alone; in float32, as routers of transformers have it.

    >>> gates(torch.tensor([[1.0, 3.0, 1.0]]).log(), torch.tensor([[1, 0]]), True)
    tensor([[0.7500, 0.2500]])
    """
    weights = logits.softmax(-1, dtype=torch.float).gather(-1, chosen)
    return weights / weights.sum(-1, keepdim=True) if normalised else weights


class _RouterHooks:
    """Stands at one router: the layer's attention is told by a keyword what the routes are, and they hear the router.

    Attention is called with it each time that a layer is forwarded, also when that is done again on the way back.
    """

    def __init__(self, number: int, normalised: bool) -> None:
        self.number, self.normalised = number, normalised
        self.routes: Routes | None = None

    def before_attention(self, attention: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        self.routes = kwargs.get("routes")

    def after_router(self, router: nn.Module, args: Any, said: tuple[Tensor, Tensor, Tensor]) -> Any:
        routes, self.routes = self.routes, None
        return None if routes is None else routes.turn(self.number, self.normalised, said)


def routers_of(causal: nn.Module) -> list[tuple[nn.Module, nn.Module]]:
    """The routers of a model of transformers, each with the attention that its layer asks before it."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    found = []
    for layer in (m for m in causal.modules() if isinstance(m, GradientCheckpointingLayer)):
        attention = [m for m in layer.modules() if m is not layer and hasattr(m, "layer_idx")]
        routers = [m for m in layer.modules() if type(m).__name__.endswith("TopKRouter")]
        found += [(attention[0], router) for router in routers if attention]
    return found


def experts_of(causal: nn.Module) -> Experts | None:
    """The mixture that a model is, by its routers' sizes; None for a dense one, or one whose routers differ."""
    routers: list[Any] = [router for _, router in routers_of(causal)]
    sizes = {(router.top_k, router.num_experts) for router in routers}
    return Experts(len(routers), *sizes.pop()) if len(sizes) == 1 else None


def attended(causal: nn.Module) -> Experts | None:
    """The mixture that a model is, its routers with somebody who hears them from now on.

    None for a dense model, and for routers whose weights are not `gates` of their logits: asked, they show it.
    """
    experts = experts_of(causal)
    if experts is None or not all(_plain(router) for _, router in routers_of(causal)):
        return None
    for number, (attention, router) in enumerate(routers_of(causal)):
        post = _RouterHooks(number, _normalised(router))
        attention.register_forward_pre_hook(post.before_attention, with_kwargs=True)
        router.register_forward_hook(post.after_router)
    return experts


def _normalised(router: nn.Module) -> bool:
    return bool(getattr(router, "norm_topk_prob", True))


@torch.no_grad()
def _plain(router: nn.Module) -> bool:
    weight = next(router.parameters())
    asked = torch.arange(5 * weight.shape[1], device=weight.device, dtype=weight.dtype).cos().view(5, -1)
    logits, weights, chosen = router(asked)
    most = max(1e-5, torch.finfo(weights.dtype).eps)
    return bool((gates(logits, chosen, _normalised(router)) - weights).abs().max() <= most)
