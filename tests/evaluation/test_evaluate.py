"""Tests of accuracy, pass@k and maj@k, and that an evaluation changes nothing in a run."""

import asyncio
import itertools
import math
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from groupwise.data import Draw, Finish, Outcome, Prompt, Rollout, Sample, Verdict
from groupwise.engines import NativeEngine
from groupwise.evaluation.accuracy import (
    MOST_VOTES,
    ProblemTally,
    average,
    counts,
    figures,
    lengths,
    majority,
    scores,
    tally,
)
from groupwise.models import RandomPurpose
from tests.docs.warm_shell import environment
from tests.faults.small_runs import EVERY, left, lines, ran, ready


def rollout(
    outcomes: Sequence[Outcome],
    finish: Finish = Finish.stop,
    subscores: float = 0.0,
    i: int = 0,
    read: Sequence[str] = (),
) -> Rollout:
    samples = tuple(
        Sample(
            context=(1,), stream=(k,), tokens=(2, 3), origin=(0, 0), logp=(-1.0, -1.0), finish=finish,
            verdict=Verdict(o, subscores={"chain_true": subscores}, answer=read[k] if read else None),
        )
        for k, o in enumerate(outcomes)
    )  # fmt: skip
    return Rollout(Draw(i, Prompt(f"p{i}", (1,)), len(samples)), samples)


def graded(right: Sequence[int], n: int) -> list[Rollout]:
    """Problems with `n` answers each, of which `right[i]` are right."""
    return [rollout([Outcome.correct] * c + [Outcome.wrong] * (n - c), i=i) for i, c in enumerate(right)]


def pass_at(rollouts: Sequence[Rollout], k: int) -> float:
    return figures([tally(f) for f in rollouts], 1, [k])[f"pass@{k}"].value


@pytest.mark.t(46)
@pytest.mark.parametrize("n", [1, 2, 5, 7])
def test_pass_at_k_is_the_share_of_all_choices_of_k(n: int) -> None:
    for c in range(n + 1):
        marks = [True] * c + [False] * (n - c)
        for k in range(1, n + 1):
            chosen = list(itertools.combinations(marks, k))
            assert pass_at(graded([c], n), k) == pytest.approx(sum(map(any, chosen)) / len(chosen), abs=1e-15)
    # The mean over problems; pass@n over all n answers is a maximum.
    right = list(range(n + 1))
    assert pass_at(graded(right, n), n) == n / (n + 1)
    assert pass_at(graded(right, n), 1) == pytest.approx(average(graded(right, n)).value)


@pytest.mark.t(46)
def test_pass_at_n_finds_one_right_answer() -> None:
    """With replacement the value would be 0.64, as in some other code."""
    for n in (4, 16, 64):
        assert pass_at(graded([1], n), n) == 1.0
        assert pass_at(graded([1], n), 1) == pytest.approx(1 / n)
    with pytest.raises(ValueError, match="pass@5 needs at least 5 answers per problem; this one has 4"):
        tally(graded([1], 4)[0]).pass_at(5)
    assert list(figures([tally(f) for f in graded([1, 1], 4)], 4, [4, 5])) == ["avg@4", "pass@4"]


def test_a_runs_evaluation_has_pass_at_k_up_to_the_fewest_answers() -> None:
    line = scores([], graded([0, 1, 4], 4))
    assert {name: x for name, x in line.items() if "pass@" in name} == {
        "eval/pass@2": pytest.approx((0 + 1 / 2 + 1) / 3), "eval/pass@4": pytest.approx(2 / 3)
    }  # fmt: skip
    assert "eval/pass@4" not in scores([], [*graded([1], 4), *graded([1], 3)])
    assert not any("pass@" in name for name in scores([], graded([1], 1)) | scores([], []))


@pytest.mark.t(46)
def test_averages_are_exact_and_partial_credit_is_no_pass() -> None:
    assert average(graded([0, 1, 3, 4], 4)).value == 0.5
    assert average(graded([1, 1, 1], 3)).value == pytest.approx(1 / 3, abs=1e-16)
    partial = Verdict(Outcome.wrong, score=0.9)
    half = replace(graded([1], 2)[0])
    half = replace(half, samples=(half.samples[0], replace(half.samples[1], verdict=partial)))
    assert average([half]).value == 0.5 and pass_at([half], 1) == 0.5


@pytest.mark.t(46)
def test_unverifiable_answers_are_failures_and_counted_separately() -> None:
    o = Outcome
    rollouts = [
        rollout([o.correct, o.unverifiable, o.malformed, o.wrong]),
        rollout([o.unverifiable] * 4, Finish.length),
    ]
    assert average(rollouts).value == 1 / 8
    assert pass_at(rollouts, 4) == 0.5 and pass_at(rollouts, 1) == 1 / 8
    assert counts(rollouts) == {
        "correct": 1,
        "wrong": 1,
        "malformed": 1,
        "unverifiable": 5,
        "truncated": 4,
        "missing": 0,
    }
    line = scores(rollouts, rollouts)
    assert line["eval/unverifiable"] == 5 / 8 and line["eval/truncated"] == 0.5 and line["eval/accuracy"] == 1 / 8


def test_parts_are_means_over_graded_answers_and_over_correct_ones() -> None:
    """A part of wrong answers counts: else each part of an answer that is correct only with all parts is always 1."""
    o = Outcome
    graded = rollout([o.correct, o.wrong, o.malformed, o.scored, o.unverifiable], subscores=1.0)
    line = scores([], [graded, rollout([o.correct], subscores=0.0)])
    assert line["eval/subscores/chain_true"] == 4 / 5
    assert line["eval/subscores_of_correct/chain_true"] == 1 / 2
    none_correct = scores([], [rollout([o.wrong, o.scored], subscores=1.0)])
    assert none_correct["eval/subscores/chain_true"] == 1 and "eval/subscores_of_correct/chain_true" not in none_correct


def test_mean_length_and_intervals_without_greedy_answers() -> None:
    line = scores([], [rollout([Outcome.correct, Outcome.wrong]), rollout([Outcome.correct])])
    assert line["eval/mean_length"] == 2.0
    assert (line["eval/accuracy_greedy"], line["eval/low_greedy"], line["eval/high_greedy"]) == (0.0, 0.0, 1.0)


@pytest.mark.t(46)
def test_a_problem_without_answers_stays_in_the_mean_and_is_counted() -> None:
    """A mean without failed rollouts would be over the surviving ones only."""
    empty = replace(rollout([Outcome.correct]), samples=())
    short = replace(rollout([Outcome.correct] * 3), samples=rollout([Outcome.correct]).samples)
    assert average([empty, rollout([Outcome.correct])]).value == 0.5
    assert counts([empty, short])["missing"] == 1 + 2
    assert list(figures([tally(empty), tally(short)], 1, [1])) == ["avg@1", "maj@1"][:1]  # no pass@1 without answers


def test_only_answers_count() -> None:
    """A strategy may add samples with other roles, such as notes."""
    note = replace(rollout([Outcome.correct]).samples[0], role="note")
    one = rollout([Outcome.wrong])
    assert average([replace(one, samples=(note, *one.samples))]).value == 0.0
    assert counts([replace(one, samples=(note, *one.samples))])["correct"] == 0


def votes(right: int, others: Sequence[int], invalid: int, k: int) -> float:
    """maj@k by enumerating all choices of k answers. Tied answers share the win."""
    cast = ["right"] * right + [str(i) for i, n in enumerate(others) for _ in range(n)] + [""] * invalid
    won, choices = 0.0, list(itertools.combinations(cast, k))
    for choice in choices:
        most = Counter(vote for vote in choice if vote)
        if most["right"] and most["right"] == max(most.values()):
            won += 1 / list(most.values()).count(most["right"])
    return won / len(choices)


@pytest.mark.t(46)
@given(st.integers(0, 4), st.lists(st.integers(1, 3), max_size=3), st.integers(0, 2), st.data())
def test_majority_is_the_share_of_all_choices_of_k(
    right: int, others: list[int], invalid: int, data: st.DataObject
) -> None:
    n = right + sum(others) + invalid
    k = data.draw(st.integers(min(1, n), n))
    value = ProblemTally("p", n, right, tuple(others)).maj_at(k)
    assert value == pytest.approx(votes(right, others, invalid, k), abs=1e-12)


@pytest.mark.t(46)
def test_maj_at_1_is_accuracy_and_maj_at_n_the_most_frequent_answer() -> None:
    for right, others, invalid in ((3, (2, 1), 2), (1, (), 3), (0, (4,), 0), (32, (20, 12), 0)):
        n = right + sum(others) + invalid
        one = ProblemTally("p", n, right, others)
        assert one.maj_at(1) == pytest.approx(one.share)  # one voter decides
        most = max((*others, right))
        tied = (*others, right).count(most)
        assert one.maj_at(n) == pytest.approx((right == most) / tied)
    assert majority(500, (250, 250), 0)[1000] == 1.0 and MOST_VOTES == 1000
    with pytest.raises(ValueError, match="more than 1000 answers"):
        ProblemTally("p", 1001, 1, (1000,)).maj_at(1)


def test_votes_are_the_answers_that_the_verifier_read() -> None:
    o = Outcome
    read = ["7", "1/2", "7", "8", "", ""]
    one = rollout([o.wrong, o.correct, o.wrong, o.wrong, o.malformed, o.unverifiable], read=read)
    assert tally(one) == ProblemTally("p0", 6, 1, (2, 1))
    assert figures([tally(one)], 6, [6])["maj@6"].value == 0.0  # two votes for 7, one for the right answer
    unread = replace(one, samples=rollout([o.correct, o.wrong]).samples)
    assert tally(unread).wrong_counts is None
    with pytest.raises(ValueError, match="does not return the answer that it read"):
        tally(unread).maj_at(1)
    assert list(figures([tally(one), tally(unread)], 2, [2])) == ["avg@2", "pass@2"]  # of all problems or none


def test_lengths_by_outcome() -> None:
    o = Outcome
    one = rollout([o.correct, o.wrong, o.wrong, o.malformed])
    longer = [replace(s, tokens=(1,) * n, origin=(0,) * n, logp=(0.0,) * n) for s, n in zip(one.samples, (3, 4, 9, 1))]
    result = lengths([replace(one, samples=tuple(longer)), rollout([o.wrong])])
    assert result["correct"] == {"answers": 1, "mean": 3.0, "median": 3.0, "longest": 3}
    assert result["wrong"] == {"answers": 3, "mean": 5.0, "median": 4.0, "longest": 9}
    assert list(result) == ["correct", "wrong", "malformed"]


RIGHT = (31, 0, 16, 4, 27, 32, 9, 0, 21, 13, 2, 30, 8, 17, 32, 1, 25, 6, 12, 0, 19, 28, 5, 23, 11, 3, 32, 14, 7, 20)
"""The right answers among 32, for each of 30 problems."""


@pytest.mark.t(48)
def test_golden_thirty_problems_with_thirty_two_answers() -> None:
    figure = average(graded(RIGHT, 32))
    assert figure.value == pytest.approx(sum(RIGHT) / 960, abs=1e-15)
    assert (figure.value, figure.low, figure.high) == pytest.approx(GOLDEN, abs=1e-12)
    for k, value in PASSES.items():
        missed = [math.prod((32 - c - i) / (32 - i) for i in range(k)) for c in RIGHT]
        assert pass_at(graded(RIGHT, 32), k) == pytest.approx(1 - np.mean(missed), abs=1e-12)
        assert pass_at(graded(RIGHT, 32), k) == pytest.approx(value, abs=1e-12)


GOLDEN = (0.4666666666666667, 0.34479166666666666, 0.5870876399874303)
PASSES = {1: 0.4666666666666667, 4: 0.7235215053763441, 32: 0.9}


@pytest.mark.t(47)
def test_evaluation_leaves_random_states_unchanged() -> None:
    """Runs in a separate process, since the checker of annotations in these tests draws random numbers."""
    words = ["python", "-c", STATES]
    assert subprocess.check_output(words, env=environment(), text=True) == "same\n"


STATES = """
import asyncio, random
import numpy as np, torch
from tests.faults.small_runs import EVERY, ready
runtime = ready(EVERY)
asyncio.run(runtime.engine.load(0, runtime.new_learner().weights()))
torch.manual_seed(1), np.random.seed(2), random.seed(3)
def states():
    return random.getstate(), torch.get_rng_state().tolist(), [np.asarray(x).tolist() for x in np.random.get_state()]
before = states()
asyncio.run(runtime.evaluate(runtime.rollout_setting))
print("same" if states() == before else "changed")
"""


@pytest.mark.t(47)
def test_evaluation_changes_nothing_in_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = ready(EVERY)
    learner, buffer = runtime.new_learner(), runtime.new_buffer()
    asyncio.run(runtime.engine.load(0, learner.weights()))
    state = dict(buffer.state())
    weights = {name: x.clone() for name, x in learner.weights().items()}
    sample, requests = NativeEngine.sample, []
    monkeypatch.setattr(NativeEngine, "sample", lambda self, request: requests.append(request) or sample(self, request))
    first = asyncio.run(runtime.evaluate(buffer.rollout_setting))
    assert len(requests) == 2 * 2 and {request.random_purpose for request in requests} == {RandomPurpose.EVALUATE}
    assert buffer.state() == state and learner.version == 0
    assert all(torch.equal(x, weights[name]) for name, x in learner.weights().items())
    assert all(p.grad is None for p in learner.model.parameters())
    assert asyncio.run(runtime.evaluate(buffer.rollout_setting)) == first  # the same random numbers again


@pytest.mark.t(47)
def test_a_run_that_is_evaluated_trains_to_the_same_bits(tmp_path: Path) -> None:
    often, never = (replace(EVERY, evaluate=replace(EVERY.evaluate, every=n)) for n in (1, 0))
    runs = [ran(tmp_path / name, recipe) for name, recipe in (("often", often), ("never", never))]
    metrics = [lines(run) for run in runs]
    assert ["eval/accuracy" in line for line in metrics[0]] == [True] * 4
    assert ["eval/accuracy" in line for line in metrics[1]] == [True, False, False, True]
    bare = [[{k: v for k, v in line.items() if not k.startswith("eval/")} for line in t] for t in metrics]
    assert bare[0] == bare[1]
    a, b = (left(run) for run in runs)
    for one in (a, b):
        del one["state"]["sizes"]["metrics"], one["state"]["hashes"]["metrics"], one["state"]["recipe"]
        del one["metrics.jsonl"]
    assert a == b


def test_truncated_sampling_is_for_evaluation_only() -> None:
    with pytest.raises(ValueError, match="truncated"):
        replace(EVERY, sampling=replace(EVERY.sampling, top_p=0.9))
