"""Compares methods on the same stored samples: their figures, and the cosines of their gradients."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.config.recipe_errors import method_suggestion
from groupwise.config.registry import methods as published_methods
from groupwise.core import BadData, Usage
from groupwise.data import CLIPPED
from groupwise.methods import Method
from groupwise.objective import ReportsClipping, describe_step
from groupwise.whatif.recompute_method import RecomputedMethod, recompute
from groupwise.whatif.stored_iteration import StoredIteration

OWN = "this run"
"""The name under which a comparison lists the method that trained the run."""
FIGURES: Mapping[str, Callable[[RecomputedMethod], float | None]] = {
    "samples": lambda r: len(r.batch),
    "tokens": lambda r: r.batch.tokens,
    "reward, mean": lambda r: float(r.batch.reward.mean()),
    "advantage, mean size": lambda r: mean(r.batch.advantage.abs()),
    "share of tokens with advantage 0": lambda r: mean((r.batch.advantage == 0).double()),
    "share of tokens clipped": lambda r: clipped_share(r),
    "weight, mean": lambda r: mean(r.batch.weight),
    "gradient, norm": lambda r: float(r.logp_gradient.norm()),
}
"""The figures that a comparison shows for each method, by name, in the order of its table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodComparison:
    """The results of several methods on one iteration. `omitted_methods`: methods that cannot be computed, and why.

    `logp_gradients` are `d loss / d logp` of each method over all stored tokens, with 0 at tokens that it does not
    train. `gradient_cosines` are between the gradients of two methods; None if one of them is 0.
    """

    recomputed_methods: tuple[RecomputedMethod, ...]
    omitted_methods: Mapping[str, str]
    logp_gradients: tuple[Float[Tensor, " all"], ...]
    gradient_cosines: tuple[tuple[float | None, ...], ...]


def compare_methods(stored: StoredIteration, names: Sequence[str]) -> MethodComparison:
    """Compute the run's method and these published methods on a stored iteration.

    `Usage` for an unknown name.
    """
    wanted = {OWN: stored.recipe.method} | {name: named_method(name) for name in names}
    computed: list[RecomputedMethod] = []
    left_out: dict[str, str] = {}
    for name, method in wanted.items():
        try:
            computed.append(recompute(stored, name, method))
        except BadData as error:
            left_out[name] = error.evidence
    gradients = tuple(whole_gradient(stored, each) for each in computed)
    cosines = tuple(tuple(cosine(a, b) for b in gradients) for a in gradients)
    return MethodComparison(
        recomputed_methods=tuple(computed), omitted_methods=left_out, logp_gradients=gradients, gradient_cosines=cosines
    )


def named_method(name: str) -> Method:
    """The published method with this name. `Usage` for an unknown name."""
    known = published_methods()
    if name not in known:
        raise Usage(f"no method is called {name!r}", fix=method_suggestion(name, known))
    return known[name]()


def whole_gradient(stored: StoredIteration, of: RecomputedMethod) -> Float[Tensor, " all"]:
    """A method's gradient with respect to the log-probs of all stored tokens; 0 for those that it does not train."""
    gradient = torch.zeros(len(stored.token_columns["tokens"]), dtype=torch.float64)
    gradient[stored.rows_of(of.batch)] = of.logp_gradient.double()
    return gradient


def cosine(a: Float[Tensor, " n"], b: Float[Tensor, " n"]) -> float | None:
    """The cosine of two gradients; None if one of them is 0 or not finite.

    >>> cosine(torch.tensor([1.0, 0.0]), torch.tensor([-2.0, 0.0])), cosine(torch.zeros(2), torch.ones(2))
    (-1.0, None)
    """
    size = float(a.norm() * b.norm())
    return float(a @ b) / size if size and math.isfinite(size) else None


def mean(x: Tensor) -> float | None:
    """The mean of a column; None for an empty one."""
    return float(x.double().mean()) if len(x) else None


def clipped_share(of: RecomputedMethod) -> float | None:
    """The share of tokens that the surrogate clips; None for a surrogate without bounds."""
    return describe_step(of.batch, of.method.objective).get(CLIPPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleNumbers:
    """A method's numbers for a sample: reward, token means of advantage and weight, sum of `d loss / d logp`.

    `clipped_fraction` is the share of its tokens that the surrogate clips; None for a surrogate without bounds.
    """

    reward: float | None
    advantage: float | None
    weight: float | None
    clipped_fraction: float | None
    gradient_sum: float | None


def sample_numbers(stored: StoredIteration, of: RecomputedMethod) -> dict[int, SampleNumbers]:
    """A method's numbers for each sample that the method selects, by the sample's line in the file, from 0."""
    batch, s, surrogate = of.batch, of.batch.sequences, of.method.objective.surrogate
    advantage, weight = (s.mean(x).tolist() for x in (batch.advantage, batch.weight))
    clipped: list[float] | list[None] = [None] * len(batch)
    if isinstance(surrogate, ReportsClipping):
        low, high = surrogate.clipped(batch)
        clipped = s.mean((low | high).double()).tolist()
    line = dict(zip(stored.batch.sample_keys, stored.sample_line_indices))
    columns = zip(
        batch.sample_keys, batch.reward.tolist(), advantage, weight, clipped, s.total(of.logp_gradient).tolist()
    )
    return {
        line[key]: SampleNumbers(reward=reward, advantage=a, weight=w, clipped_fraction=c, gradient_sum=g)
        for key, reward, a, w, c, g in columns
    }


def group_cosines(stored: StoredIteration, comparison: MethodComparison, members: Sequence[int]) -> list[float | None]:
    """The cosine of each method's gradient with the run's own, or first, method's, over some samples' tokens."""
    lengths = stored.token_columns["lengths"]
    chosen = torch.zeros(len(lengths), dtype=torch.bool)
    chosen[list(members)] = True
    tokens = chosen.repeat_interleave(lengths.long())
    gradients = [gradient[tokens] for gradient in comparison.logp_gradients]
    return [cosine(gradients[0], gradient) for gradient in gradients]


def groups_of(stored: StoredIteration) -> list[list[int]]:
    """The samples of each group of the iteration, as line numbers from 0 in the order of the file."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for index, line in enumerate(stored.sample_records):
        groups.setdefault((line["draw"], line["role"], line["group"]), []).append(index)
    return list(groups.values())
