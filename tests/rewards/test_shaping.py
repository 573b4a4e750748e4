from dataclasses import replace

import pytest
import torch

from groupwise.core import Usage
from groupwise.data import Batch, Finish, Logp, Outcome, Subscore, Verdict, needs, pack, rollout_of
from groupwise.methods import OverlongPenalty, SequenceKLInReward, TruncatedAnswerReward
from groupwise.rewards import AddSubscore, Correctness, Score
from tests.laws.batches import step_of


def batch_of(scores: list[float], lengths: list[int] | None = None, limit: int = 16) -> Batch:
    return pack([rollout_of(scores, lengths=lengths, limit=limit)])


def test_correctness_creates_the_reward_from_the_outcome() -> None:
    b = batch_of([1.0, 0.0, 0.25, 1.0]).having(verdict_score=torch.tensor([7.0, 7.0, 7.0, 0.0]).double())
    previous = torch.full_like(b.verdict_score, 99.0)
    assert Correctness()(previous, b).tolist() == [1, 0, 0, 1]
    assert Correctness(correct_reward=0.1, wrong_reward=-0.3)(previous, b).tolist() == [0.1, -0.3, -0.3, 0.1]


def test_correctness_of_a_scored_answer_lies_between_wrong_and_right() -> None:
    outcomes = [Outcome.correct, Outcome.wrong, Outcome.scored, Outcome.scored, Outcome.scored]
    b = batch_of([1.0] * 5).having(
        outcome=torch.tensor(outcomes), verdict_score=torch.tensor([7.0, 7.0, 0.0, 0.75, 1.0]).double()
    )
    assert Correctness(correct_reward=1.0, wrong_reward=-1.0)(b.verdict_score, b).tolist() == [
        1.0,
        -1.0,
        -1.0,
        0.5,
        1.0,
    ]


def test_score_creates_the_reward_from_scores_and_from_outcomes_without_one() -> None:
    verdicts = [
        Verdict(Outcome.scored, -2.5),
        Verdict(Outcome.correct),
        Verdict(Outcome.wrong),
        Verdict(Outcome.correct, 0.5),
    ]
    rollout = rollout_of([1.0] * 4)
    b = pack([replace(rollout, samples=tuple(s.with_verdict(v) for s, v in zip(rollout.samples, verdicts)))])
    previous = torch.full_like(b.verdict_score, 99.0)
    assert Score()(previous, b).tolist() == [-2.5, 1.0, 0.0, 0.5]
    assert Score(scale=2.0, offset=1.0)(previous, b).tolist() == [-4.0, 3.0, 1.0, 2.0]


@pytest.mark.t(31)
@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_overlong_at_every_corner_of_equation_13(factor: float) -> None:
    """Lengths L - cache, L - cache / 2, L, L + 1, and one token below and above the first."""
    limit, cache = 100, 20
    lengths = [0, 79, 80, 81, 90, 99, 100, 101, 500]
    b = batch_of([1.0] * len(lengths), [1] * len(lengths), limit).having(length=torch.tensor(lengths))
    actual = OverlongPenalty(cache, factor)(torch.zeros(len(lengths), dtype=torch.float64), b).tolist()
    assert actual == pytest.approx([factor * x for x in (0, 0, 0, -0.05, -0.5, -0.95, -1, -1, -1)], abs=1e-15)


def test_overlong_reads_each_samples_limit() -> None:
    b = batch_of([1.0, 1.0], [8, 8]).having(length_limit=torch.tensor([8, 16]))
    assert OverlongPenalty(4)(b.verdict_score, b).tolist() == [0, 1]


def test_a_buffer_larger_than_the_budget_is_refused_with_both_numbers() -> None:
    b = batch_of([1.0], [4], limit=16)
    OverlongPenalty(16)(b.verdict_score, b)
    with pytest.raises(Usage) as e:
        OverlongPenalty(17)(b.verdict_score, b)
    assert "17" in str(e.value) and "16" in str(e.value)
    short = batch_of([1.0, 1.0], [2, 2]).having(
        length_limit=torch.tensor([7, 16])
    )  # a long prompt left room for 7 tokens
    assert OverlongPenalty(8)(short.verdict_score, short).tolist() == [1 - 3 / 8, 1.0]


@pytest.mark.parametrize("buffer", [0, -1, 1.5, float("nan")])
def test_a_buffer_is_whole_tokens_or_a_share(buffer: float) -> None:
    with pytest.raises(ValueError, match="whole number of tokens, or a share"):
        OverlongPenalty(buffer)


@pytest.mark.parametrize("limit, tokens", [(20480, 4096), (16, 3), (1, 1)])
def test_a_buffer_below_1_is_a_share_of_the_budget(limit: int, tokens: int) -> None:
    lengths = [0, limit - tokens, limit - tokens // 2, limit]
    b = batch_of([1.0] * 4, [1] * 4, limit).having(length=torch.tensor(lengths))
    assert OverlongPenalty(0.2)(b.verdict_score, b).tolist() == OverlongPenalty(tokens)(b.verdict_score, b).tolist()


def test_truncated_is_replaces_the_reward_of_truncated_answers() -> None:
    b = batch_of([1.0, 1.0, 1.0]).having(finish=torch.tensor([Finish.stop, Finish.length, Finish.cut]))
    assert TruncatedAnswerReward(0.0)(b.verdict_score, b).tolist() == [1, 0, 1]


def test_kl_in_the_reward_is_the_sum_over_the_sample() -> None:
    b = step_of([[3, 0, 2]])
    reference = b[Logp("reference")]
    b = b.having(measures={Logp("teacher"): reference})
    actual = SequenceKLInReward(0.5, reference_model="teacher")(b.reward, b)
    gap = (b.logp_old - reference).tolist()
    expected = [b.reward[0] - 0.5 * sum(gap[:3]), b.reward[1], b.reward[2] - 0.5 * sum(gap[3:])]
    assert actual.tolist() == pytest.approx([float(x) for x in expected], rel=1e-14)


@pytest.mark.t(24)
def test_kl_in_reward_of_0_needs_no_measure() -> None:
    b = step_of([[3, 2]]).having(logp_old=None)
    assert needs(SequenceKLInReward(0.0)) == frozenset()
    assert needs(SequenceKLInReward(0.1)) == frozenset({Logp("policy"), Logp("reference")})
    assert SequenceKLInReward(0.0)(b.reward, b) is b.reward


def test_rewards_stay_float64() -> None:
    b = step_of([[3, 2]])
    half = b.having(logp_old=b.logp_old.float(), measures={Logp("reference"): b[Logp("reference")].float()})
    for part in (Correctness(), OverlongPenalty(4), TruncatedAnswerReward(0.0), SequenceKLInReward(0.1)):
        assert part(half.reward, half).dtype == torch.float64


def test_add_part_adds_the_weighted_part_and_declares_it() -> None:
    b = pack([rollout_of([1.0, 0.0], subscores={"format": [0.25, 1.0]}), rollout_of([1.0])])
    assert needs(AddSubscore("format")) == frozenset({Subscore("format")})
    assert AddSubscore("format", 2.0)(b.verdict_score, b).tolist() == [1.5, 2.0, 1.0]
    with pytest.raises(Usage, match="no verdict has a subscore called 'fromat'"):
        AddSubscore("fromat")(b.verdict_score, b)
