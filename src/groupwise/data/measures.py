"""Measures: numbers per token or sample that a component declares in `needs`, such as a reference's log-probs.

A measure is a frozen value and the key of its column: `batch[Logp("reference")]`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

__all__ = [
    "ClassifierScore",
    "DistributionMeasure",
    "Divergence",
    "Entropy",
    "Logp",
    "NeededMeasure",
    "Return",
    "Subscore",
    "TokenMark",
    "Value",
    "in_batch",
    "in_graph",
    "label_of",
    "side_models_of",
]


@dataclass(frozen=True, slots=True)
class Logp:
    """Log-prob of each token under a model: reference, teacher, or policy before the update. It has no gradient.

    `batch[Logp("policy")]` is the log-prob under the policy before the update, the column `logp_old`. A component that
    reads this column outside the graph (shaping, credit, masks, weights) declares it. The learner then computes the
    column even where a single optimizer step would not require it.
    """

    model: str
    view: str = ""
    """Key in `Sample.prompt_views` of the prompt to condition on; NaN without it. Empty: the sample's own prompt."""


@dataclass(frozen=True, slots=True)
class Entropy:
    """Entropy in nats of a model's distribution at each token, before the update, without gradient."""

    model: str = "policy"
    view: str = ""


@dataclass(frozen=True, slots=True)
class Subscore:
    """A named score in the verifier's verdicts, such as a format score, per sample; 0 for a verdict without it.

    A component that declares it can be checked before a run: `check` gives the synthetic verdicts this subscore.
    """

    in_batch: ClassVar[bool] = True

    name: str


@dataclass(frozen=True, slots=True)
class Divergence:
    """Divergence in nats at each token between two whole distributions: the policy's p, and q of another model.

    `alpha` 0 is `KL(q || p)`, 1 is `KL(p || q)`. Between them it is the generalised Jensen-Shannon divergence
    `alpha KL(q || m) + (1 - alpha) KL(p || m)` with `m = alpha q + (1 - alpha) p`. GKD, arXiv:2306.13649, section 3.

    In surrogates and penalties, p is the current policy and the numbers are in the graph. Other components get the
    numbers before the update, without gradient.
    """

    in_graph: ClassVar[bool] = True

    model: str
    alpha: float = 0.5
    view: str = ""
    """The other model's prompt, a key of `Sample.prompt_views`. The policy keeps the sample's own prompt."""

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha, the mixing weight of a divergence, is {self.alpha}: it must be from 0 to 1")


@dataclass(frozen=True, slots=True)
class TokenMark:
    """A named number per token, from `Sample.token_marks` or a verifier's `Verdict.step_scores`; NaN elsewhere."""

    in_batch: ClassVar[bool] = True

    name: str


@dataclass(frozen=True, slots=True)
class Value:
    """A critic's estimate of the expected return at each token, before the update, without gradient.

    The context of a token is everything before it. PPO calls this number `V_old`.
    """

    model: str = "critic"


@dataclass(frozen=True, slots=True)
class Return:
    """The target that a critic (`ValueModel`) learns at each token: advantage plus value, both from before the update.

    It is written with the advantages, so shapings and advantages cannot read it.
    """

    in_batch: ClassVar[bool] = True

    model: str = "critic"


@dataclass(frozen=True, slots=True)
class ClassifierScore:
    """The score that a reward model under training gives a sample: at its last trained token; 0 at the others.

    In surrogates and penalties it is in the graph. Only a reward model computes it.
    """

    in_graph: ClassVar[bool] = True


@runtime_checkable
class DistributionMeasure(Protocol):
    """A measure that you define: a number per token from a model's distribution before the update, without gradient.

    Write it as a frozen dataclass. Fields `model` and `view` mean what they mean in `Logp`; without them the model is
    the policy, under the sample's context. The learner calls it with chunks of rows, never with all logits: `logp` are
    the log-probs of the vocabulary in each row, `token` is the row's token.
    """

    def __call__(
        self, logp: Float[Tensor, "rows vocabulary"], token: Int[Tensor, " rows"]
    ) -> Float[Tensor, " rows"]: ...


@runtime_checkable
class NeededMeasure(Protocol):
    """A number per token or sample that a component needs, such as `Logp("reference")`: any frozen dataclass.

    It is the key of a column of the batch. A component of a method lists its measures in `needs`.

    The policy computes a measure, unless it has the class variable `in_batch = True`. With `in_graph = True`,
    surrogates and penalties get the numbers of the current policy, with their gradient. Fields `model` and `view` mean
    what they mean in `Logp`.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __hash__(self) -> int: ...


def side_models_of(measures: Iterable[NeededMeasure]) -> set[str]:
    """The names of the extra models (reference, teacher, critic) that are needed to compute these measures.

    >>> side_models_of([Logp("policy"), Divergence("teacher")])
    {'teacher'}
    """
    return {getattr(measure, "model", "policy") for measure in measures} - {"policy"}


def in_graph(measure: NeededMeasure) -> bool:
    """Whether this measure is computed in the training forward pass, with its gradient."""
    return getattr(measure, "in_graph", False)


def in_batch(measure: NeededMeasure) -> bool:
    """Whether the batch already contains this measure, so that the policy need not compute it."""
    return getattr(measure, "in_batch", False)


def label_of(measure: Any) -> str:
    """A measure's name in files and metrics.

    >>> label_of(Logp("reference")), label_of(Entropy()), label_of(Divergence("teacher", alpha=1.0))
    ('logp/reference', 'entropy', 'divergence/teacher/1.0')
    """
    values = [(getattr(measure, f.name), f.default) for f in fields(measure)]
    return "/".join([type(measure).__name__.lower(), *(str(value) for value, default in values if value != default)])
