"""The experts that an engine's tokens go to, written down where a method replays them."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from groupwise.data import Ids
from groupwise.models import Experts, Routes


def prompts(routes: Routes, contexts: Sequence[Ids], widths: Sequence[int]) -> dict[Ids, tuple[bytes, ...]]:
    """Where the tokens of contexts went that were read side by side, padded to these widths."""
    read = routes.ids.split(list(widths))
    return {context: routes.experts.written(ids[: len(context)]) for context, ids in zip(contexts, read)}


class Written:
    """Where the live rows' tokens went, one entry for each token that a row has made: that of the token before it."""

    def __init__(self, experts: Experts, rows: int, device: torch.device) -> None:
        self.experts = experts
        self.ids = torch.zeros(rows, 64, experts.routers, experts.each, dtype=torch.int16, device=device)

    def write(self, routes: Routes, stem: Int[Tensor, " n"], made: Int[Tensor, " n"]) -> None:
        """For rows on these stems that have made so many tokens: where the stems' newest tokens went."""
        if int(made.max()) >= self.ids.shape[1]:
            self.ids = torch.cat([self.ids, torch.zeros_like(self.ids)], 1)
        self.ids[torch.arange(len(made), device=made.device), made] = routes.ids[stem]

    def move(self, to: list[int], source: list[int]) -> None:
        """Rows `source` take the places `to`."""
        self.ids[to] = self.ids[source]

    def of(self, row: int, made: int) -> tuple[bytes, ...]:
        return self.experts.written(self.ids[row, :made])
