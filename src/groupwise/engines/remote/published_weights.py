"""The weights that engines in other processes load, from the learner's."""

from collections.abc import Mapping
from functools import partial

from torch import Tensor, nn

from groupwise.engines.remote.weights_file import state_bytes
from groupwise.models import LayerWeights, VisionModel, has_adapter
from groupwise.models.lora import merged_weights
from groupwise.models.quantized_linear import QuantizedLinear


def published_bytes(model: nn.Module) -> int:
    """The bytes of a model's published weights: layers in 4 bits are dequantised."""
    size = next(weight.element_size() for weight in model.parameters() if weight.is_floating_point())
    layers = [layer for layer in model.modules() if isinstance(layer, QuantizedLinear)]
    packed = sum(layer.weight.nbytes + layer.absmax.nbytes for layer in layers)
    return state_bytes(model) - packed + size * sum(layer.in_features * layer.out_features for layer in layers)


def published_weights(model: nn.Module, weights: Mapping[str, Tensor], *, merges: bool) -> Mapping[str, Tensor]:
    """The weights of a model, from its state dict; `merges`: with its adapter, if it has one, added to them.

    Those of a vision-language model have the names of its files, each tensor once: vLLM ties equal ones itself.
    """
    found = weights
    if merges and has_adapter(model):
        merge = partial(merged_weights, model)
        found = weights.converted(merge) if isinstance(weights, LayerWeights) else merge(weights)
    if not isinstance(model, VisionModel):
        return found
    firsts = {(x.data_ptr(), x.shape): name for name, x in reversed(list(found.items()))}
    kept = set(firsts.values())
    return {name.removeprefix("causal."): x for name, x in found.items() if name in kept}
