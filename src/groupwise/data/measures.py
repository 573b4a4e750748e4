"""Numbers per token that the learner can compute because it has the law; a part lists those it `needs`.

A measure is a frozen value and its own column name: `batch[Logp("reference")]`.
"""

from dataclasses import dataclass

__all__ = ["Entropy", "Logp", "Measure"]


@dataclass(frozen=True, slots=True)
class Logp:
    """Log-prob of each token under a model beside the policy, without gradient.

    `Logp("policy")` is the policy before the update, found in the column `logp_old`: a part that reads that column
    outside the graph (in shaping, credit, masks or weights) says so, and the learner then reads it even where a single
    step would not.
    """

    model: str


@dataclass(frozen=True, slots=True)
class Entropy:
    """Entropy of the policy's law at each token before the update, in nats, without gradient."""


Measure = Logp | Entropy
