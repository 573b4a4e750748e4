"""Reads and writes model directories with transformers, and checks that the learner and engine can use a model."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from groupwise.core import BadData
from groupwise.models.decoder.convert_configurations import LAYERS, POSITIONS, SIZE
from groupwise.models.decoder.decoder import ModelSizes
from groupwise.models.decoder.prefix_packing import PrefixPacking
from groupwise.models.decoder.transformers_model import TransformersBackbone, attend
from groupwise.models.json_fields import short, whole
from groupwise.models.model_json_files import read_json
from groupwise.models.safetensors_weights import FLOATS, header, refuse_nonfinite, refuse_types, stored_weights

NAME = "groupwise"
"""The name of our attention function in transformers' registry."""
COUNTS = re.compile(r"(layers?|blocks?|experts|depth)$")
MOST_PARTS = LAYERS
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3}
"""The largest allowed difference between packed and separate logits, over the largest logit. Half precisions: 0.1."""


def transformers_sizes(path: Path, *, trust_remote_code: bool = False) -> ModelSizes:
    """The sizes in a directory's configuration, read through transformers. BadData for an unusable model."""
    config = _read_config(path, trust_remote_code)
    with bad_data(path, *NO_SIZE):
        return ModelSizes(**text_sizes(path, config))


NO_SIZE = ("has a config.json without a required size", "take a causal language model of text")


def text_sizes(path: Path, config: Any) -> dict[str, int]:
    """The fields of `ModelSizes` in a configuration of transformers. BadData for a model without attention."""
    if (heads := getattr(config, "num_attention_heads", None)) is None:
        raise BadData(
            f"the model in {path} has no attention",
            evidence=f"{short(config.model_type)} has no attention that can be replaced: no num_attention_heads",
            fix="use a model whose layers are attention, such as Qwen, Llama, Mistral or Gemma",
        )
    rope = getattr(config, "rope_parameters", None) or {}
    ropes = [rope, *(r for r in rope.values() if isinstance(r, dict))]
    # Beyond this length, LongRoPE would use other frequencies for the whole text.
    lengths = [r.get("original_max_position_embeddings") for r in ropes if r.get("rope_type") == "longrope"]
    sizes = {
        "vocab_size": config.vocab_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_key_value_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads,
        "max_position_embeddings": min([config.max_position_embeddings, *filter(None, lengths)]),
    }
    highest = {"num_hidden_layers": LAYERS, "max_position_embeddings": POSITIONS}
    checked = [whole(sizes, name, low=1, high=highest.get(name, SIZE)) for name in sizes]
    return dict(zip(("vocabulary_size", "layers", "kv_heads", "head_dim", "max_positions"), checked, strict=True))


def _read_config(path: Path, trust_remote_code: bool) -> Any:
    """The configuration of a causal language model that transformers supports, or that ships trusted code."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    config = read_json(path / "config.json")
    refuse_counts(path, config)
    kind, architectures = config.get("model_type"), config.get("architectures") or []
    if not isinstance(architectures, list):
        raise ValueError(f"architectures is {short(architectures)}: it must be a list")
    known = isinstance(kind, str) and kind in CAUSAL and all(a == CAUSAL[kind] for a in architectures)
    if not known and not (trust_remote_code and "AutoModelForCausalLM" in (config.get("auto_map") or ())):
        raise BadData(
            f"the model in {path} is of an unknown architecture",
            evidence=f"model_type {short(kind)}, architectures {short(architectures)}",
            fix="take a causal language model that the installed transformers supports, or a newer transformers",
        )
    with quiet(), bad_data(path, "has a config.json that transformers refuses", "fix it, or fetch the file again"):
        return AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=trust_remote_code)


def refuse_counts(path: Path, config: Any) -> None:
    """BadData for more than `MOST_PARTS` layers or experts: transformers builds a module for each."""
    for name, value in config.items():
        if isinstance(value, dict):
            refuse_counts(path, value)
        elif isinstance(value, int | float) and COUNTS.search(name) and not -1 <= value <= MOST_PARTS:
            evidence, fix = f"{name}: {value:g}, at most {MOST_PARTS}", "fetch the file again"
            raise BadData(f"the model in {path} has too many layers or experts", evidence=evidence, fix=fix)


def read_transformers(
    path: Path, *, dtype: torch.dtype, device: torch.device | str, trust_remote_code: bool = False
) -> TransformersBackbone:
    """The model in a directory, tested as a `Backbone`. BadData names the cause if it cannot be used."""
    import transformers

    sizes = transformers_sizes(path, trust_remote_code=trust_remote_code)
    loader = partial(transformers.AutoModelForCausalLM.from_pretrained, trust_remote_code=trust_remote_code)
    causal = load_modules(path, loader, dtype=dtype, attention=NAME)
    if dtype == torch.float64 and causal._can_set_experts_implementation():
        causal.set_experts_implementation("eager")  # the grouped matrix product does not support float64
    return with_checked_packing(path, TransformersBackbone(causal.to(device), sizes).requires_grad_(True))


def load_modules(path: Path, loader: Callable[..., Any], *, dtype: torch.dtype, attention: Any) -> Any:
    """The modules of a model in a directory by a `from_pretrained`. BadData for other tensors than it describes."""
    import transformers

    transformers.AttentionInterface.register(NAME, attend)
    with quiet(), bad_data(path, "cannot be read by transformers", "fetch the directory again"):
        causal, info = loader(
            path, dtype=dtype, attn_implementation=attention, local_files_only=True, use_safetensors=True,
            output_loading_info=True,
        )  # fmt: skip
    refuse_differences(path, info)
    refuse_weights(path, causal)
    return causal


Packed = TypeVar("Packed", bound=TransformersBackbone)


def with_checked_packing(path: Path, model: Packed) -> Packed:
    """The model with sizes measured on the way. BadData if packed and separate logits differ."""
    with bad_data(
        path, "does not work with packed attention", "take a model whose tokens interact only in plain attention"
    ):
        model.shape = check_packing(model)
    return model


def refuse_differences(path: Path, info: Mapping[str, Any]) -> None:
    """BadData if transformers found other tensors than config.json describes: `info` is its loading info."""
    kinds = ("missing", "unexpected", "mismatched")
    differences = {kind: sorted(map(str, info.get(f"{kind}_keys") or ())) for kind in kinds}
    if any(differences.values()):
        raise BadData(
            f"the tensors in {path} are not those that its config.json describes",
            evidence="\n".join(f"{kind} ({len(v)}): {', '.join(v[:4])}" for kind, v in differences.items() if v),
            fix="fetch the directory again; merge an adapter into its base; take weights that are not quantised",
        )


def refuse_weights(path: Path, causal: nn.Module) -> None:
    """BadData for parameters that are not stored as `FLOATS`, and for NaN or infinite ones."""
    parameters = dict(causal.named_parameters())
    for file in stored_weights(path):
        integers = {name: x for name, x in header(file).items() if x.dtype not in FLOATS}
        refuse_types(file, {n: x for n, x in integers.items() if any(f".{p}".endswith(f".{n}") for p in parameters)})
    for name, parameter in parameters.items():
        refuse_nonfinite(path, name, parameter)


def transformers_outline(path: Path, *, trust_remote_code: bool = False) -> nn.Module:
    """Create the modules of a model without weights (on the meta device), to inspect them."""
    import transformers

    failure = ("cannot be built by transformers", "fetch the directory again")
    with quiet(), bad_data(path, *failure), torch.device("meta"):
        config = _read_config(path, trust_remote_code)
        return transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)


def write_transformers(model: TransformersBackbone, path: Path) -> None:
    """Write configuration and weights with transformers. The caller writes tokenizer and end tokens."""
    with quiet():
        model.causal.save_pretrained(path)  # pyright: ignore[reportCallIssue]


class _RecordingLayout:
    """A `AttentionLayout` that records each call's layer number and the shape of its keys."""

    def __init__(self, layout: PrefixPacking) -> None:
        self.layout, self.positions, self.calls = layout, layout.positions, []

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        self.calls.append((layer, *k.shape[1:]))
        return self.layout.attend(layer, q, k, v, **options)


@torch.no_grad()
def check_packing(model: TransformersBackbone) -> ModelSizes:
    """Compare packed with separate forward passes; ValueError if logits differ. Returns sizes measured on the way."""
    device = next(model.parameters()).device
    context, answers = (3, 1, 4, 1, 5), ((9, 2, 6), (5, 3, 5, 8))
    vocabulary = model.shape.vocabulary_size
    texts = [(tuple(t % vocabulary for t in context), tuple(t % vocabulary for t in answer)) for answer in answers]
    layout = PrefixPacking.of([c for c, _ in texts], [a for _, a in texts], device=device)
    recording = _RecordingLayout(layout)
    packed = model.head(model(layout.tokens, recording))[layout.predicting_indices]
    layers, keys = [layer for layer, *_ in recording.calls], {(kv, d) for _, kv, d in recording.calls}
    if not layers:
        raise ValueError("it has no attention that can be replaced")
    if layers != list(range(len(layers))) or len(keys) != 1:
        raise ValueError(
            f"layers {layers} have keys of shapes {sorted(keys)}; they must be in order, with equal shapes"
        )
    causal: Any = model.causal
    model.set_attention("eager")
    separate = [causal(torch.tensor([c + a], device=device)).logits[0, len(c) - 1 : -1] for c, a in texts]
    model.set_attention(NAME)
    difference, largest = (packed - torch.cat(separate)).abs().max(), torch.cat(separate).abs().max()
    if not difference <= TOLERANCE.get(packed.dtype, 0.1) * largest:
        raise ValueError(
            f"packed and separate logits differ by {float(difference):.2g}: its tokens interact outside attention"
        )
    kv, d = keys.pop()
    return replace(model.shape, layers=len(layers), kv_heads=kv, head_dim=d)


@contextmanager
def quiet(library: str = "transformers") -> Iterator[None]:
    """A context without a library's progress bars and warnings; serious problems are raised as errors."""
    logging: Any = import_module(f"{library}.utils.logging")
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def bad_data(path: Path, what: str, fix: str) -> Iterator[None]:
    """A context that converts any exception of transformers to BadData; transformers has no narrower type."""
    try:
        yield
    except BadData:
        raise
    except Exception as error:
        raise BadData(f"the model in {path} {what}", evidence=f"{type(error).__name__}: {error}", fix=fix) from error
