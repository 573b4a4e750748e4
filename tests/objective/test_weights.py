import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings

from groupwise.data import Batch, Logp, needs, pack, rollout_of
from groupwise.objective import MaskedImportance, Objective, SequenceTruncatedImportance, TruncatedImportance
from tests.laws.batches import step_of, steps

ALL = [TruncatedImportance(2.0), SequenceTruncatedImportance(2.0), MaskedImportance(0.5, 5.0)]


@pytest.mark.t(25)
@pytest.mark.parametrize("part", ALL)
@settings(max_examples=30)
@given(step=steps())
def test_with_equal_policies_every_weight_is_exactly_1(part: Any, step: Batch) -> None:
    assert (part(step.having(logp_engine=step.logp_old)) == 1).all()


@pytest.mark.t(26)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_row_of_4000_tokens_with_a_gap_of_a_thousandth(sign: int) -> None:
    """Token weights are within a thousandth of 1; the product is e^4 and is cut at its cap."""
    step = step_of([[4000, 3]], limit=4096)
    step = step.having(logp_engine=step.logp_old - sign * 1e-3)
    for part in (TruncatedImportance(2.0), MaskedImportance(0.5, 5.0)):
        assert torch.allclose(part(step), torch.tensor(math.exp(sign * 1e-3), dtype=torch.float64), rtol=1e-12)
    whole = SequenceTruncatedImportance(2.0)(step)
    assert whole[0].item() == pytest.approx(2.0 if sign > 0 else math.exp(-4), rel=1e-9)
    assert whole[-1].item() == pytest.approx(math.exp(sign * 3e-3), rel=1e-9)


@pytest.mark.parametrize("part", ALL)
def test_weights_of_large_gaps_are_finite_and_bounded(part: Any) -> None:
    step = step_of([[3, 2]])
    for gap in (1e3, -1e3, 1e30):
        weight = part(step.having(logp_engine=step.logp_old - gap))
        assert torch.isfinite(weight).all() and (weight >= 0).all() and (weight <= part.cap).all()


def sequences_of_two(vocabulary: int) -> tuple[Batch, torch.Tensor, torch.Tensor]:
    """Every answer of two tokens, with its probability under the learner and under the engine."""
    rng = torch.Generator().manual_seed(4)
    old, engine = (torch.randn(1 + vocabulary, vocabulary, generator=rng, dtype=torch.float64) for _ in range(2))
    old, engine = old.log_softmax(1), (old + 0.3 * engine).log_softmax(1)
    answers = list(itertools.product(range(vocabulary), repeat=2))

    def logp(logprobs: torch.Tensor) -> torch.Tensor:
        return torch.stack([x for a, b in answers for x in (logprobs[0, a], logprobs[1 + a, b])])

    b = pack([rollout_of([0.0] * len(answers), lengths=[2] * len(answers))])
    b = b.having(logp_old=logp(old), logp_engine=logp(engine))
    return b, b.sequences.total(b.logp_old).exp(), b.sequences.total(b.logp_engine).exp()


@pytest.mark.t(27)
def test_the_product_of_rhos_is_unbiased_for_sequences() -> None:
    """By enumeration: without an active cap, unbiased for any function of the answer. A cap only reduces weights."""
    b, p, q = sequences_of_two(4)
    value = torch.arange(16, dtype=torch.float64)
    weight = SequenceTruncatedImportance(1e6)(b)[::2]
    assert (q * weight * value).sum().item() == pytest.approx((p * value).sum().item(), rel=1e-12)
    assert (q * value).sum().item() != pytest.approx((p * value).sum().item(), rel=1e-3)
    capped = SequenceTruncatedImportance(1.1)(b)[::2]
    assert 0 < (q * capped).sum() < 1 and (capped <= weight).all()


@pytest.mark.t(27)
def test_token_weights_are_unbiased_for_the_next_token_alone() -> None:
    """They are exact for the first token. For the second, the first token keeps the engine's distribution."""
    b, p, q = sequences_of_two(4)
    weight = TruncatedImportance(1e6)(b)
    first, second = weight[::2], weight[1::2]
    value = torch.arange(16, dtype=torch.float64)
    assert (q * first * (value // 4)).sum().item() == pytest.approx((p * (value // 4)).sum().item(), rel=1e-12)
    engine_then_learner = (q / (b.logp_engine[1::2] - b.logp_old[1::2]).exp() * value).sum().item()
    assert (q * second * value).sum().item() == pytest.approx(engine_then_learner, rel=1e-12)
    assert engine_then_learner != pytest.approx((p * value).sum().item(), rel=1e-3)
    assert torch.equal(MaskedImportance(0.0, 1e6)(b), weight)


@pytest.mark.parametrize("part", ALL)
def test_weights_are_constants(part: Any) -> None:
    step = step_of([[3, 2]])
    step = step.having(logp_old=step.logp * 1.1)
    assert not part(step).requires_grad
    assert not Objective(weights=(part,)).prepare(step).weight.requires_grad


@pytest.mark.parametrize("part", ALL)
def test_a_written_token_has_rho_1(part: Any) -> None:
    step = step_of([[2, 1]])
    engine = torch.where(torch.tensor([True, False, False]), torch.nan, step.logp_old - 0.1)
    weight = part(step.having(logp_engine=engine))
    assert torch.isfinite(weight).all()
    assert weight[0].item() == (1.0 if not isinstance(part, SequenceTruncatedImportance) else weight[1].item())
    assert weight[1].item() == pytest.approx(math.exp(0.1))


@pytest.mark.parametrize("part", ALL)
def test_weights_need_the_old_policy(part: Any) -> None:
    assert needs(Objective(weights=(part,))) == frozenset({Logp("policy")})


@pytest.mark.t(25)
def test_bounds_that_exclude_1_are_refused() -> None:
    for make in (
        lambda: TruncatedImportance(0.9),
        lambda: SequenceTruncatedImportance(0.9),
        lambda: MaskedImportance(1.1, 2.0),
        lambda: MaskedImportance(0.5, 0.9),
        lambda: MaskedImportance(-0.1, 2.0),
    ):
        with pytest.raises(ValueError, match="equal policies have weight 1"):
            make()
