"""Any sequence classifier with one label that transformers reads, as a function from token ids to scores."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from groupwise.core import BadData
from groupwise.models.classifier.classifier_input_encoder import ClassifierInput
from groupwise.models.code_loading_settings import code_settings
from groupwise.models.decoder.transformers_files import bad_data, quiet, refuse_counts, refuse_weights
from groupwise.models.json_fields import short
from groupwise.models.model_json_files import ADAPTER, read_json
from groupwise.models.safetensors_weights import stored_weights

__all__ = ["read_classifier", "read_classifier_config", "scores"]

USE = "name the directory of a reward model: a model with one label that AutoModelForSequenceClassification reads"


def read_classifier_config(path: Path, *, weights: bool = True) -> dict[str, Any]:
    """The config.json of a sequence classifier with one label. BadData for any other model, or without `weights`.

    Code of the directory never runs: a configuration that names some is refused.
    """
    if (path / ADAPTER).is_file():
        fix = f"groupwise merge {path} A_NEW_DIRECTORY, then name that directory"
        raise BadData(f"{path} is an adapter, and a reward model is read whole", fix=fix)
    config = read_json(path / "config.json")
    if named := code_settings(config):
        what = f"the reward model in {path} names code or quantised weights, which are never loaded"
        fix = "remove these settings, if transformers supports the model without them"
        raise BadData(what, evidence=f"{path / 'config.json'}: {', '.join(map(short, named))}", fix=fix)
    refuse_counts(path, config)
    _check_architecture(path, config)
    if weights and not stored_weights(path):
        raise BadData(f"the reward model in {path} has no weights", fix=USE)
    return config


def _check_architecture(path: Path, config: dict[str, Any]) -> None:
    """BadData unless a configuration is that of a sequence classifier of transformers with one label."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES as CLASSIFIERS

    kind, architectures = config.get("model_type"), config.get("architectures")
    known = CLASSIFIERS.get(kind) if isinstance(kind, str) else None
    if known is None or architectures != [known]:
        what = f"the model in {path} is no reward model"
        raise BadData(what, evidence=f"model_type {short(kind)}, architectures {short(architectures)}", fix=USE)
    labels = config.get("id2label")
    count = len(labels) if isinstance(labels, dict) else config.get("num_labels", 2)
    if count != 1:
        what = f"the model in {path} has {short(count)} labels, and a reward model has one"
        raise BadData(what, evidence=f"id2label {short(labels)}", fix=USE)


def read_classifier(path: Path, *, dtype: torch.dtype, device: torch.device | str) -> nn.Module:
    """The classifier in a directory, as modules of transformers. BadData for missing, misshapen or infinite weights."""
    import transformers

    read_classifier_config(path)
    with quiet(), bad_data(path, "cannot be read by transformers", "fetch the directory again"):
        loaded: Any = transformers.AutoModelForSequenceClassification.from_pretrained(
            path, dtype=dtype, local_files_only=True, use_safetensors=True, trust_remote_code=False,
            output_loading_info=True,
        )  # fmt: skip
    module, info = loaded
    kinds = ("missing", "mismatched")
    differences = {kind: sorted(map(str, info.get(f"{kind}_keys") or ())) for kind in kinds}
    if any(differences.values()):
        raise BadData(
            f"the tensors in {path} are not those that its config.json describes",
            evidence="\n".join(f"{kind} ({len(v)}): {', '.join(v[:4])}" for kind, v in differences.items() if v),
            fix="fetch the directory again; a reward model has the weights of its head",
        )
    refuse_weights(path, module)
    return module.to(device).requires_grad_(False).eval()


@torch.inference_mode()
def scores(module: nn.Module, texts: Sequence[ClassifierInput]) -> list[float]:
    """The score of each text, in one padded forward pass. The model needs a padding token for more than one text."""
    classifier: Any = module
    config, device = classifier.config, next(module.parameters()).device
    longest = max(len(text.tokens) for text in texts)
    padding = pad_token(module) or 0

    def rows(numbers: Sequence[Sequence[int]], value: int) -> torch.Tensor:
        padded = [[*row, *[value] * (longest - len(row))] for row in numbers]
        return torch.tensor(padded, dtype=torch.long, device=device)

    arguments = {"input_ids": rows([text.tokens for text in texts], padding)}
    if len(texts) > 1:
        arguments["attention_mask"] = rows([[1] * len(text.tokens) for text in texts], 0)
    if getattr(config, "type_vocab_size", 0) > 1:
        arguments["token_type_ids"] = rows([text.segments for text in texts], 0)
    return classifier(**arguments).logits[:, 0].double().tolist()


def pad_token(module: nn.Module) -> int | None:
    """The id of the padding token, before which transformers reads the score; None if the model has none."""
    config: Any = module.config
    return config.get_text_config().pad_token_id
