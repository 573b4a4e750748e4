"""The bytes that a rank of a sharded learner sends: weights that are gathered, and gradients that are added.

Each rank sends its rows of a layer to the `R - 1` others before the layer's forward and before its backward, in the
dtype of the model. Embedding, head and final norm are one group, gathered once for both. The gradients of trained
weights go to the ranks that hold their rows, in float32 at least. So a rank sends `1 - 1/R` of each. ZeRO,
arXiv:1910.02054, section 7. Not included: a number for each token, and the norms of rows.

Between hosts the rows of weights pass once, as in a ring over all ranks. The gradients of a layer pass once for each
rank of a host, since they are added where their rows are held.
"""

from dataclasses import dataclass, replace

from groupwise.config.recipe import Recipe
from groupwise.models import DecoderShape
from groupwise.planning.process_memory import BYTES, adapter_weights
from groupwise.planning.read_model_shape import layer_weights, weights_of


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerTraffic:
    """Bytes that a rank sends for a microbatch: weights, and gradients.

    Before the first step, each forward without gradient (old log-probs, a side model) sends `forward_bytes` for a
    microbatch, and `ends_bytes` once: embedding, head and final norm.
    """

    gathered_bytes: float
    reduced_bytes: float
    forward_bytes: float
    ends_bytes: float

    @property
    def microbatch_bytes(self) -> float:
        """The bytes of a microbatch, forward and backward."""
        return self.gathered_bytes + self.reduced_bytes


def learner_traffic(recipe: Recipe, shape: DecoderShape, ranks: int) -> LearnerTraffic:
    """The bytes that one of the ranks sends; 0 with one rank.

    >>> from groupwise.config.recipe_toml import read_recipe
    >>> sizes = dict(vocabulary_size=9, hidden_size=4, layers=2, heads=1, kv_heads=1, head_dim=4, mlp_width=8)
    >>> shape = DecoderShape(**sizes, max_positions=9)
    >>> recipe = read_recipe("method = 'grpo'\\nmachine.dtype = 'bfloat16'")
    >>> weights_of(shape), layer_weights(shape)
    (412, 168)
    >>> learner_traffic(recipe, shape, ranks=2)
    LearnerTraffic(gathered_bytes=748.0, reduced_bytes=824.0, forward_bytes=336.0, ends_bytes=76.0)
    """
    size, share = BYTES[recipe.machine.dtype], 1 - 1 / ranks
    adapter = adapter_weights(shape, recipe.lora) if recipe.lora else 0
    held = weights_of(shape) + adapter
    layers = shape.layers * layer_weights(shape) + adapter
    trained = adapter if recipe.lora else held
    return LearnerTraffic(
        gathered_bytes=share * size * (held + layers),
        reduced_bytes=share * max(size, 4) * trained,
        forward_bytes=share * size * layers,
        ends_bytes=share * size * (held - layers),
    )


def host_traffic(traffic: LearnerTraffic, ranks: int, hosts: int) -> LearnerTraffic:
    """The bytes that one of several hosts sends to the others for all of its ranks, each of which has this `traffic`.

    >>> rank = LearnerTraffic(gathered_bytes=7.0, reduced_bytes=7.0, forward_bytes=7.0, ends_bytes=7.0)
    >>> host_traffic(rank, ranks=8, hosts=2)  # of 7 other ranks, 4 are on the other host
    LearnerTraffic(gathered_bytes=7.0, reduced_bytes=16.0, forward_bytes=7.0, ends_bytes=7.0)
    """
    here = ranks // hosts
    return replace(traffic, reduced_bytes=here * traffic.reduced_bytes * (ranks - here) / (ranks - 1))
