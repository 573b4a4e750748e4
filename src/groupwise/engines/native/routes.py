"""Expert choices (routes) of the engine's tokens in a mixture of experts, for router replay."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from groupwise.data import ContextKey
from groupwise.models import ChosenExperts, MixtureOfExpertsSizes


def context_routes(
    routes: ChosenExperts, contexts: Sequence[ContextKey], widths: Sequence[int]
) -> dict[ContextKey, tuple[bytes, ...]]:
    """The routes (expert choices) of each prompt's tokens, from one prefill of all prompts padded to `widths`."""
    ids = routes.ids.split(list(widths))
    return {context: routes.experts.encode(x[: len(context[1])]) for context, x in zip(contexts, ids)}


class RowRoutes:
    """The experts chosen in each decoding step of the running requests; entry t is of the step that samples token t."""

    def __init__(self, experts: MixtureOfExpertsSizes, rows: int, device: torch.device) -> None:
        self.experts = experts
        self.ids = torch.zeros(
            rows, 64, experts.router_count, experts.experts_per_token, dtype=torch.int16, device=device
        )

    def write(self, routes: ChosenExperts, sequence: Int[Tensor, " n"], length: Int[Tensor, " n"]) -> None:
        """Store the experts of each row's newest decoding step; `length` counts the tokens that a row had generated."""
        if int(length.max()) >= self.ids.shape[1]:
            self.ids = torch.cat([self.ids, torch.zeros_like(self.ids)], 1)
        self.ids[torch.arange(len(length), device=length.device), length] = routes.ids[sequence]

    def move(self, to: list[int], source: list[int]) -> None:
        """Copy the recorded experts of rows `source` to rows `to`."""
        self.ids[to] = self.ids[source]

    def of(self, row: int, length: int) -> tuple[bytes, ...]:
        """The experts chosen for one row's tokens, encoded as bytes per token."""
        return self.experts.encode(self.ids[row, :length])
