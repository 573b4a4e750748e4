"""Methods that spend answers where they teach: curricula, strategies and allocations against their worked examples."""

import asyncio
import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from groupwise.advantages import Bounded
from groupwise.core import Usage
from groupwise.data import (
    ENVIRONMENT,
    WRITTEN,
    Draw,
    Finish,
    GenerationRequest,
    Ids,
    Outcome,
    Prompt,
    Rollout,
    Sample,
    Verdict,
    pack,
    rollout_of,
)
from groupwise.methods import (
    EarlyStoppingTurns,
    Knapsack,
    MetaPredictions,
    Method,
    PilotAllocation,
    SuccessTrackerCurriculum,
    ThompsonSampling,
    TrackedBaselineStrategy,
    hora,
    knapsack_rl,
    masa,
    spo,
    ton,
)
from groupwise.methods.sampling.hora import further_answers, gain
from groupwise.methods.sampling.knapsack_rl import worth
from groupwise.methods.sampling.masa import GroupStatistics, ParsedPrediction, agreement, corrected, predicted
from groupwise.methods.sampling.selective_rollout import actions, divergence
from groupwise.objective import sequence_mean, turn_mean
from groupwise.rollout import RolloutBuffer, RolloutSetting, Shuffled
from groupwise.rollout.prompt_template import worded
from groupwise.rollout.sampling_round import SamplingRound
from groupwise.training.loop import compute_advantages
from tests.models.directories import bytes_
from tests.rollout.fakes import FakeEngine, NumberedTask, always_correct, judged_by, sampler_of, sampling, tokenizer
from tests.rollout.test_turns import Replies


def of(draw: Draw, outcomes: Sequence[int]) -> Rollout:
    """A rollout of a draw with these outcomes, 1 for a correct answer."""
    return replace(rollout_of([float(x) for x in outcomes]), draw=draw)


def step(curriculum: Any, state: Any, task: Any, n: int, size: int, outcomes: Sequence[Sequence[int]] | None = None):
    """The draws of one iteration, and the state after it; the state has been JSON in between."""
    state, draws = curriculum.draw(json.loads(json.dumps(state)), task, n, size)
    rollouts = [of(d, outcomes[i] if outcomes else [1, *[0] * (d.n - 1)]) for i, d in enumerate(draws)]
    return draws, curriculum.end_iteration(curriculum.observe(state, rollouts), rollouts)


# VADE


def test_posterior_counts():
    """The figure's numbers: two prompts are drawn and one is not."""
    part, task = ThompsonSampling(), NumberedTask(3)
    state = {**part.init(task, 0), "counts": {"0": [0.1, 8.4], "1": [2.7, 5.3], "2": [9.0, 0.2]}}
    draws = [Draw(i, task[i], 8, metadata={"index": i}) for i in range(2)]
    after = part.end_iteration(state, [of(draws[0], [1] + [0] * 7), of(draws[1], [1] * 4 + [0] * 4)])
    assert after["counts"]["0"] == pytest.approx([1.02, 8.68])
    assert after["counts"]["1"] == pytest.approx([4.54, 5.06])
    assert after["counts"]["2"] == pytest.approx([8.991, 0.1998])


def test_value_of_a_success_rate():
    """The variant without sampling ranks by the posterior's mean: here 1, 4 and 7 tenths."""
    values = {0.13: 0.0984, 0.32: 0.1480, 1 / 3: 0.1481, 0.5: 0.1250, 0.9: 0.0090}
    for p, value in values.items():
        assert ThompsonSampling().worth(p) == pytest.approx(value, abs=5e-5)
        assert ThompsonSampling(ranking_criterion="variance").worth(p) == pytest.approx(p * (1 - p))
    task, counts = NumberedTask(3), {"0": [0.0, 8.0], "1": [3.0, 5.0], "2": [6.0, 2.0]}
    for value, order in (("gain", [1, 0, 2]), ("variance", [1, 2, 0])):
        part = ThompsonSampling(ranking_criterion=value, sample_posterior=False)
        _, draws = part.draw({**part.init(task, 0), "counts": counts}, task, 3, 8)
        assert [d.prompt.row["index"] for d in draws] == order


def test_an_iteration_draws_each_prompt_once():
    part, task = ThompsonSampling(), NumberedTask(9)
    state = part.init(task, 3)
    state, first = part.draw(state, task, 4, 2)
    state, max_refills = part.draw(state, task, 4, 2)
    assert len({d.prompt.id for d in (*first, *max_refills)}) == 8
    state, last = part.draw(state, task, 4, 2)
    assert len(last) == 1 and part.draw(state, task, 4, 2)[1] == [], "fewer than asked for"
    state = part.end_iteration(state, [of(d, [1, 0]) for d in first])
    assert len(part.draw(state, task, 9, 2)[1]) == 9
    again = part.draw(part.init(task, 3), task, 4, 2)[1]
    assert [d.prompt.id for d in again] == [d.prompt.id for d in first]
    assert [d.prompt.id for d in part.draw(part.init(task, 4), task, 4, 2)[1]] != [d.prompt.id for d in first]


def test_counts_are_bounded_and_a_solved_prompt_is_drawn_less_but_returns():
    part, task = ThompsonSampling(other_prompt_outcome_decay=0.9), NumberedTask(8)
    state, visits = part.init(task, 1), []
    for _ in range(120):
        state, draws = part.draw(state, task, 2, 8)
        solved = [d.prompt.row["index"] == 0 for d in draws]
        state = part.end_iteration(state, [of(d, [1] * 8 if s else [1, 0] * 4) for d, s in zip(draws, solved)])
        visits.append(any(solved))
        assert all(sum(pair) <= 8 / (1 - part.drawn_prompt_outcome_decay) + 1e-9 for pair in state["counts"].values())
    assert 0 < sum(visits[60:]) < 60 * 2 / 8 * 0.7, "a quarter of the draws would be uniform"


def test_scores_have_no_success_rate():
    part, task = ThompsonSampling(), NumberedTask(2)
    state, (draw,) = part.draw(part.init(task, 0), task, 1, 2)
    rollout = of(draw, [1, 0])
    scored = tuple(s.with_verdict(Verdict(Outcome.scored, 0.5)) for s in rollout.samples)
    with pytest.raises(Usage, match="set the smallest correct score"):
        part.end_iteration(state, [replace(rollout, samples=scored)])
    with pytest.raises(ValueError, match="out of range"):
        ThompsonSampling(drawn_prompt_outcome_decay=0.9, other_prompt_outcome_decay=0.5)


# Knapsack RL


@pytest.mark.parametrize(
    ("rates", "mean", "sizes"),
    [
        ([0.05, 0.25, 0.5, 0.9], 8, [11, 12, 7, 2]),
        ([0.0, 0.5], 8, [11, 5]),
        ([None, None, None], 8, [8, 8, 8]),
        ([0.5, 0.5], 8, [8, 8]),
        ([1.0, 1.0, None], 8, [8, 8, 8]),
        ([0.0, 1.0, 0.0], 8, [11, 2, 11]),
        ([1.0, 0.5], 8, [11, 5]),
    ],
    ids=["mixed", "surplus", "unknown", "equal", "solved", "never", "surplus to solved"],
)
def test_worked_allocations(rates: list[float | None], mean: int, sizes: list[int]):
    assert Knapsack().allocate(rates, mean) == sizes


def test_values_of_the_worked_allocation():
    rates = [0.05, 0.25, 0.5, 0.9]
    values = [0, 0.052734, 0.095581, 0.126544, 0.139216]
    assert [worth(n, 0.25) for n in (1, 2, 4, 8, 16)] == pytest.approx(values, abs=1e-6)
    assert worth(2, 0.75) == pytest.approx(0.017578, abs=1e-6)
    assert sum(map(worth, [11, 12, 7, 2], rates)) == pytest.approx(0.280295, abs=1e-6)
    assert sum(map(worth, [8] * 4, rates)) == pytest.approx(0.270882, abs=1e-6)
    confident = {0.05: 44, 0.25: 8, 0.5: 3, 0.9: 21}
    assert {p: Knapsack().enough(p) for p in confident} == confident


def best_value(rates: Sequence[float], total: int, least: int, most: int) -> float:
    """The largest total value, by dynamic programming over the prompts."""
    best = {0: 0.0}
    for p in rates:
        reached: dict[int, float] = {}
        for used, value in best.items():
            for n in range(least, most + 1):
                if used + n <= total:
                    reached[used + n] = max(reached.get(used + n, -1.0), value + worth(n, p))
        best = reached
    return best[total]


def test_allocation_equals_dynamic_programming():
    rng = np.random.default_rng(0)
    part = Knapsack(max_answers=9)
    for _ in range(20):
        rates = rng.uniform(0.02, 0.98, 4).tolist()
        sizes = part.allocate(rates, 5)
        assert sum(sizes) == 20 and all(2 <= n <= 9 for n in sizes)
        assert sum(map(worth, sizes, rates)) == pytest.approx(best_value(rates, 20, 2, 9), abs=1e-12)


def test_the_budget_is_spent_exactly():
    rng = np.random.default_rng(1)
    for _ in range(200):
        rates = rng.choice([None, 0.0, 1.0, 0.1, 0.5, 0.95], size=int(rng.integers(1, 9))).tolist()
        assert sum(Knapsack(max_answers=12).allocate(rates, 8)) == 8 * len(rates)


def test_unsolved_prompts_get_most_answers_and_the_rest_goes_to_mixed_ones():
    """A rate of 0.5 needs 3 answers, so 11 of the 16 are spare: 7 fit at the unsolved prompt, beside its 2."""
    assert Knapsack(max_answers=9).allocate([0.0, 0.5], 8) == [9, 7]


def test_rates_are_of_the_newest_outcomes():
    part, task = Knapsack(), NumberedTask(1)
    state = part.init(task, 0)
    _, state = step(part, state, task, 1, 7, [[1] * 7])
    assert part.rate(state["recent_outcomes"]["p0"]) is None, "seven outcomes are too few"
    _, state = step(part, state, task, 1, 8, [[0] * 8])
    assert part.rate(state["recent_outcomes"]["p0"]) == 7 / 15
    _, state = step(part, state, task, 1, 8, [[0] * 8])
    assert part.rate(state["recent_outcomes"]["p0"]) == 0, "the newest sixteen"
    _, state = step(part, state, task, 1, 8, [[1] * 20])
    assert part.rate(state["recent_outcomes"]["p0"]) == 1 and len(state["recent_outcomes"]["p0"]) == 20, (
        "all of the last visit"
    )


def test_bounded_advantage_and_refused_sizes():
    batch = pack([rollout_of([1.0] + [0.0] * 99)])
    assert float(compute_advantages(batch, knapsack_rl()).advantage.max()) == 5
    assert Bounded(1.0)(torch.tensor([-3.0, 0.5, 2.0]), batch).tolist() == [-1, 0.5, 1]
    with pytest.raises(ValueError, match="group_size = 4 or more"):
        knapsack_rl(group_size=3, min_answers=4)
    with pytest.raises(ValueError, match="out of range"):
        Knapsack(min_answers=0)


# HORA


def test_hit_utility():
    """H(1..4) after four pilots with 0 to 4 correct ones, as sums of gains."""
    table = [
        [0.1667, 0.2857, 0.3750, 0.4444],
        [0.3333, 0.5238, 0.6429, 0.7222],
        [0.5000, 0.7143, 0.8214, 0.8810],
        [0.6667, 0.8571, 0.9286, 0.9603],
        [0.8333, 0.9524, 0.9821, 0.9921],
    ]
    for correct, row in enumerate(table):
        gains = [gain(n, 1 + correct, 5 - correct) for n in range(4)]
        assert list(itertools.accumulate(gains)) == pytest.approx(row, abs=5e-5)
        assert gains == sorted(gains, reverse=True)


def hit(n: int, a: float, b: float) -> float:
    """1 - B(a, b + n) / B(a, b), by gamma functions."""
    return 1 - math.exp(math.lgamma(b + n) - math.lgamma(b) + math.lgamma(a + b) - math.lgamma(a + b + n))


def test_further_answers_are_the_best_of_all():
    posteriors = ((1.0, 5.0), (2.0, 4.0), (3.0, 3.0), (5.0, 1.0))
    sizes = further_answers(posteriors, 16)
    total = sum(hit(n, *one) for n, one in zip(sizes, posteriors))
    assert sizes == (5, 5, 4, 2) and total == pytest.approx(3.1111, abs=5e-5)
    everything = (x for x in itertools.product(range(17), repeat=4) if sum(x) == 16)
    assert total == pytest.approx(max(sum(hit(n, *one) for n, one in zip(x, posteriors)) for x in everything))
    assert further_answers(((2.0, 4.0),) * 3, 7) == (3, 2, 2) and further_answers(posteriors, 0) == (0,) * 4


def buffer_of(engine: FakeEngine, verifier: Any, count: int, curriculum: Any = Shuffled()) -> RolloutBuffer:  # noqa: B008
    setting = RolloutSetting(
        engine=engine, verifier=judged_by(verifier), tokenizer=tokenizer(), sampling=sampling(), seed=1
    )
    return RolloutBuffer(NumberedTask(count), curriculum, setting)


def test_pilots_share_a_budget():
    """Prompt k of four has k correct pilots, or all four: 8 answers per prompt on average, the pilots among them."""

    async def verifier(prompt: Prompt, sample: Sample) -> Verdict:
        await asyncio.sleep(0.001 * (prompt.row["index"] % 3))  # prompts finish in another order
        right = {0: 0, 1: 1, 2: 2, 3: 4}[prompt.row["index"]]
        return Verdict(Outcome.correct if sample.stream[0] < right else Outcome.wrong)

    method = hora()
    buffer = buffer_of(FakeEngine(lambda request: (4,)), verifier, 4)
    rollouts = asyncio.run(buffer.take(4, method.group_size, method.strategy, method.filter, 0)).sampled_rollouts
    sizes = {r.draw.prompt.row["index"]: len(r.samples) for r in rollouts}
    assert sizes == {0: 9, 1: 9, 2: 8, 3: 6}
    batch = compute_advantages(pack(rollouts), method)
    sums = batch.groups.total(batch.sequences.mean(batch.advantage))
    assert batch.groups.count == 4 and sums.abs().max() < 1e-9, "pilots and further answers are one group"


def test_a_round_waits_for_all_its_draws_but_those_that_ended():
    async def run() -> list[dict[int, Any]]:
        draws = SamplingRound([5, 3, 8])
        results = []

        async def first(draw: int, *values: Any) -> None:
            for value in values:
                results.append((draw, await draws.share(draw, value)))
            draws.end(draw)

        async with asyncio.timeout(10):  # a round that waits for ever fails here
            await asyncio.gather(first(3, "a", "b"), first(8, "c"), first(5, "d", "e"))
        return sorted(results, key=repr)

    everything, two = {5: "d", 3: "a", 8: "c"}, {5: "e", 3: "b"}
    results = asyncio.run(run())
    assert results == sorted([(3, everything), (8, everything), (5, everything), (3, two), (5, two)], key=repr)
    assert [list(values) for _, values in results if len(values) == 3] == [[5, 3, 8]] * 3, "in the order of the draws"


def test_a_draw_alone_shares_with_itself():
    engine = FakeEngine(lambda request: (7,))
    draw = Draw(0, Prompt("p", (5,)), 6)
    rollout = asyncio.run(PilotAllocation()(draw, sampler_of(engine, draw)))
    assert len(rollout.samples) == 6
    with pytest.raises(ValueError, match="group_size = 5 or more"):
        hora(group_size=4)


# TON


def test_ton_advantages():
    """Correct, malformed, correct, wrong: rewards 2, 0, 2, 1."""
    rollout = rollout_of([1.0, 0.0, 1.0, 0.0])
    malformed = rollout.samples[1].with_verdict(Verdict(Outcome.malformed))
    samples = (rollout.samples[0], malformed, *rollout.samples[2:])
    batch = pack([replace(rollout, samples=samples)])
    a = compute_advantages(batch, ton())
    assert a.reward.tolist() == [2, 0, 2, 1]
    expected = [0.783268, -1.305446, 0.783268, -0.261089]
    assert a.advantage[:: batch.tokens // 4].tolist() == pytest.approx(expected, abs=1e-6)
    named = pack([rollout_of([1.0, 0.0], subscores={"tags": [0.0, 1.0]})])
    assert compute_advantages(named, ton(form="tags")).reward.tolist() == [1, 1]


# MASA

LENGTHS = [900, 2000, 1500, 1200, 3000, 2500, 700, 4000]
CORRECT = [1, 0, 1, 1, 0, 0, 1, 0]
FOUND = GroupStatistics(
    pass_rate=0.5,
    correct_lengths=tuple(n for n, x in zip(LENGTHS, CORRECT) if x),
    correct_texts=("the circle and a chord", "a circle"),
    incorrect_texts=("a chord", "a triangle"),
)


@pytest.mark.parametrize(
    ("rate", "length", "score"),
    [(4, 1000, 0.833333), (4, 700, 0.5), (8, 1000, 0.533333), (None, None, 1 / 6), (10**320, -5, 1 / 6)],
    ids=["all", "shortest", "rate", "nothing", "huge"],
)
def test_agreement(rate: int | None, length: int | None, score: float):
    """Of the notions circle and chord, one occurs in more correct answers; that of the problem does not count."""
    notions = ("Circles", "chord", "Triangles")
    text = json.dumps({"pass_rate": rate, "solution_length": length, "math_notion": notions})
    verdict = agreement(predicted(f"<meta>so</meta> {text}"), FOUND, "The triangle ABC")
    assert verdict.outcome is Outcome.scored and verdict.score == pytest.approx(score, abs=1e-6)
    assert verdict.subscores["notions"] == 0.5


def test_agreement_with_a_group_without_correct_answers():
    none = GroupStatistics(0.0, (), (), ("x",))
    assert agreement(ParsedPrediction(0, 10), none, "").subscores == {"length": 0.0, "rate": 1.0, "notions": 0.0}
    ungraded = agreement(ParsedPrediction(0, 10), GroupStatistics.of([]), "")
    assert ungraded.outcome is Outcome.unverifiable and ungraded.cause
    assert agreement(ParsedPrediction(4, 1500), FOUND, "").subscores["length"] == 0, "strictly inside"


HOSTILE = (
    "", "{", "[" * 100_000, '{"math_notion": ' + "[" * 50_000 + "}", '{"pass_rate": ' + "9" * 5000 + "}", "{}" * 9000,
    '{"pass_rate": true, "solution_length": "4", "math_notion": {"a": 1}}', '{"pass_rate": NaN}', "3;4;5", "null",
)  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_predictions_say_nothing(text: str):
    assert predicted(text) == ParsedPrediction() and corrected(text, FOUND) == ""
    assert agreement(predicted(text), FOUND, "").score == 0


def test_corrected_predictions_have_the_true_numbers():
    assert corrected("7;3", FOUND) == "4;1075"
    text = corrected('a {"x": 1} b {"pass_rate": 7, "math_notion": ["chord"]} c', FOUND)
    assert predicted(text) == ParsedPrediction(4, 1075, ("chord",)) and text.startswith('a {"x": 1} b {')
    assert corrected("7;3", GroupStatistics(0.0, (), (), ())) == "", "no length of a correct answer"


def predicting(text: str, strategy: MetaPredictions, answer: tuple[int, ...] = (7,)) -> tuple[Rollout, FakeEngine]:
    """The rollout of two answers of which the first is correct, with predictions that are all this text."""
    said = tokenizer().encode(text)
    engine = FakeEngine(lambda request: said if request.context == (5, 5) else answer)

    async def first(prompt: Prompt, sample: Sample) -> Verdict:
        return Verdict(Outcome.correct if sample.stream[0] % 2 == 0 else Outcome.wrong)

    draw = Draw(0, Prompt("p", (5,), text=tokenizer().decode_with_ends((5,))[0]), 2)
    return asyncio.run(strategy(draw, sampler_of(engine, draw, verifier=first))), engine


def test_predictions_are_a_group_of_their_own():
    strategy, method = MetaPredictions(2, prompt_template="{problem}{problem}"), masa()
    rollout, _ = predicting("4;1", strategy)
    assert [s.role for s in rollout.samples] == ["answer"] * 2 + ["prediction"] * 2
    batch = compute_advantages(pack([rollout], roles=method.trained_roles), method)
    assert batch.groups.index.tolist() == [0, 0, 1, 1]
    assert batch.reward.tolist() == pytest.approx([1, 0, 1 / 3, 1 / 3]), "length 1 is not strictly inside"
    per_sample = batch.sequences.mean(batch.advantage).tolist()
    assert per_sample[:2] == pytest.approx([0.5**0.5, -(0.5**0.5)], abs=1e-5) and per_sample[2:] == [0, 0]


@pytest.mark.parametrize(("text", "gated"), [("0;9", True), ("8;9", True), ("7;9", False), ("+", False)])
def test_the_gate_skips_hopeless_and_solved_prompts(text: str, gated: bool):
    rollout, engine = predicting(text, MetaPredictions(2, prompt_template="{problem}{problem}", predictive_gating=True))
    assert len(engine.requests) == (2 if gated else 4)
    assert (rollout.cause, rollout.selected) == (("predicted", (False, False)) if gated else ("", None))


def test_long_answers_end_at_the_predicted_length():
    """Twice the predicted length of 2; the correct answer of five tokens does not reach its end."""
    rollout, engine = predicting(
        "4;2", MetaPredictions(2, prompt_template="{problem}{problem}", length_cutoff_factor=2.0), answer=(7,) * 5
    )
    answers = [s for s in rollout.samples if s.role == "answer"]
    assert [r.limit for r in engine.requests][2:] == [4, 4]
    assert [(len(s.tokens), s.finish, s.verdict and s.verdict.outcome) for s in answers] == [
        (4, Finish.length, Outcome.wrong)
    ] * 2


def test_experts_are_learned_as_text():
    rollout, _ = predicting("4;2", MetaPredictions(2, prompt_template="{problem}{problem}", min_rewrite_agreement=0.2))
    assert "expert" not in {s.role for s in rollout.samples}, "no notion is right"
    assert "expert" in masa(min_rewrite_agreement=0.2).trained_roles and "expert" not in masa().trained_roles


def test_the_prediction_with_the_best_notions_is_learned_with_the_true_numbers():
    vocabulary, n = bytes_(), 2
    said = json.dumps({"pass_rate": 8, "solution_length": 9, "math_notion": ["chord"]})
    engine = FakeEngine(lambda request: vocabulary.encode(said if request.context[-1:] == MARK else "a chord"))
    MARK = vocabulary.encode("?")
    draw = Draw(0, Prompt("p", vocabulary.encode("a"), text="a"), n)

    async def first(prompt: Prompt, sample: Sample) -> Verdict:
        return Verdict(Outcome.correct if sample.stream[0] % 2 == 0 else Outcome.wrong)

    strategy = MetaPredictions(2, prompt_template="{problem}?", min_rewrite_agreement=0.2)
    sampler = sampler_of(engine, draw, verifier=first, tokenizer=vocabulary, sampling=sampling(max_tokens=200))
    rollout = asyncio.run(strategy(draw, sampler))
    assert "expert" not in {s.role for s in rollout.samples}, "the wrong answer has the notion too"

    async def every(prompt: Prompt, sample: Sample) -> Verdict:
        return Verdict(Outcome.correct)

    sampler = sampler_of(engine, draw, verifier=every, tokenizer=vocabulary, sampling=sampling(max_tokens=200))
    rollout = asyncio.run(strategy(draw, sampler))
    expert = rollout.samples[-1]
    assert (expert.role, set(expert.origin), expert.context[-1:]) == ("expert", {WRITTEN}, MARK)
    length = len(vocabulary.encode("a chord"))
    assert predicted(expert.text) == ParsedPrediction(8, length, ("chord",))

    long = FakeEngine(lambda request: vocabulary.encode(said if request.context[-1:] == MARK else "a long chord"))
    for limit, roles in ((len(said) + 2, {"expert"}), (len(said) + 1, set())):  # the true length has one digit more
        sampler = sampler_of(long, draw, verifier=every, tokenizer=vocabulary, sampling=sampling(max_tokens=limit))
        rollout = asyncio.run(strategy(draw, sampler))
        assert {s.role for s in rollout.samples} - {"answer", "prediction"} == roles


def test_a_prediction_has_a_bounded_number_of_notions():
    assert len(predicted(json.dumps({"pass_rate": 1, "math_notion": ["x"] * 10_000})).predicted_notions) == 64


# Selective Rollout


def test_divergence():
    assert divergence(["abcde", "abcde", "abcde", "abcdf"], 5) == pytest.approx(0.1)
    assert divergence(["abcde", "abxde", "pqrst", "abc"], 5) == pytest.approx(0.7)
    assert divergence(["abcd", "bcd"], 4) == 0.5, "the end of a conversation counts as an action"
    assert divergence([[], []], 3) == divergence(["ab"], 2) == 0
    assert divergence(["abc", "abd"], 2) == 0, "later actions change nothing"
    shuffled = ["pqrst", "abc", "abcde", "abxde"]
    assert divergence(shuffled, 5) == pytest.approx(0.7)


def talking(turns: Callable[[int, int], str], strategy: EarlyStoppingTurns) -> tuple[Rollout, FakeEngine]:
    """Three conversations with `turns(sample, turn)` as the model's texts; the environment ends them after four."""
    vocabulary = tokenizer()

    def script(request: GenerationRequest) -> Ids:
        done = request.context[len(request.context) - request.already_generated_count :].count(0)
        return (*vocabulary.encode(turns(request.stream[0], done)), 0)

    engine, draw = FakeEngine(script), Draw(0, Prompt("p", (3, 1, 4)), 3)
    sampler = sampler_of(
        engine, draw, sampling=sampling(max_tokens=60), create_environment=lambda: Replies([";"] * 3 + [None])
    )
    return asyncio.run(worded(strategy, "packaged")(draw, sampler)), engine


def test_alike_conversations_are_stopped():
    """Two turns are equal, the third would differ: no conversation goes on, and none is trained."""
    rollout, engine = talking(
        lambda sample, turn: f"{turn + sample * (turn > 1)}", EarlyStoppingTurns(max_turns=6, compare_after_turns=2)
    )
    assert len(engine.requests) == 6 and rollout.cause == "alike" and rollout.selected == (False,) * 3
    assert {(len(s.turns), s.finish, s.verdict) for s in rollout.samples} == {(2, Finish.cut, None)}
    buffer = buffer_of(engine, always_correct, 1)
    (marked,) = buffer._marked([rollout], Method().filter, one_by_one=True)
    assert marked.cause == "alike" and not any(marked.selected or ())


def test_other_conversations_go_on():
    different = lambda sample, turn: f"{turn + sample}"  # noqa: E731
    for turns, strategy in (
        (different, EarlyStoppingTurns(max_turns=6, compare_after_turns=2)),
        (lambda sample, turn: "7", EarlyStoppingTurns(max_turns=6, compare_after_turns=2, min_action_difference=0.0)),
    ):
        rollout, engine = talking(turns, strategy)
        assert len(engine.requests) == 12 and rollout.selected is None
        assert all(len(s.turns) == 4 and s.verdict for s in rollout.samples)
    plain, _ = talking(different, EarlyStoppingTurns(max_turns=6, compare_after_turns=5))
    assert [s.tokens for s in plain.samples] == [
        s.tokens for s in talking(different, EarlyStoppingTurns(6, 2))[0].samples
    ]
    with pytest.raises(ValueError, match="1 <= compare_after_turns < max_turns"):
        EarlyStoppingTurns(max_turns=4, compare_after_turns=4)


def test_actions_begin_after_the_marker():
    rollout, _ = talking(
        lambda sample, turn: f"{sample}={turn}",
        EarlyStoppingTurns(max_turns=6, compare_after_turns=3, min_action_difference=0.0),
    )
    assert actions(rollout.samples[1]) == ["1=0", "1=1", "1=2", "1=3"]
    assert actions(rollout.samples[1], "=") == ["0", "1", "2", "3"]


def test_every_turn_weighs_the_same():
    """Turns of two and one tokens in one conversation, and of three in another."""
    first = Sample(context=(1,), stream=(0,)).insert((5, 6), WRITTEN).insert((7,), ENVIRONMENT).insert((8,), WRITTEN)
    second = Sample(context=(1,), stream=(1,)).insert((5, 6, 7), WRITTEN)
    samples = tuple(s.with_verdict(Verdict(Outcome.correct)) for s in (first, second))
    batch = pack([Rollout(Draw(0, Prompt("p", (1,)), 2), samples)])
    batch = batch.having(advantage=torch.ones(6, dtype=torch.float64))
    assert turn_mean(batch).tolist() == pytest.approx([1 / 6, 1 / 6, 1 / 3, 1 / 9, 1 / 9, 1 / 9])
    one_turn = batch.take([1])
    assert torch.equal(turn_mean(one_turn), sequence_mean(one_turn))
    assert turn_mean(batch.keep(batch.index_in_sample > 0)).tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 6, 1 / 6])


# SPO


def visited(
    curriculum: SuccessTrackerCurriculum, state: Any, task: Any, outcome: int, drift: float, initial: Sequence[int] = ()
):
    """The state after one draw of one prompt with one answer."""
    state, (draw,) = curriculum.draw(json.loads(json.dumps(state)), task, 1, 1)
    (answer,) = of(draw, [outcome]).samples
    others = [replace(s, role="initial") for s in of(draw, initial).samples] if initial else []
    rollout = Rollout(draw, (answer.add_subscores({"drift": drift}), *others))
    return curriculum.end_iteration(state, [rollout]), draw


def test_tracked_rates():
    part, task = SuccessTrackerCurriculum(), NumberedTask(1)
    start = part.init(task, 0)
    for right, v in ((0, 0.0556), (4, 0.5), (8, 0.9444)):
        after, draw = visited(part, start, task, 1, 0.0, [1] * right + [0] * (8 - right))
        assert "baseline" not in draw.metadata
        assert after["tracked_prompts"]["0"]["correct_count"] == pytest.approx(0.96 * 8 * v + 1, abs=1e-3)
        assert after["tracked_prompts"]["0"]["other_count"] == pytest.approx(0.96 * 8 * (1 - v), abs=1e-3)
    state = {**start, "tracked_prompts": {"0": {"correct_count": 4.0, "other_count": 4.0}}}
    after, draw = visited(part, state, task, 1, 0.06)
    assert draw.metadata["baseline"] == 0.5
    assert (
        after["tracked_prompts"]["0"]["correct_count"],
        after["tracked_prompts"]["0"]["other_count"],
    ) == pytest.approx((4.5, 3.5))
    plain, _ = visited(part, start, task, 0, 0.0)
    assert (
        plain["tracked_prompts"]["0"]["correct_count"],
        plain["tracked_prompts"]["0"]["other_count"],
    ) == pytest.approx((0.48, 1.48))


def test_the_mass_of_a_prompt_has_a_fixed_point():
    part, task = SuccessTrackerCurriculum(), NumberedTask(1)
    state, rng = part.init(task, 0), np.random.default_rng(0)
    for k in range(200):
        state, _ = visited(part, state, task, int(rng.integers(2)), 0.0 if k < 150 else 1.0)
        if k in (149, 199):
            mass = state["tracked_prompts"]["0"]["correct_count"] + state["tracked_prompts"]["0"]["other_count"]
            assert mass == pytest.approx(1 / (1 - (0.96 if k == 149 else 0.875)), rel=0.01)


def test_uncertain_prompts_are_drawn_most():
    """v = .5, .5, .9, .1 have the weights .55, .55, .35, .35; a round draws each prompt once."""
    part, task = SuccessTrackerCurriculum(), NumberedTask(4)
    rates = {"0": 0.5, "1": 0.5, "2": 0.9, "3": 0.1}
    state = {
        **part.init(task, 0),
        "tracked_prompts": {k: {"correct_count": v, "other_count": 1 - v} for k, v in rates.items()},
    }
    counts = np.zeros(4)
    for k in range(3000):
        _, (draw,) = part.draw({**state, "drawn_count": k}, task, 1, 1)
        counts[draw.metadata["index"]] += 1
    assert (counts / 3000).tolist() == pytest.approx([0.55 / 1.8, 0.55 / 1.8, 0.35 / 1.8, 0.35 / 1.8], abs=0.03)
    _, draws = part.draw(state, task, 9, 1)
    assert sorted(d.metadata["index"] for d in draws) == [0, 1, 2, 3]


def test_drift_of_the_last_answer():
    """The engine's log-probs are now -1, -2, -3, at temperature 2 half of these; the stored ones are -1."""
    draw = Draw(
        0, Prompt("p", (5,)), 1, metadata={"index": 0, "baseline": 0.25, "tokens": [7, 7, 7], "logp": [-1.0] * 3}
    )
    for temperature, drift in ((1.0, 1.0), (2.0, 1 / 3)):
        engine = FakeEngine(lambda request: (7,))
        sampler = sampler_of(engine, draw, sampling=sampling(temperature=temperature))
        (answer,) = asyncio.run(TrackedBaselineStrategy()(draw, sampler)).samples
        assert answer.verdict and answer.verdict.subscores == pytest.approx({"baseline": 0.25, "drift": drift})


def test_a_first_draw_estimates_its_rate_from_initial_answers():
    async def first(prompt: Prompt, sample: Sample) -> Verdict:
        return Verdict(Outcome.correct if sample.stream[0] < 2 else Outcome.wrong)

    method = spo(initial=3)
    buffer = buffer_of(FakeEngine(lambda request: (7, 7)), first, 1, curriculum=method.curriculum)
    rollout, again = (
        asyncio.run(buffer.take(1, 1, method.strategy, method.filter, 0)).sampled_rollouts[0] for _ in range(2)
    )
    assert [s.role for s in rollout.samples] == ["answer", "initial", "initial", "initial"]
    answer = rollout.samples[0]
    assert answer.verdict and answer.verdict.subscores == {"baseline": 2.5 / 4, "drift": 0.0}
    assert [s.role for s in again.samples] == ["answer"]
    assert again.draw.metadata["baseline"] == pytest.approx(0.96 * 8 * 0.625 / (0.96 * 8 + 1))
    assert again.draw.metadata["tokens"] == [7, 7] and again.draw.metadata["logp"] == [-1.0, -1.0]
    constant = SuccessTrackerCurriculum(min_decay=0.875, max_decay=0.875)
    after, _ = visited(constant, constant.init(NumberedTask(1), 0), NumberedTask(1), 1, 9.0)
    assert set(after["tracked_prompts"]["0"]) == {"correct_count", "other_count"}, (
        "nothing is stored that nothing reads"
    )


def test_worked_advantages_of_single_answers():
    parts = {"baseline": [0.5, 0.5, 0.9, 0.1]}
    batch = pack([rollout_of([1.0, 0.0, 1.0, 0.0], subscores=parts)])
    a = compute_advantages(batch, spo())
    per_sample = a.sequences.mean(a.advantage)
    assert per_sample.tolist() == pytest.approx([1.2010, -1.2010, 0.2402, -0.2402], abs=5e-5)
