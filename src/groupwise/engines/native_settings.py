"""Settings of the native engine, which runs in the trainer's process."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from groupwise.core import Usage
from groupwise.data import Engine, EngineSettings
from groupwise.engines.native.native_engine import NativeEngine
from groupwise.engines.native.paged_attention_layout import on_gpu, refusal
from groupwise.engines.native.paged_engine import PagedEngine
from groupwise.engines.steps.denoising import DenoisingEngine
from groupwise.engines.steps.unmasking import UnmaskingEngine
from groupwise.models import LanguageModel, MixtureOfExpertsSizes, Model, Tokenizer

__all__ = ["Native", "without_pages"]

STEP_ENGINES: Mapping[str, Callable[..., Engine]] = {
    "flow": DenoisingEngine,
    "pipeline": DenoisingEngine,
    "masked": UnmaskingEngine,
}
"""Kinds of models whose answers are generated in steps, each with its engine. The others generate token by token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Native(EngineSettings):
    """Runs the engine in the trainer's process: at most `max_num_seqs` sequences and `kv_cache_tokens` cached tokens.

    On a GPU it decodes with paged keys and values where it can (`PagedEngine`). There, `batch_invariant` gives all
    operations on a sequence the same shapes whatever else runs: steps have `max_num_seqs` rows. Without it, rows are
    padded to powers of two, which is faster for few requests. On one CPU thread a sample never depends on others.

    `max_logprob_diff` bounds the difference between the engine's and the learner's log-prob of a token; a larger one
    stops the run. `by_dtype` leaves ample room for rounding: 0.001, or 2 for bfloat16 weights (`GAPS`).
    """

    max_num_seqs: int = 256
    kv_cache_tokens: int = 1_048_576
    batch_invariant: bool = True
    max_logprob_diff: float | Literal["by_dtype"] = "by_dtype"

    served_settings: ClassVar[tuple[str, ...]] = ("max_num_seqs", "kv_cache_tokens", "batch_invariant")
    """The settings of the engine itself, which `groupwise serve` reads. The others are the run's."""

    def __post_init__(self) -> None:
        bounds = {"max_num_seqs": 1, "kv_cache_tokens": 1} | (
            {"max_logprob_diff": 0} if self.max_logprob_diff != "by_dtype" else {}
        )
        for name, bound in bounds.items():
            if not getattr(self, name) >= bound:
                raise ValueError(f"{name} is {getattr(self, name)}\ntake at least {bound}")

    @property
    def changed_settings(self) -> dict[str, Any]:
        """The settings that are not the defaults of its kind, by name."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}

    def build(self, model: Model, tokenizer: Tokenizer, *, seed: int, experts: MixtureOfExpertsSizes | None) -> Engine:
        """The engine over the learner's model. If `experts` is given, it records the expert choices (routes) of all
        tokens. Models of the kinds in `STEP_ENGINES` have other engines.
        """
        if not model.shape.generates:
            what = f"a {model.shape.kind_label} scores texts, and generates none"
            fix = "name a language model; this one grades answers: --verifier.kind RewardModel --verifier.path DIR"
            raise Usage(what, fix=fix)
        if engine := STEP_ENGINES.get(model.shape.kind_name):
            return engine(model, seed=seed, max_num_seqs=self.max_num_seqs)
        assert isinstance(model, LanguageModel), f"STEP_ENGINES lacks the kind {model.shape.kind_name}"
        sizes = {"max_num_seqs": self.max_num_seqs, "kv_cache_tokens": self.kv_cache_tokens}
        if on_gpu(model) and experts is None and refusal(model) is None:
            return PagedEngine(model, tokenizer, seed=seed, batch_invariant=self.batch_invariant, **sizes)
        return NativeEngine(model, tokenizer, seed=seed, experts=experts, **sizes)


def without_pages(engine: EngineSettings, model: Model) -> str | None:
    """A line for the user if the trainer's engine decodes a language model on a GPU without pages; else None."""
    if not (isinstance(engine, Native) and isinstance(model, LanguageModel) and on_gpu(model)):
        return None
    reason = refusal(model) if type(engine) is Native else f"the engine is {type(engine).__name__}"
    return reason and f"note: the engine decodes without pages, in many more kernels a token: {reason} (docs/gpu.md)"
