"""A language model as a `Policy`: it computes log-probs and other numbers per token from hidden states."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor

from groupwise.data import Backbone, Batch, NeededMeasure, Policy
from groupwise.learner.compute_measures import MicrobatchMeasures, reads_policy
from groupwise.learner.forward import TokenStates, hidden_states
from groupwise.learner.routing import RoutedForward

__all__ = ["LanguagePolicy"]


class LanguagePolicy:
    """Adapts a language model to `Policy`, for one forward pass. All numbers per token come from its hidden states.

    `temperature` divides the logits, also of side models. `routed` records or replays the experts of a mixture.
    `states` are the hidden states of the last call, for auxiliary losses; None if no measure needed them.
    """

    def __init__(self, model: Backbone, *, temperature: float = 1.0, routed: RoutedForward | None = None) -> None:
        self.model, self.temperature, self.routed = model, temperature, routed
        self.states: TokenStates | None = None

    def measure(
        self, batch: Batch, wanted: Sequence[NeededMeasure], side_models: Mapping[str, Any]
    ) -> dict[NeededMeasure, Float[Tensor, " n"]]:
        """The wanted numbers per token (log-probs, ...). `Usage` for one that a language model cannot compute."""
        self.states = hidden_states(self.model, batch, self.routed) if any(map(reads_policy, wanted)) else None
        models = {"policy": self.model, **side_models}
        compute = MicrobatchMeasures(models, batch, temperature=self.temperature, policy=self.states)
        return {measure: compute(measure) for measure in wanted}


def policy_of(model: Any, *, temperature: float, routed: RoutedForward | None = None) -> Policy:
    """The model itself if it is a `Policy`, else a `LanguagePolicy` over it."""
    if isinstance(model, Policy):
        return model
    return LanguagePolicy(model, temperature=temperature, routed=routed)
