"""The kernels that the learner launches on a GPU, by the shape of the model and the number of microbatches.

The numbers are those that the pretended GPU counts with GSPO; tests compare them. A fused operation counts as one
kernel: they are a floor. In float32, further prompts in a microbatch and biases add some that are not counted. A side
model or a critic counts as one forward.
"""

from dataclasses import dataclass
from math import ceil

from torch import nn

from groupwise.config.recipe import Recipe
from groupwise.learner import AdamW8bit
from groupwise.learner.optimizer import AT_ONCE
from groupwise.models import Decoder, DecoderShape
from groupwise.planning.activation_memory import LONG_ON_GPU, kernel_of
from groupwise.planning.process_memory import LOGITS, NARROWEST, adapted_matrices

STEP, SINGLE = 70, -48
"""Of an optimizer step, outside weights and microbatches; and those that a single microbatch does without."""
EIGHT_BITS = 35
"""Of the update of `AT_ONCE` entries with 8-bit moments."""
BLOCK, FORWARD_BLOCK = 51, 35
"""Of a block of logits, with and without a backward."""
NO_MEASURES, MEASURES = 3, 51
"""Of an iteration, outside forwards and steps: where nothing is measured before the first step, and else."""


@dataclass(frozen=True, slots=True)
class KernelCounts:
    """Counted kernels: of a weight's update; per microbatch, of a layer, its norms of queries and keys, a bias, and all
    else; and the same without a backward."""

    per_weight_update: int
    per_layer: int
    per_qk_norm: int
    per_bias: int
    per_microbatch: int
    per_forward_layer: int
    per_forward_qk_norm: int
    per_forward: int


VARLEN = KernelCounts(3, 86, 8, 3, 210, 22, 2, 126)
MASKED = KernelCounts(2, 125, 28, 3, 216, 47, 12, 130)
FROZEN_LAYER, FROZEN_QK_NORM, ADAPTED, FROZEN = 61, 4, 14, 190
"""With an adapter, per microbatch: of a frozen layer, its norms of queries and keys, an adapted matrix; all else."""
LONG_PROMPT = 31
"""Of a layer per microbatch, if shared prompts are too long for a copy of their keys to each answer."""
RECOMPUTED = 2
"""A recomputed layer has so many kernels less than its forward."""


def optimizer_step_kernels(
    recipe: Recipe, shape: DecoderShape, *, microbatches: int, answer_tokens: int, prompt: int
) -> int:
    """The kernels of an optimizer step with microbatches of so many answer tokens, and prompts of `prompt` tokens."""
    counts = counts_of(recipe, shape)
    matrices = [weight.shape for weight in trained_weights(recipe, shape)]
    parts = [_parts(x.numel() // x[0], x[0]) for x in matrices]
    update = counts.per_weight_update * len(matrices) + sum(parts) - len(parts) + STEP
    if isinstance(recipe.optimizer, AdamW8bit):
        update += EIGHT_BITS * sum(part for part, x in zip(parts, matrices, strict=True) if len(x) > 1)
    blocks = logit_blocks(shape, answer_tokens)
    each = shape.layers * layer_kernels(recipe, shape, prompt) + BLOCK * (blocks - 1) + 3 * (blocks > 1)
    each += FROZEN if recipe.lora else counts.per_microbatch + (not shape.tied_embeddings)
    return update + microbatches * each + SINGLE * (microbatches == 1)


def layer_kernels(recipe: Recipe, shape: DecoderShape, prompt: int) -> int:
    """The kernels of the forward and backward of a layer."""
    counts = counts_of(recipe, shape)
    kernels = counts.per_layer + counts.per_qk_norm * shape.qk_norm + counts.per_bias * biases(shape)
    if recipe.lora:
        adapted = len(adapted_matrices(shape, recipe.lora)) // shape.layers
        kernels = FROZEN_LAYER + FROZEN_QK_NORM * shape.qk_norm + ADAPTED * adapted
    if counts is VARLEN and prompt > LONG_ON_GPU:
        kernels += LONG_PROMPT
    if recipe.machine.gradient_checkpointing:
        kernels += counts.per_forward_layer + counts.per_forward_qk_norm * shape.qk_norm - RECOMPUTED
    return kernels


def forward_kernels(recipe: Recipe, shape: DecoderShape, *, answer_tokens: int) -> int:
    """The kernels of a forward of one microbatch without gradient, for old log-probs or a side model."""
    counts, blocks = counts_of(recipe, shape), logit_blocks(shape, answer_tokens)
    layers = shape.layers * (counts.per_forward_layer + counts.per_forward_qk_norm * shape.qk_norm)
    return layers + counts.per_forward + FORWARD_BLOCK * (blocks - 1) - (blocks > 1)


def counts_of(recipe: Recipe, shape: DecoderShape) -> KernelCounts:
    """The counts for the attention of the learner on a GPU."""
    return VARLEN if kernel_of("cuda", recipe.machine.dtype, shape) == "varlen" else MASKED


def logit_blocks(shape: DecoderShape, answer_tokens: int) -> int:
    """The blocks in which the learner computes the logits of a microbatch.

    >>> from groupwise.models import DecoderShape
    >>> sizes = dict(vocabulary_size=1 << 16, hidden_size=8, layers=1, heads=1, kv_heads=1, head_dim=8)
    >>> sizes |= dict(mlp_width=8, max_positions=9)
    >>> shape = DecoderShape(**sizes)
    >>> logit_blocks(shape, 64), logit_blocks(shape, 65)
    (1, 2)
    """
    return ceil(shape.vocabulary_size / max(NARROWEST, LOGITS // max(1, answer_tokens)))


def trained_weights(recipe: Recipe, shape: DecoderShape) -> list[nn.Parameter]:
    """The weights that the optimizer updates, without numbers."""
    if not recipe.lora:
        return list(Decoder(shape).parameters())
    rank, adapted = recipe.lora.rank, adapted_matrices(shape, recipe.lora)
    sizes = [size for m in adapted for size in ((rank, m.in_features), (m.out_features, rank))]
    return [nn.Parameter(adapted[0].weight.new_empty(size)) for size in sizes]


def biases(shape: DecoderShape) -> int:
    """The biases of a layer."""
    return 3 * shape.qkv_bias + shape.attention_output_bias + 3 * shape.mlp_bias


def _parts(width: int, rows: int) -> int:
    """The parts of a matrix that are converted one after the other."""
    return ceil(rows / max(1, AT_ONCE // max(1, width)))
