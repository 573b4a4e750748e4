"""Computes the measures of one microbatch from the policy and the side models."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch, Divergence, Entropy, Logp, Measure
from groupwise.learner.divergence import divergence
from groupwise.learner.forward import States, hidden_states, token_logprobs

Computed = Logp | Entropy | Divergence
"""The measures that the learner computes; the batch holds the others."""


class MicrobatchMeasures:
    """The measures of one microbatch. Each model is forwarded once. `policy` holds the policy's states, if it was.

    Only the policy's states are in the graph.
    """

    def __init__(
        self, models: Mapping[str, Any], batch: Batch, *, temperature: float, policy: States | None = None
    ) -> None:
        self.models, self.batch, self.temperature = models, batch, temperature
        self._states: dict[str, States] = {} if policy is None else {"policy": policy}
        self._logprobs: dict[str, tuple[Tensor, Tensor]] = {}

    def __call__(self, measure: Measure) -> Float[Tensor, " n"]:
        """One number per token."""
        if isinstance(measure, Divergence):
            mine, other = self.states("policy"), self.states(measure.model)
            return divergence(
                self.models["policy"],
                mine.hidden.index_select(0, mine.pair),
                self.models[measure.model],
                other.hidden.index_select(0, other.pair),
                alpha=measure.alpha,
                temperature=self.temperature,
            )
        if isinstance(measure, Logp):
            return self.logprobs(measure.model)[0]
        assert isinstance(measure, Entropy), f"the learner does not compute {measure}"
        return self.logprobs("policy")[1]

    def logprobs(self, name: str) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """Log-probs and entropies of the tokens under a model."""
        if name not in self._logprobs:
            self._logprobs[name] = token_logprobs(self.models[name], self.states(name), temperature=self.temperature)
        return self._logprobs[name]

    def states(self, name: str) -> States:
        """The hidden states of a model."""
        if name not in self._states:
            with torch.no_grad():
                self._states[name] = hidden_states(self.models[name], self.batch)
        return self._states[name]
