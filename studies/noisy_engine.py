"""An engine whose recorded log-probs are off: a stand-in for changed experts and coarse arithmetic. Loaded by `use`."""

from dataclasses import dataclass, replace

import numpy as np

from groupwise.data import Generation, GenerationRequest
from groupwise.engines import Native, NativeEngine
from groupwise.models import FlowPolicy, MaskedPolicy, MixtureOfExpertsSizes, Model, Tokenizer


class NoisyEngine(NativeEngine):
    """The native engine, which adds normal noise to the log-probs that it records, in a share of the tokens.

    The tokens stay those of the exact engine. The noise of a token is keyed by the seed, its draw, stream and position.
    """

    noise_seed: int
    sd: float
    fraction: float

    async def sample(self, request: GenerationRequest) -> Generation:
        generation = await super().sample(request)
        at = (request.draw_id, request.already_generated_count, *request.stream)
        rng = np.random.default_rng((self.noise_seed, request.random_purpose, *at))
        n = len(generation.logp)
        noise = rng.normal(0, self.sd, n) * (rng.random(n) < self.fraction)
        return replace(generation, logp=tuple(x + float(e) for x, e in zip(generation.logp, noise)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Noisy(Native):
    """Runs the native engine with noise of standard deviation `sd` on a `fraction` of its log-probs."""

    sd: float = 3.0
    fraction: float = 0.1

    def build(
        self, model: Model, tokenizer: Tokenizer, *, seed: int, experts: MixtureOfExpertsSizes | None
    ) -> NoisyEngine:
        """The engine over the learner's model."""
        assert not isinstance(model, FlowPolicy | MaskedPolicy), "it samples from language models"
        engine = NoisyEngine(
            model,
            tokenizer,
            seed=seed,
            max_num_seqs=self.max_num_seqs,
            kv_cache_tokens=self.kv_cache_tokens,
            experts=experts,
        )
        engine.noise_seed, engine.sd, engine.fraction = seed, self.sd, self.fraction
        return engine
