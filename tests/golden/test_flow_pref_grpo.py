"""Pref-GRPO: win rates of judged pairs, the worked numbers of the specification, and the whole path against NumPy."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise.advantages import EachStandardised, Standardised
from groupwise.core import Usage
from groupwise.data import Batch, Draw, Outcome, Prompt, Rollout, Sample, Sampler, Strategy, Verdict, pack
from groupwise.methods import HigherScore, PairJudge, PairwiseWinRatesStrategy, pref_grpo
from tests.golden import papers_flow as papers
from tests.golden.flow_groups import compare_whole_path, made_up, near
from tests.rollout.fakes import FakeEngine, sampler_of

DRAW = Draw(0, Prompt("p", (3,)), 4)
WORKED = {(0, 1): 1.0, (0, 2): 1.0, (0, 3): 0.5, (1, 2): 0.0, (1, 3): 0.0, (2, 3): 1.0}


class FromDirectory(Strategy):
    """Returns these samples."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.samples = tuple(samples)

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        return Rollout(draw, self.samples)


def answers(scores: Sequence[float]) -> list[Sample]:
    return [
        Sample(context=(3,), stream=(i,), tokens=(1,), origin=(0,), logp=(-1.0,), verdict=Verdict(Outcome.scored, x))
        for i, x in enumerate(scores)
    ]


def judged(judge: Any, samples: Sequence[Sample]) -> Batch:
    strategy = PairwiseWinRatesStrategy(judge, FromDirectory(samples))
    sampler = sampler_of(FakeEngine(lambda request: ()), DRAW, verdict_deadline=0.2)
    return pack([asyncio.run(strategy(DRAW, sampler))])


def wins(judge: Any, samples: Sequence[Sample]) -> list[float]:
    return judged(judge, samples).subscores["wins"].tolist()


async def by_table(prompt: Prompt, first: Sample, second: Sample) -> float:
    return WORKED[first.stream[0], second.stream[0]]


def test_worked_wins_and_advantages() -> None:
    batch = judged(by_table, [replace(s, verdict=Verdict(Outcome.wrong, subscores={"clip": x})) for s, x in zip(
        answers([0.0] * 4), (0.30, 0.28, 0.33, 0.29)
    )])  # fmt: skip
    r = batch.subscores["wins"]
    assert r.tolist() == [0.833, 0.0, 0.667, 0.5] and batch.subscores["unjudged"].tolist() == [0.0] * 4
    near(Standardised(ddof=1, eps=1e-8)(r, batch), [0.925026, -1.388928, 0.463902, 0.0], 1e-6)
    mixed = pref_grpo(wins=0.4, subscores=(("clip", 0.6),)).advantage[0]
    assert isinstance(mixed, EachStandardised)
    near(mixed(r, batch), [0.370010, -1.111063, 1.018799, -0.277746], 1e-6)


def test_the_order_of_scores_decides_and_not_their_size() -> None:
    scores = [0.3, -2.0, 5.0, 0.1]
    assert wins(HigherScore(), answers(scores)) == [0.667, 0.0, 1.0, 0.333]
    assert wins(HigherScore(), answers(np.exp(scores).tolist())) == [0.667, 0.0, 1.0, 0.333]
    assert wins(HigherScore(), answers(scores)[::-1]) == [0.333, 1.0, 0.0, 0.667]


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=6), st.floats(0, 1), st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_wins_add_up_to_the_pairs_and_follow_their_sample(scores: list[float], margin: float, random: Random) -> None:
    samples, judge = answers(scores), HigherScore(tie_margin=margin)
    rates = wins(judge, samples)
    assert abs(sum(rates) - len(scores) / 2) <= 0.0005 * len(scores) + 1e-9
    order = random.sample(range(len(scores)), len(scores))
    assert wins(judge, [samples[i] for i in order]) == [rates[i] for i in order]


def test_small_differences_are_ties_for_a_judge_with_a_margin() -> None:
    samples = answers([0.701, 0.699, 0.700, 0.700])
    near(Standardised(ddof=1, eps=1e-8)(pack([Rollout(DRAW, tuple(samples))]).verdict_score, pack([
        Rollout(DRAW, tuple(samples))
    ])), [1.22473, -1.22473, 0, 0], 3e-5)  # fmt: skip
    batch = judged(HigherScore(tie_margin=0.01), samples)
    assert batch.subscores["wins"].tolist() == [0.5] * 4
    assert not Standardised(ddof=1, eps=1e-8)(batch.subscores["wins"], batch).any()


def test_a_judge_of_a_verdict_part() -> None:
    samples = [s.add_subscores({"look": x}) for s, x in zip(answers([5.0, 1.0, 3.0]), (0.1, 0.2, 0.3))]
    assert wins(HigherScore("look"), samples) == [0.0, 0.5, 1.0]
    with pytest.raises(ValueError, match="margin"):
        HigherScore(tie_margin=-1.0)
    assert isinstance(HigherScore(), PairJudge)


def test_a_failed_call_is_a_tie_and_is_counted() -> None:
    async def sometimes(prompt: Prompt, first: Sample, second: Sample) -> Any:
        pair = first.stream[0], second.stream[0]
        if pair == (0, 1):
            raise RuntimeError("no answer")
        if pair == (0, 2):
            await asyncio.sleep(60)
        return {(0, 3): 2.0, (1, 2): "first"}.get(pair, 1)

    batch = judged(sometimes, answers([0.0] * 4))
    assert batch.subscores["wins"].tolist() == [0.5, 0.667, 0.667, 0.167]
    near(batch.subscores["unjudged"], [1, 2 / 3, 2 / 3, 1 / 3], 1e-12)

    async def lost(prompt: Prompt, first: Sample, second: Sample) -> float:
        raise Usage("the judge has no key", fix="set one")

    with pytest.raises(Usage, match="no key"):
        judged(lost, answers([0.0, 1.0]))


def test_pairs_are_of_one_group_of_answers_with_verdicts() -> None:
    first, second, third, fourth = answers([1.0, 2.0, 3.0, 4.0])
    broken = second.with_verdict(Verdict(Outcome.unverifiable, cause="no state"))
    samples = [first, broken, replace(third, group=1), replace(fourth, role="hint")]
    rollout = asyncio.run(
        PairwiseWinRatesStrategy(inner_strategy=FromDirectory(samples))(
            DRAW, sampler_of(FakeEngine(lambda r: ()), DRAW)
        )
    )
    parts = [s.verdict.subscores for s in rollout.samples if s.verdict is not None]
    assert parts == [{"wins": 0.0, "unjudged": 0.0}, {}, {"wins": 0.0, "unjudged": 0.0}, {}]


def test_what_the_strategy_inside_passes_back_stays() -> None:
    class Noting(FromDirectory):
        async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
            return Rollout(replace(draw, metadata={"level": 2}), self.samples, cause="none")

    strategy = PairwiseWinRatesStrategy(inner_strategy=Noting(answers([1.0, 2.0])))
    rollout = asyncio.run(strategy(DRAW, sampler_of(FakeEngine(lambda r: ()), DRAW)))
    assert rollout.draw.metadata == {"level": 2} and rollout.cause == "none"


def paper_pref_grpo(groups, new, old, other, c=1e-4):  # type: ignore[no-untyped-def]
    """GRPO-Guard's loss with its ratio `exp(mean dmu e)` and sample z-scores of the win rates, by loops."""
    total, count = 0.0, 0
    for samples, rates in groups:
        r = np.array(rates)
        for steps, a in zip(samples, np.clip((r - r.mean()) / (r.std(ddof=1) + 1e-8), -5, 5)):
            for k in steps:
                mean, std = papers.flow_step(k.x, new(k.x, k.t, k.word), k.t, k.s)
                mean_old = papers.flow_step(k.x, old(k.x, k.t, k.word), k.t, k.s)[0]
                bias = ((mean - k.mean) ** 2).mean() / (2 * std**2)
                gap = papers.log_density(k.y, mean, std) - papers.log_density(k.y, mean_old, std)
                total += papers.clipped(a, np.exp(std * (gap + bias)), c) / (k.t - k.s)
                count += 1
    return total / count


@pytest.mark.parametrize("moved", [1e-6, 1e-2])
def test_whole_path(moved: float) -> None:
    method, rng = pref_grpo(steps=4), np.random.default_rng(6)
    assert method.denoise is not None
    groups, batch = made_up(method.denoise, rng, part="wins")
    compare_whole_path(method, paper_pref_grpo, groups, batch, rng, moved)
