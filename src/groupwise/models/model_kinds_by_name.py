"""The kinds of models, by name: pipelines of diffusers, flow models, masked models, language models."""

from pathlib import Path

from groupwise.models.diffusion.pipeline_files import PipelineKind
from groupwise.models.flow.flow_files import FlowKind
from groupwise.models.language_files import LanguageKind
from groupwise.models.masked.masked_files import MaskedKind
from groupwise.models.model_json_files import read_json
from groupwise.models.model_kind import ModelKind

__all__ = ["KINDS", "kind_of"]

KINDS: dict[str, ModelKind] = {kind.name: kind for kind in (PipelineKind(), FlowKind(), MaskedKind(), LanguageKind())}
"""A directory is of the first kind that recognises it: the last one recognises all."""


def kind_of(path: Path) -> ModelKind:
    """The kind of the model in a directory; a language model if no other kind recognises it."""
    file = path / "config.json"
    config = read_json(file) if file.is_file() else {}
    return next(kind for kind in KINDS.values() if kind.recognises(path, config))
