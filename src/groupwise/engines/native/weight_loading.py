"""Loads new weights into the model of an engine in the trainer's process."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


@torch.no_grad()
def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy weights that passed `check_weights`. Tensors that are the model's own stay."""
    for name, x in model.state_dict().items():
        if x.data_ptr() != weights[name].data_ptr():
            x.copy_(weights[name])


def check_weights(current: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """ValueError unless the names and shapes of both are equal."""
    if {name: x.shape for name, x in current.items()} != {name: x.shape for name, x in weights.items()}:
        names = sorted(current.keys() ^ weights.keys())
        names = names or [n for n, x in current.items() if x.shape != weights[n].shape]
        what = f"the new weights do not fit the model: missing, unknown or other shapes: {', '.join(names[:5])}"
        raise ValueError(f"{what}\nload weights of the engine's model")
