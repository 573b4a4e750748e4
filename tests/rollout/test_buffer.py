"""The buffer: refill rounds, causes of dropped rollouts, its state, deadlines; and evaluation without a buffer."""

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from jaxtyping import Bool
from torch import Tensor

from groupwise.core import Usage, WorkerLost
from groupwise.data import Batch, Draw, Outcome, Prompt, Rollout, Sample, Task, Verdict
from groupwise.objective import describe_samples
from groupwise.rollout import Independent, IterationRollouts, RolloutBuffer, RolloutSetting, Shuffled, answers
from tests.processes import PATIENCE
from tests.rollout.fakes import (
    FakeEngine,
    NumberedTask,
    always_correct,
    decoder,
    engine,
    judged_by,
    sampling,
    tokenizer,
    verdict,
)


def everything(rollout: Batch) -> Bool[Tensor, " s"]:
    return torch.ones(len(rollout), dtype=torch.bool)


def mixed(rollout: Batch) -> Bool[Tensor, " s"]:
    score = rollout.outcome == Outcome.correct
    return torch.full((len(rollout),), bool(score.any()) and not bool(score.all()))


def plain(request: Any) -> tuple[int, ...]:
    return (1 + request.draw_id % 10, 1 + request.stream[0], 0)


@dataclass(frozen=True)
class InOrder:
    """Prompts 0, 1, 2 ... once each; the state lists the observed rollouts."""

    def init(self, task: Task, seed: int) -> dict[str, Any]:
        return {"next": 0, "observed": [], "iterations": []}

    def draw(self, state: dict[str, Any], task: Task, n: int, group_size: int) -> tuple[dict[str, Any], list[Draw]]:
        first = state["next"]
        last = min(first + n, len(task))
        return {**state, "next": last}, [Draw(0, task[i], group_size) for i in range(first, last)]

    def observe(self, state: dict[str, Any], rollouts: Sequence[Rollout]) -> dict[str, Any]:
        return {**state, "observed": state["observed"] + [[f.draw.id, any(f.selected or ())] for f in rollouts]}

    def end_iteration(self, state: dict[str, Any], rollouts: Sequence[Rollout]) -> dict[str, Any]:
        return {**state, "iterations": state["iterations"] + [len(rollouts)]}


def verifier_of(scores: dict[int, list[float]], default: list[float]) -> Callable[[Prompt, Sample], Any]:
    """A verifier with given scores for each sample of a prompt, returned with random delays. NaN raises an error."""
    delays = random.Random(1)

    async def verifier(prompt: Prompt, sample: Sample) -> Verdict:
        await asyncio.sleep(delays.random() * 0.01)
        score = scores.get(prompt.row["index"], default)[sample.stream[0]]
        if score != score:
            raise ValueError("cannot be judged")
        return verdict(score)

    return verifier


def buffer(
    verifier: Any = always_correct, task: Task | None = None, curriculum: Any = None, **changes: Any
) -> RolloutBuffer:
    rule = {name: changes.pop(name) for name in ("unverifiable_rule", "trained_roles") if name in changes}
    engine = changes.pop("engine", None) or FakeEngine(plain)
    return RolloutBuffer(
        task or NumberedTask(40), curriculum or InOrder(), setting(engine, verifier, **changes), **rule
    )


def setting(engine: Any, verifier: Any = always_correct, **changes: Any) -> RolloutSetting:
    fields = {
        "engine": engine,
        "verifier": judged_by(verifier),
        "tokenizer": tokenizer(),
        "sampling": sampling(),
        "seed": 3,
    }
    return RolloutSetting(**{**fields, **changes})


def take(
    b: RolloutBuffer, n: int = 4, filter: Any = everything, max_refills: int = 0, strategy: Any = None, group: int = 2
) -> IterationRollouts:
    return asyncio.run(b.take(n, group, strategy or Independent(), filter, max_refills))


def ids(rollouts: Sequence[Rollout]) -> list[int]:
    return [f.draw.id for f in rollouts]


def test_the_budget_of_a_batch_is_that_of_the_run_and_not_of_its_prompts() -> None:
    """Positions leave every answer less room than `max_tokens`."""
    b = buffer(max_positions=9)
    batch = b.pack(take(b).selected)
    assert batch.max_new_tokens == b.rollout_setting.sampling.max_tokens == 12 and int(batch.length_limit.max()) < 9


@pytest.mark.t(28)
def test_refill_brings_exactly_the_wanted_rollouts_and_counts_all_others() -> None:
    live = {1, 2, 5, 7, 8}
    b = buffer(verifier_of({i: [1, 0] for i in live}, [1, 1]))
    collected = take(b, 4, mixed, max_refills=10)
    # Rounds of 4, 2, 1 and 1: draws 0-3 give two, 4-5 one, 6 none, 7 the last.
    assert (ids(collected.selected), ids(collected.dropped), collected.sampling_round_count) == (
        [1, 2, 5, 7],
        [0, 3, 4, 6],
        4,
    )
    assert ids(collected.sampled_rollouts) == list(range(8))
    assert collected.causes == {"mixed": 4}
    assert all(f.selected == (True, True) and not f.cause for f in collected.selected)
    assert all(f.selected == (False, False) and f.cause == "mixed" for f in collected.dropped)
    state = b.state()["curriculum"]
    assert state["observed"] == [[i, i in live] for i in range(8)] and state["iterations"] == [8]
    counts = collected.metrics
    assert (counts["rollout/selected"], counts["rollout/dropped"], counts["rollout/dropped/mixed"]) == (4, 4, 4)
    assert (counts["rollout/draws"], counts["rollout/rounds"]) == (8, 4)
    assert ids(take(b, 1, mixed, max_refills=10).selected) == [8]


@pytest.mark.t(28)
def test_refill_rounds_are_bounded_and_selected_rollouts_are_returned() -> None:
    b = buffer(verifier_of({2: [1, 0]}, [0, 0]))
    assert ids(take(b, 4, mixed, max_refills=1).selected) == [2]
    empty = take(b, 4, mixed, max_refills=2)
    assert (empty.selected, len(empty.dropped), empty.sampling_round_count) == ([], 12, 3)


@pytest.mark.t(29)
def test_the_end_of_the_data_returns_the_selected_rollouts() -> None:
    b = buffer(verifier_of({1: [1, 0], 4: [1, 0]}, [0, 0]), NumberedTask(6))
    collected = take(b, 4, mixed, max_refills=10)
    assert (ids(collected.selected), ids(collected.sampled_rollouts), collected.sampling_round_count) == (
        [1, 4],
        list(range(6)),
        2,
    )
    assert collected.missing_selected_rollout_count == 2 and take(b, 4, mixed, max_refills=10) == IterationRollouts(
        (), 0, missing_selected_rollout_count=4
    )


@pytest.mark.t(44)
def test_every_prompt_of_an_epoch_gives_one_full_group() -> None:
    b = buffer(task=NumberedTask(10), curriculum=Shuffled())
    rollouts = [f for n in (3, 4, 3, 7, 3) for f in take(b, n, group=3).selected]
    assert ids(rollouts) == list(range(20))
    for epoch in (rollouts[:10], rollouts[10:]):
        assert sorted(s.context[0] for f in epoch for s in f.samples) == sorted(list(range(1, 11)) * 3)


@pytest.mark.t(30)
def test_the_filter_gets_the_outcomes() -> None:
    batches: list[Batch] = []

    def watch(rollout: Batch) -> Bool[Tensor, " s"]:
        batches.append(rollout)
        return torch.tensor([True, False])

    collected = take(buffer(verifier_of({}, [1, 0.25])), 1, watch)
    assert (batches[0].verdict_score.tolist(), batches[0].reward, collected.sampled_rollouts[0].selected) == (
        [1.0, 0.25],
        None,
        (True, False),
    )
    assert ids(collected.selected) == [0]


NAN = float("nan")


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("exclude", {0: (True, True, True), 1: (False, True, True), 2: (), 3: ()}),
        ("wrong", {0: (True, True, True), 1: (True, True, True), 2: (True, True, True), 3: ()}),
        ("drop_group", {0: (True, True, True), 1: (), 2: (), 3: ()}),
    ],
)
def test_rules_for_unverifiable_samples(rule: Any, expected: dict[int, tuple[bool, ...]]) -> None:
    """An unverifiable sample among correct ones makes a mixed group only if it counts as wrong."""
    scores = {0: [1.0, 0.0, 0.0], 1: [NAN, 0.0, 1.0], 2: [1.0, NAN, 1.0], 3: [NAN, NAN, NAN]}
    b = buffer(verifier_of(scores, []), unverifiable_rule=rule)
    collected = take(b, 4, mixed, group=3)
    assert {f.draw.id: f.selected if any(f.selected or ()) else () for f in collected.sampled_rollouts} == expected
    assert [f.cause for f in collected.dropped if f.draw.id == 3] == ["mixed" if rule == "wrong" else "unverifiable"]
    assert [f.cause for f in collected.dropped if f.draw.id == 1] == (["unverifiable"] if rule == "drop_group" else [])
    *counts, cause = collected.unverifiable
    assert counts == [5, 12] and cause.startswith("test_buffer.py:") and cause.endswith("ValueError: cannot be judged")
    assert collected.culprit == "verifier"
    assert collected.metrics["rollout/unverifiable"] == 5
    packed = b.pack(collected.selected)
    assert Outcome.unverifiable not in packed.outcome and describe_samples(packed)["groups/all_right"] == 0


def test_samples_of_untrained_roles_are_recorded_and_not_selected() -> None:
    async def hinted(draw: Draw, sampler: Any) -> Rollout:
        hints = await sampler.sample(draw.prompt.token_ids, 1, role="hint")
        return Rollout(draw, (*hints, *await sampler.verify(await sampler.sample(draw.prompt.token_ids, 2))))

    async def only_hints(draw: Draw, sampler: Any) -> Rollout:
        return Rollout(draw, tuple(await sampler.sample(draw.prompt.token_ids, 1, role="hint")))

    assert take(buffer(), 1, strategy=hinted).sampled_rollouts[0].selected == (False, True, True)
    assert take(buffer(), 1, strategy=only_hints).causes == {"empty": 1}


def test_rollouts_are_sampled_concurrently_and_returned_in_draw_order() -> None:
    """The first draw waits for the last: sequential sampling would never end."""
    last = asyncio.Event()

    async def wait(request: Any) -> tuple[int, ...]:
        if request.draw_id == 0:
            await last.wait()
        if request.draw_id == 3:
            last.set()
        return (1, 0)

    assert ids(take(buffer(engine=FakeEngine(wait), rollout_deadline=PATIENCE)).selected) == [0, 1, 2, 3]


def test_a_buffer_continues_from_its_state_as_json() -> None:
    def run(b: RolloutBuffer, n: int) -> list[IterationRollouts]:
        return [take(b, 3, mixed, max_refills=2) for _ in range(n)]

    def fresh() -> RolloutBuffer:
        verifier = verifier_of({i: [1, 0] for i in range(0, 40, 3)}, [0, 0])
        return buffer(verifier, curriculum=Shuffled(), engine=engine(decoder(), max_num_seqs=4))

    whole = run(fresh(), 4)
    first = fresh()
    start = run(first, 2)
    second = fresh()
    second.restore(json.loads(json.dumps(first.state())))
    assert start + run(second, 2) == whole
    assert sum(len(h.selected) for h in whole) > 2
    assert len({s.tokens for h in whole for f in h.sampled_rollouts for s in f.samples}) > 40


def test_a_take_that_raises_leaves_the_state_unchanged() -> None:
    calls = 0

    def third(request: Any) -> tuple[int, ...]:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise RuntimeError("gone")
        return (1, 0)

    b = buffer(engine=FakeEngine(third))
    before = b.state()
    with pytest.raises(RuntimeError, match="gone"):
        take(b)
    assert b.state() == before
    assert ids(take(b).selected) == [0, 1, 2, 3]


def test_a_rollout_beyond_its_deadline_is_an_error_that_names_the_pending_calls() -> None:
    async def silent(request: Any) -> tuple[int, ...]:
        await asyncio.sleep(1000)
        return ()

    with pytest.raises(
        WorkerLost,
        match=r"the samples of draw 0 were not finished within 0.05 seconds\n  seen: .*the engine \(2 times\)",
    ):
        take(buffer(engine=FakeEngine(silent), rollout_deadline=0.05), 1)

    async def hangs(prompt: Prompt, sample: Sample) -> Verdict:
        await asyncio.sleep(1000)
        return verdict(1.0)

    with pytest.raises(WorkerLost, match=r"the verifier \(2 times\)"):
        take(buffer(hangs, rollout_deadline=0.05), 1)
    collected = take(buffer(hangs, rollout_deadline=PATIENCE, verdict_deadline=0.05), 1)
    assert collected.causes == {"unverifiable": 1}


# Draws, strategies and filters over an iteration


@dataclass(frozen=True)
class Uneven(InOrder):
    """One to three samples for each prompt, and a note for the strategy."""

    def draw(self, state: dict[str, Any], task: Task, n: int, group_size: int) -> tuple[dict[str, Any], list[Draw]]:
        state, draws = InOrder.draw(self, state, task, n, group_size)
        return state, [replace(d, n=1 + d.prompt.row["index"] % 3, metadata={"hint": "x"}) for d in draws]


def test_the_buffer_numbers_draws_over_rounds_iterations_and_restarts() -> None:
    b = buffer(verifier_of({i: [1, 0] for i in (2, 5)}, [1, 1]))
    assert ids(take(b, 2, mixed, max_refills=9).sampled_rollouts) == [0, 1, 2, 3, 4, 5]
    assert b.state()["drawn"] == 6
    again = buffer()
    again.restore(json.loads(json.dumps(b.state())))
    assert ids(take(again, 2).sampled_rollouts) == [6, 7] and ids(take(b, 2).sampled_rollouts) == [6, 7]


def test_a_curriculum_gives_each_draw_its_number_of_samples_and_a_memo() -> None:
    memos = []

    async def strategy(draw: Draw, sampler: Any) -> Rollout:
        memos.append(draw.metadata["hint"])
        return await Independent()(draw, sampler)

    b = buffer(curriculum=Uneven())
    rollouts = take(b, 4, strategy=strategy).selected
    assert [len(r.samples) for r in rollouts] == [1, 2, 3, 1] and memos == ["x"] * 4
    assert b.pack(rollouts).groups.lengths.tolist() == [1, 2, 3, 1]


@dataclass(frozen=True)
class BestHalf:
    """The rollouts whose mean score is at least the iteration's median."""

    scope: ClassVar = "iteration"

    def __call__(self, iteration: Batch) -> Bool[Tensor, " s"]:
        mean = iteration.groups.mean(iteration.verdict_score)
        return (mean >= mean.median())[iteration.groups.index]


def test_a_filter_over_the_iteration_gets_all_rollouts_and_selects_again_after_a_refill() -> None:
    """The first round selects 1, 2 and 3; the rollout of the refill raises the median, and 1 is out."""
    b = buffer(verifier_of({0: [0, 0], 1: [1, 0], 2: [1, 1], 3: [1, 1]}, [1, 1]))
    collected = take(b, 4, BestHalf(), max_refills=1)
    assert (ids(collected.sampled_rollouts), ids(collected.selected)) == ([0, 1, 2, 3, 4], [2, 3, 4])
    assert collected.missing_selected_rollout_count == 1 and b.state()["curriculum"]["iterations"] == [5]
    assert [r.cause for r in collected.dropped] == ["BestHalf"] * 2


def test_the_cause_of_a_strategy_is_kept() -> None:
    async def gives_up(draw: Draw, sampler: Any) -> Rollout:
        return Rollout(draw, (), cause="too easy")

    assert take(buffer(), 2, strategy=gives_up).causes == {"too easy": 2}


async def hinted(draw: Draw, sampler: Any) -> Rollout:
    """Two answers, and two hints, the second of which is unverifiable."""
    answers = await sampler.verify(await sampler.sample(draw.prompt.token_ids, 2))
    hints = await sampler.sample(draw.prompt.token_ids, 2, role="hint")
    judged = [hints[0].with_verdict(verdict(1.0)), hints[1].with_verdict(Verdict(Outcome.unverifiable, cause="lost"))]
    return Rollout(draw, (*judged, *answers))


def test_trained_roles_follow_the_answers_of_their_rollout() -> None:
    sizes: list[int] = []

    def mixed_and_counted(rollout: Batch) -> Bool[Tensor, " s"]:
        sizes.append(len(rollout))
        return mixed(rollout)

    scores = {0: [1, 0, 1, 1], 1: [1, 1, 0, 0]}
    b = buffer(verifier_of(scores, []), trained_roles=("answer", "hint"))
    collected = take(b, 2, mixed_and_counted, strategy=hinted)
    assert [r.selected for r in collected.sampled_rollouts] == [(True, False, True, True), (False,) * 4] and sizes == [
        2,
        2,
    ]
    batch = b.pack(collected.selected)
    assert [s.role for s in batch.samples] == ["hint", "answer", "answer"]
    assert batch.groups.index.tolist() == [0, 1, 1] and collected.unverifiable == (0, 4, "")
    assert describe_samples(batch)["outcome/correct"] == 0.5
    assert take(buffer(verifier_of(scores, [])), 2, mixed, strategy=hinted).sampled_rollouts[0].selected == (
        False,
        False,
        True,
        True,
    )
    wrong = buffer(verifier_of(scores, []), trained_roles=("answer", "hint"), unverifiable_rule="wrong")
    assert take(wrong, 2, mixed, strategy=hinted).sampled_rollouts[0].selected == (True,) * 4


def test_a_sample_of_a_trained_role_needs_a_verdict() -> None:
    async def bare(draw: Draw, sampler: Any) -> Rollout:
        answers = await sampler.verify(await sampler.sample(draw.prompt.token_ids, 1))
        return Rollout(draw, (*answers, *await sampler.sample(draw.prompt.token_ids, 1, role="hint")))

    with pytest.raises(Usage, match="this role has no verdict"):
        take(buffer(trained_roles=("answer", "hint")), 1, strategy=bare)


def test_twins_are_an_error() -> None:
    """Two samples with one random stream would be equal, and one of them would be lost in the records."""

    async def forked(draw: Draw, sampler: Any) -> Rollout:
        (one,) = await sampler.sample(draw.prompt.token_ids, 1)
        return Rollout(draw, tuple(await sampler.verify([one.fork(1, 0), one.fork(1, 0)])))

    async def other(draw: Draw, sampler: Any) -> Rollout:
        return Rollout(replace(draw, id=77), ())

    with pytest.raises(Usage, match=r"2 samples with the same random numbers \(stream \(0, 1, 0\)\)"):
        take(buffer(), 1, strategy=forked)
    with pytest.raises(Usage, match=r"called with draw 0 .* returned draw 77"):
        take(buffer(), 1, strategy=other)


def test_a_strategy_marks_each_of_its_samples() -> None:
    """With fewer marks than samples, the filter's marks of one prompt were read for the next one."""

    async def half(draw: Draw, sampler: Any) -> Rollout:
        answers = await sampler.verify(await sampler.sample(draw.prompt.token_ids, 2))
        return Rollout(draw, tuple(answers), selected=(True,))

    with pytest.raises(Usage, match="returned 2 samples, and `selected` has 1 marks"):
        take(buffer(), 1, strategy=half)


# Evaluation


@pytest.mark.t(47)
def test_evaluation_changes_no_state_and_is_repeatable() -> None:
    native, task = engine(decoder()), NumberedTask(5)

    def evaluated() -> list[Rollout]:
        prompts = [task[i] for i in range(5)]
        return asyncio.run(answers(prompts, 3, setting(native)))

    b = buffer(engine=native, task=task)
    # Python's generator is not compared: the runtime type checker of these tests draws from it.
    state, torch_state, numpy_state = b.state(), torch.random.get_rng_state(), np.random.get_state()[1].tolist()
    first = evaluated()
    assert b.state() == state
    assert torch.equal(torch.random.get_rng_state(), torch_state) and np.random.get_state()[1].tolist() == numpy_state
    sampled = take(b, 5, group=3).selected
    assert evaluated() == first
    fresh = buffer(engine=engine(decoder()), task=task)
    assert take(fresh, 5, group=3).selected == sampled
    assert [f.draw.prompt.id for f in first] == [f"p{i}" for i in range(5)]
    assert all(len(f.samples) == 3 and f.samples[0].verdict == verdict(1.0) for f in first)
    # Equal draws, prompts and streams with another purpose have other random numbers.
    pairs = [(x.tokens, y.tokens) for f, g in zip(first, sampled) for x, y in zip(f.samples, g.samples)]
    assert [f.draw for f in first] == [g.draw for g in sampled]
    assert sum(x == y for x, y in pairs) < 3


def test_an_evaluation_that_hangs_is_a_lost_worker() -> None:
    async def silent(request: Any) -> tuple[int, ...]:
        await asyncio.sleep(1000)
        return ()

    with pytest.raises(WorkerLost, match="the engine"):
        asyncio.run(answers([NumberedTask(1)[0]], 1, setting(FakeEngine(silent), rollout_deadline=0.05)))


def test_zero_wanted_rollouts_draw_nothing() -> None:
    assert take(buffer(), 0) == IterationRollouts((), 0)
