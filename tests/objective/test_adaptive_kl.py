"""The adaptive KL coefficient against its formula."""

import pytest
import torch

from groupwise.data import Batch, Logp, needs
from groupwise.objective import AdaptiveKL
from tests.laws.batches import step_of


def with_kl(per_token: list[list[float]]) -> Batch:
    """One group of answers whose k1 per token is given."""
    b = step_of([[len(row) for row in per_token]])
    k1 = torch.tensor([x for row in per_token for x in row], dtype=torch.float64)
    return b.having(measures={Logp("reference"): b.logp_old - k1})


@pytest.mark.parametrize(
    ("per_token", "factor"),
    [
        ([[0.1, 0.1], [0.1]], 1.0),  # at the target
        ([[0.0, 0.22], [0.11, 0.11, 0.11]], 1 + 0.1 * 2 / 50),  # a mean over samples of means over tokens
        ([[9.0], [9.0, 9.0]], 1 + 0.2 * 2 / 50),  # at most 20 % of n / horizon
        ([[-9.0], [0.0]], 1 - 0.2 * 2 / 50),
        ([[0.11], []], 1 + 0.1 * 2 / 50),  # an answer without tokens has no KL
        ([[], []], 1.0),
    ],
)
def test_the_coefficient_follows_the_kl(per_token: list[list[float]], factor: float) -> None:
    state = AdaptiveKL(start_value=0.5, target_kl=0.1, horizon=50)
    assert state.init() == 0.5
    assert state(2.0, with_kl(per_token), {}) == pytest.approx(2.0 * factor, rel=1e-12)


def test_it_needs_the_log_probs_it_reads_and_refuses_invalid_constants() -> None:
    assert needs(AdaptiveKL(model="teacher")) == frozenset({Logp("policy"), Logp("teacher")})
    for change in ({"start_value": 0.0}, {"target_kl": -1.0}, {"horizon": 0.0}):
        with pytest.raises(ValueError, match="above 0"):
            AdaptiveKL(**change)
