"""Returns-to-go against a loop; whitening over the tokens of an iteration."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from groupwise.advantages import WhitenedTokens, every_token
from groupwise.data import Batch, Logp, needs, pack, rollout_of
from groupwise.methods import ReturnsToGo
from tests.laws.batches import step_of, steps


@settings(max_examples=30)
@given(batch=steps())
def test_every_token_has_its_samples_number(batch: Batch) -> None:
    expected = [batch.reward[s].item() for s in batch.sequences.index.tolist()]
    assert every_token(batch.reward, batch).tolist() == expected


def loop(batch: Batch, gamma: float, kl: float) -> list[float]:
    """The recursion, backwards over each answer."""
    sample_of = batch.sequences.index.tolist()
    returns = [0.0] * len(sample_of)
    for t in reversed(range(len(sample_of))):
        last = t + 1 == len(sample_of) or sample_of[t + 1] != sample_of[t]
        reward = batch.reward[sample_of[t]].item() if last else 0.0
        if kl:
            reward -= kl * (batch.logp_old[t] - batch[Logp("reference")][t]).item()
        returns[t] = reward + (0.0 if last else gamma * returns[t + 1])
    return returns


@settings(max_examples=30)
@given(batch=steps(), gamma=st.sampled_from([0.0, 0.5, 0.97, 1.0]), kl=st.sampled_from([0.0, 0.1]))
def test_returns_to_go_equal_the_recursion(batch: Batch, gamma: float, kl: float) -> None:
    actual = ReturnsToGo(gamma, kl)(batch.reward, batch).tolist()
    assert actual == pytest.approx(loop(batch, gamma, kl), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("gamma", [0.5, 0.9, 0.999, 1.0])
def test_returns_of_long_answers_are_finite_and_separate(gamma: float) -> None:
    batch = step_of([[3000, 2, 1], [1500]], limit=4096, seed=2)
    actual = ReturnsToGo(gamma, 0.05)(batch.reward, batch)
    assert torch.isfinite(actual).all()
    assert actual.tolist() == pytest.approx(loop(batch, gamma, 0.05), rel=1e-10, abs=1e-12)


def test_without_discount_or_kl_returns_are_the_reward() -> None:
    batch = step_of([[3, 0, 2], [4]])
    torch.testing.assert_close(ReturnsToGo()(batch.reward, batch), every_token(batch.reward, batch), rtol=0, atol=0)


@pytest.mark.parametrize("gamma", [-0.1, 1.1])
def test_gamma_is_between_0_and_1(gamma: float) -> None:
    with pytest.raises(ValueError, match="0 <= gamma <= 1"):
        ReturnsToGo(gamma)


@pytest.mark.t(24)
def test_without_kl_no_reference_is_needed() -> None:
    batch = step_of([[3, 2]]).having(measures={}, logp_old=None)
    assert needs(ReturnsToGo()) == needs(WhitenedTokens(ReturnsToGo())) == frozenset()
    ReturnsToGo()(batch.reward, batch)
    measures = frozenset({Logp("policy"), Logp("teacher")})
    assert (
        needs(ReturnsToGo(kl_coefficient=0.1, reference_model="teacher"))
        == needs(WhitenedTokens(ReturnsToGo(kl_coefficient=0.1, reference_model="teacher")))
        == measures
    )


@pytest.mark.parametrize("ddof", [0, 1])
@settings(max_examples=30)
@given(batch=steps())
def test_whitened_tokens_have_mean_0_and_deviation_1(ddof: int, batch: Batch) -> None:
    assume(batch.tokens > 1 and batch.sequences.live > 1)
    x = WhitenedTokens(ddof=ddof, eps=0.0)(batch.reward, batch)
    assert x.mean().item() == pytest.approx(0, abs=1e-9)
    assert x.std(correction=ddof).item() == pytest.approx(1, rel=1e-9)


def test_whitened_tokens_of_equal_credit_are_0() -> None:
    batch = pack([rollout_of([0.1] * 3, lengths=[3, 2, 7])])
    assert WhitenedTokens()(batch.verdict_score, batch).tolist() == [0.0] * 12


def test_whitening_is_over_the_whole_iteration() -> None:
    batch = step_of([[3, 2], [4, 1]])
    part = WhitenedTokens()
    half = batch.take([0, 1])
    assert not torch.allclose(part(half.reward, half), part(batch.reward, batch)[:5])
