"""The simulator: laws that hold for each setup, and a slow simulation that is written independently of it."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from groupwise.planning.cost_model import draw_lengths
from groupwise.planning.machines import AssumedLengths
from groupwise.planning.simulator import SimulationResult, SimulationSetup, simulate

LENGTHS = draw_lengths(AssumedLengths(median_answer_tokens=60, spread=1.0), prompt=5, limit=400).answer_lengths


def length(draw: int, sample: int) -> int:
    """Nearly all lengths differ, so that the order of events does not depend on ties."""
    i = draw * 4 + sample
    return LENGTHS[i % len(LENGTHS)] * 100 + i % 97


SETUP = SimulationSetup(
    engine_count=3,
    max_num_seqs=8,
    decode_step_seconds=5e-3,
    decode_row_seconds=5e-4,
    prompts_per_iteration=6,
    group_size=4,
    prompt_tokens=5,
    sample_length=length,
    learn_token_seconds=3e-4,
    optimizer_step_seconds=2.0,
    publish_seconds=1.5,
    max_staleness=0,
)
ITERATIONS = 9


def setups() -> list[SimulationSetup]:
    """Setups that differ in all numbers but the lag."""
    random = Random(1)
    changes = [
        {
            "engine_count": random.randint(1, 6),
            "max_num_seqs": random.choice([1, 3, 8, 100]),
            "decode_row_seconds": random.choice([0.0, 5e-4, 3e-3]),
            "prompts_per_iteration": random.randint(1, 9),
            "learn_token_seconds": random.choice([1e-5, 3e-4, 1e-3]),
            "publish_seconds": random.choice([0.1, 1.5, 20.0]),
        }
        for _ in range(12)
    ]
    return [replace(SETUP, **change) for change in changes]


def name_of(setup: SimulationSetup) -> str:
    return f"{setup.engine_count} engines of {setup.max_num_seqs} rows, {setup.prompts_per_iteration} prompts"


def sampling(setup: SimulationSetup, iteration: int) -> tuple[float, float]:
    """Seconds in which empty engines sample an iteration, and the seconds of all rows added up.

    All rows advance until the next one ends, again and again.
    """
    draws = range(iteration * setup.prompts_per_iteration, (iteration + 1) * setup.prompts_per_iteration)
    waiting = [float(setup.sample_length(draw, i)) for draw in draws for i in range(setup.group_size)]
    engines: list[list[float]] = [[] for _ in range(setup.engine_count)]
    time = area = 0.0
    while waiting or any(engines):
        while waiting and min(map(len, engines)) < setup.max_num_seqs:
            engine = min(range(setup.engine_count), key=lambda i: (len(engines[i]), i))
            engines[engine].append(waiting.pop(0))
        paces = [setup.decode_step_seconds + setup.decode_row_seconds * len(rows) for rows in engines]
        step = min(min(rows) * pace for rows, pace in zip(engines, paces) if rows)
        time += step
        area += step * sum(map(len, engines))
        engines = [[n - step / p for n in rows if n - step / p > 1e-6] for rows, p in zip(engines, paces)]
    return time, area


def tokens(setup: SimulationSetup, iteration: int) -> int:
    draws = range(iteration * setup.prompts_per_iteration, (iteration + 1) * setup.prompts_per_iteration)
    return sum(
        setup.prompt_tokens + sum(setup.sample_length(draw, i) for i in range(setup.group_size)) for draw in draws
    )


@pytest.mark.parametrize("setup", setups(), ids=name_of)
def test_lag_0_is_the_sum_of_the_phases(setup: SimulationSetup) -> None:
    published = (0.0, *simulate(setup, 4).publish_times)
    for iteration, (start, end) in enumerate(pairwise(published)):
        learning = setup.learn_token_seconds * tokens(setup, iteration) + setup.optimizer_step_seconds
        expected = sampling(setup, iteration)[0] + learning + setup.publish_seconds
        assert end - start == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("setup", setups()[:4], ids=name_of)
def test_lag_1_is_the_longer_of_sampling_and_learning(setup: SimulationSetup) -> None:
    published = simulate(replace(setup, max_staleness=1), 4).publish_times
    for iteration, (start, end) in enumerate(pairwise(published), 1):
        learning = setup.learn_token_seconds * tokens(setup, iteration) + setup.optimizer_step_seconds
        expected = max(sampling(setup, iteration + 1)[0], learning) + setup.publish_seconds
        assert end - start == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("max_staleness", [0, 1, 2, 4])
def test_no_token_is_older_than_the_bound(max_staleness: int) -> None:
    oldest = [simulate(replace(setup, max_staleness=max_staleness), ITERATIONS).largest_staleness for setup in setups()]
    assert max(oldest) == max_staleness


@pytest.mark.parametrize("max_staleness", [0, 1, 2, 4])
def test_each_draw_is_sampled_once_and_trained_in_order(max_staleness: int) -> None:
    for setup in setups():
        asked: list[tuple[int, int]] = []

        def recorded(draw: int, sample: int, asked: list[tuple[int, int]] = asked) -> int:
            asked.append((draw, sample))
            return length(draw, sample)

        result = simulate(replace(setup, max_staleness=max_staleness, sample_length=recorded), ITERATIONS)
        assert asked == [(i // 4, i % 4) for i in range(len(asked))]
        assert (
            ITERATIONS * setup.prompts_per_iteration * 4
            <= len(asked)
            <= (ITERATIONS + max_staleness + 1) * setup.prompts_per_iteration * 4
        )
        assert result.trained_tokens_by_iteration == tuple(tokens(setup, iteration) for iteration in range(ITERATIONS))


def seconds_with(setup: SimulationSetup, engines: tuple[int, ...]) -> list[float]:
    return [simulate(replace(setup, engine_count=n), ITERATIONS).publish_times[-1] for n in engines]


@pytest.mark.parametrize("max_staleness", [0, 1, 2, 4])
def test_more_engines_are_never_slower(max_staleness: int) -> None:
    """Exactly so for answers of one length. With other lengths, the placement of the longest may cost a few percent."""
    for setup in setups():
        setup = replace(setup, max_staleness=max_staleness)
        equal = seconds_with(replace(setup, sample_length=lambda draw, sample: 6000), (1, 2, 3, 4, 6, 8))
        assert all(after <= before * (1 + 1e-9) for before, after in pairwise(equal)), equal
        drawn = seconds_with(replace(setup, max_num_seqs=100), (1, 2, 4, 8))
        assert all(after <= before * 1.05 for before, after in pairwise(drawn)), drawn


def test_a_lag_hides_the_shorter_phase() -> None:
    times = [simulate(replace(SETUP, max_staleness=max_staleness), 20).seconds(8) for max_staleness in (0, 1, 2)]
    assert times[0] > times[1] > times[2]


def rows_at(result: SimulationResult, time: float) -> int:
    return [rows for at, rows in result.running_requests if at <= time][-1]


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_weights_change_only_between_samples_if_these_have_one_version(max_staleness: int) -> None:
    for setup in setups():
        result = simulate(replace(setup, max_staleness=max_staleness), ITERATIONS)
        starts = [span.start_seconds for span in result.learner_busy_times if span.activity_kind == "publish"]
        assert starts and all(rows_at(result, start) == 0 for start in starts)
        assert max(rows for _, rows in result.running_requests) <= setup.engine_count * setup.max_num_seqs


def test_weights_change_while_rows_are_live_with_a_larger_lag() -> None:
    result = simulate(replace(SETUP, max_staleness=2), ITERATIONS)
    starts = [span.start_seconds for span in result.learner_busy_times if span.activity_kind == "publish"]
    assert any(rows_at(result, start) for start in starts)


def test_shares_of_time_are_those_of_the_spans() -> None:
    result = simulate(SETUP, 4)
    start, end = result.publish_times[0], result.publish_times[-1]
    learning = [
        span.end_seconds - span.start_seconds
        for span in result.learner_busy_times
        if span.activity_kind == "learn" and start <= span.start_seconds < end
    ]
    assert len(learning) == 3 and result.learning(1) == pytest.approx(sum(learning) / (end - start))
    sampled = sum(sampling(SETUP, iteration)[1] for iteration in (1, 2, 3))
    assert result.rows(1) * (end - start) == pytest.approx(sampled, rel=1e-6)


def test_a_part_of_a_large_run_takes_about_as_long() -> None:
    large = replace(SETUP, engine_count=16, prompts_per_iteration=512, decode_row_seconds=1e-4, max_staleness=2)
    part = replace(large, engine_count=2, prompts_per_iteration=64, learn_token_seconds=large.learn_token_seconds * 8)
    assert simulate(part, 8).seconds(4) == pytest.approx(simulate(large, 8).seconds(4), rel=0.05)


def test_lag_2_pauses_the_engines_while_weights_are_loaded() -> None:
    """No row ends while weights are published."""
    result = simulate(replace(SETUP, max_staleness=2, publish_seconds=20.0), ITERATIONS)
    spans = [span for span in result.learner_busy_times if span.activity_kind == "publish"]
    assert not [
        time for time, _ in result.running_requests for span in spans if span.start_seconds < time < span.end_seconds
    ]
