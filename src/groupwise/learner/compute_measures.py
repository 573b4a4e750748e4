"""Computes the measures (log-probs, entropies) of one microbatch from the policy and the extra models."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.core import Usage
from groupwise.data import Batch, DistributionMeasure, Divergence, Entropy, Logp, NeededMeasure, Value, in_graph
from groupwise.learner.divergence import divergence
from groupwise.learner.forward import TokenStates, hidden_states, of_distributions, token_logprobs


def reads_policy(measure: NeededMeasure) -> bool:
    """Whether a number per token (measure) needs the policy's forward pass with the samples' own prompts."""
    return in_graph(measure) or source_of(measure) == ("policy", "")


def source_of(measure: NeededMeasure) -> tuple[str, str]:
    """The model and the second prompt (view) that a measure needs; by default the policy, and no second prompt."""
    return getattr(measure, "model", "policy"), getattr(measure, "view", "")


class MicrobatchMeasures:
    """The measures of one microbatch. Each model is forwarded once per prompt variant (view).

    `policy` are the policy's hidden states under the samples' contexts, if they exist already; only they may be in the
    graph.
    """

    def __init__(
        self, models: Mapping[str, Any], batch: Batch, *, temperature: float, policy: TokenStates | None = None
    ) -> None:
        self.models, self.batch, self.temperature = models, batch, temperature
        self._states: dict[tuple[str, str], TokenStates] = {} if policy is None else {("policy", ""): policy}
        self._logprobs: dict[tuple[str, str], tuple[Tensor, Tensor]] = {}

    def __call__(self, measure: NeededMeasure) -> Float[Tensor, " n"]:
        """Compute a measure: one number per token; NaN for samples without the second prompt (view) that it names."""
        if isinstance(measure, Divergence):
            return self.spread(self.divergence(measure), measure.view)
        if isinstance(measure, Value):
            with torch.no_grad():
                return self.models[measure.model].values(self.batch, lambda: self.states("policy", ""))
        if isinstance(measure, DistributionMeasure):
            name, view = source_of(measure)
            states = self.states(name, view)
            return self.spread(of_distributions(self.models[name], states, measure, temperature=self.temperature), view)
        if not isinstance(measure, Logp | Entropy):
            fix = "give the measure a __call__(logp, token), or train a policy that computes it"
            raise Usage(f"a language model does not compute the measure {measure}", fix=fix)
        logp, entropy = self.logprobs(measure.model, measure.view)
        return self.spread(entropy if isinstance(measure, Entropy) else logp, measure.view)

    def spread(self, x: Float[Tensor, " m"], view: str) -> Float[Tensor, " n"]:
        """Expand values of the samples that have a second prompt (view) to all tokens; NaN for the others."""
        if not view:
            return x
        which = self.batch.under(view)[1]
        return torch.full(which.shape, math.nan, dtype=x.dtype, device=x.device).masked_scatter(which, x)

    def divergence(self, measure: Divergence) -> Float[Tensor, " m"]:
        """The divergence from the other model at each token whose sample has the measure's second prompt (view)."""
        mine, other = self.states("policy", ""), self.states(measure.model, measure.view)
        pair = mine.state_of_token[self.batch.under(measure.view)[1]] if measure.view else mine.state_of_token
        return divergence(
            self.models["policy"],
            mine.hidden.index_select(0, pair),
            self.models[measure.model],
            other.hidden.index_select(0, other.state_of_token),
            alpha=measure.alpha,
            temperature=self.temperature,
        )

    def logprobs(self, name: str, view: str) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
        """A model's log-probs and entropies of all tokens whose sample has the second prompt `view`; "" means all."""
        if (name, view) not in self._logprobs:
            states = self.states(name, view)
            self._logprobs[name, view] = token_logprobs(self.models[name], states, temperature=self.temperature)
        return self._logprobs[name, view]

    def states(self, name: str, view: str) -> TokenStates:
        """A model's hidden states of all tokens whose sample has the second prompt `view`; "" means all."""
        if (name, view) not in self._states:
            batch = self.batch.under(view)[0] if view else self.batch
            with torch.no_grad():
                self._states[name, view] = hidden_states(self.models[name], batch)
        return self._states[name, view]
