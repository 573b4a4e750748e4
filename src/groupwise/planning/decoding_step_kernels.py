"""The kernels that a decoding step launches on a GPU, by the shape of the model, and the seconds of their launches.

The numbers are those that the pretended GPU counts (`python -m tools.gpu_steps`); tests compare them.
"""

from groupwise.config.recipe import Recipe
from groupwise.engines import Native
from groupwise.models import DecoderShape
from groupwise.planning.activation_memory import kernel_of

LAUNCH = 5e-6
"""The seconds of a launch. Assumed, not measured; a replayed CUDA graph needs less."""
LAYER, NORMS, OUTSIDE = 22, 2, 71
"""With pages: the kernels of a layer, of its norms of queries and keys, and of everything else."""
UNPAGED_LAYER, UNPAGED_PROMPT, UNPAGED_NORMS, UNPAGED_OUTSIDE = 46, 22, 12, 129
"""Without pages: of a layer, of a layer for each prompt with running answers, of its norms, of everything else."""


def step_kernels(recipe: Recipe, shape: DecoderShape) -> int:
    """The kernels of a decoding step on a GPU.

    Without pages (`float32`, or heads that `varlen_attn` refuses) they grow with the prompts whose answers run; those
    for each further 128 tokens of an answer are not counted. Those of vLLM are not known: they count as with pages.
    """
    if kernel_of(recipe.machine.device, recipe.machine.dtype, shape) == "varlen":
        return shape.layers * (LAYER + NORMS * shape.qk_norm) + OUTSIDE
    rows = min(
        recipe.engine.max_num_seqs if isinstance(recipe.engine, Native) else Native().max_num_seqs,
        recipe.prompts * recipe.method.group_size,
    )
    prompts = -(-rows // recipe.method.group_size)
    layer = UNPAGED_LAYER + UNPAGED_PROMPT * prompts + UNPAGED_NORMS * shape.qk_norm
    return shape.layers * layer + UNPAGED_OUTSIDE
