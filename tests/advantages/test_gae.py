"""GAE: the worked numbers of PPO, and an independent recursion in NumPy over all tokens, environment included."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from groupwise.advantages import WhitenedTokens
from groupwise.data import ENVIRONMENT, Batch, Logp, Rollout, Value, needs, pack, rollout_of
from groupwise.methods import GAE, ReturnsToGo

SETTINGS = [(1.0, 1.0), (1.0, 0.95), (1.0, 0.0), (0.99, 0.95)]


def valued(values: Sequence[float], scores: Sequence[float] = (1.0,), lengths: Sequence[int] = (4,)) -> Batch:
    batch = pack([rollout_of(list(scores), lengths=list(lengths))])
    return batch.having(measures={Value("critic"): torch.tensor(values, dtype=torch.float64)})


@pytest.mark.parametrize(
    ("gamma", "lam", "advantages", "returns"),
    [
        (1.0, 1.0, [0.8, 0.6, 0.4, 0.5], [1.0, 1.0, 1.0, 1.0]),
        (1.0, 0.95, [0.7284375, 0.55625, 0.375, 0.5], [0.9284375, 0.95625, 0.975, 1.0]),
        (1.0, 0.0, [0.2, 0.2, -0.1, 0.5], [0.4, 0.6, 0.5, 1.0]),
        (0.99, 0.95, [0.701535, 0.537518, 0.36525, 0.5], [0.901535, 0.937518, 0.96525, 1.0]),
    ],
)
def test_worked_numbers(gamma: float, lam: float, advantages: list[float], returns: list[float]) -> None:
    values = [0.2, 0.4, 0.6, 0.5]
    batch = valued(values)
    actual = GAE(gamma, lam)(batch.verdict_score, batch)
    assert actual.tolist() == pytest.approx(advantages, abs=5e-7)
    assert (actual + batch[Value()]).tolist() == pytest.approx(returns, abs=5e-7)


def recursion(
    reward: np.ndarray, value: np.ndarray, mask: np.ndarray, gamma: float, lam: float
) -> tuple[np.ndarray, np.ndarray]:
    """Backwards over rows of padded tokens. A masked token leaves the next value and advantage as they are."""
    rows, width = reward.shape
    advantage = np.zeros((rows, width))
    following, last = np.zeros(rows), np.zeros(rows)
    for t in reversed(range(width)):
        delta = reward[:, t] + gamma * following - value[:, t]
        new = delta + gamma * lam * last
        live = mask[:, t]
        following = np.where(live, value[:, t], following)
        last = np.where(live, new, last)
        advantage[:, t] = np.where(live, last, 0.0)
    return advantage, advantage + value


def masked(masks: Sequence[Sequence[bool]], roles: Sequence[str]) -> Batch:
    """One rollout with a sample for each mask; tokens outside a mask are the environment's."""
    rollout = rollout_of([float(i % 2) for i in range(len(masks))], lengths=[len(m) for m in masks])
    samples = tuple(
        replace(
            s, role=role, origin=tuple(0 if own else ENVIRONMENT for own in mask),
            logp=tuple(-1.0 if own else float("nan") for own in mask),
        )
        for s, role, mask in zip(rollout.samples, roles, masks)
    )  # fmt: skip
    return pack([Rollout(rollout.draw, samples)], roles=("answer", "critique"))


MASKS = (
    (True, True, False, True),
    (True, False, False, True, True, True, False),
    (False, True),
    (True,),
    (False, False),
    (True, True, True, True, True, True),
)
ROLES = ("answer", "critique", "answer", "critique", "answer", "answer")


@pytest.mark.parametrize(("gamma", "lam"), SETTINGS)
@pytest.mark.parametrize("kl", [0.0, 0.3])
def test_it_equals_the_recursion_over_all_tokens(gamma: float, lam: float, kl: float) -> None:
    """Samples of two roles, with tokens of an environment inside, at the start and at the end."""
    draws = np.random.default_rng(3)
    batch = masked(MASKS, ROLES)
    width = max(map(len, MASKS))
    mask = np.array([[*m, *[False] * (width - len(m))] for m in MASKS])
    value, old, reference = (draws.normal(size=mask.shape) for _ in range(3))
    reward = -kl * (old - reference) * mask
    for row, m in enumerate(MASKS):
        own = np.flatnonzero(m)
        if len(own):
            reward[row, own[-1]] += batch.verdict_score[row].item()
    advantage, _ = recursion(reward, value, mask, gamma, lam)

    columns = (torch.from_numpy(x[mask]) for x in (value, old, reference))
    values, logp_old, logp_reference = columns
    batch = batch.having(logp_old=logp_old, measures={Value(): values, Logp("reference"): logp_reference})
    actual = GAE(gamma, lam, kl_coefficient=kl)(batch.verdict_score, batch)
    np.testing.assert_allclose(actual.numpy(), advantage[mask], rtol=1e-12, atol=1e-13)


def test_tokens_of_an_environment_are_skipped() -> None:
    batch = masked([(True, True, False, True)], ["answer"])
    batch = batch.having(measures={Value(): torch.tensor([0.2, 0.4, 0.5], dtype=torch.float64)})
    one = torch.ones(1, dtype=torch.float64)
    assert GAE(1.0, 0.95)(one, batch).tolist() == pytest.approx([0.74625, 0.575, 0.5], abs=1e-12)


def test_with_lam_1_the_return_is_the_discounted_reward() -> None:
    draws = torch.Generator().manual_seed(0)
    batch = valued(torch.randn(9, generator=draws).tolist(), [1.0, 0.0, 1.0], [4, 0, 5])
    actual = GAE(0.9, 1.0)(batch.verdict_score, batch) + batch[Value()]
    torch.testing.assert_close(actual, ReturnsToGo(0.9)(batch.verdict_score, batch), rtol=1e-12, atol=1e-13)


def test_without_values_it_is_reinforce_and_whitening_is_over_all_tokens() -> None:
    batch = valued([0.0] * 5, [1.0, 0.0], [2, 3])
    assert GAE(1.0, 1.0)(batch.verdict_score, batch).tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]
    white = WhitenedTokens(GAE(1.0, 1.0))(batch.verdict_score, batch).numpy()
    expected = (np.array([1, 1, 0, 0, 0]) - 0.4) / np.std([1, 1, 0, 0, 0])
    np.testing.assert_allclose(white, expected, rtol=1e-7)


def test_needs_and_bounds() -> None:
    assert needs(WhitenedTokens(GAE(critic="other"))) == {Value("other")}
    assert needs(GAE(kl_coefficient=0.1)) == {Value("critic"), Logp("policy"), Logp("reference")}
    for gamma, lam in ((1.1, 0.5), (1.0, -0.1)):
        with pytest.raises(ValueError, match="gamma and lam are out of range"):
            GAE(gamma, lam)
