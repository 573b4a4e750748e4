"""Measures: numbers that a part reads from the batch and lists in `needs`, such as log-probs of a side model.

A measure is a frozen value and the key of its column: `batch[Logp("reference")]`.
"""

from dataclasses import dataclass

__all__ = ["Entropy", "Logp", "Measure", "VerdictPart"]


@dataclass(frozen=True, slots=True)
class Logp:
    """Log-prob of each token under a side model, without gradient.

    `batch[Logp("policy")]` is the log-prob under the policy before the update, the column `logp_old`. A part that reads
    this column outside the graph (shaping, credit, masks, weights) declares it. The learner then computes the column
    even where a single optimizer step would not require it.
    """

    model: str


@dataclass(frozen=True, slots=True)
class Entropy:
    """Entropy in nats of the policy's distribution at each token, before the update, without gradient."""


@dataclass(frozen=True, slots=True)
class VerdictPart:
    """A part of the verdicts by its name, one number per sample; 0 for a verdict without it (see `Batch.has`).

    A part of a method that declares it can be checked before a run: `check` gives the synthetic verdicts this part.
    """

    name: str


Measure = Logp | Entropy | VerdictPart
