"""Predicts the activation memory of a decoder, in bytes, from the operations of its layers."""

from dataclasses import dataclass

from groupwise.models import Shape

LONG = 64
"""Longest prompt, in tokens, whose keys are copied for each answer on a CPU (`LONG` of `prefix_packing.py`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """The largest microbatch: `answers` of `answer` tokens to `prompts` of `context` tokens, which are stored once."""

    context: int
    answer: int
    prompts: int
    answers: int

    @property
    def tokens(self) -> int:
        """The number of tokens in the forward pass."""
        return self.prompts * self.context + self.answers * self.answer

    @property
    def keys(self) -> int:
        """The number of attention keys, if each answer has its own copy of its prompt's keys."""
        return self.tokens + self.answers * self.context

    @property
    def scores(self) -> int:
        """The number of elements in the answers' attention masks."""
        return self.answers * self.answer * (self.context + self.answer)


def activation_bytes(shape: Shape, packed: Packed, size: int, *, recompute: bool, on_cpu: bool) -> int:
    """Bytes that the forward of a microbatch stores, plus those that the backward of one layer adds.

    `size` is the bytes of one weight. With `recompute` a layer stores its input, and only one layer at a time
    all of its numbers. The backward of a layer adds the gradients of two inner vectors and of the residual stream.
    """
    layer = layer_bytes(shape, packed, size, on_cpu=on_cpu)
    stored = shape.layers * packed.tokens * shape.width * size + layer if recompute else shape.layers * layer
    last = packed.tokens * norm_bytes(shape.width, size) + packed.answers * packed.answer * shape.width * size
    return stored + last + packed.tokens * (3 * shape.width + 2 * shape.inner) * size


def layer_bytes(shape: Shape, packed: Packed, size: int, *, on_cpu: bool) -> int:
    """Bytes that one layer stores: its norms, attention, and four inner vectors of the MLP.

    A fused attention with a shared prompt stores queries, keys, values and output once per token. Any other copies them
    into rows: queries, output and its packed copy, keys and values of each row with its prompt, the mask as numbers.
    """
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    token = 2 * norm_bytes(shape.width, size) + 4 * shape.inner * size
    if shape.qk_norm:
        token += (queries + keys) * max(size, 4)
    if on_cpu and packed.context > LONG and not any(shape.windows):
        return packed.tokens * (token + 2 * (queries + keys) * size)
    rows = 3 * packed.tokens * queries + 2 * packed.keys * keys + packed.scores
    return packed.tokens * token + rows * size


def norm_bytes(width: int, size: int) -> int:
    """Bytes that a norm stores for each token: the normalised vector, at least in float32, and the output."""
    return width * (max(size, 4) + size)


def forward_bytes(shape: Shape, tokens: int, size: int) -> int:
    """Bytes of a forward without gradients: the residual stream, its norm, and three inner vectors."""
    return tokens * (2 * shape.width + 3 * shape.inner) * size
