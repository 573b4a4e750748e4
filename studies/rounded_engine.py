"""An engine with coarser weights than the learner's. Trials load it by `use`."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor

from groupwise.engines import Native, NativeEngine
from groupwise.models import FlowPolicy, MaskedPolicy, MixtureOfExpertsSizes, Model, Tokenizer


def rounded(weight: Tensor, bits: int) -> Tensor:
    """Each row of a matrix, rounded to multiples of its largest absolute value / (2 ** (bits - 1) - 1).

    >>> rounded(torch.tensor([[1.0, 0.3, -0.7]]), bits=2)
    tensor([[ 1.,  0., -1.]])
    """
    unit = weight.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(weight.dtype).tiny) / (2 ** (bits - 1) - 1)
    return (weight / unit).round() * unit


class RoundedEngine(NativeEngine):
    """The native engine, which rounds each matrix that it loads; vectors, such as scales of norms, stay."""

    bits: int

    async def load(self, version: int, weights: Mapping[str, Tensor]) -> None:
        coarse = {name: rounded(x, self.bits) if x.ndim == 2 else x for name, x in weights.items()}
        await super().load(version, coarse)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounded(Native):
    """Runs the native engine over a copy of the learner's model whose rows are rounded to `bits` bits."""

    bits: int = 8

    def build(
        self, model: Model, tokenizer: Tokenizer, *, seed: int, experts: MixtureOfExpertsSizes | None
    ) -> RoundedEngine:
        """The engine over a copy: the learner's weights stay as they are."""
        assert not isinstance(model, FlowPolicy | MaskedPolicy), "it rounds language models"
        engine = RoundedEngine(
            deepcopy(model),
            tokenizer,
            seed=seed,
            max_num_seqs=self.max_num_seqs,
            kv_cache_tokens=self.kv_cache_tokens,
            experts=experts,
        )
        engine.bits = self.bits
        return engine
