"""Predicts the activation memory of a decoder, in bytes, from the operations of its layers."""

from dataclasses import dataclass
from typing import Literal

import torch

from groupwise.models import DecoderShape
from groupwise.models.decoder.varlen_attention import varlen_obstacle

LONG = 64
"""Longest prompt, in tokens, whose keys are copied for each answer on a CPU (`LONG` of `prefix_packing.py`)."""
LONG_ON_GPU = 1024
"""The same for `varlen_attn` on a GPU (`LONG_ON_GPU` of `prefix_packing.py`)."""
Kernel = Literal["flash", "varlen", "masked"]
"""The attention of the learner: flash attention of the CPU, `varlen_attn` of a GPU, or masked attention on a GPU."""


def kernel_of(device: str, dtype: str, shape: DecoderShape) -> Kernel:
    """The attention of the learner on a device. A GPU counts as one of compute capability 8.0 at least.

    >>> from groupwise.models import DecoderShape
    >>> sizes = dict(vocabulary_size=9, hidden_size=8, layers=1, heads=1, kv_heads=1, head_dim=8)
    >>> shape = DecoderShape(**sizes, mlp_width=8, max_positions=9)
    >>> kernel_of("cuda", "bfloat16", shape), kernel_of("cuda", "float32", shape)
    ('varlen', 'masked')
    """
    if device == "cpu":
        return "flash"
    return "masked" if varlen_obstacle(getattr(torch, dtype), shape.head_dim) else "varlen"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedMicrobatch:
    """The largest microbatch: `answer_count` answers to `prompt_count` prompts, which are stored once."""

    tokens_per_prompt: int
    tokens_per_answer: int
    prompt_count: int
    answer_count: int

    @property
    def tokens(self) -> int:
        """The number of tokens in the forward pass."""
        return self.prompt_count * self.tokens_per_prompt + self.answer_count * self.tokens_per_answer

    @property
    def keys(self) -> int:
        """The number of attention keys, if each answer has its own copy of its prompt's keys."""
        return self.keys_within(None)

    def keys_within(self, window: int | None) -> int:
        """The same, if an answer copies only the keys that it sees through its window."""
        return self.tokens + self.answer_count * (
            self.tokens_per_prompt if window is None else min(self.tokens_per_prompt, window - 1)
        )

    @property
    def scores(self) -> int:
        """The number of elements in the answers' attention masks."""
        return self.answer_count * self.tokens_per_answer * (self.tokens_per_prompt + self.tokens_per_answer)


def activation_bytes(
    shape: DecoderShape, packed: PackedMicrobatch, size: int, *, recompute: bool, kernel: Kernel
) -> int:
    """Bytes that the forward of a microbatch stores, plus those that the backward of one layer adds.

    `size` is the bytes of one weight. With `recompute` a layer stores its input, and only one layer at a time
    all of its numbers. The backward of a layer adds the gradients of two inner vectors and of the residual stream, or
    what its attention adds.
    """
    layer = layer_bytes(shape, packed, size, kernel=kernel)
    stored = shape.layers * packed.tokens * shape.hidden_size * size + layer if recompute else shape.layers * layer
    norm = norm_bytes(shape.hidden_size, size, fused=norms_are_fused(size, kernel))
    last = packed.tokens * norm + packed.answer_count * packed.tokens_per_answer * shape.hidden_size * size
    mlp = packed.tokens * (3 * shape.hidden_size + 2 * shape.mlp_width) * size
    return stored + last + max(mlp, attention_backward_bytes(shape, packed, size, kernel=kernel))


def layer_bytes(shape: DecoderShape, packed: PackedMicrobatch, size: int, *, kernel: Kernel) -> int:
    """Bytes that one layer stores: its norms, attention, and four inner vectors of the MLP.

    A fused attention with a shared prompt stores queries, keys, values and output once per token, and on a GPU a
    number per head. Any other copies them into rows: queries, output and its packed copy, keys and values of each row
    with its prompt, the mask as numbers; or what the math kernel stores.
    """
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    fused = norms_are_fused(size, kernel)
    token = 2 * norm_bytes(shape.hidden_size, size, fused=fused) + 4 * shape.mlp_width * size
    if shape.qk_norm:
        token += (
            (queries + keys) * size + 4 * (shape.heads + shape.kv_heads) if fused else (queries + keys) * max(size, 4)
        )
    if kernel == "varlen":
        return packed.tokens * (token + 2 * (queries + keys) * size + 4 * shape.heads)
    if kernel == "flash" and packed.tokens_per_prompt > LONG and not any(shape.attention_windows):
        return packed.tokens * (token + 2 * (queries + keys) * size)
    if kernel == "masked" and shape.heads > shape.kv_heads:
        return packed.tokens * (token + queries * size) + math_bytes(shape, packed)
    rows = 3 * packed.tokens * queries + 2 * packed.keys * keys + packed.scores
    return packed.tokens * token + rows * size


def math_bytes(shape: DecoderShape, packed: PackedMicrobatch) -> int:
    """Bytes that torch's math kernel stores: scores, queries, and keys and values for each query head, in float32.

    It computes masked attention with fewer key heads than query heads on every GPU but those on which cuDNN does. The
    scores grow with the square of the length. Other masked kernels store none.
    """
    prompts = packed.prompt_count * packed.tokens_per_prompt**2
    heads = shape.heads * shape.head_dim
    return 4 * (shape.heads * (packed.scores + prompts) + heads * (packed.tokens + 2 * packed.keys))


def attention_backward_bytes(shape: DecoderShape, packed: PackedMicrobatch, size: int, *, kernel: Kernel) -> int:
    """Bytes that the backward of one attention adds on a GPU.

    `varlen_attn` gets copies of keys and values, and returns their gradients, which the kernel computes for each query
    head. The gradients of queries, and the sums of those of keys, are float32. The math kernel has two gradients of its
    scores.
    """
    if kernel != "varlen":
        return 2 * 4 * shape.heads * packed.scores if kernel == "masked" and shape.heads > shape.kv_heads else 0
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    windows = set(shape.attention_windows or (None,))
    copied = max(
        packed.tokens if window is None and packed.tokens_per_prompt > LONG_ON_GPU else packed.keys_within(window)
        for window in windows
    )
    return copied * (4 * keys + 2 * queries) * size + packed.tokens * (queries * (2 * size + 4) + 2 * 4 * keys)


def norms_are_fused(size: int, kernel: Kernel) -> bool:
    """Whether norms are one kernel of torch: in half precision on a GPU."""
    return size == 2 and kernel != "flash"


def norm_bytes(width: int, size: int, *, fused: bool) -> int:
    """Bytes that a norm stores for each token: the normalised vector, at least in float32, and the output.

    A `fused` norm stores its input in place of that vector, and a number in float32.
    """
    return width * 2 * size + 4 if fused else width * (max(size, 4) + size)


def forward_bytes(shape: DecoderShape, tokens: int, size: int) -> int:
    """Bytes of a forward without gradients: the residual stream, its norm, and three inner vectors."""
    return tokens * (2 * shape.hidden_size + 3 * shape.mlp_width) * size
