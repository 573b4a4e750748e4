"""Settings of the speculative engine, which runs in the trainer's process."""

from dataclasses import dataclass

from groupwise.data import Usage
from groupwise.models import Experts, FlowPolicy, MaskedPolicy, Model, Tokenizer
from groupwise.rollout.native import Native
from groupwise.rollout.speculation import SpeculativeEngine

__all__ = ["Speculative"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculative(Native):
    """The native engine with speculative decoding: fewer passes if answers repeat earlier ones; samples stay the same.

    A pass checks up to `window` tokens of a draft; `drafts` earlier answers are kept. BubbleSpec, arXiv:2605.08862.
    """

    window: int = 8
    drafts: int = 4096

    def __post_init__(self) -> None:
        Native.__post_init__(self)
        for name in ("window", "drafts"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}\ntake at least 0")

    def build(self, model: Model, tokenizer: Tokenizer, *, seed: int, experts: Experts | None) -> SpeculativeEngine:
        """The engine over the learner's model. Raises `Usage` if it should record the experts of each token."""
        assert not isinstance(model, FlowPolicy | MaskedPolicy), "check refuses such a model with this engine"
        if experts is not None:
            raise Usage(
                "the speculative engine does not record the experts of its tokens",
                evidence='method.routing.replay is "engine"',
                fix='set engine = "Native", or method.routing.replay to "learner" or "none"',
            )
        return SpeculativeEngine(
            model, tokenizer, seed=seed, rows=self.rows, cache_tokens=self.cache_tokens, window=self.window,
            drafts=self.drafts,
        )  # fmt: skip
