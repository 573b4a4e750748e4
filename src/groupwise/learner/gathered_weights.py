"""The policy's weights on rank 0 of sharded ranks, without a whole model: layer after layer."""

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from groupwise.data import Ids
from groupwise.models import LayerWeights

__all__ = ["GatheredWeights"]


class GatheredWeights(LayerWeights):
    """Whole weights that are gathered from all ranks when they are looked up.

    `gather` returns the weights of some names, `score` the log-probs of tokens after a context: each is a message to
    the other ranks, which must wait for one.
    """

    def __init__(
        self,
        outline: Mapping[str, Tensor],
        gather: Callable[[Sequence[str]], Mapping[str, Tensor]],
        score: Callable[[Ids, Ids], tuple[float, ...]],
    ) -> None:
        super().__init__(outline, gather)
        self.score = score
