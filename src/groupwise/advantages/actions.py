"""Credit for single decisions in answers that all make the same decisions in order, such as the edges of a graph."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from groupwise.data import Batch, Credit, Segments

__all__ = ["ActionSuccess"]


@dataclass(frozen=True, slots=True)
class ActionSuccess(Credit):
    """The mean reward x of a group's answers with the same action, as z-score among the group's actions. Graph-GRPO.

    An action is a token at a position. Its mean is over the answers of the group that have this token there. With
    `present`, such as "1" for an edge, only tokens with this text are actions, and the others get 0.

    >>> from groupwise.data import rollout_of, pack
    >>> batch = pack([rollout_of([1.0, 0.0], lengths=[1, 1])])
    >>> [round(a, 3) for a in ActionSuccess()(batch.score, batch).tolist()]
    [1.0, -1.0]
    """

    compares: ClassVar[bool] = True

    present: str = ""
    ddof: int = 0
    eps: float = 1e-8

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " n"]:
        actions, groups = _actions(b)
        counted = actions.total(self._counted(b).to(x.dtype)) > 0
        success = actions.mean(b.sequences.spread(x))
        z = torch.zeros_like(success)
        z[counted] = groups.keep(counted).zscore(success[counted], ddof=self.ddof, eps=self.eps)
        return actions.spread(z)

    def _counted(self, b: Batch) -> Bool[Tensor, " n"]:
        """For each token, whether it is an action."""
        if not self.present:
            return torch.ones_like(b.place, dtype=torch.bool)
        texts = [[s.text[start:end] for start, end in zip((0, *s.ends), s.ends)] for s in b.samples]
        rows = [[text == self.present for text in row] + [False] * (len(s.tokens) - len(row))
                for row, s in zip(texts, b.samples)]  # fmt: skip
        return b.at_trained(rows, torch.bool)


def _actions(b: Batch) -> tuple[Segments, Segments]:
    """Which tokens are the same action (same token, position and group), and which actions belong to which group."""
    tokens: Int[Tensor, " n"] = b.at_trained([s.tokens for s in b.samples], torch.long)
    keys = torch.stack([b.token_groups.index, b.place, tokens], 1)
    actions, index = keys.unique(dim=0, return_inverse=True)
    return Segments(index, len(actions)), Segments(actions[:, 0], b.groups.count)
