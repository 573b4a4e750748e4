"""Attention of new tokens to the pages of their sequences, by one fused kernel per layer, with static shapes.

The kernel is torch's `varlen_attn` (FlashAttention) with a block table. Its shapes depend on neither lengths nor
contents, so every step of the same number of rows issues the same operations, without a wait for the device.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from groupwise.engines.native.pages import PAGE
from groupwise.models import Decoder, LanguageModel, varlen_obstacle


def refusal(model: LanguageModel) -> str | None:
    """Why a model on a GPU cannot be decoded with pages; None if it can, or if it is on a CPU."""
    if not on_gpu(model):
        return None
    if not isinstance(model, Decoder):
        return "the model runs as modules of transformers"
    weight = next(model.parameters())
    capability = torch.cuda.get_device_capability(weight.device)
    return varlen_obstacle(weight.dtype, model.shape.head_dim, capability) or None


def on_gpu(model: LanguageModel) -> bool:
    """Whether a model is on a CUDA device."""
    return next(model.parameters()).is_cuda


@dataclass(frozen=True, slots=True)
class PagedLayout:
    """New tokens of several sequences, each with a table of pages: their keys and values are written, then attended to.

    The queries of row i are `cumulative_query_lengths[i]` to `cumulative_query_lengths[i + 1]`; they are the last of
    its `sequence_lengths[i]` tokens. Rows are independent: the keys of a row are summed in one order, `num_splits = 1`.
    """

    positions: Int[Tensor, " n"]
    slot_mapping: Int[Tensor, " n"]
    """Where the key of each token goes: its page times `PAGE`, plus its place in the page."""
    cumulative_query_lengths: Int[Tensor, " rows1"]
    sequence_lengths: Int[Tensor, " rows"]
    page_table: Int[Tensor, "rows columns"]
    key_cache: Float[Tensor, "layers pages page kv d"]
    value_cache: Float[Tensor, "layers pages page kv d"]
    max_query_length: int
    """The most new tokens of a row."""

    def attend(
        self,
        layer: int,
        q: Float[Tensor, "n heads d"],
        k: Float[Tensor, "n kv d"],
        v: Float[Tensor, "n kv d"],
        *,
        window: int | None = None,
        softcap: float | None = None,
    ) -> Float[Tensor, "n heads d"]:
        from torch.nn.attention.varlen import varlen_attn  # older versions of torch have no such module

        assert softcap is None, "refusal() admits models without a soft cap"
        keys, values = self.key_cache[layer], self.value_cache[layer]
        keys.flatten(0, 1).index_copy_(0, self.slot_mapping, k)
        values.flatten(0, 1).index_copy_(0, self.slot_mapping, v)
        out = varlen_attn(
            q, keys, values, self.cumulative_query_lengths, None, self.max_query_length,
            self.page_table.shape[1] * PAGE,
            window_size=(-1 if window is None else window - 1, 0), enable_gqa=q.shape[1] != k.shape[1],
            seqused_k=self.sequence_lengths, block_table=self.page_table, num_splits=1,
        )  # fmt: skip
        assert isinstance(out, Tensor)
        return out
