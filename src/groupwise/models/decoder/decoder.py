"""The decoder of Qwen2, Qwen3, Llama and Mistral: RMSNorm, rotary positions, grouped-query attention, gated MLP.

Parameters have the names of Hugging Face checkpoints, so a state_dict needs no mapping. All operations run in the
weights' dtype: a float64 model is float64 throughout, norms and rotary positions included. In half precision, norms run
in float32.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from groupwise.data import AttentionLayout, Ids
from groupwise.models.decoder.rms_norm import RMSNorm
from groupwise.models.decoder.rope_scaling import Scaling
from groupwise.models.decoder.weights_on_disk import WeightsOnDisk

__all__ = ["Decoder", "DecoderShape", "weights_device"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """The sizes of a model that an engine needs. `max_positions` is the longest sequence, in tokens.

    `kind_name` is the name of its `ModelKind`, `kind_label` the kind in words. With `generates_whole_answers` an answer
    is generated as a whole, from a prompt that the model `takes`; with `tokens_are_denoising_steps` its tokens are
    denoising steps. Without `generates` it only reads.
    """

    kind_name: ClassVar[str] = "language"
    kind_label: ClassVar[str] = "language model"
    generates_whole_answers: ClassVar[bool] = False
    tokens_are_denoising_steps: ClassVar[bool] = False
    generates: ClassVar[bool] = True

    vocabulary_size: int
    layers: int
    kv_heads: int
    head_dim: int
    max_positions: int

    @property
    def prompt(self) -> str:
        """The prompts that the model takes, in words."""
        return "any tokens"

    def takes(self, words: Ids) -> bool:
        """Whether these are the tokens of a prompt."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape(ModelSizes):
    """The architecture of a decoder, without its weights.

    `attention_windows` holds each layer's attention window in tokens, the token itself included (None: no window). It
    is empty if no layer has one.
    """

    hidden_size: int
    heads: int
    mlp_width: int
    model_family: str = "llama"
    rope_theta: float = 10_000.0
    rope_scaling: Scaling | None = None
    attention_windows: tuple[int | None, ...] = ()
    rms_norm_eps: float = 1e-6
    qk_norm: bool = False
    qkv_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    tied_embeddings: bool = False

    def __post_init__(self) -> None:
        sizes = (
            "vocabulary_size",
            "hidden_size",
            "layers",
            "heads",
            "kv_heads",
            "head_dim",
            "mlp_width",
            "max_positions",
        )
        for name in sizes:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: a decoder needs at least 1")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads is {self.heads}: it must be a multiple of kv_heads, {self.kv_heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}: rotary positions turn pairs, so it must be even")
        if self.attention_windows and len(self.attention_windows) != self.layers:
            raise ValueError(
                f"{len(self.attention_windows)} attention windows for {self.layers} layers: each layer needs one"
            )
        if any(w is not None and w < 1 for w in self.attention_windows):
            raise ValueError(f"windows are {self.attention_windows}: a window has at least 1 token, the token itself")


Rotation = tuple[Float[Tensor, "n 1 d"], Float[Tensor, "n 1 d"]]
QueriesKeysValues = tuple[Float[Tensor, "n heads d"], Float[Tensor, "n kv d"], Float[Tensor, "n kv d"]]


def rotary(position: Int[Tensor, " n"], shape: DecoderShape, dtype: torch.dtype) -> Rotation:
    """Cosines and signed sines of the positions' angles, computed in float64. RoPE, arXiv:2104.09864."""
    steps = torch.arange(0, shape.head_dim, 2, dtype=torch.float64, device=position.device) / shape.head_dim
    frequency, scaling = shape.rope_theta**-steps, shape.rope_scaling
    if scaling:
        frequency = scaling(frequency, shape.rope_theta)
    angle = position[:, None, None].double() * frequency
    cos, sin = angle.cos(), angle.sin()
    if scaling:
        cos, sin = cos * scaling.attention_scaling, sin * scaling.attention_scaling
    return torch.cat([cos, cos], -1).to(dtype), torch.cat([-sin, sin], -1).to(dtype)


def rotated(x: Float[Tensor, "n heads d"], rotation: Rotation) -> Float[Tensor, "n heads d"]:
    """`x` with each pair (i, i + d/2) rotated by its position's angle."""
    cos, sin = rotation
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


class Attention(nn.Module):
    """The projections of grouped-query attention. The `AttentionLayout` of packed tokens computes the attention."""

    def __init__(self, shape: DecoderShape, layer: int) -> None:
        super().__init__()
        self.layer, self.head_dim = layer, shape.head_dim
        self.window = shape.attention_windows[layer] if shape.attention_windows else None
        query_width, key_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, query_width, bias=shape.qkv_bias)
        self.k_proj = nn.Linear(shape.hidden_size, key_width, bias=shape.qkv_bias)
        self.v_proj = nn.Linear(shape.hidden_size, key_width, bias=shape.qkv_bias)
        self.o_proj = nn.Linear(query_width, shape.hidden_size, bias=shape.attention_output_bias)
        self.q_norm = RMSNorm(shape.head_dim, shape.rms_norm_eps) if shape.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(shape.head_dim, shape.rms_norm_eps) if shape.qk_norm else nn.Identity()

    def queries_keys_values(self, x: Float[Tensor, "n width"], rotation: Rotation) -> QueriesKeysValues:
        q, k, v = (proj(x).unflatten(-1, (-1, self.head_dim)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        return rotated(self.q_norm(q), rotation), rotated(self.k_norm(k), rotation), v

    def forward(self, attended: Float[Tensor, "n heads d"]) -> Float[Tensor, "n width"]:
        return self.o_proj(attended.flatten(1))


class MLP(nn.Module):
    """`down(silu(gate(x)) * up(x))`. SwiGLU, arXiv:2002.05202."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.mlp_width, bias=shape.mlp_bias)
        self.up_proj = nn.Linear(shape.hidden_size, shape.mlp_width, bias=shape.mlp_bias)
        self.down_proj = nn.Linear(shape.mlp_width, shape.hidden_size, bias=shape.mlp_bias)

    def forward(self, x: Float[Tensor, "n width"]) -> Float[Tensor, "n width"]:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    """One decoder layer: attention, then MLP, each applied to a norm of the residual stream and added to it.

    If `compiled`, torch compiles the operations before attention and those after it.
    """

    def __init__(self, shape: DecoderShape, layer: int) -> None:
        super().__init__()
        self.self_attn = Attention(shape, layer)
        self.mlp = MLP(shape)
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.compiled = False

    def forward(
        self, x: Float[Tensor, "n width"], rotation: Rotation, layout: AttentionLayout
    ) -> Float[Tensor, "n width"]:
        before, after = (
            map(_compiled, (DecoderLayer.before, DecoderLayer.after))
            if self.compiled
            else (DecoderLayer.before, DecoderLayer.after)
        )
        q, k, v = before(self, x, rotation)
        return after(self, x, layout.attend(self.self_attn.layer, q, k, v, window=self.self_attn.window))

    def before(self, x: Float[Tensor, "n width"], rotation: Rotation) -> QueriesKeysValues:
        return self.self_attn.queries_keys_values(self.input_layernorm(x), rotation)

    def after(self, x: Float[Tensor, "n width"], attended: Float[Tensor, "n heads d"]) -> Float[Tensor, "n width"]:
        x = x + self.self_attn(attended)
        return x + self.mlp(self.post_attention_layernorm(x))


@cache
def _compiled(half: Callable[..., Any]) -> Callable[..., Any]:
    """Compile one half of a layer, before or after attention, once for all layers. Lazy: torch imports its compiler."""
    return torch.compile(half, dynamic=True)


class OpaqueLayout:
    """A layout as an argument of layers. FSDP would copy a dataclass there, token by token and without its cache."""

    def __init__(self, layout: AttentionLayout) -> None:
        self.positions, self.attend = layout.positions, layout.attend


class DecoderTrunk(nn.Module):
    """All of the decoder but the output head: embedding, layers and final norm.

    With `recompute`, only a layer's input is saved, and backward recomputes the layer (activation checkpointing). With
    `adds_in_place`, the embedding's backward adds to `embed_tokens.weight.grad` directly. That saves two matrices of
    the embedding's size, but `torch.autograd.grad` does not see this gradient. In half precision it is off: small
    addends would be lost in a larger sum.
    """

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.shape = shape
        # An explicit weight skips the random initialisation, which on the meta device imports torch's compiler (1 s).
        self.embed_tokens = nn.Embedding(
            shape.vocabulary_size, shape.hidden_size, _weight=torch.empty(shape.vocabulary_size, shape.hidden_size)
        )
        self.layers = nn.ModuleList(DecoderLayer(shape, layer) for layer in range(shape.layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.recompute = self.adds_in_place = False

    def forward(self, tokens: Int[Tensor, " n"], layout: AttentionLayout) -> Float[Tensor, "n width"]:
        x = self._embed(tokens)
        rotation, opaque = rotary(layout.positions, self.shape, x.dtype), OpaqueLayout(layout)
        for layer in self.layers:
            if self.recompute and torch.is_grad_enabled():
                x = checkpoint(layer, x, rotation, opaque, use_reentrant=False, preserve_rng_state=False)
            else:
                x = layer(x, rotation, opaque)
        return self.norm(x)

    def _embed(self, tokens: Int[Tensor, " n"]) -> Float[Tensor, "n width"]:
        weight = self.embed_tokens.weight
        exact = torch.finfo(weight.dtype).bits >= 32
        if not (self.adds_in_place and exact and torch.is_grad_enabled() and weight.requires_grad):
            return self.embed_tokens(tokens)
        x = F.embedding(tokens, weight.detach()).requires_grad_()

        def add(grad: Tensor) -> None:
            weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
            weight.grad.index_add_(0, tokens, grad)

        x.register_hook(add)
        return x


def weights_device(model: nn.Module) -> torch.device:
    """The device of a model's weights; for one on the meta device with its weights on disk, that of a rank's rows."""
    device, on_disk = next(model.parameters()).device, getattr(model, "on_disk", None)
    return on_disk.device if device.type == "meta" and on_disk is not None else device


class Decoder(nn.Module):
    """A `Backbone`: maps packed tokens and their layout to hidden states, and hidden states to logits.

    The constructor creates parameters on the meta device. `Decoder.new` draws weights, `read_model` reads them. With
    `outline_on_disk` they stay in the files `on_disk`, of which each sharded rank reads its rows.

    >>> sizes = dict(vocabulary_size=5, hidden_size=8, layers=1, heads=2, kv_heads=1, head_dim=4)
    >>> shape = DecoderShape(**sizes, mlp_width=16, max_positions=32)
    >>> decoder = Decoder.new(shape, seed=0)
    >>> from groupwise.models import PrefixPacking
    >>> layout = PrefixPacking.of([(1, 2)], [(3, 4)])
    >>> decoder.head(decoder(layout.tokens, layout)).shape
    torch.Size([3, 5])
    """

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.shape = shape
        with torch.device("meta"):
            self.model = DecoderTrunk(shape)
            head = None if shape.tied_embeddings else nn.Linear(shape.hidden_size, shape.vocabulary_size, bias=False)
            self.lm_head: nn.Module | None = head
        self.on_disk: WeightsOnDisk | None = None

    @classmethod
    def new(
        cls,
        shape: DecoderShape,
        seed: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        spread: float = 0.02,
    ) -> "Decoder":
        """A decoder with random weights, fixed by the seed: normal with deviation `spread`, norms 1, biases 0."""
        decoder = cls(shape).to(dtype).to_empty(device=device)
        draw = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, weight in decoder.named_parameters():
                if weight.ndim == 2:
                    weight.copy_(torch.empty(weight.shape).normal_(0, spread, generator=draw))
                else:
                    weight.fill_(0 if name.endswith("bias") else 1)
        return decoder

    @property
    def recompute(self) -> bool:
        """Whether layers are recomputed in backward (activation checkpointing)."""
        return self.model.recompute

    @recompute.setter
    def recompute(self, wanted: bool) -> None:
        self.model.recompute = wanted

    @property
    def compiled(self) -> bool:
        """Whether torch compiles the operations around attention."""
        return any(layer.compiled for layer in self._layers())

    @compiled.setter
    def compiled(self, wanted: bool) -> None:
        for layer in self._layers():
            layer.compiled = wanted

    def _layers(self) -> list[DecoderLayer]:
        return [m for m in self.model.layers if isinstance(m, DecoderLayer)]

    def forward(self, tokens: Int[Tensor, " n"], layout: AttentionLayout) -> Float[Tensor, "n width"]:
        """Hidden states after the final norm."""
        return self.model(tokens, layout)

    def head(self, hidden: Float[Tensor, "n width"]) -> Float[Tensor, "n vocabulary"]:
        """The logits of hidden states, in the weights' dtype."""
        return F.linear(hidden, self.unembedding) if self.lm_head is None else self.lm_head(hidden)

    @property
    def unembedding(self) -> nn.Parameter:
        """The head's weight matrix (vocabulary, width); the embedding if they are tied."""
        return (self.model.embed_tokens if self.lm_head is None else self.lm_head).get_parameter("weight")
