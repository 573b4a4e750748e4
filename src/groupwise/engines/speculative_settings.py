"""Settings of the speculative engine, which runs in the trainer's process."""

from dataclasses import dataclass

from groupwise.core import Usage
from groupwise.engines.native.speculation import SpeculativeEngine
from groupwise.engines.native_settings import Native
from groupwise.models import LanguageModel, MixtureOfExpertsSizes, Model, Tokenizer

__all__ = ["Speculative"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculative(Native):
    """The native engine with speculative decoding: fewer passes if answers repeat earlier ones; samples stay the same.

    A pass checks up to `num_speculative_tokens` tokens of a draft; `max_stored_answers` earlier answers are kept.
    BubbleSpec, arXiv:2605.08862.
    """

    num_speculative_tokens: int = 8
    max_stored_answers: int = 4096

    def __post_init__(self) -> None:
        Native.__post_init__(self)
        for name in ("num_speculative_tokens", "max_stored_answers"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}\ntake at least 0")

    def build(
        self, model: Model, tokenizer: Tokenizer, *, seed: int, experts: MixtureOfExpertsSizes | None
    ) -> SpeculativeEngine:
        """The engine over the learner's model. Raises `Usage` if it should record the experts of each token."""
        assert isinstance(model, LanguageModel), "check refuses such a model with this engine"
        if experts is not None:
            raise Usage(
                "the speculative engine does not record the experts of its tokens",
                evidence='method.router_replay is "engine"',
                fix='set engine = "Native", or method.router_replay to "learner" or "none"',
            )
        return SpeculativeEngine(
            model, tokenizer, seed=seed, max_num_seqs=self.max_num_seqs, kv_cache_tokens=self.kv_cache_tokens,
            window=self.num_speculative_tokens,
            drafts=self.max_stored_answers,
        )  # fmt: skip
