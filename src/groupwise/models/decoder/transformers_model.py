"""Causal language models of transformers as a `Backbone`: a `AttentionLayout` of packed tokens computes attention.

transformers calls any registered attention function. Ours passes queries, keys and values to the layout, so learner and
engine share prompts, cache prefixes and pack rows as with the native decoder; transformers builds no mask or cache.
A model may mix tokens outside attention (a convolution, a state). No list of such models is complete, so
`read_transformers` compares packed with separate logits for every model.
"""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from groupwise.core import Usage
from groupwise.data import AttentionLayout
from groupwise.models.decoder.decoder import ModelSizes, OpaqueLayout
from groupwise.models.decoder.expert_routing import ChosenExperts, install_router_hooks
from groupwise.models.decoder.prefix_packing import PrefixPacking


class TransformersBackbone(nn.Module):
    """Adapts a causal language model of transformers to `Backbone`, including its head's scales, caps and biases."""

    def __init__(self, causal: nn.Module, shape: ModelSizes) -> None:
        super().__init__()
        self.causal, self.shape = causal.eval(), shape
        inner = causal.get_decoder()  # pyright: ignore[reportCallIssue]
        self._trunk = next(name for name, module in causal.named_modules() if module is inner)
        self.experts = install_router_hooks(causal)
        self.sharded = False
        """Whether ranks share its weights: they gather a layer together, so all layers run also without a token."""

    def forward(
        self, tokens: Int[Tensor, " n"], layout: AttentionLayout, routes: ChosenExperts | None = None
    ) -> Float[Tensor, "n width"]:
        """Hidden states after the final norm. `routes` records, and may replace, the choice of a mixture's experts."""
        trunk = self.causal.get_submodule(self._trunk)
        if not len(tokens) and self.sharded:
            one = PrefixPacking.of([(0,)], [(0,)], device=tokens.device)
            return self.forward(one.tokens, one)[:0].clone()
        if not len(tokens):  # attention cannot infer its shapes from no tokens
            return self.causal.get_input_embeddings()(tokens)  # pyright: ignore[reportCallIssue]
        options: dict[str, Any] = {} if routes is None else {"routes": routes}
        options |= self.inputs(tokens, layout) | {"position_ids": self.position_ids(layout)}
        output = trunk(**options, use_cache=False, layout=OpaqueLayout(layout))
        hidden = output.last_hidden_state[0]
        return hidden.clone() if self.sharded else hidden  # FSDP hooks it: an operation in place on a view drops that

    def position_ids(self, layout: AttentionLayout) -> Int[Tensor, "..."]:
        """The positions of the packed tokens [1, n], as the trunk takes them."""
        return layout.positions.clamp(max=self.shape.max_positions - 1)[None]  # only padding has larger positions

    def inputs(self, tokens: Int[Tensor, " n"], layout: AttentionLayout) -> dict[str, Tensor]:
        """The arguments of the trunk with the packed tokens, as ids or as embeddings."""
        return {"input_ids": tokens[None]}

    def set_attention(self, name: str) -> None:
        """Let the trunk compute attention by the function that is registered with transformers by this name."""
        self.causal.set_attn_implementation(name)  # pyright: ignore[reportCallIssue]

    def head(self, hidden: Float[Tensor, "n width"]) -> Float[Tensor, "n vocabulary"]:
        """Logits of hidden states, computed by the model's own `forward` with its trunk replaced."""
        tail = _replace_submodule(self.causal, self._trunk, _IdentityTrunk())
        return tail(inputs_embeds=hidden[None], use_cache=False).logits[0]

    @property
    def adapter_host(self) -> nn.Module:
        """The module that gets adapters."""
        return self.causal

    @property
    def recompute(self) -> bool:
        """Whether layers are recomputed in backward (activation checkpointing)."""
        return any(layer.gradient_checkpointing for layer in self.layers())

    @recompute.setter
    def recompute(self, wanted: bool) -> None:
        layers = self.layers()
        if wanted and not layers:
            raise Usage(
                f"{type(self.causal).__name__} cannot recompute its layers",
                evidence="transformers has no gradient checkpointing for it",
                fix="leave --machine.gradient_checkpointing out",
            )
        for layer in layers:
            layer.gradient_checkpointing, layer._gradient_checkpointing_func = wanted, _checkpointed
            layer.training = wanted  # transformers checkpoints a layer only if its own training flag is set
            for name, rate in vars(layer).items():
                if "drop" in name and isinstance(rate, float):
                    setattr(layer, name, 0.0)

    @property
    def compiled(self) -> bool:
        """Always False: `torch.compile` is not applied to models of transformers."""
        return False

    @compiled.setter
    def compiled(self, wanted: bool) -> None:
        if wanted:
            raise Usage(
                f"{type(self.causal).__name__} is not compiled here",
                evidence="it runs in the modules of transformers",
                fix="leave --machine.compile out, or take a Llama, Mistral or Qwen model",
            )

    def layers(self) -> list[Any]:
        """The layers that can be recomputed in backward; none if transformers has no such class for the model."""
        from transformers.modeling_layers import GradientCheckpointingLayer

        return [m for m in self.causal.modules() if isinstance(m, GradientCheckpointingLayer)]


class _IdentityTrunk(nn.Module):
    """A stand-in for a model's trunk, which returns its input as hidden states, so that only the head is computed."""

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> Any:
        return _HiddenStates(inputs_embeds)


class _HiddenStates:
    """A model output with hidden states only; every other field is None. Some models make theirs of its mapping."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def keys(self) -> tuple[str, ...]:
        return ("last_hidden_state",)

    def __getitem__(self, index: int | str) -> Tensor | None:
        return self.last_hidden_state if index in (0, "last_hidden_state") else None

    def __getattr__(self, name: str) -> None:
        return None


def _replace_submodule(module: nn.Module, path: str, part: nn.Module) -> nn.Module:
    """A shallow copy of the module with another submodule at `path`; all others are shared."""
    name, _, inner_path = path.partition(".")
    twin = copy.copy(module)
    child = module._modules[name]
    assert child is not None
    new = _replace_submodule(child, inner_path, part) if inner_path else part
    twin.__dict__["_modules"] = {**module._modules, name: new}
    return twin


def _checkpointed(call: Any, *args: Any) -> Any:
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
    layout: AttentionLayout | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: object = None,
    **_: object,
) -> tuple[Float[Tensor, "1 n heads e"], None]:
    """Attention in transformers' interface, computed by a `AttentionLayout` of packed tokens."""
    if layout is None or s_aux is not None:
        raise NotImplementedError(
            "the layout is not passed to its attention" if layout is None else "its attention has trackers"
        )
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    size = max(q.shape[-1], v.shape[-1])
    if scaling is not None:
        q = q * (scaling * size**0.5)
    elif q.shape[-1] != size:
        q = q * (size / q.shape[-1]) ** 0.5
    q, k, w = (F.pad(x, (0, size - x.shape[-1])) if x.shape[-1] < size else x for x in (q, k, v))
    output = layout.attend(module.layer_idx, q, k, w, window=sliding_window, softcap=softcap)  # pyright: ignore
    return output[None, ..., : v.shape[-1]], None
