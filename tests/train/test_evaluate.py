"""Numbers about a model: what they are, how sure they are, and that asking for them changes nothing."""

import asyncio
import itertools
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from groupwise.data import Draw, Family, Finish, Outcome, Prompt, Sample, Verdict
from groupwise.models import Purpose
from groupwise.rollout import NativeEngine
from groupwise.train.evaluate import average, counts, pass_at, scores
from tests.faults.small_runs import EVERY, left, lines, ran, ready


def family(outcomes: Sequence[Outcome], finish: Finish = Finish.stop, parts: float = 0.0, i: int = 0) -> Family:
    samples = tuple(
        Sample(
            context=(1,), stream=(k,), tokens=(2, 3), origin=(0, 0), logp=(-1.0, -1.0), finish=finish,
            verdict=Verdict(o, parts={"chain_true": parts}),
        )
        for k, o in enumerate(outcomes)
    )  # fmt: skip
    return Family(Draw(i, Prompt(f"p{i}", (1,)), len(samples)), samples)


def answered(right: Sequence[int], n: int) -> list[Family]:
    """Problems of which so many of `n` answers are right."""
    return [family([Outcome.correct] * c + [Outcome.wrong] * (n - c), i=i) for i, c in enumerate(right)]


@pytest.mark.t(46)
@pytest.mark.parametrize("n", [1, 2, 5, 7])
def test_pass_at_k_is_the_share_of_all_choices_of_k(n: int) -> None:
    for c in range(n + 1):
        marks = [True] * c + [False] * (n - c)
        for k in range(1, n + 1):
            chosen = list(itertools.combinations(marks, k))
            assert pass_at(answered([c], n), k) == pytest.approx(sum(map(any, chosen)) / len(chosen), abs=1e-15)
    # The mean over problems; the best of as many as there are is a maximum.
    right = list(range(n + 1))
    assert pass_at(answered(right, n), n) == n / (n + 1)
    assert pass_at(answered(right, n), 1) == pytest.approx(average(answered(right, n))[0])


@pytest.mark.t(46)
def test_one_right_answer_of_many_is_found_by_all_of_them_together() -> None:
    """Drawn with replacement this would be 0.64, as a peer has it."""
    for n in (4, 16, 64):
        assert pass_at(answered([1], n), n) == 1.0
        assert pass_at(answered([1], n), 1) == pytest.approx(1 / n)
    with pytest.raises(ValueError, match="pass@5 needs at least 5 answers a problem, and there are 4"):
        pass_at(answered([1], 4), 5)


@pytest.mark.t(46)
def test_averages_are_exact_and_partial_credit_is_no_pass() -> None:
    assert average(answered([0, 1, 3, 4], 4))[0] == 0.5
    assert average(answered([1, 1, 1], 3))[0] == pytest.approx(1 / 3, abs=1e-16)
    graded = Verdict(Outcome.wrong, score=0.9)
    half = replace(answered([1], 2)[0])
    half = replace(half, samples=(half.samples[0], replace(half.samples[1], verdict=graded)))
    assert average([half])[0] == 0.5 and pass_at([half], 1) == 0.5


@pytest.mark.t(46)
def test_what_could_not_be_judged_is_a_failure_and_is_told_apart() -> None:
    o = Outcome
    odd = [family([o.correct, o.unverifiable, o.malformed, o.wrong]), family([o.unverifiable] * 4, Finish.length)]
    assert average(odd)[0] == 1 / 8
    assert pass_at(odd, 4) == 0.5 and pass_at(odd, 1) == 1 / 8
    assert counts(odd) == {"correct": 1, "wrong": 1, "malformed": 1, "unverifiable": 5, "truncated": 4}
    line = scores(odd, odd)
    assert line["eval/unverifiable"] == 5 / 8 and line["eval/truncated"] == 0.5 and line["eval/accuracy"] == 1 / 8


def test_named_parts_are_those_of_right_answers() -> None:
    line = scores([], [family([Outcome.correct, Outcome.wrong], parts=1.0), family([Outcome.correct], parts=0.0)])
    assert line["eval/chain_true"] == 0.5
    assert line["eval/mean_length"] == 2.0
    assert (line["eval/accuracy_greedy"], line["eval/low_greedy"], line["eval/high_greedy"]) == (0.0, 0.0, 1.0)


RIGHT = (31, 0, 16, 4, 27, 32, 9, 0, 21, 13, 2, 30, 8, 17, 32, 1, 25, 6, 12, 0, 19, 28, 5, 23, 11, 3, 32, 14, 7, 20)
"""Of 32 answers to each of 30 problems."""


@pytest.mark.t(48)
def test_golden_thirty_problems_with_thirty_two_answers() -> None:
    shares = np.array(RIGHT) / 32
    p = shares.mean()
    # As many independent problems would leave this variance of the mean; Wilson's interval for so many.
    n = p * (1 - p) / (shares.var() / len(shares))
    z = 1.959963984540054
    roots = np.roots([1 + z**2 / n, -(2 * p + z**2 / n), p**2])  # |p - x| = z sqrt(x (1 - x) / n)
    found = average(answered(RIGHT, 32))
    assert found == pytest.approx((p, roots.min(), roots.max()), abs=1e-12)
    assert found == pytest.approx(GOLDEN, abs=1e-12)
    for k, value in PASSES.items():
        missed = [math.prod((32 - c - i) / (32 - i) for i in range(k)) for c in RIGHT]
        assert pass_at(answered(RIGHT, 32), k) == pytest.approx(1 - np.mean(missed), abs=1e-12)
        assert pass_at(answered(RIGHT, 32), k) == pytest.approx(value, abs=1e-12)


GOLDEN = (0.4666666666666667, 0.3500085722586768, 0.5870876399874303)
PASSES = {1: 0.4666666666666667, 4: 0.7235215053763441, 32: 0.9}


def test_one_answer_a_problem_has_wilson_s_own_interval() -> None:
    """Newcombe 1998, table I, method 3: 81 of 263 and 15 of 148."""
    for c, n, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611)):
        found = average(answered([1] * c + [0] * (n - c), 1))
        assert found == pytest.approx((c / n, low, high), abs=5e-5)
    assert average(answered([1] * 29, 1))[1:] == pytest.approx((0.8830, 1.0), abs=5e-5)


@pytest.mark.t(47)
def test_evaluation_leaves_every_random_state_untouched() -> None:
    """In a process of its own: the checker of annotations in these tests draws random numbers."""
    assert subprocess.run([sys.executable, "-c", STATES], check=True, capture_output=True, text=True).stdout == "same\n"


STATES = """
import asyncio, random
import numpy as np, torch
from tests.faults.small_runs import EVERY, ready
place = ready(EVERY)
asyncio.run(place.engine.load(0, place.learner.weights()))
torch.manual_seed(1), np.random.seed(2), random.seed(3)
def states():
    return random.getstate(), torch.get_rng_state().tolist(), [np.asarray(x).tolist() for x in np.random.get_state()]
before = states()
asyncio.run(place.evaluate())
print("same" if states() == before else "changed")
"""


@pytest.mark.t(47)
def test_evaluation_changes_nothing_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    place = ready(EVERY)
    asyncio.run(place.engine.load(0, place.learner.weights()))
    state = dict(place.buffer.state())
    weights = {name: x.clone() for name, x in place.learner.weights().items()}
    sample, asks = NativeEngine.sample, []
    monkeypatch.setattr(NativeEngine, "sample", lambda self, ask: asks.append(ask) or sample(self, ask))
    first = asyncio.run(place.evaluate())
    assert len(asks) == 2 * 2 and {ask.purpose for ask in asks} == {Purpose.EVALUATE}  # not training's random numbers
    assert place.buffer.state() == state and place.learner.version == 0
    assert all(torch.equal(x, weights[name]) for name, x in place.learner.weights().items())
    assert all(p.grad is None for p in place.learner.model.parameters())
    assert asyncio.run(place.evaluate()) == first  # the same question, the same random numbers


@pytest.mark.t(47)
def test_a_run_that_is_evaluated_trains_to_the_same_bits(tmp_path: Path) -> None:
    often, never = (replace(EVERY, evaluate=replace(EVERY.evaluate, every=n)) for n in (1, 0))
    runs = [ran(tmp_path / name, recipe) for name, recipe in (("often", often), ("never", never))]
    told = [lines(run) for run in runs]
    assert ["eval/accuracy" in line for line in told[0]] == [True] * 4
    assert ["eval/accuracy" in line for line in told[1]] == [True, False, False, True]
    bare = [[{k: v for k, v in line.items() if not k.startswith("eval/")} for line in t] for t in told]
    assert bare[0] == bare[1]
    a, b = (left(run) for run in runs)
    for one in (a, b):
        one["state"]["sizes"].pop("metrics")
        one.pop("metrics.jsonl")
    assert a == b


def test_truncated_laws_are_for_evaluation_only() -> None:
    with pytest.raises(ValueError, match="truncated"):
        replace(EVERY, sampling=replace(EVERY.sampling, top_p=0.9))
