"""Low-rank adapters through peft: attach, read, write and merge them.

LoRA, arXiv:2106.09685: `W x + alpha / rank * B A x` with W frozen. B starts at 0, so a fresh adapter changes nothing.
"""

import importlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import nn

from groupwise.core import BadData, GroupwiseError, MissingRequirement, Usage, check_types, visible
from groupwise.models.decoder.layer_weights import LayerWeights
from groupwise.models.hub import is_hub_name
from groupwise.models.json_fields import json_object, mapping, real, short, whole
from groupwise.models.model_json_files import ADAPTER, listing, read_json
from groupwise.models.quantized_linear import NF4, QuantizedLinear, dequantize, is_quantized, load_bitsandbytes
from groupwise.models.safetensors_weights import header, metadata, refuse_types, tensors

__all__ = ["Lora", "attach", "check_targets", "has_adapter", "load_peft", "merge", "write_adapter"]

SETTINGS = "lora_adapter_metadata"
"""The key of the metadata in which diffusers stores an adapter's settings."""
HEADS = ("lm_head", "embed_tokens", "score")
"""Layers that never have an adapter: heads, also that of a reward model, and the embedding."""
PLAIN = re.compile(r"(\^|\.\*)?[\w.\\-]+\$?")
"""Accepted patterns: a layer's name, possibly after `.*`, without other repetition, so that matching is linear."""
MOST_PATTERNS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """Settings of a LoRA adapter: its rank, its scale (alpha), and the linear layers that it adapts, by name endings.

    There is no dropout: with it, the trained policy would differ from the sampled one.
    """

    rank: int = 16
    alpha: float = 32.0
    target_modules: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

    def __post_init__(self) -> None:
        check_types(self)
        if self.rank < 1:
            raise ValueError(
                f'rank is {self.rank}: needs rank >= 1\nset a number such as 16; without an adapter: lora = "none"'
            )
        if not 0 < self.alpha < float("inf"):
            raise ValueError(
                f"alpha is {self.alpha}: needs a finite number above 0\n"
                "set a number such as 32; the scale is alpha / rank"
            )
        if not self.target_modules:
            raise ValueError('targets is empty\ntake names of linear layers, such as ["q_proj", "v_proj"]')


def attach(model: nn.Module, lora: Lora, *, seed: int) -> None:
    """Attach a fresh adapter to the targets and freeze all other weights. Equal seeds give equal adapters.

    Usage for a target that is not a linear layer of the model. MissingRequirement without peft.
    """
    check_targets(model, lora)
    peft, host = load_peft(), _host(model)
    config = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=layer_names(host, lora) if _decoder_name(host) else list(lora.target_modules),
        task_type=None if _layout(model).read_by_diffusers else "CAUSAL_LM",
        fan_in_fan_out=any(_is_conv1d(module) for module in host.modules()),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        _inject(peft, config, host)


def check_targets(model: nn.Module, lora: Lora) -> None:
    """Raise Usage for a target that names no linear layers, and by `check_rank`. Needs no weights and no peft."""
    host = _host(model)
    linear, mixtures, heads, decoder = _linear(host), _mixtures(host), _heads(host), _decoder_name(host)
    for target in lora.target_modules:
        if target.rpartition(".")[2] in heads:
            what = f"recipe.lora.target_modules: {target!r} is the head or the embedding, which have no adapter here"
            raise Usage(what, fix="remove this target; adapters need linear layers between embedding and head")
        matches = [n for n, _ in host.named_modules() if n.startswith(decoder) and f".{n}".endswith(f".{target}")]
        if not matches or not linear.issuperset(matches):
            names = {name.rpartition(".")[2]: None for name, _ in host.named_modules() if name in linear}
            raise Usage(
                f"recipe.lora.target_modules: no linear layer is called {target!r}",
                evidence="mixture-of-experts blocks take no adapter" if mixtures else "",
                fix=f"the model has {', '.join(name for name in names if name not in heads)}",
            )
    check_rank(model, lora)


def layer_names(host: Any, lora: Lora) -> list[str]:
    """The names of the target layers in the decoder of a vision-language model: its tower takes no adapter."""
    linear, ends = _linear(host), tuple(f".{target}" for target in lora.target_modules)
    return [name for name, _ in host.named_modules() if name in linear and f".{name}".endswith(ends)]


def _decoder_name(host: Any) -> str:
    """The name of the decoder in a vision-language model; empty for other models, which are adapted whole."""
    if getattr(getattr(host, "config", None), "vision_config", None) is None:
        return ""
    decoder = host.get_decoder()
    return next(name for name, module in host.named_modules() if module is decoder)


def check_rank(model: nn.Module, lora: Lora) -> None:
    """Raise Usage for a rank above the smaller dimension of each target layer. The targets must exist."""
    host, linear = _host(model), _linear(_host(model))
    targets = [m for name, m in host.named_modules() if name in linear and name.rpartition(".")[2] in _ends(lora)]
    widest = max((min(_sizes(module)) for module in targets), default=lora.rank)
    if lora.rank > widest:
        what = f"recipe.lora.rank is {lora.rank}, above the smaller dimension of every target layer"
        raise Usage(what, fix=f"use a rank of at most {widest}, such as --lora.rank {max(1, min(16, widest // 4))}")


def _sizes(layer: Any) -> tuple[int, ...]:
    """The dimensions of a layer's weight matrix."""
    return (layer.out_features, layer.in_features) if isinstance(layer, nn.Linear) else layer.weight.shape


def _inject(peft: Any, config: Any, host: nn.Module) -> None:
    """Add an adapter's matrices. Beside layers in 4 bits they get the other weights' dtype: peft makes them float32.

    All other weights are frozen, but for those of the layers that a model names in `trained_beside_adapter`.
    """
    with weights_without_memory(host):
        peft.inject_adapter_in_model(config, host)
    for layer in getattr(host, "trained_beside_adapter", ()):
        layer.requires_grad_(True)
    dtype = next(weight.dtype for weight in host.parameters() if weight.is_floating_point())
    for layer in host.modules():
        if isinstance(getattr(layer, "base_layer", None), QuantizedLinear):
            for matrix in (layer.lora_A, layer.lora_B):
                matrix.to(dtype)


@contextmanager
def weights_without_memory(host: nn.Module) -> Iterator[None]:
    """A context in which layers on the meta device have weights on the CPU that repeat one number.

    peft moves an adapter's matrices to the device of their layer: they would lose their numbers there.
    """
    outlined = [module for module in host.modules() if isinstance(module, nn.Linear) and module.weight.is_meta]
    for layer in outlined:
        layer.weight = nn.Parameter(torch.zeros((), dtype=layer.weight.dtype).expand(layer.weight.shape))
    try:
        yield
    finally:
        for layer in outlined:
            layer.weight = nn.Parameter(layer.weight.to("meta"), layer.weight.requires_grad)


def _ends(lora: Lora) -> set[str]:
    """The last parts of the target layers' dotted names, such as `q_proj`."""
    return {target.rpartition(".")[2] for target in lora.target_modules}


def has_adapter(model: nn.Module) -> bool:
    """Whether a model has an adapter. Then only the adapter is trained and written."""
    return hasattr(_host(model), "peft_config")


def _host(model: nn.Module) -> Any:
    """The module that peft adds LoRA layers to: the `adapter_host` of a model that wraps one, or the model itself."""
    return getattr(model, "adapter_host", model)


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """An adapter's file: its name, the prefix of its tensors' names, and whether diffusers reads it."""

    filename: str
    tensor_name_prefix: str
    read_by_diffusers: bool = False


PEFT = AdapterFile("adapter_model.safetensors", "base_model.model.")
DIFFUSERS = AdapterFile("pytorch_lora_weights.safetensors", "transformer.", read_by_diffusers=True)


def _layout(model: nn.Module) -> AdapterFile:
    return DIFFUSERS if getattr(model, "diffusers_adapter", False) else PEFT


def _is_conv1d(module: nn.Module) -> bool:
    """Whether a layer is GPT-2's `Conv1D`: a linear layer with a transposed weight."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def _linear(host: nn.Module) -> set[str]:
    """The names of the linear layers that can have an adapter."""
    mixtures, modules = _mixtures(host), dict(host.named_modules()).items()
    linear = {name for name, module in modules if isinstance(module, nn.Linear) or _is_conv1d(module)}
    decoder = _decoder_name(host)
    return {name for name in linear if name.startswith(decoder) and not mixtures & set(name.split("."))}


def _mixtures(host: nn.Module) -> set[str]:
    """The names of blocks with fused experts (one parameter for all experts), which peft adapts by other means."""
    fused = [name.split(".") for name, weight in host.named_parameters() if weight.dim() > 2]
    return {path[path.index("experts") - 1] for path in fused if "experts" in path[1:]}


def _heads(host: Any) -> set[str]:
    """The names of the embedding and the head, which are never adapted."""
    ends = [getattr(host, get)() for get in ("get_input_embeddings", "get_output_embeddings") if hasattr(host, get)]
    return {*HEADS, *(name.rpartition(".")[2] for name, module in host.named_modules() if module in ends)}


def write_adapter(
    model: nn.Module, path: Path, *, base: str, base_sha256: str, weights: LayerWeights | None = None
) -> None:
    """Write a directory that peft, transformers and `read_model` load; `base` is its `base_name`.

    `weights` are those of a model without weights, of which the adapter's alone are read.

    That of a pipeline's adapter is for diffusers and `read_model`. The base's hash is in the file's metadata, so that
    another base of the same shape is refused; before it, the quantisation in which the base was trained.
    """
    host, layout = _host(model), _layout(model)
    base_sha256 = f"{NF4}:{base_sha256}" if is_quantized(model) else base_sha256
    path.mkdir(parents=True, exist_ok=True)
    matrices = None if weights is None else dict(weights.only([name for name in weights if ".lora_" in name]))
    tensors = {name: x.detach().cpu().contiguous() for name, x in _adapter_tensors(host, layout, matrices).items()}
    config = host.peft_config["default"].to_dict() | {"inference_mode": True}
    found = {"base_sha256": base_sha256}
    if layout.read_by_diffusers:  # it ignores names without the prefix
        settings = {f"{layout.tensor_name_prefix}{name}": x for name, x in config.items()}
        found = {SETTINGS: json.dumps(settings | found, sort_keys=True, default=sorted)}
    save_file(tensors, path / layout.filename, metadata=found)  # one key: the order of several varies
    write_config(path, config, base)
    shutil.copymode(path / ADAPTER, path / layout.filename)  # safetensors creates files for their owner alone


def write_config(path: Path, config: Mapping[str, Any], base: str) -> None:
    """Write an adapter's adapter_config.json with this base."""
    name, _, revision = base.partition("@") if is_hub_name(base) else (base, "", "")
    config = {**config, "base_model_name_or_path": name, "revision": revision or None}
    (path / ADAPTER).write_text(json.dumps(config, indent=2, sort_keys=True, default=sorted) + "\n", encoding="utf-8")


def name_base(path: Path, base: str) -> None:
    """Change the base of an adapter's directory; `base` is its `base_name`."""
    write_config(path, read_json(path / ADAPTER), base)


def adapter_text(model: nn.Module) -> str:
    """The settings of a model's adapter as text, without the paths that it came from. Empty without an adapter."""
    if not has_adapter(model):
        return ""
    config = _host(model).peft_config["default"].to_dict()
    for origin in ("base_model_name_or_path", "revision", "inference_mode"):
        config.pop(origin, None)
    return json.dumps(config, sort_keys=True, default=sorted)


def attach_settings(model: nn.Module, text: str) -> None:
    """Attach a fresh adapter with the settings of another model's adapter, by its `adapter_text`. Empty: none."""
    if text:
        peft = load_peft()
        config = peft.LoraConfig.from_peft_type(**json.loads(text))
        config.inference_mode = False
        _inject(peft, config, _host(model))


def read_adapter(model: nn.Module, path: Path, *, base_sha256: str) -> None:
    """Attach the adapter of a directory to its base. BadData for another base, or if it is not a plain LoRA."""
    config = read_json(path / ADAPTER)
    _refuse(path, config)
    layout = _layout(model)
    weights, expected_base = _tensors(path, layout)
    expected_base = expected_base.removeprefix(f"{NF4}:")
    try:
        _check_bounds(config, weights)
    except ValueError as error:
        raise _other_base(path, str(error)) from error
    peft, host = load_peft(), _host(model)
    if expected_base not in ("", base_sha256):
        raise BadData(
            f"the adapter in {path} was trained on another base",
            evidence=f"SHA-256 of its base {expected_base[:12]}…, of the weights here {base_sha256[:12]}…",
            fix=f"set base_model_name_or_path in {path / ADAPTER} to the model that it was trained on",
        )
    if any(set(name.split(".")) & _heads(host) for name in weights):
        what = f"the adapter in {path} adapts the head or the embedding"
        evidence = visible(", ".join(weights)[:200])
        raise BadData(what, evidence=evidence, fix="merge it with peft, and take the merged directory")
    try:
        adapter = peft.LoraConfig.from_pretrained(str(path))
        adapter.inference_mode = False  # files have True, which would freeze the matrices
        _name_layers(adapter, weights, layout)
        _inject(peft, adapter, host)
        _refuse(path, adapter.to_dict())  # again: peft renames targets of experts while it injects
    except GroupwiseError:
        raise
    except Exception as error:  # peft raises nothing narrower
        raise _other_base(path, visible(str(error))) from error
    expected = {name: x.shape for name, x in _adapter_tensors(host, layout).items()}
    if expected != (stored := {name: x.shape for name, x in weights.items()}):
        names = expected.keys() | stored.keys()
        odd = sorted(visible(name) for name in names if expected.get(name) != stored.get(name))
        raise _other_base(path, f"missing, superfluous or of another shape ({len(odd)}): {', '.join(odd[:3])}")
    peft.set_peft_model_state_dict(
        host, {name.removeprefix(layout.tensor_name_prefix): x for name, x in weights.items()}
    )


def adapter_quantization(path: Path) -> Literal["nf4"] | None:
    """The quantisation of the base that the adapter in a directory was trained on, by its file; None if it has none."""
    file = path / PEFT.filename
    return NF4 if file.is_file() and metadata(file).get("base_sha256", "").startswith(f"{NF4}:") else None


def _check_bounds(config: Mapping[str, Any], weights: Mapping[str, torch.Tensor]) -> None:
    """ValueError for ranks larger than any stored dimension, and for patterns that could be slow to match."""
    largest = max((max(x.shape, default=0) for x in weights.values()), default=0)
    ranks, alphas = mapping(config, "rank_pattern"), mapping(config, "alpha_pattern")
    for name, fields in (("r", config), *((pattern, ranks) for pattern in ranks)):
        whole(fields, name, low=1, high=max(largest, 1), default=8)
    for name, fields in (("lora_alpha", config), ("lora_dropout", config), *((pattern, alphas) for pattern in alphas)):
        real(fields, name, low=0, default=0)
    patterns = [*ranks, *alphas]
    odd = [pattern for pattern in patterns if not PLAIN.fullmatch(pattern)]
    if odd or len(patterns) > MOST_PATTERNS:
        problem = f"{short(odd[0])} is not a plain layer name" if odd else f"{len(patterns)} patterns"
        raise ValueError(f"rank_pattern, alpha_pattern: {problem}; at most {MOST_PATTERNS} plain layer names are read")


def _name_layers(adapter: Any, weights: Mapping[str, torch.Tensor], layout: AdapterFile) -> None:
    """Replace regular expressions of layers by the names of layers with matrices, so that no expression is matched."""
    if isinstance(adapter.target_modules, str) or isinstance(adapter.exclude_modules, str) or adapter.layers_pattern:
        matrices = (name.removeprefix(layout.tensor_name_prefix).rpartition(".lora_")[0] for name in weights)
        adapter.target_modules = {layer for layer in matrices if layer}
        adapter.exclude_modules = adapter.layers_pattern = adapter.layers_to_transform = None


def merge(model: nn.Module) -> None:
    """Add the adapter to the weights of its layers and remove it. The result is a plain model.

    Layers in 4 bits are dequantised first: peft would quantise the sum again.
    """
    layer_type = importlib.import_module("peft.tuners.lora").LoraLayer
    host = _host(model)
    dequantize(host)
    modules: dict[str, Any] = dict(host.named_modules())
    for name, layer in modules.items():
        if isinstance(layer, layer_type):
            layer.merge()
            parent, _, last = name.rpartition(".")
            setattr(host.get_submodule(parent), last, layer.get_base_layer())
    del host.peft_config
    model.requires_grad_(True)


def merged_weights(model: nn.Module, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights `W + scale * B A` of the plain decoder, from the weights of a decoder with an adapter.

    They have the bits and the names of the model that `merge` leaves. Neither the model nor its weights change. Layers
    in 4 bits are dequantised one by one, and the sums are in the memory of the host. `weights` may be those of one
    layer.
    """
    layer_type = importlib.import_module("peft.tuners.lora").LoraLayer
    merged = {name.replace(".base_layer.", "."): x for name, x in weights.items() if ".lora_" not in name}
    modules: dict[str, Any] = dict(model.named_modules())
    dtype = next(weight.dtype for weight in model.parameters() if weight.is_floating_point())
    for name, layer in modules.items():
        base_layer = layer.get_base_layer() if isinstance(layer, layer_type) else layer
        quantized = isinstance(base_layer, QuantizedLinear)
        if f"{name}.weight" not in merged or not (quantized or base_layer is not layer):
            continue
        if quantized:
            del merged[f"{name}.absmax"]
        base = base_layer.dequantized(dtype) if quantized else merged[f"{name}.weight"]
        if base_layer is not layer:
            a, b = (weights[f"{name}.lora_{matrix}.default.weight"].detach() for matrix in "AB")
            # As peft: low precision is multiplied in float32 on a CPU, and rounded before the sum.
            wide = torch.float32 if base.device.type == "cpu" and base.element_size() < 4 else b.dtype
            product = (b.to(wide) @ a.to(wide)) * layer.scaling["default"]
            base = base.detach() + product.to(b.dtype)
        merged[f"{name}.weight"] = base.cpu() if quantized else base
    return merged


def _adapter_tensors(
    host: nn.Module, layout: AdapterFile, matrices: Mapping[str, torch.Tensor] | None = None
) -> dict[str, torch.Tensor]:
    """The tensors of a model's adapter, by their names in its file: its own, or these `matrices` of its state dict."""
    without_embedding = {"save_embedding_layers": False}  # True may query the hub
    tensors = load_peft().get_peft_model_state_dict(host, matrices, **without_embedding)
    return {f"{layout.tensor_name_prefix}{name}": x for name, x in tensors.items()}


def load_peft() -> Any:
    """The package `peft`, imported late: the import takes seconds, and only adapters need it."""
    if find_spec("bitsandbytes"):  # peft imports it, too
        load_bitsandbytes()
    try:
        return importlib.import_module("peft")
    except ImportError as error:
        raise MissingRequirement("LoRA needs peft", evidence=str(error), fix="pip install 'groupwise[lora]'") from error


def _refuse(path: Path, config: dict[str, Any]) -> None:
    """Raise BadData for an adapter that has more than low-rank matrices of linear layers."""
    plain: dict[str, tuple[Any, ...]] = {
        "peft_type": ("LORA",),
        "bias": ("none",),
        "init_lora_weights": (True, False, "gaussian"),  # others change the base, too
        "modules_to_save": (None, []),
        "target_parameters": (None, [], set()),  # fused experts of a mixture
        "layer_replication": (None, []),
        "megatron_config": (None,),  # with it, peft would import a module named in the file
    }
    odd = [
        f"{name} = {short(config[name])}" for name, values in plain.items() if config.get(name, values[0]) not in values
    ]
    if odd:
        fix = "merge it with peft (merge_and_unload, save_pretrained), and take the merged directory"
        raise BadData(f"the adapter in {path} is not a plain LoRA", evidence=", ".join(odd), fix=fix)


def _tensors(path: Path, layout: AdapterFile) -> tuple[dict[str, torch.Tensor], str]:
    """Read an adapter file: its tensors, and the SHA-256 of its base model ("" if the file has none)."""
    file = path / layout.filename
    if not file.is_file():
        fix = "pickles are never loaded: save the adapter again with save_pretrained, which writes safetensors"
        raise BadData(f"{path} has no {layout.filename}", evidence=listing(path), fix=fix)
    stored, found = header(file), metadata(file)
    refuse_types(file, stored)
    if layout.read_by_diffusers:
        found = json_object(found.get(SETTINGS, "{}").encode(), file)
    return tensors(file, stored), str(found.get("base_sha256", ""))


def _other_base(path: Path, evidence: str) -> BadData:
    fix = f"check that base_model_name_or_path in {path / ADAPTER} names the model that it was trained on"
    return BadData(f"the adapter in {path} does not fit its base model", evidence=evidence, fix=fix)
