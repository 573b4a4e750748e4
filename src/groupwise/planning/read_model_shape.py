"""Reads the sizes of a planned model from its config.json: a dense decoder, or a mixture of experts."""

from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from groupwise.core import BadData, Usage
from groupwise.models import Decoder, DecoderShape, base_directory, read_shape
from groupwise.models.decoder.convert_configurations import SIZE, shape_of
from groupwise.models.json_fields import flag, whole
from groupwise.models.model_json_files import read_json

SPARSE = {"qwen3_moe": "qwen3"}
"""Families whose layers are mixtures of experts, each with the family whose attention is equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureOfExpertsShape(DecoderShape):
    """A decoder whose MLPs are mixtures of `expert_count`.

    `mlp_width` is the width of the experts that one token uses.
    """

    expert_count: int
    expert_mlp_width: int


def planned_shape(directory: Path) -> DecoderShape:
    """The sizes of the model in a directory, from its config.json alone. `Usage` for a model of another family."""
    config = read_json(base_directory(directory) / "config.json")
    if config.get("model_type") not in SPARSE:
        shape = read_shape(directory)
        if isinstance(shape, DecoderShape):
            return shape
        if shape.generates_whole_answers:
            what = f"{directory.name} is a {shape.kind_label} of this package, which plan does not model"
            fix = "plan a language model or a pipeline of diffusers; the packaged small ones need about 0.3 GiB"
            raise Usage(what, fix=fix)
        fix = f"plan a model of the families qwen2, qwen3, llama, mistral or {', '.join(SPARSE)}"
        raise Usage(f"the memory of model_type {config.get('model_type')!r} is not modelled", fix=fix)
    try:
        return sparse_shape(config)
    except KeyError as error:
        raise BadData(f"{directory / 'config.json'} lacks {error.args[0]}", fix="fetch the file again") from error
    except (TypeError, ValueError) as error:
        what = f"{directory / 'config.json'} does not describe a decoder"
        raise BadData(what, evidence=str(error), fix="fetch the file again") from error


def sparse_shape(config: dict[str, object]) -> MixtureOfExpertsShape:
    """Convert the configuration of a mixture of experts. KeyError, TypeError or ValueError for an invalid one."""
    experts = whole(config, "num_experts", low=1, high=SIZE)
    used = whole(config, "num_experts_per_tok", low=1, high=experts)
    expert_inner = whole(config, "moe_intermediate_size", low=1, high=SIZE)
    if config.get("mlp_only_layers") or whole(config, "decoder_sparse_step", low=1, high=SIZE, default=1) > 1:
        raise ValueError("some layers are dense: only models with experts in every layer are modelled")
    family = SPARSE[str(config["model_type"])]
    dense = shape_of({**config, "model_type": family, "intermediate_size": used * expert_inner})
    values = {f.name: getattr(dense, f.name) for f in fields(DecoderShape)}
    return MixtureOfExpertsShape(
        **{**values, "tied_embeddings": flag(config, "tie_word_embeddings")},
        expert_count=experts,
        expert_mlp_width=expert_inner,
    )


@cache
def weights_of(shape: DecoderShape) -> int:
    """The number of all weights of a model."""
    dense = sum(weight.numel() for weight in Decoder(shape).parameters())
    if not isinstance(shape, MixtureOfExpertsShape):
        return dense
    unused = 3 * shape.hidden_size * (shape.expert_count * shape.expert_mlp_width - shape.mlp_width)
    return dense + shape.layers * (unused + shape.expert_count * shape.hidden_size)


def active_weights(shape: DecoderShape) -> int:
    """The weights in the matrix products of one token: without the embedding, and without experts that it skips.

    >>> from groupwise.models import DecoderShape
    >>> sizes = {"vocabulary_size": 9, "hidden_size": 4, "layers": 1, "heads": 1, "kv_heads": 1}
    >>> sizes |= {"head_dim": 4, "mlp_width": 8}
    >>> active_weights(DecoderShape(**sizes, max_positions=9))
    196
    """
    attention = 2 * shape.hidden_size * (shape.heads + shape.kv_heads) * shape.head_dim
    router = shape.expert_count * shape.hidden_size if isinstance(shape, MixtureOfExpertsShape) else 0
    return (
        shape.layers * (attention + 3 * shape.hidden_size * shape.mlp_width + router)
        + shape.vocabulary_size * shape.hidden_size
    )


def layer_weights(shape: DecoderShape) -> int:
    """The weights of one layer, all experts included."""
    embeddings = (1 if shape.tied_embeddings else 2) * shape.vocabulary_size * shape.hidden_size
    return (weights_of(shape) - embeddings - shape.hidden_size) // shape.layers
