"""Metrics against loops, under every partition of a step."""

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise.data import GAP, LARGEST_GAP, Batch, Entropy, Finish, Logp, Outcome, Return, Value, pack, rollout_of
from groupwise.methods import SoftGate
from groupwise.objective import (
    Clip,
    ClippedWeight,
    Objective,
    describe_gap,
    describe_samples,
    describe_step,
    sequence_mean,
    sequence_ratio,
)
from tests.laws.batches import cuts, step_of, steps
from tests.laws.oracle import ratio, rows

OBJECTIVES = {
    "clip": Objective(surrogate=Clip(0.2, 0.28)),
    "sequence clip": Objective(surrogate=Clip(0.05, 0.1, ratio=sequence_ratio), aggregate=sequence_mean),
    "clipped weight": Objective(surrogate=ClippedWeight(0.8, 1.2)),
    "gate": Objective(surrogate=SoftGate()),
}


def steps_oracle(objective: Objective, step: Batch) -> dict[str, float]:
    part = objective.surrogate
    table = rows(step)
    tokens = [(r, a) for row in table for r, a in zip(ratio(part.ratio, row)[0], row.advantage)]  # type: ignore[attr-defined]
    if not tokens:
        return {}
    ratios, advantages = sorted(r for r, _ in tokens), [a for _, a in tokens]
    n = len(tokens)
    actual = {
        "ratio/min": ratios[0],
        "ratio/max": ratios[-1],
        "ratio/mean": math.fsum(ratios) / n,
        **{f"ratio/p{q:02d}": ratios[math.ceil(q * n / 100 - 1e-9) - 1] for q in (1, 50, 99)},
        "advantage/min": min(advantages),
        "advantage/max": max(advantages),
        "advantage/mean": math.fsum(advantages) / n,
        "advantage/std": statistics.pstdev(advantages),
    }
    if isinstance(part, Clip):
        low = [r < 1 - part.low and a < 0 for r, a in tokens]
        high = [r > 1 + part.high and a > 0 for r, a in tokens]
    elif isinstance(part, ClippedWeight):
        low, high = [r < part.floor for r, _ in tokens], [r > part.cap for r, _ in tokens]
    if not isinstance(part, SoftGate):
        actual["clip_ratio/low_mean"], actual["clip_ratio/high_mean"] = sum(low) / n, sum(high) / n
        actual["clip_ratio/region_mean"] = (sum(low) + sum(high)) / n
    x = [f - p for row in table for f, p in zip(row.reference, row.logp)]
    actual["kl/k1"] = -math.fsum(x) / n
    actual["kl"] = math.fsum(math.exp(d) - 1 - d for d in x) / n
    actual["entropy"] = math.fsum(step[Entropy()].tolist()) / n
    gap = [abs(o - e) for row in table for o, e in zip(row.old, row.engine)]
    actual["sampling/sampling_logp_difference/mean"] = math.fsum(gap) / n
    actual["sampling/sampling_logp_difference/max"] = max(gap)
    return actual


@pytest.mark.t(37)
@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
@settings(max_examples=30)
@given(data=st.data())
def test_describe_step_equals_loops_under_every_partition(objective: Objective, data: st.DataObject) -> None:
    step = data.draw(steps(per_token=data.draw(st.booleans())))
    expected = steps_oracle(objective, step)
    actual = describe_step(step, objective)
    assert actual == pytest.approx(expected, rel=1e-9, abs=1e-12) and actual.keys() == expected.keys()
    dealt = [microbatch for rank in data.draw(cuts(len(step))) for microbatch in rank]
    again = describe_step(Batch.joined([step.take(microbatch) for microbatch in dealt]), objective)
    assert again == pytest.approx(expected, rel=1e-9, abs=1e-12)


def samples_oracle(b: Batch) -> dict[str, float]:
    s = [
        (int(o), int(n), int(f), float(r), int(g))
        for o, n, f, r, g in zip(b.outcome, b.length, b.finish, b.reward, b.groups.index)
    ]
    count = len(s)
    actual = {
        "num_tokens": sum(x[1] for x in s),
        "completions/mean_length": sum(x[1] for x in s) / count,
        "completions/min_length": min(x[1] for x in s),
        "completions/max_length": max(x[1] for x in s),
        "completions/clipped_ratio": sum(x[2] == Finish.length for x in s) / count,
        "reward": math.fsum(x[3] for x in s) / count,
        "reward/min": min(x[3] for x in s),
        "reward/max": max(x[3] for x in s),
    }
    for outcome in Outcome:
        lengths = [x[1] for x in s if x[0] == outcome]
        if lengths or outcome is not Outcome.scored:
            actual[f"outcome/{outcome.name}"] = len(lengths) / count
        if lengths:
            actual[f"completions/mean_length_{outcome.name}"] = sum(lengths) / len(lengths)
    groups = [[x for x in s if x[4] == g] for g in range(b.groups.count)]
    judged = [[x[0] for x in g if x[0] != Outcome.unverifiable] for g in groups]
    if not any(x[0] == Outcome.scored for x in s):
        actual["groups/all_right"] = sum(bool(g) and all(o == Outcome.correct for o in g) for g in judged) / len(groups)
        actual["groups/all_wrong"] = sum(bool(g) and all(o != Outcome.correct for o in g) for g in judged) / len(groups)
    scores = [x.verdict.score for x in b.samples if x.verdict is not None and x.verdict.score is not None]
    if scores:
        actual |= {"score/min": min(scores), "score/mean": math.fsum(scores) / len(scores), "score/max": max(scores)}
    rewards = [[x[3] for x in g] for g in groups]
    actual["reward_std"] = sum(statistics.stdev(g) if len(g) > 1 else 0.0 for g in rewards) / len(groups)
    actual["frac_reward_zero_std"] = sum(len(set(g)) == 1 for g in rewards) / len(groups)
    return actual


@pytest.mark.t(37)
@settings(max_examples=60)
@given(data=st.data())
def test_describe_samples_equals_loops_in_any_order(data: st.DataObject) -> None:
    b = data.draw(steps())
    outcomes = data.draw(st.lists(st.integers(0, 4), min_size=len(b), max_size=len(b)))
    b = b.having(outcome=torch.tensor(outcomes, dtype=torch.long), reward=b.reward.round())
    expected = samples_oracle(b)
    actual = describe_samples(b)
    assert actual == pytest.approx(expected, rel=1e-12, abs=1e-12) and actual.keys() == expected.keys()
    turned = describe_samples(b.take(data.draw(st.permutations(range(len(b))))))
    assert turned == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("n, at", [(1, 1), (99, 99), (100, 99), (101, 100), (250, 248)])
def test_the_99th_percentile_is_the_nearest_rank(n: int, at: int) -> None:
    step = step_of([[n]], limit=256)
    ratios = torch.arange(1, n + 1, dtype=torch.float64).flip(0)
    actual = describe_step(step.having(logp_old=step.logp.detach() - ratios.log()), Objective())
    assert actual["ratio/p99"] == pytest.approx(at)


@pytest.mark.t(37)
def test_a_mean_over_steps_weighs_tokens_equally() -> None:
    """For a long and a short step, the result is not the mean of two means."""
    one, two = step_of([[5, 5], [4, 4]], seed=1), step_of([[1]], seed=2)
    both = describe_step(Batch.joined([one, two]), Objective())
    kl = [describe_step(s, Objective())["kl"] for s in (one, two)]
    assert both["kl"] == pytest.approx((kl[0] * 18 + kl[1]) / 19)
    assert both["kl"] != pytest.approx(sum(kl) / 2, rel=0.01)


def test_the_gap_leaves_out_tokens_of_older_weights() -> None:
    step = step_of([[2], [2]])
    engine = torch.tensor([-1.0, -2.0, -3.0, float("nan")], dtype=torch.float64)
    step = step.having(logp_engine=engine, staleness=torch.tensor([0, 1, 0, 0]))
    gap = describe_gap(engine.nan_to_num() + torch.tensor([0.25, 9.0, -0.5, 9.0]), step)
    assert gap == {f"{GAP}/mean": 0.375, LARGEST_GAP: 0.5}
    assert describe_gap(engine, step.having(staleness=torch.ones(4, dtype=torch.long))) == {}


def test_metrics_without_data_are_left_out() -> None:
    bare = step_of([[3, 2]])
    bare = Batch(**{f: getattr(bare, f) for f in bare.__dataclass_fields__} | {"measures": {}, "reward": None})
    assert not {"kl", "kl/k1", "entropy"} & describe_step(bare, Objective()).keys()
    assert not {"reward", "reward_std", "reward/min", "reward/max"} & describe_samples(bare).keys()
    empty = bare.take([])
    assert describe_step(empty, Objective()) == describe_samples(empty) == {}
    assert "completions/mean_length_correct" not in describe_samples(pack([rollout_of([0, 0])]))


def test_each_side_model_has_its_own_kl_metrics() -> None:
    step = step_of([[3, 2]])
    step = step.having(measures={Logp("teacher"): step[Logp("reference")] - 0.1, Logp("policy"): step.logp_old})
    actual = describe_step(step, Objective())
    assert actual["kl/teacher/k1"] == pytest.approx(actual["kl/k1"] + 0.1)
    assert "kl/policy" not in actual


def test_a_written_token_has_no_gap() -> None:
    step = step_of([[3]])
    engine = step.logp_old - torch.tensor([0.1, 0.0, 0.3], dtype=torch.float64)
    engine[1] = math.nan
    actual = describe_step(step.having(logp_engine=engine), Objective())
    assert actual["sampling/sampling_logp_difference/mean"] == pytest.approx(0.2)
    assert actual["sampling/sampling_logp_difference/max"] == pytest.approx(0.3)


def test_metrics_are_plain_floats() -> None:
    step = step_of([[3, 2]])
    numbers = {**describe_step(step, Objective()), **describe_samples(step)}
    assert all(type(x) is float for x in numbers.values())
    assert len(numbers) == len(describe_step(step, Objective())) + len(describe_samples(step))


def test_the_explained_variance_is_the_share_of_the_returns_variance() -> None:
    """Returns have the variance 1/2, and their differences from the values 1/16."""
    zeros = torch.zeros(4, dtype=torch.float64)
    values, returns = zeros + torch.tensor([0.5, 0.0, 1.5, 1.0]), zeros + torch.tensor([1.0, 0.0, 2.0, 1.0])
    step = pack([rollout_of([1.0], lengths=[4])]).having(logp=zeros, logp_old=zeros, advantage=zeros)
    metrics = describe_step(step.having(measures={Value(): values, Return(): returns}), OBJECTIVES["clip"])
    assert (metrics["value/critic/mean"], metrics["value/critic/return"]) == (0.75, 1.0)
    assert metrics["value/critic/explained_variance"] == 0.875
