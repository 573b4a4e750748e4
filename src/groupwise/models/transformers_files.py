"""Directories of transformers' models: read if what they hold can be used as it is, and written as it writes them."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from groupwise.data import BadData
from groupwise.models.decoder import Sizes
from groupwise.models.families import LAYERS, POSITIONS, SIZE
from groupwise.models.fields import short, whole
from groupwise.models.files import read_json
from groupwise.models.layout import Shared
from groupwise.models.transformers_model import TransformersModel, attend
from groupwise.models.weights import FLOATS, header, refuse_nonsense, refuse_types, weight_files

NAME = "groupwise"
"""What our attention is called among those of transformers."""
COUNTS = re.compile(r"(layers?|blocks?|experts|depth)$")
MOST_PARTS = LAYERS
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3}
"""How far packed may be from alone, relative to the largest logit. Half precisions: 0.1."""


def transformers_sizes(path: Path, *, trust_remote_code: bool = False) -> Sizes:
    """What a directory's configuration says of a model of transformers. BadData for what cannot be used."""
    config = _configured(path, trust_remote_code)
    with _told(path, "lacks in its config.json what every model has", "take a causal language model of text"):
        heads = config.num_attention_heads
        rope = getattr(config, "rope_parameters", None) or {}
        ropes = [rope, *(r for r in rope.values() if isinstance(r, dict))]
        # Beyond this length other frequencies would hold for a whole text at once.
        lengths = [r.get("original_max_position_embeddings") for r in ropes if r.get("rope_type") == "longrope"]
        sizes = {
            "vocab_size": config.vocab_size,
            "num_hidden_layers": config.num_hidden_layers,
            "num_key_value_heads": getattr(config, "num_key_value_heads", None) or heads,
            "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads,
            "max_position_embeddings": min([config.max_position_embeddings, *filter(None, lengths)]),
        }
        highest = {"num_hidden_layers": LAYERS, "max_position_embeddings": POSITIONS}
        found = (whole(sizes, name, low=1, high=highest.get(name, SIZE)) for name in sizes)
        vocabulary, layers, kv_heads, head_dim, positions = found
        return Sizes(vocabulary=vocabulary, layers=layers, kv_heads=kv_heads, head_dim=head_dim, positions=positions)


def _configured(path: Path, trust_remote_code: bool) -> Any:
    """The configuration, if it is of a causal language model that transformers has itself, or that brings its code."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    config = read_json(path / "config.json")
    _refuse_counts(path, config)
    kind, architectures = config.get("model_type"), config.get("architectures") or []
    if not isinstance(architectures, list):
        raise ValueError(f"architectures is {short(architectures)}: it must be a list")
    known = isinstance(kind, str) and kind in CAUSAL and all(a == CAUSAL[kind] for a in architectures)
    if not known and not (trust_remote_code and "AutoModelForCausalLM" in (config.get("auto_map") or ())):
        raise BadData(
            f"the model in {path} is of an unknown architecture",
            evidence=f"model_type {short(kind)}, architectures {short(architectures)}",
            fix="take a causal language model that the installed transformers has itself, or a newer transformers",
        )
    with _quietly(), _told(path, "has a config.json that transformers refuses", "mend it, or fetch the file again"):
        return AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=trust_remote_code)


def _refuse_counts(path: Path, config: Any) -> None:
    """BadData for a number of layers or experts that no model has: transformers builds a module for each."""
    for name, value in config.items():
        if isinstance(value, dict):
            _refuse_counts(path, value)
        elif isinstance(value, int | float) and COUNTS.search(name) and not -1 <= value <= MOST_PARTS:
            seen, fix = f"{name}: {value:g}, at most {MOST_PARTS}", "fetch the file again"
            raise BadData(f"the model in {path} has more parts than can be built", evidence=seen, fix=fix)


def read_transformers(
    path: Path, *, dtype: torch.dtype, device: torch.device | str, trust_remote_code: bool = False
) -> TransformersModel:
    """The model in a directory. BadData, naming what is wrong, where it cannot be used as a `Backbone`."""
    import transformers

    sizes = transformers_sizes(path, trust_remote_code=trust_remote_code)
    transformers.AttentionInterface.register(NAME, attend)
    with _quietly(), _told(path, "cannot be read by transformers", "fetch the directory again"):
        found: Any = transformers.AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, attn_implementation=NAME, local_files_only=True, use_safetensors=True,
            trust_remote_code=trust_remote_code, output_loading_info=True,
        )  # fmt: skip
    causal, notes = found
    kinds = ("missing", "unexpected", "mismatched")
    odd = {kind: sorted(map(str, notes.get(f"{kind}_keys") or ())) for kind in kinds}
    if any(odd.values()):
        raise BadData(
            f"the tensors in {path} are not those that its config.json describes",
            evidence="\n".join(f"{kind} ({len(v)}): {', '.join(v[:4])}" for kind, v in odd.items() if v),
            fix="fetch the directory again; adapters and quantised weights are merged before they are used here",
        )
    if dtype == torch.float64 and causal._can_set_experts_implementation():
        causal.set_experts_implementation("eager")  # its grouped product knows no float64
    _refuse_weights(path, causal)
    model = TransformersModel(causal.to(device), sizes).requires_grad_(True)
    with _told(path, "cannot be driven by our layouts", "take one whose tokens meet in plain attention only"):
        model.shape = _proved(model)
    return model


def _refuse_weights(path: Path, causal: nn.Module) -> None:
    """BadData for parameters that are stored as integers, and for those that are NaN or infinite."""
    parameters = dict(causal.named_parameters())
    for file in weight_files(path):
        odd = {name: x for name, x in header(file).items() if x.dtype not in FLOATS}
        refuse_types(file, {n: x for n, x in odd.items() if any(f".{p}".endswith(f".{n}") for p in parameters)})
    for name, parameter in parameters.items():
        refuse_nonsense(path, name, parameter)


def transformers_outline(path: Path, *, trust_remote_code: bool = False) -> nn.Module:
    """The modules of the model in a directory by their own names, without weights."""
    import transformers

    with _quietly(), _told(path, "cannot be made by transformers", "fetch the directory again"), torch.device("meta"):
        config = _configured(path, trust_remote_code)
        return transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)


def write_transformers(model: TransformersModel, path: Path) -> None:
    """Configuration and weights as transformers writes them; tokenizer and end tokens are the caller's."""
    with _quietly():
        model.causal.save_pretrained(path)  # pyright: ignore[reportCallIssue]


class _Watch:
    """A layout that remembers which layers asked it, and the shape of their keys."""

    def __init__(self, layout: Shared) -> None:
        self.layout, self.position, self.seen = layout, layout.position, []

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
        self.seen.append((layer, *k.shape[1:]))
        return self.layout.attend(layer, q, k, v, **how)


@torch.no_grad()
def _proved(model: TransformersModel) -> Sizes:
    """The sizes as its attention shows them. ValueError unless it says of packed texts what it says of each alone."""
    device = next(model.parameters()).device
    context, answers = (3, 1, 4, 1, 5), ((9, 2, 6), (5, 3, 5, 8))
    few = model.shape.vocabulary
    texts = [(tuple(t % few for t in context), tuple(t % few for t in answer)) for answer in answers]
    layout = Shared.of([c for c, _ in texts], [a for _, a in texts], device=device)
    watch = _Watch(layout)
    packed = model.head(model(layout.tokens, watch))[layout.source]
    layers, keys = [layer for layer, *_ in watch.seen], {(kv, d) for _, kv, d in watch.seen}
    if not layers:
        raise ValueError("it has no attention that can be replaced")
    if layers != list(range(len(layers))) or len(keys) != 1:
        raise ValueError(f"layers {layers} keep keys of shapes {sorted(keys)}; they must be alike, one after the other")
    causal: Any = model.causal
    causal.set_attn_implementation("eager")
    alone = [causal(torch.tensor([c + a], device=device)).logits[0, len(c) - 1 : -1] for c, a in texts]
    causal.set_attn_implementation(NAME)
    apart, most = (packed - torch.cat(alone)).abs().max(), torch.cat(alone).abs().max()
    if not apart <= TOLERANCE.get(packed.dtype, 0.1) * most:
        raise ValueError(f"packed and alone its logits differ by {float(apart):.2g}: tokens meet outside attention")
    kv, d = keys.pop()
    return replace(model.shape, layers=len(layers), kv_heads=kv, head_dim=d)


@contextmanager
def _quietly() -> Iterator[None]:
    """No bars and no warnings of transformers: what matters of them is told as an error."""
    from transformers.utils import logging

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
def _told(path: Path, what: str, fix: str) -> Iterator[None]:
    """Whatever transformers raises, as BadData: it raises nothing narrower."""
    try:
        yield
    except BadData:
        raise
    except Exception as error:
        raise BadData(f"the model in {path} {what}", evidence=f"{type(error).__name__}: {error}", fix=fix) from error
