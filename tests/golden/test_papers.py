"""Surrogates, ratios, weights and aggregates against the papers' equations in NumPy: values to 1e-12, and slopes."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from groupwise.data import name_of
from groupwise.methods import SoftGate
from groupwise.objective import (
    KL,
    Clip,
    ClippedWeight,
    MaskedImportance,
    Objective,
    PowerMeanRatio,
    SequenceTruncatedImportance,
    TruncatedImportance,
    UnclippedSurrogate,
    budget_mean,
    group_mean,
    policy_gradient,
    sequence_mean,
    sequence_product,
    sequence_ratio,
    sequence_ratio_per_token,
    sequence_sum,
    token_mean,
)
from tests.golden import papers
from tests.golden.papers import Rows
from tests.laws.batches import step_of

UNEQUAL = [[3, 5, 2, 7], [4, 1], [6, 2, 9]]
EQUAL = [[3, 5, 2], [4, 1, 8], [6, 2, 9]]
"""Groups of equal size, where a mean over sequences is a mean over groups."""

CASES: dict[str, tuple[Objective, Callable[[Rows], float], list[list[int]]]] = {
    "grpo": (
        Objective(penalties=(KL(0.04),), aggregate=sequence_mean),
        lambda x: papers.grpo(x, 0.2, 0.04),
        EQUAL,
    ),
    "grpo-groups": (
        Objective(surrogate=Clip(0.1, 0.1), penalties=(KL(0.5),), aggregate=group_mean),
        lambda x: papers.grpo(x, 0.1, 0.5),
        UNEQUAL,
    ),
    "dr_grpo": (Objective(aggregate=budget_mean), lambda x: papers.dr_grpo(x, 0.2), UNEQUAL),
    "dapo": (Objective(surrogate=Clip(0.2, 0.28)), lambda x: papers.dapo(x, 0.2, 0.28), UNEQUAL),
    "gspo": (
        Objective(surrogate=Clip(0.03, 0.04, ratio=sequence_ratio), aggregate=sequence_mean),
        lambda x: papers.gspo(x, 0.03, 0.04),
        EQUAL,
    ),
    "gspo-groups": (
        Objective(surrogate=Clip(3e-4, 4e-4, ratio=sequence_ratio), aggregate=group_mean),
        lambda x: papers.gspo(x, 3e-4, 4e-4),
        UNEQUAL,
    ),
    "gspo-token": (
        Objective(surrogate=Clip(0.03, 0.04, ratio=sequence_ratio_per_token), aggregate=group_mean),
        lambda x: papers.gspo(x, 0.03, 0.04),
        UNEQUAL,
    ),
    "rloo": (
        Objective(surrogate=Clip(0.2, 0.3, ratio=sequence_product), aggregate=sequence_mean),
        lambda x: papers.rloo(x, 0.2, 0.3),
        UNEQUAL,
    ),
    "reinforce": (Objective(surrogate=policy_gradient, aggregate=sequence_sum), papers.reinforce, UNEQUAL),
    "cispo": (Objective(surrogate=ClippedWeight(0.0, 1.28)), lambda x: papers.cispo(x, 1.0, 0.28), UNEQUAL),
    "gmpo": (
        Objective(surrogate=UnclippedSurrogate(PowerMeanRatio(0, 0.4, 0.4)), aggregate=group_mean),
        lambda x: papers.gmpo(x, 0.4),
        UNEQUAL,
    ),
    "holder p=2": (
        Objective(surrogate=UnclippedSurrogate(PowerMeanRatio(2, 0.2, 0.3)), aggregate=group_mean),
        lambda x: papers.holder(x, 2, 0.2, 0.3),
        UNEQUAL,
    ),
    "holder p=1": (
        Objective(surrogate=UnclippedSurrogate(PowerMeanRatio(1, 0.2, 0.3)), aggregate=group_mean),
        lambda x: papers.holder(x, 1, 0.2, 0.3),
        UNEQUAL,
    ),
    "holder p=-2": (
        Objective(surrogate=UnclippedSurrogate(PowerMeanRatio(-2, 0.2, 0.3)), aggregate=group_mean),
        lambda x: papers.holder(x, -2, 0.2, 0.3),
        UNEQUAL,
    ),
    "sapo": (
        Objective(surrogate=SoftGate(1.0, 1.05), aggregate=group_mean),
        lambda x: papers.sapo(x, 1.0, 1.05),
        UNEQUAL,
    ),
    "token-tis": (
        Objective(surrogate=Clip(0.2, 0.28), weights=(TruncatedImportance(1.2),)),
        lambda x: papers.with_token_tis(x, 1.2),
        UNEQUAL,
    ),
    "sequence-tis": (
        Objective(weights=(SequenceTruncatedImportance(1.5),), aggregate=group_mean),
        lambda x: papers.with_sequence_tis(x, 1.5),
        UNEQUAL,
    ),
    "icepop": (
        Objective(weights=(MaskedImportance(0.8, 1.3),), aggregate=group_mean),
        lambda x: papers.with_icepop(x, 0.8, 1.3),
        UNEQUAL,
    ),
    "reinforce_pp": (
        Objective(penalties=(KL(0.1, kl_estimator="k2"),)),
        lambda x: papers.reinforce_pp(x, 0.2, 0.1),
        UNEQUAL,
    ),
}  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", CASES)
def test_value(name: str, seed: int) -> None:
    objective, paper, layout = CASES[name]
    step = step_of(layout, seed=seed)
    assert -objective(objective.prepare(step)).item() == pytest.approx(paper(Rows(step)), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_slope(name: str) -> None:
    """The gradient equals the slope of the paper's equation by central differences."""
    objective, paper, layout = CASES[name]
    step = step_of(layout, seed=7)
    actual = torch.autograd.grad(objective(objective.prepare(step)), step.logp)[0].numpy()
    frozen = Rows(step).r

    def at(logp: torch.Tensor) -> float:
        rows = Rows(step.having(logp=logp))
        return papers.cispo(rows, 1.0, 0.28, frozen) if name == "cispo" else paper(rows)

    h = 1e-6
    slope = []
    for i in range(step.tokens):
        nudge = torch.zeros(step.tokens, dtype=torch.float64)
        nudge[i] = h
        slope.append((at(step.logp.detach() + nudge) - at(step.logp.detach() - nudge)) / (2 * h))
    np.testing.assert_allclose(-actual, slope, atol=1e-9, rtol=1e-6)


def test_cispo_has_no_gradient_through_its_weight() -> None:
    """Central differences of the formula without the stop-gradient give a different result."""
    objective, _, layout = CASES["cispo"]
    step = step_of(layout, seed=7)
    inside = int((Rows(step).r[Rows(step).mask] < 1.28).argmax())  # the first token whose weight moves with log pi
    actual = -torch.autograd.grad(objective(objective.prepare(step)), step.logp)[0][inside].item()
    nudge = torch.zeros(step.tokens, dtype=torch.float64)
    nudge[inside] = 1e-6
    up, down = (papers.cispo(Rows(step.having(logp=step.logp.detach() + s * nudge)), 1.0, 0.28) for s in (1, -1))
    assert abs((up - down) / 2e-6 - actual) > 1e-3


@pytest.mark.t(2)
@pytest.mark.parametrize("aggregate", ["sequence_mean", "token_mean", "budget_mean", "gspo"])
def test_closed_form_of_rows_of_1_2_and_5_tokens(aggregate: str) -> None:
    """Loss and gradient written by hand: ratios 1.1, (0.9, 1.3), five of 1.0; advantages 2, -1, 0.5; clip 0.2."""
    step = step_of([[1, 2, 5]], limit=10)
    r = torch.tensor([1.1, 0.9, 1.3, 1, 1, 1, 1, 1], dtype=torch.float64)
    a = torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64)
    step = step.having(logp_old=step.logp.detach() - r.log(), advantage=step.sequences.spread(a))
    # tokens: 2.2 | -0.9 -1.3 | 0.5 x 5; none is clipped (a negative advantage above the window is not)
    if aggregate == "gspo":
        s = (0.9 * 1.3) ** 0.5  # 1.0817, inside the window
        objective = Objective(surrogate=Clip(ratio=sequence_ratio), aggregate=sequence_mean)
        loss = -(2.2 - s + 0.5) / 3
        slope = [-2.2 / 3, s / 6, s / 6, *[-0.5 / 15] * 5]
    else:
        share = {
            "sequence_mean": [1 / 3, *[1 / 6] * 2, *[1 / 15] * 5],
            "token_mean": [1 / 8] * 8,
            "budget_mean": [1 / 30] * 8,
        }[aggregate]
        gain = [2.2, -0.9, -1.3, *[0.5] * 5]
        objective = Objective(aggregate={name_of(f): f for f in (sequence_mean, token_mean, budget_mean)}[aggregate])
        loss = -sum(w * g for w, g in zip(share, gain))
        slope = [-w * g for w, g in zip(share, gain)]
    actual = objective(objective.prepare(step))
    assert actual.item() == pytest.approx(loss, abs=1e-14)
    np.testing.assert_allclose(torch.autograd.grad(actual, step.logp)[0].numpy(), slope, atol=1e-14)


@pytest.mark.t(7)
@pytest.mark.parametrize("width", [50, 500])
def test_dr_grpo_divides_by_the_budget_and_not_by_a_width(width: int) -> None:
    """A long extra row, as wide as a padded batch, does not change the others' gradients times the number of rows."""
    short = step_of([[3, 5], [2, 4]], limit=512, seed=1)
    wide = step_of([[3, 5], [2, 4], [width]], limit=512, seed=1)
    columns = ("logp", "logp_old", "advantage")
    wide = wide.having(**{c: torch.cat([getattr(short, c).detach(), getattr(wide, c)[14:].detach()]) for c in columns})
    wide = replace(wide, logp=wide.logp.requires_grad_())
    objective = Objective(aggregate=budget_mean)
    alone, mixed = (torch.autograd.grad(objective(objective.prepare(s)), s.logp)[0] for s in (short, wide))
    torch.testing.assert_close(mixed[:14] * 5, alone * 4, rtol=1e-13, atol=0)
