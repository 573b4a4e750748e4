"""Measures: numbers per token that the learner computes for a part. A part lists its measures in `needs`.

A measure is a frozen value and the key of its column: `batch[Logp("reference")]`.
"""

from dataclasses import dataclass

__all__ = ["Entropy", "Logp", "Measure"]


@dataclass(frozen=True, slots=True)
class Logp:
    """Log-prob of each token under a side model, without gradient.

    `Logp("policy")` is the log-prob under the policy before the update, in the column `logp_old`. A part that reads
    this column outside the graph (shaping, credit, masks, weights) declares it. The learner then computes the column
    even where a single optimizer step would not require it.
    """

    model: str


@dataclass(frozen=True, slots=True)
class Entropy:
    """Entropy in nats of the policy's distribution at each token, before the update, without gradient."""


Measure = Logp | Entropy
