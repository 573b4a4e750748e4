"""Settings of the native engine, which runs in the trainer's process."""

from dataclasses import dataclass
from typing import Literal

from groupwise.data import Engine, EngineKind
from groupwise.models import Experts, FlowPolicy, MaskedPolicy, Model, Tokenizer
from groupwise.rollout.denoiser import DenoisingEngine
from groupwise.rollout.engine import NativeEngine
from groupwise.rollout.unmasking import UnmaskingEngine

__all__ = ["Native"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Native(EngineKind):
    """Runs the engine in the trainer's process: at most `rows` sequences at once, and `cache_tokens` cached tokens.

    `max_gap` bounds the difference between the engine's and the learner's log-prob of a token; a larger one stops the
    run. `by_dtype` leaves ample room for rounding: 0.001, or 2 for bfloat16 weights (`GAPS`).
    """

    rows: int = 256
    cache_tokens: int = 1 << 20
    max_gap: float | Literal["by_dtype"] = "by_dtype"

    def __post_init__(self) -> None:
        bounds = {"rows": 1, "cache_tokens": 1} | ({"max_gap": 0} if self.max_gap != "by_dtype" else {})
        for name, bound in bounds.items():
            if not getattr(self, name) >= bound:
                raise ValueError(f"{name} is {getattr(self, name)}\ntake at least {bound}")

    def build(self, model: Model, tokenizer: Tokenizer, *, seed: int, experts: Experts | None) -> Engine:
        """The engine over the learner's model. If `experts` is given, it records the expert choices (routes) of all
        tokens. A flow policy gets an engine of denoising steps, and a masked policy one that reveals canvases.
        """
        if isinstance(model, MaskedPolicy):
            return UnmaskingEngine(model, seed=seed, rows=self.rows)
        if isinstance(model, FlowPolicy):
            return DenoisingEngine(model, seed=seed, rows=self.rows)
        return NativeEngine(
            model, tokenizer, seed=seed, rows=self.rows, cache_tokens=self.cache_tokens, experts=experts
        )
