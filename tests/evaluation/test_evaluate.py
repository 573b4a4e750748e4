"""Numbers about a model: what they are, how sure they are, and that asking for them changes nothing."""

import asyncio
import itertools
import math
import subprocess
import sys
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
from groupwise.evaluation.evaluate import MOST_VOTES, Tally, average, counts, figures, lengths, majority, scores, tally
from groupwise.models import Purpose
from groupwise.rollout import NativeEngine
from tests.faults.small_runs import EVERY, left, lines, ran, ready


def rollout(
    outcomes: Sequence[Outcome], finish: Finish = Finish.stop, parts: float = 0.0, i: int = 0, said: Sequence[str] = ()
) -> Rollout:
    samples = tuple(
        Sample(
            context=(1,), stream=(k,), tokens=(2, 3), origin=(0, 0), logp=(-1.0, -1.0), finish=finish,
            verdict=Verdict(o, parts={"chain_true": parts}, answer=said[k] if said else None),
        )
        for k, o in enumerate(outcomes)
    )  # fmt: skip
    return Rollout(Draw(i, Prompt(f"p{i}", (1,)), len(samples)), samples)


def answered(right: Sequence[int], n: int) -> list[Rollout]:
    """Problems of which so many of `n` answers are right."""
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
            assert pass_at(answered([c], n), k) == pytest.approx(sum(map(any, chosen)) / len(chosen), abs=1e-15)
    # The mean over problems; the best of as many as there are is a maximum.
    right = list(range(n + 1))
    assert pass_at(answered(right, n), n) == n / (n + 1)
    assert pass_at(answered(right, n), 1) == pytest.approx(average(answered(right, n)).value)


@pytest.mark.t(46)
def test_one_right_answer_of_many_is_found_by_all_of_them_together() -> None:
    """Drawn with replacement this would be 0.64, as a peer has it."""
    for n in (4, 16, 64):
        assert pass_at(answered([1], n), n) == 1.0
        assert pass_at(answered([1], n), 1) == pytest.approx(1 / n)
    with pytest.raises(ValueError, match="pass@5 needs at least 5 answers a problem, and there are 4"):
        tally(answered([1], 4)[0]).passes(5)
    assert list(figures([tally(f) for f in answered([1, 1], 4)], 4, [4, 5])) == ["avg@4", "pass@4"]


@pytest.mark.t(46)
def test_averages_are_exact_and_partial_credit_is_no_pass() -> None:
    assert average(answered([0, 1, 3, 4], 4)).value == 0.5
    assert average(answered([1, 1, 1], 3)).value == pytest.approx(1 / 3, abs=1e-16)
    graded = Verdict(Outcome.wrong, score=0.9)
    half = replace(answered([1], 2)[0])
    half = replace(half, samples=(half.samples[0], replace(half.samples[1], verdict=graded)))
    assert average([half]).value == 0.5 and pass_at([half], 1) == 0.5


@pytest.mark.t(46)
def test_what_could_not_be_judged_is_a_failure_and_is_told_apart() -> None:
    o = Outcome
    odd = [rollout([o.correct, o.unverifiable, o.malformed, o.wrong]), rollout([o.unverifiable] * 4, Finish.length)]
    assert average(odd).value == 1 / 8
    assert pass_at(odd, 4) == 0.5 and pass_at(odd, 1) == 1 / 8
    assert counts(odd) == {"correct": 1, "wrong": 1, "malformed": 1, "unverifiable": 5, "truncated": 4, "missing": 0}
    line = scores(odd, odd)
    assert line["eval/unverifiable"] == 5 / 8 and line["eval/truncated"] == 0.5 and line["eval/accuracy"] == 1 / 8


def test_named_parts_are_those_of_right_answers() -> None:
    line = scores([], [rollout([Outcome.correct, Outcome.wrong], parts=1.0), rollout([Outcome.correct], parts=0.0)])
    assert line["eval/chain_true"] == 0.5
    assert line["eval/mean_length"] == 2.0
    assert (line["eval/accuracy_greedy"], line["eval/low_greedy"], line["eval/high_greedy"]) == (0.0, 0.0, 1.0)


@pytest.mark.t(46)
def test_a_problem_without_an_answer_stays_in_the_mean_and_is_told() -> None:
    """Peers leave failed rollouts out, so that their numbers are over survivors."""
    silent = replace(rollout([Outcome.correct]), samples=())
    short = replace(rollout([Outcome.correct] * 3), samples=rollout([Outcome.correct]).samples)
    assert average([silent, rollout([Outcome.correct])]).value == 0.5
    assert counts([silent, short])["missing"] == 1 + 2
    assert list(figures([tally(silent), tally(short)], 1, [1])) == ["avg@1", "maj@1"][:1]  # no pass@1 of nothing


def test_only_answers_count() -> None:
    """A strategy may bring notes and judgements of its own."""
    note = replace(rollout([Outcome.correct]).samples[0], role="note")
    one = rollout([Outcome.wrong])
    assert average([replace(one, samples=(note, *one.samples))]).value == 0.0
    assert counts([replace(one, samples=(note, *one.samples))])["correct"] == 0


def votes(right: int, others: Sequence[int], silent: int, k: int) -> float:
    """maj@k by counting every choice of k answers; the tied share the win."""
    cast = ["right"] * right + [str(i) for i, n in enumerate(others) for _ in range(n)] + [""] * silent
    won, choices = 0.0, list(itertools.combinations(cast, k))
    for choice in choices:
        most = Counter(vote for vote in choice if vote)
        if most["right"] and most["right"] == max(most.values()):
            won += 1 / list(most.values()).count(most["right"])
    return won / len(choices)


@pytest.mark.t(46)
@given(st.integers(0, 4), st.lists(st.integers(1, 3), max_size=3), st.integers(0, 2), st.data())
def test_majority_is_the_share_of_all_choices_of_k(
    right: int, others: list[int], silent: int, data: st.DataObject
) -> None:
    n = right + sum(others) + silent
    k = data.draw(st.integers(min(1, n), n))
    found = Tally("p", n, right, tuple(others)).agrees(k)
    assert found == pytest.approx(votes(right, others, silent, k), abs=1e-12)


@pytest.mark.t(46)
def test_one_vote_is_one_answer_and_many_votes_are_the_most_frequent() -> None:
    for right, others, silent in ((3, (2, 1), 2), (1, (), 3), (0, (4,), 0), (32, (20, 12), 0)):
        n = right + sum(others) + silent
        one = Tally("p", n, right, others)
        assert one.agrees(1) == pytest.approx(one.share)  # one voter decides
        most = max((*others, right))
        tied = (*others, right).count(most)
        assert one.agrees(n) == pytest.approx((right == most) / tied)
    assert majority(500, (250, 250), 0)[1000] == 1.0 and MOST_VOTES == 1000
    with pytest.raises(ValueError, match="more than 1000 answers"):
        Tally("p", 1001, 1, (1000,)).agrees(1)


def test_votes_are_what_was_read() -> None:
    o = Outcome
    said = ["7", "1/2", "7", "8", "", ""]
    one = rollout([o.wrong, o.correct, o.wrong, o.wrong, o.malformed, o.unverifiable], said=said)
    assert tally(one) == Tally("p0", 6, 1, (2, 1))
    assert figures([tally(one)], 6, [6])["maj@6"].value == 0.0  # two votes for 7, one for the right answer
    unread = replace(one, samples=rollout([o.correct, o.wrong]).samples)
    assert tally(unread).others is None
    with pytest.raises(ValueError, match="does not tell what it read as the answer"):
        tally(unread).agrees(1)
    assert list(figures([tally(one), tally(unread)], 2, [2])) == ["avg@2", "pass@2"]  # never of some problems only


def test_lengths_by_outcome() -> None:
    o = Outcome
    one = rollout([o.correct, o.wrong, o.wrong, o.malformed])
    longer = [replace(s, tokens=(1,) * n, origin=(0,) * n, logp=(0.0,) * n) for s, n in zip(one.samples, (3, 4, 9, 1))]
    found = lengths([replace(one, samples=tuple(longer)), rollout([o.wrong])])
    assert found["correct"] == {"answers": 1, "mean": 3.0, "median": 3.0, "longest": 3}
    assert found["wrong"] == {"answers": 3, "mean": 5.0, "median": 4.0, "longest": 9}
    assert list(found) == ["correct", "wrong", "malformed"]


RIGHT = (31, 0, 16, 4, 27, 32, 9, 0, 21, 13, 2, 30, 8, 17, 32, 1, 25, 6, 12, 0, 19, 28, 5, 23, 11, 3, 32, 14, 7, 20)
"""Of 32 answers to each of 30 problems."""


@pytest.mark.t(48)
def test_golden_thirty_problems_with_thirty_two_answers() -> None:
    found = average(answered(RIGHT, 32))
    assert found.value == pytest.approx(sum(RIGHT) / 960, abs=1e-15)
    assert (found.value, found.low, found.high) == pytest.approx(GOLDEN, abs=1e-12)
    for k, value in PASSES.items():
        missed = [math.prod((32 - c - i) / (32 - i) for i in range(k)) for c in RIGHT]
        assert pass_at(answered(RIGHT, 32), k) == pytest.approx(1 - np.mean(missed), abs=1e-12)
        assert pass_at(answered(RIGHT, 32), k) == pytest.approx(value, abs=1e-12)


GOLDEN = (0.4666666666666667, 0.34479166666666666, 0.5870876399874303)
PASSES = {1: 0.4666666666666667, 4: 0.7235215053763441, 32: 0.9}


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
        del one["state"]["sizes"]["metrics"], one["state"]["hashes"]["metrics"], one["state"]["recipe"]
        del one["metrics.jsonl"]
    assert a == b


def test_truncated_laws_are_for_evaluation_only() -> None:
    with pytest.raises(ValueError, match="truncated"):
        replace(EVERY, sampling=replace(EVERY.sampling, top_p=0.9))
