"""Any classifier of texts or of tokens that transformers reads, as a function from token ids to scores."""

from collections.abc import Sequence
from dataclasses import dataclass
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

__all__ = ["read_classifier", "read_classifier_config", "scores", "scores_at"]


@dataclass(frozen=True, slots=True)
class ClassifierTask:
    """A task of transformers' classifiers: its `AutoModelFor...`, the label counts that are read, and its name here."""

    auto_class: str
    label_counts: tuple[int, ...]
    description: str

    @property
    def labels(self) -> str:
        """The label counts in words."""
        return " or ".join({1: "one", 2: "two"}[count] for count in self.label_counts)

    @property
    def advice(self) -> str:
        """What to name in place of a directory of another model."""
        noun = "label" if self.label_counts == (1,) else "labels"
        what = f"a model with {self.labels} {noun} that {self.auto_class} reads"
        return f"name the directory of a {self.description}: {what}"

    def class_of(self, model_type: Any) -> str | None:
        """The class of transformers for a `model_type` of config.json; None without one."""
        from transformers.models.auto import modeling_auto

        name = self.auto_class.removeprefix("AutoModelFor")
        words = "".join(f"_{letter}" if letter.isupper() else letter for letter in name).upper()
        names = getattr(modeling_auto, f"MODEL_FOR{words}_MAPPING_NAMES")
        return names.get(model_type) if isinstance(model_type, str) else None


WHOLE_TEXTS = ClassifierTask("AutoModelForSequenceClassification", (1,), "reward model")
STEPS = ClassifierTask("AutoModelForTokenClassification", (1, 2), "process reward model")


def read_classifier_config(path: Path, task: ClassifierTask, *, weights: bool = True) -> dict[str, Any]:
    """The config.json of a classifier of this task. BadData for any other model, or without `weights`.

    Code of the directory never runs: a configuration that names some is refused.
    """
    if (path / ADAPTER).is_file():
        fix = f"groupwise merge {path} A_NEW_DIRECTORY, then name that directory"
        raise BadData(f"{path} is an adapter, and a {task.description} is read whole", fix=fix)
    config = read_json(path / "config.json")
    if named := code_settings(config):
        what = f"the {task.description} in {path} names code or quantised weights, which are never loaded"
        fix = "remove these settings, if transformers supports the model without them"
        raise BadData(what, evidence=f"{path / 'config.json'}: {', '.join(map(short, named))}", fix=fix)
    refuse_counts(path, config)
    _check_architecture(path, task, config)
    if weights and not stored_weights(path):
        raise BadData(f"the {task.description} in {path} has no weights", fix=task.advice)
    return config


def _check_architecture(path: Path, task: ClassifierTask, config: dict[str, Any]) -> None:
    """BadData unless a configuration is that of a classifier of transformers of this task, with its labels."""
    kind, architectures = config.get("model_type"), config.get("architectures")
    known = task.class_of(kind)
    if known is None or architectures != [known]:
        evidence = f"model_type {short(kind)}, architectures {short(architectures)}"
        raise BadData(f"the model in {path} is no {task.description}", evidence=evidence, fix=task.advice)
    labels = config.get("id2label")
    count = len(labels) if isinstance(labels, dict) else config.get("num_labels", 2)
    if count not in task.label_counts:
        what = f"the model in {path} has {short(count)} labels, and a {task.description} has {task.labels}"
        raise BadData(what, evidence=f"id2label {short(labels)}", fix=task.advice)


def read_classifier(path: Path, task: ClassifierTask, *, dtype: torch.dtype, device: torch.device | str) -> nn.Module:
    """The classifier in a directory, as modules of transformers. BadData for missing, misshapen or infinite weights."""
    import transformers

    read_classifier_config(path, task)
    with quiet(), bad_data(path, "cannot be read by transformers", "fetch the directory again"):
        loaded: Any = getattr(transformers, task.auto_class).from_pretrained(
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
            fix=f"fetch the directory again; a {task.description} has the weights of its head",
        )
    refuse_weights(path, module)
    return module.to(device).requires_grad_(False).eval()


@torch.inference_mode()
def scores(module: nn.Module, texts: Sequence[ClassifierInput]) -> list[float]:
    """The score of each text, in one padded forward pass. The model needs a padding token for more than one text."""
    return _logits(module, texts)[:, 0].double().tolist()


@torch.inference_mode()
def scores_at(
    module: nn.Module, texts: Sequence[ClassifierInput], indices: Sequence[Sequence[int]]
) -> list[list[float]]:
    """The scores at these tokens of each text: with two labels the probability of label 1, with one its logit."""
    logits = _logits(module, texts).double()
    numbers = logits.softmax(-1)[..., 1] if logits.shape[-1] == 2 else logits[..., 0]
    return [row[list(tokens)].tolist() for row, tokens in zip(numbers, indices, strict=True)]


def _logits(module: nn.Module, texts: Sequence[ClassifierInput]) -> torch.Tensor:
    """The logits of texts, padded at their end: of each text, or of each of its tokens."""
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
    return classifier(**arguments).logits


def pad_token(module: nn.Module) -> int | None:
    """The id of the padding token, before which transformers reads the score; None if the model has none."""
    config: Any = module.config
    return config.get_text_config().pad_token_id
