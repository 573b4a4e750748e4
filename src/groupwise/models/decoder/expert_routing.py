"""Records and replays which experts a mixture of experts chooses in a forward pass.

A router of transformers returns (logits, weights of the chosen experts, their numbers). A hook on each router records
that and can substitute other experts; their weights are then computed from the same router's logits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

__all__ = ["ChosenExperts", "MixtureOfExpertsSizes", "experts_of"]

UNKNOWN = -1
"""The expert number of a token without a recorded choice: the model's router decides."""

Lines = tuple[bytes, ...]
"""One entry per token: its experts as bytes (int16 numbers, router by router); empty if unknown."""


@dataclass(frozen=True, slots=True)
class MixtureOfExpertsSizes:
    """The sizes of a mixture of experts: each of the routers sends a token to some of its experts."""

    router_count: int
    experts_per_token: int
    expert_count: int

    def encode(self, ids: Int[Tensor, "n routers each"]) -> Lines:
        """Expert numbers as bytes, one entry per token."""
        return tuple(row.tobytes() for row in ids.to("cpu", torch.int16).numpy())

    def decode(self, lines: Sequence[bytes]) -> np.ndarray:
        """The inverse of `encode`: numbers [n, routers, each], UNKNOWN for empty entries.

        >>> mixture = MixtureOfExpertsSizes(router_count=1, experts_per_token=2, expert_count=8)
        >>> mixture.decode((*mixture.encode(torch.tensor([[[3, 5]]])), b"")).tolist()
        [[[3, 5]], [[-1, -1]]]
        """
        ids = np.full((len(lines), self.router_count, self.experts_per_token), UNKNOWN, np.int16)
        known = [i for i, line in enumerate(lines) if line]
        ids[known] = np.frombuffer(b"".join(lines), np.int16).reshape(
            len(known), self.router_count, self.experts_per_token
        )
        return ids


class ChosenExperts:
    """The experts chosen in one forward pass, per router, filled in during the pass.

    `recorded` are the experts of an earlier forward; with `replay`, tokens go to them again. `keep_logits` stores the
    routers' logits.
    """

    def __init__(
        self, experts: MixtureOfExpertsSizes, recorded: Int[Tensor, "n routers each"] | None = None, *,
        replay: bool = False,
        keep_logits: bool = False,
    ) -> None:  # fmt: skip
        self.experts, self.recorded, self.keep_logits = experts, recorded, keep_logits
        self.replay = replay and recorded is not None
        self.chosen: dict[int, Int[Tensor, "n each"]] = {}
        """The experts that each router selected, by the router's number."""
        self.used: dict[int, Int[Tensor, "n each"]] = {}
        """The experts that processed each token, by the router's number: the selected or the replayed ones."""
        self.logits: dict[int, Float[Tensor, "n count"]] = {}

    @property
    def ids(self) -> Int[Tensor, "n routers each"]:
        """The indices of the experts that processed each token in each mixture layer (router)."""
        return torch.stack([self.used[i] for i in range(self.experts.router_count)], 1).to(torch.int16)

    def route(
        self, index: int, normalised: bool, output: tuple[Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Record a router's output, and replace its experts if they are replayed."""
        logits, weights, chosen = output
        self.chosen[index] = self.used[index] = chosen
        if self.keep_logits:
            self.logits[index] = logits
        if not self.replay:
            return output
        assert self.recorded is not None
        recorded = self.recorded[:, index].long()
        self.used[index] = used = torch.where(recorded == UNKNOWN, chosen, recorded)
        return logits, gates(logits, used, normalised).to(weights.dtype), used


def gates(logits: Float[Tensor, "n count"], chosen: Int[Tensor, "n each"], normalised: bool) -> Float[Tensor, "n each"]:
    """The softmax weights of the chosen experts, optionally normalised over them; in float32, as in transformers.

    >>> gates(torch.tensor([[1.0, 3.0, 1.0]]).log(), torch.tensor([[1, 0]]), True)
    tensor([[0.7500, 0.2500]])
    """
    weights = logits.softmax(-1, dtype=torch.float).gather(-1, chosen)
    return weights / weights.sum(-1, keepdim=True) if normalised else weights


class _RouterHooks:
    """The hooks of one router: attention receives the keyword `routes`, and the router's output is recorded there.

    Attention gets the keyword in every forward of its layer, also in the recomputation during backward.
    """

    def __init__(self, index: int, normalised: bool) -> None:
        self.index, self.normalised = index, normalised
        self.routes: ChosenExperts | None = None

    def before_attention(self, attention: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        self.routes = kwargs.get("routes")

    def after_router(self, router: nn.Module, args: Any, output: tuple[Tensor, Tensor, Tensor]) -> Any:
        routes, self.routes = self.routes, None
        return None if routes is None else routes.route(self.index, self.normalised, output)


def routers_of(causal: nn.Module) -> list[tuple[nn.Module, nn.Module]]:
    """Each router of the model, with the attention module of its layer, which runs before it."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    pairs = []
    for layer in (m for m in causal.modules() if isinstance(m, GradientCheckpointingLayer)):
        attention = [m for m in layer.modules() if m is not layer and hasattr(m, "layer_idx")]
        routers = [m for m in layer.modules() if type(m).__name__.endswith("TopKRouter")]
        pairs += [(attention[0], router) for router in routers if attention]
    return pairs


def experts_of(causal: nn.Module) -> MixtureOfExpertsSizes | None:
    """The sizes of a mixture model; None for a dense model, or if the routers' sizes differ."""
    routers: list[Any] = [router for _, router in routers_of(causal)]
    sizes = {(router.top_k, router.num_experts) for router in routers}
    return MixtureOfExpertsSizes(len(routers), *sizes.pop()) if len(sizes) == 1 else None


def install_router_hooks(causal: nn.Module) -> MixtureOfExpertsSizes | None:
    """Hook a mixture's routers, so that `ChosenExperts` can record and replay their choices.

    Returns the mixture's sizes.

    None, without hooks, for a dense model, and if a router's weights are not `gates` of its logits (tested by a call).
    """
    experts = experts_of(causal)
    if experts is None or not all(_uses_gates(router) for _, router in routers_of(causal)):
        return None
    for index, (attention, router) in enumerate(routers_of(causal)):
        hooks = _RouterHooks(index, _normalised(router))
        attention.register_forward_pre_hook(hooks.before_attention, with_kwargs=True)
        router.register_forward_hook(hooks.after_router)
    return experts


def _normalised(router: nn.Module) -> bool:
    return bool(getattr(router, "norm_topk_prob", True))


@torch.no_grad()
def _uses_gates(router: nn.Module) -> bool:
    weight = next(router.parameters())
    hidden = torch.arange(5 * weight.shape[1], device=weight.device, dtype=weight.dtype).cos().view(5, -1)
    logits, weights, chosen = router(hidden)
    tolerance = max(1e-5, torch.finfo(weights.dtype).eps)
    return bool((gates(logits, chosen, _normalised(router)) - weights).abs().max() <= tolerance)
