"""Iterations that are sampled ahead of the learner: versions, order, equal bits, and nothing lost on resume."""

import asyncio
import json
import math
from collections import Counter
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from groupwise.checks.check_data import check_rows
from groupwise.config.recipe import Cluster
from groupwise.config.user_code import UserCode
from groupwise.core import BadData, Usage
from groupwise.data import Draw, Ids, Outcome, Prompt, Rollout, Sample, Verdict
from groupwise.data.rollout_json import from_json, to_json
from groupwise.engines import NativeEngine
from groupwise.lifecycle.run_handle import RunControl
from groupwise.rollout import IterationRollouts, PendingIteration
from groupwise.training.async_sampling import AheadSampler
from tests.faults.small_runs import EVERY, Quick, begun, ready, reopen, run_from
from tests.toys.echo import ToyRun, small, tokenizer

# Which iterations are sampled at once


class Empty:
    """Sampling that ends when the test says so."""

    def __init__(self) -> None:
        self.pending: list[PendingIteration] = []
        self.begun: list[int] = []
        self.gates: dict[int, asyncio.Event] = {}

    async def take(self, iteration: int, pending: PendingIteration | None) -> IterationRollouts:
        self.begun.append(iteration)
        await self.gates.setdefault(iteration, asyncio.Event()).wait()
        return IterationRollouts((), iteration)

    def end(self, iteration: int) -> None:
        self.gates.setdefault(iteration, asyncio.Event()).set()


async def turns(n: int = 5) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("max_staleness", "first", "then"), [(0, [0], [0]), (1, [0], [0, 1]), (3, [0, 1, 2, 3], [0, 1, 2, 3])]
)
def test_an_iteration_begins_when_the_learner_is_lag_iterations_before_it(
    max_staleness: int, first: list[int], then: list[int]
) -> None:
    async def go() -> None:
        buffer = Empty()
        async with AheadSampler(buffer.pending, buffer.take, max_staleness=max_staleness, last=5) as ahead:
            following = asyncio.create_task(ahead.next(0))
            await turns()
            assert buffer.begun == first
            buffer.end(0)
            assert (await following).sampling_round_count == 0
            ahead.begin(0)
            await turns()
            assert buffer.begun == then
            if max_staleness:
                buffer.end(1)
                await ahead.settle()
                assert (await ahead.next(1)).sampling_round_count == 1
                ahead.begin(1)
                await turns()
                assert buffer.begun == list(range(min(5, max_staleness + 2)))  # none beyond the last iteration
        assert len(buffer.pending) == {0: 0, 1: 1, 3: 3}[max_staleness]

    asyncio.run(go())


def test_only_lag_one_waits_until_nothing_is_sampled() -> None:
    async def go(max_staleness: int) -> bool:
        buffer = Empty()
        async with AheadSampler(buffer.pending, buffer.take, max_staleness=max_staleness, last=5) as ahead:
            buffer.end(0)
            await ahead.next(0)
            ahead.begin(0)
            settled = asyncio.create_task(ahead.settle())
            await turns()
            waits = not settled.done()
            buffer.end(1)
            await settled
            return waits

    assert asyncio.run(go(1)) and not asyncio.run(go(3))


def test_an_error_while_sampling_ahead_ends_the_wait_for_it() -> None:
    async def go() -> None:
        buffer = Empty()

        async def take(iteration: int, pending: PendingIteration | None) -> IterationRollouts:
            if iteration:
                raise RuntimeError("the verifier")
            return IterationRollouts((), 1)

        async with AheadSampler(buffer.pending, take, max_staleness=1, last=5) as ahead:
            await ahead.next(0)
            ahead.begin(0)
            await ahead.settle()

    with pytest.raises(RuntimeError, match="the verifier"):
        asyncio.run(go())


# Pending rollouts as JSON


def test_pending_rollouts_come_back_from_json() -> None:
    draw = Draw(4, Prompt("p", (5, 6), "2+2=", {"answer": 4, "level": [1]}), 1, {"hints": 2})
    sample = Sample(context=(5, 6), stream=(0,), tokens=(7, 8), origin=(3, -1), logp=(-0.1, math.nan))
    rollout = Rollout(draw, (sample.with_verdict(Verdict(Outcome.wrong, feedback="é")),), (False,), "mixed_outcomes")
    unfinished = PendingIteration([rollout], (replace(draw, id=5),), 1)
    complete = PendingIteration([rollout], (), 2, IterationRollouts((rollout,), 2, 1))
    for pending in (unfinished, complete):
        again = from_json(PendingIteration, json.loads(json.dumps(to_json(pending), allow_nan=False)))
        assert (
            repr(again.completed_rollouts) == repr(pending.completed_rollouts)
            and again.finished_rounds == pending.finished_rounds
        )
        assert again.current_round_draws == pending.current_round_draws
    assert repr(from_json(PendingIteration, to_json(unfinished)).finished_rollouts) == repr([rollout])


# Runs


def weights(run: ToyRun) -> torch.Tensor:
    return torch.cat([x.flatten() for x in run.weights().values()])


def toy(directory: Path, max_staleness: int, **changes: Any) -> ToyRun:
    """Five iterations of two groups, with dynamic sampling: some iterations have several rounds."""
    method = small("dapo", group_size=4)
    fields = {"method": replace(method, minibatches=1), "prompts": 2, "iterations": 5, "max_tokens": 6, "save": 1}
    return ToyRun(directory=directory, max_staleness=max_staleness, **{**fields, **changes})


def test_pinned_runs_have_equal_bits_also_when_they_go_on(tmp_path: Path) -> None:
    straight = toy(tmp_path / "straight", 1)
    lines = straight.go()
    assert [line.get("staleness/max") for line in lines] == [None, 0, 1, 1, 1, 1]
    assert all(line["staleness/versions"] == 1 for line in lines[1:])
    again = tmp_path / "again"
    for iteration in range(1, 6):
        part = toy(again, 1)
        stop_after(part, iteration)
        part.go()
        assert bool(part.buffer.pending_iterations) == (iteration < 5)
    assert (again / "metrics.jsonl").read_bytes() == (tmp_path / "straight" / "metrics.jsonl").read_bytes()
    assert torch.equal(weights(part), weights(straight))
    assert not torch.equal(weights(toy_done(tmp_path / "synchronous", 0)), weights(straight))


def toy_done(directory: Path, max_staleness: int) -> ToyRun:
    run = toy(directory, max_staleness)
    run.go()
    return run


def stop_after(run: ToyRun, iteration: int) -> None:
    """Request a stop while the learner works on this iteration."""
    step = run.learner.step

    def stopping(*args: Any, **how: Any) -> Any:
        if run.recorder.done == iteration - 1:
            run.recorder.stopping = "interrupted"
        return step(*args, **how)

    run.learner.step = stopping  # type: ignore[method-assign]


@pytest.mark.t(45)
def test_a_run_with_a_lag_trains_each_draw_once_and_no_token_above_the_lag(tmp_path: Path) -> None:
    """Stopped and resumed at two iterations. Weights change while a sample is generated: some have two versions."""
    for iteration in (2, 4, 6):
        part = toy(tmp_path, 2, prompts=4, iterations=6, max_tokens=12)
        stop_after(part, iteration)
        lines = part.go()
    ages = [line.get("staleness/max", 0) for line in lines]
    assert len(lines) == 7 and ages[1] == 0 and 1 <= max(ages) <= 2
    draws = Counter(s["draw"] for i in range(1, 7) for s in part.samples(i))
    assert sorted(draws) == list(range(len(draws))) and set(draws.values()) == {4}


def test_each_token_has_the_log_prob_of_the_weights_that_sampled_it(tmp_path: Path) -> None:
    run, loaded = toy(tmp_path, 3, prompts=4, iterations=6, max_tokens=12, save=0), {}
    load = run.engine.load

    async def loading(version: int, weights: Any) -> None:
        loaded[version] = {name: x.clone() for name, x in weights.items()}
        await load(version, weights)

    run.engine.load = loading  # type: ignore[method-assign]
    run.go()
    mixed, engine = 0, NativeEngine(deepcopy(run.learner.model), tokenizer(), seed=0)
    for number in range(1, 7):
        columns = load_file(tmp_path / f"samples/{number:06d}.safetensors")
        starts = columns["lengths"].cumsum(0) - columns["lengths"]
        for i, (start, length) in enumerate(zip(starts.tolist(), columns["lengths"].tolist())):
            part = {name: columns[name][start : start + length] for name in ("tokens", "origin", "logp_engine")}
            versions = part["origin"].unique().tolist()
            mixed += len(versions) > 1
            for version in versions:
                asyncio.run(engine.load(version, loaded[version]))
                scores = torch.tensor(asyncio.run(engine.score(context(columns, i), tuple(part["tokens"].tolist()))))
                of_version = part["origin"] == version
                torch.testing.assert_close(part["logp_engine"][of_version], scores[of_version], rtol=0, atol=2e-5)
    assert mixed


def context(columns: dict[str, torch.Tensor], sample: int) -> Ids:
    """The token ids of a sample's prompt in the file of an iteration's samples."""
    ends = columns["context_lengths"].cumsum(0)
    which = int(columns["context"][sample])
    return tuple(columns["contexts"][int(ends[which] - columns["context_lengths"][which]) : int(ends[which])].tolist())


def test_a_smaller_lag_than_the_checkpoints_is_refused(tmp_path: Path) -> None:
    recipe = replace(EVERY, cluster=Cluster(max_staleness=2))
    control = RunControl()
    control.on_iteration = lambda run, line: control.stop("interrupted") if line["iteration"] == 1 else None
    run = begun(tmp_path / "run", recipe)
    assert run_from(run, ready(recipe), control=control, disk=Quick()).stop_reason == "interrupted"
    text = (run / "recipe.toml").read_text()
    (run / "recipe.toml").write_text(text.replace("max_staleness = 2", "max_staleness = 0"))
    with pytest.raises(
        Usage, match=r"cluster.max_staleness is 0, but the checkpoint has samples of . later iterations"
    ):
        run_from(run, reopen(run, UserCode()), changed=True)


def test_rows_that_no_checkpoint_can_hold_are_refused(tmp_path: Path) -> None:
    rows = [Prompt("a", (5,), row={"answer": 4}), Prompt("b", (5,), row={"answer": 4, "image": b"png"})]
    with pytest.raises(BadData, match="the row of problem b cannot be stored in a checkpoint"):
        check_rows(rows)
    check_rows(rows[:1])
