"""Causal language models of transformers as a `Backbone`: its modules, with our layouts where its attention was.

transformers lets a model's attention be any registered function. Ours hands queries, keys and values to the layout, so
learner and engine share prompts, remember prefixes and pack rows exactly as with the native decoder, and no mask or
cache of transformers is ever made. Whether a model mixes tokens anywhere else (a convolution, a state) no list could
say for certain: each is asked, when it is read, whether it says the same packed as it says alone.
"""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from groupwise.data import Layout, Usage
from groupwise.models.decoder import Sizes
from groupwise.models.routing import Routes, attended


class TransformersModel(nn.Module):
    """A `Backbone` over a causal language model of transformers, with the scales, caps and biases of its own head."""

    def __init__(self, causal: nn.Module, shape: Sizes) -> None:
        super().__init__()
        self.causal, self.shape = causal.eval(), shape
        inner = causal.get_decoder()  # pyright: ignore[reportCallIssue]
        self._trunk = next(name for name, module in causal.named_modules() if module is inner)
        self.experts = attended(causal)

    def forward(
        self, tokens: Int[Tensor, " n"], layout: Layout, routes: Routes | None = None
    ) -> Float[Tensor, "n width"]:
        """Hidden states after the final norm. A mixture's experts are written in `routes`, and taken from there."""
        trunk = self.causal.get_submodule(self._trunk)
        position = layout.position.clamp(max=self.shape.positions - 1)  # only padding stands further on
        if not len(tokens):  # of which attention would not know what shape it has
            return self.causal.get_input_embeddings()(tokens)  # pyright: ignore[reportCallIssue]
        more = {} if routes is None else {"routes": routes}
        said = trunk(input_ids=tokens[None], position_ids=position[None], use_cache=False, layout=layout, **more)
        return said.last_hidden_state[0]

    def head(self, hidden: Float[Tensor, "n width"]) -> Float[Tensor, "n vocabulary"]:
        """Logits as the model's own `forward` makes them of these hidden states."""
        tail = _with(self.causal, self._trunk, _EmbeddingsGiven())
        return tail(inputs_embeds=hidden[None], use_cache=False).logits[0]

    @property
    def recompute(self) -> bool:
        """Whether layers are forwarded again on the way back, instead of keeping what they computed."""
        return any(layer.gradient_checkpointing for layer in self._layers())

    @recompute.setter
    def recompute(self, wanted: bool) -> None:
        layers = self._layers()
        if wanted and not layers:
            raise Usage(
                f"{type(self.causal).__name__} cannot forward its layers again",
                evidence="transformers has no gradient checkpointing for it",
                fix="leave --machine.recompute out",
            )
        for layer in layers:
            layer.gradient_checkpointing, layer._gradient_checkpointing_func = wanted, _again
            layer.training = wanted  # the layer's own flag, without which transformers keeps everything
            for name, rate in vars(layer).items():
                if "drop" in name and isinstance(rate, float):
                    setattr(layer, name, 0.0)

    @property
    def compiled(self) -> bool:
        """Never: what transformers' modules do is theirs."""
        return False

    @compiled.setter
    def compiled(self, wanted: bool) -> None:
        if wanted:
            raise Usage(
                f"{type(self.causal).__name__} is not compiled here",
                evidence="it is forwarded by the modules of transformers",
                fix="leave --machine.compile out, or take a Llama, Mistral or Qwen model",
            )

    def _layers(self) -> list[Any]:
        from transformers.modeling_layers import GradientCheckpointingLayer

        return [m for m in self.causal.modules() if isinstance(m, GradientCheckpointingLayer)]


class _EmbeddingsGiven(nn.Module):
    """Stands where the trunk was, and says what it is given."""

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> Any:
        return _HiddenStates(inputs_embeds)


class _HiddenStates:
    """Hidden states and nothing else, whatever else a head would like to pass on."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, place: int) -> Tensor | None:
        return None if place else self.last_hidden_state

    def __getattr__(self, name: str) -> None:
        return None


def _with(module: nn.Module, path: str, part: nn.Module) -> nn.Module:
    """The module with another part at `path`, sharing all the rest."""
    name, _, rest = path.partition(".")
    twin = copy.copy(module)
    own = module._modules[name]
    assert own is not None
    twin.__dict__["_modules"] = {**module._modules, name: _with(own, rest, part) if rest else part}
    return twin


def _again(call: Any, *args: Any) -> Any:
    if not torch.is_grad_enabled():
        return call(*args)
    return checkpoint(call, *args, use_reentrant=False, preserve_rng_state=False)


def attend(
    module: nn.Module,
    query: Float[Tensor, "1 heads n d"],
    key: Float[Tensor, "1 kv n d"],
    value: Float[Tensor, "1 kv n e"],
    attention_mask: object,
    *,
    layout: Layout | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: object = None,
    **_: object,
) -> tuple[Float[Tensor, "1 n heads e"], None]:
    """transformers' attention interface over a layout."""
    if layout is None or s_aux is not None:
        raise NotImplementedError("no layout reaches its attention" if layout is None else "attention sinks")
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    size = max(q.shape[-1], v.shape[-1])
    if scaling is not None:
        q = q * (scaling * size**0.5)
    elif q.shape[-1] != size:
        q = q * (size / q.shape[-1]) ** 0.5
    q, k, w = (F.pad(x, (0, size - x.shape[-1])) if x.shape[-1] < size else x for x in (q, k, v))
    seen = layout.attend(module.layer_idx, q, k, w, window=sliding_window, softcap=softcap)  # pyright: ignore
    return seen[None, ..., : v.shape[-1]], None
