"""Value models: extra models trained to predict each token's expected return, such as PPO's critic."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch, Credit
from groupwise.learner.auxiliary import AuxiliaryLoss
from groupwise.learner.distributed import Ranks
from groupwise.learner.forward import TokenStates, hidden_states
from groupwise.learner.optimizer import AdamW, Optimizer
from groupwise.learner.side_models import SideModel
from groupwise.learner.value_losses import ClippedValueLoss
from groupwise.models import PrefixPacking, logprob_dtype

__all__ = ["ValueModel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueModel(SideModel):
    """PPO's critic, arXiv:1707.06347: a trained model that predicts one value per token, `Value(name)`.

    A linear head, 0 at first, reads the last hidden state before each token. The states are from a copy of the
    initial policy (`trunk = "own"`) or of the policy itself (`"shared"`). The gradient of `loss` reaches the trunk, as
    in PPO; with `trains_trunk = False` it trains the head alone. A shared trunk is updated by the policy's optimizer,
    everything else by `optimizer`, which counts the policy's steps.

    The head learns `Return(name)`: `A + V` with the credit `A` of `target_credit`. By default that is the
    component of the method's credit that needs `Value(name)`, before whitening. A second `GAE(lam=1.0)` as
    `target_credit` decouples the two.
    """

    trunk: Literal["own", "shared"] = "own"
    trains_trunk: bool = True
    loss: AuxiliaryLoss = ClippedValueLoss()  # noqa: RUF009
    target_credit: Credit | None = None
    optimizer: AdamW = AdamW(lr=1e-5)  # noqa: RUF009

    def __call__(self, weights: Sequence[Tensor], policy: Sequence[Tensor], step: int) -> None:
        """Does nothing: a value model is trained by its `loss`, not updated from the policy as an EMA is."""


class Critic(torch.nn.Module):
    """A critic's network and optimizer: a linear head on a copy of the policy (`own`), or on the policy itself."""

    def __init__(self, part: ValueModel, policy: Any, own: torch.nn.Module | None, ranks: Ranks) -> None:
        super().__init__()
        self.part = part
        self.trunk = own.requires_grad_(False) if own is not None and not part.trains_trunk else own
        parameter = next(policy.parameters())
        dtype = logprob_dtype(parameter.dtype)
        head = torch.nn.Linear(_width(policy), 1, device=parameter.device, dtype=dtype)
        for x in head.parameters():
            torch.nn.init.zeros_(x)
        self.head = ranks.held(head)
        self.optimizer = Optimizer((p for p in self.parameters() if p.requires_grad), part.optimizer, ranks)

    def values(self, batch: Batch, policy: Callable[[], TokenStates]) -> Float[Tensor, " n"]:
        """The value before each token, with gradient. With a shared trunk it reads the hidden states of `policy`."""
        states = policy() if self.trunk is None else hidden_states(self.trunk, batch)  # pyright: ignore[reportArgumentType]
        hidden = states.hidden if self.part.trains_trunk else states.hidden.detach()
        return self.head(hidden.to(self.head.weight.dtype)).squeeze(-1).index_select(0, states.state_of_token)

    def step(self, steps_taken: int, steps: int, norm: float) -> None:
        """Take an optimizer step with the accumulated gradient, whose global norm is `norm`."""
        if self.optimizer.gradients:
            self.optimizer.step(self.part.optimizer.rate(steps_taken, steps), norm)


@torch.no_grad()
def _width(policy: Any) -> int:
    """The size of the model's last hidden state, measured by a forward pass of one token."""
    layout = PrefixPacking.of([(0,)], [(0,)], device=next(policy.parameters()).device)
    return policy(layout.tokens, layout).shape[-1]
