"""Measures that parts declare: a method gathers them, and a dry run provides them."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from groupwise.checks.check_method import dry_run
from groupwise.config.recipe import Recipe
from groupwise.data import Batch, Logp, NeededMeasure, Subscore
from groupwise.methods import Method, grpo
from groupwise.objective import KL, Objective, token_ratio
from groupwise.rewards import AddSubscore, Correctness
from tests.laws.batches import step_of

CHAIN = Subscore("chain_true")


@dataclass(frozen=True)
class WithChain:
    """A user's filter on a subscore."""

    needs: ClassVar[frozenset[NeededMeasure]] = frozenset({CHAIN})

    def __call__(self, rollout: Batch) -> Tensor:
        return rollout[CHAIN] >= 0


def plus_chain(reward: Tensor, batch: Batch) -> Tensor:
    """A user's shaping that does not declare the part it reads."""
    return reward + batch.subscores["chain_true"]


def without_gradient(b: Batch) -> Tensor:
    """A user's surrogate that ends the gradient."""
    return token_ratio(b).detach() * b.advantage


def errors(method: Method) -> list[str]:
    return [str(error) for error in dry_run(Recipe(method=method))]


def test_a_surrogate_without_a_gradient_is_told_what_ends_it() -> None:
    (error,) = errors(replace(grpo(), objective=Objective(surrogate=without_gradient)))
    assert "no gradient reaches batch.logp" in error and ".detach() ends it" in error


def test_a_dry_run_gives_the_verdicts_the_parts_that_are_declared() -> None:
    method = Method(filter=WithChain(), shaping=(Correctness(), AddSubscore("format", 0.5)))
    assert method.needs == frozenset({CHAIN, Subscore("format")})
    assert errors(method) == []


def test_an_undeclared_verdict_part_is_refused_with_the_declaration() -> None:
    (error,) = errors(Method(shaping=(Correctness(), plus_chain)))
    assert "read batch[Subscore('chain_true')], and declare it in needs" in error


def test_a_filter_cannot_need_what_the_learner_computes() -> None:
    @dataclass(frozen=True)
    class Likely:
        needs: ClassVar[frozenset[NeededMeasure]] = frozenset({Logp("policy")})

        def __call__(self, rollout: Batch) -> Tensor:
            return torch.ones(len(rollout), dtype=torch.bool)

    with pytest.raises(ValueError, match="runs before the learner"):
        Method(filter=Likely())


def test_a_penalty_against_the_old_policy_is_checked_and_computed() -> None:
    penalty = KL(0.1, model="policy")
    method = replace(grpo(), objective=Objective(penalties=(penalty,)), models=())
    assert method.needs == frozenset({Logp("policy")}) and errors(method) == []
    b = step_of([[2, 3]])
    x = (b.logp_old - b.logp).detach()
    torch.testing.assert_close(penalty(b).detach(), 0.1 * (x.exp() - 1 - x), rtol=1e-12, atol=1e-14)
