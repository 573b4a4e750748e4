"""Rehearsed steps: exchanges that fit together, bytes as planned, and ranks that would wait for each other for ever."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from benchmarks.rehearsal.__main__ import main
from benchmarks.rehearsal.comparison import rows_of
from benchmarks.rehearsal.exchanges import GATHER, SEND, Exchange, replay
from benchmarks.rehearsal.rank_step import LEARNING, MEASURING, RankTrace, first_step, rehearse

from groupwise.config.recipe import Recipe
from groupwise.config.recipe_toml import read_recipe
from groupwise.core import Usage, WorkerLost
from groupwise.engines import Served
from groupwise.learner.optimizer import Optimizer
from groupwise.models import DecoderShape, Lora
from groupwise.models.decoder.varlen_attention import VarlenRows
from groupwise.planning.cost_model import TokenLengths
from groupwise.planning.process_memory import TOKEN
from groupwise.planning.read_model_shape import weights_of

SHAPE = DecoderShape(
    vocabulary_size=64, hidden_size=16, layers=2, heads=4, kv_heads=2, head_dim=8, mlp_width=32, max_positions=64
)
LENGTHS = TokenLengths(prompt_tokens=4, answer_lengths=(5, 2, 9, 7))


def recipe_of(ranks: int, shard: str = "full") -> Recipe:
    fields = {"method.group_size": 2, "method.minibatches": 2, "prompts": 8, "sampling.max_tokens": 9}
    fields |= {"cluster.ranks": ranks, "cluster.reduction_lanes": ranks, "machine.microbatch_tokens": 64}
    texts = {path: str(value) for path, value in fields.items()}
    return read_recipe("method = 'dapo'\nmachine.dtype = 'bfloat16'", [*texts.items(), ("cluster.shard", shard)])


def rehearsed(ranks: int, shard: str = "full") -> list[RankTrace]:
    recipe = recipe_of(ranks, shard)
    return rehearse(recipe, SHAPE, first_step(recipe, LENGTHS))


@cache
def four_ranks() -> list[RankTrace]:
    return rehearsed(4)


@pytest.mark.parametrize("ranks", (4, 8))
def test_the_exchanges_of_all_ranks_fit_together_and_are_those_of_the_plan(ranks: int) -> None:
    traces = four_ranks() if ranks == 4 else rehearsed(ranks)
    replay([trace.exchanges for trace in traces])
    orders = {tuple(x.agreement for x in trace.exchanges if x.peer is None) for trace in traces}
    assert len(orders) == 1
    counts = {sum(x.operation == GATHER for x in trace.phases[LEARNING].exchanges) for trace in traces}
    assert counts == {traces[0].microbatches * (2 * SHAPE.layers + 1)}
    rows = {row.name: row for row in rows_of(recipe_of(ranks), SHAPE, LENGTHS.prompt_tokens, traces)}
    for name in ("weights, to measure", "weights, to learn", "gradients", "weights, to rank 0"):
        row = rows[f"sent: {name}"]
        assert row.planned is not None and row.counted == pytest.approx(row.planned, rel=0.02), name


def test_a_frozen_base_is_nowhere_whole() -> None:
    """Rank 0 has its rows of it, as the others, and gathers it with the adapter's matrices for engines elsewhere."""
    recipe = replace(recipe_of(2), lora=Lora(rank=4), engine=Served())
    traces = rehearse(recipe, SHAPE, first_step(recipe, LENGTHS))
    replay([trace.exchanges for trace in traces])
    rows = {row.name: row for row in rows_of(recipe, SHAPE, LENGTHS.prompt_tokens, traces)}
    for name in ("weights, to measure", "weights, to learn", "gradients", "weights, to rank 0"):
        row = rows[f"sent: {name}"]
        assert row.planned is not None and row.counted == pytest.approx(row.planned, rel=0.03), name
    samples = 8 * 2 * 9 * TOKEN  # which a rehearsal does not count
    for name in ("rank 0", "other ranks"):
        row = rows[f"{name}: before the step"]
        assert row.planned is not None and row.counted == pytest.approx(row.planned - samples, rel=0.03), name


def test_replicas_send_halves_and_gather_once() -> None:
    traces = rehearsed(2, "none")
    replay([trace.exchanges for trace in traces])
    gradients = next(rows_of(recipe_of(2, "none"), SHAPE, LENGTHS.prompt_tokens, traces))
    assert gradients.planned and gradients.counted == pytest.approx(gradients.planned, rel=0.02)


@pytest.mark.parametrize(
    ("words", "problem"),
    [(["--prompts"], "--prompts needs a value"), (["--prompts", "8", "other.toml"], "other.toml is another word")],
)
def test_words_that_are_no_fields_are_answered(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((Usage, SystemExit)) as caught:
        main(["grpo.toml", "--ranks", "4", "--machines", "8.toml", *words])
    assert problem in f"{caught.value} {capsys.readouterr().err}"


def without(trace: Sequence[Exchange], i: int) -> list[Exchange]:
    return [*trace[:i], *trace[i + 1 :]]


@pytest.mark.parametrize("change", ("skip", "swap", "shape", "extra"))
def test_a_rank_with_other_exchanges_is_named(change: str) -> None:
    traces = [trace.exchanges for trace in four_ranks()]
    trace = traces[2]
    i = next(i for i, (a, b) in enumerate(pairwise(trace)) if a.peer is b.peer is None and a.shape != b.shape)
    changed = {
        "skip": without(trace, i),
        "swap": [*trace[:i], trace[i + 1], trace[i], *trace[i + 2 :]],
        "shape": [*trace[:i], replace(trace[i], shape=(1,)), *trace[i + 1 :]],
        "extra": [*trace, trace[i]],
    }
    traces[2] = changed[change]
    with pytest.raises(WorkerLost, match="rank 2, after"):
        replay(traces)


def test_a_message_that_no_rank_receives_is_named() -> None:
    traces = [trace.exchanges for trace in four_ranks()]
    i = next(i for i, x in enumerate(traces[3]) if x.peer is not None)
    with pytest.raises(WorkerLost, match="rank 3"):
        replay([*traces[:3], without(traces[3], i)])
    last = next(x for x in reversed(traces[3]) if x.operation == SEND)
    with pytest.raises(WorkerLost, match=f"rank {last.peer} never receives the .* from rank 3"):
        replay([*traces[:3], [*traces[3], last]])


def test_a_rank_that_leaves_out_an_exchange_of_the_learner_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    norm = Optimizer.norm
    monkeypatch.setattr(Optimizer, "norm", lambda self: 1.0 if self.ranks.rank == 1 else norm(self))
    with pytest.raises(WorkerLost):
        replay([trace.exchanges for trace in rehearsed(2)])


def test_the_layers_of_a_shard_share_the_rows_of_a_microbatch(monkeypatch: pytest.MonkeyPatch) -> None:
    """FSDP copies dataclasses among the arguments of a layer, without the rows that they have cached."""
    made, of = [0], VarlenRows.of.__func__

    def counting(cls: type[VarlenRows], *arguments: Any) -> VarlenRows:
        made[0] += 1
        return of(cls, *arguments)

    monkeypatch.setattr(VarlenRows, "of", classmethod(counting))
    traces = rehearsed(2)
    assert made[0] == len(traces) * 2 * traces[0].microbatches  # once to measure, once to learn


def test_memory_counts_what_exists_and_what_is_freed() -> None:
    """A rank above 0 holds its rows in float32 with both moments, and its peak is above that."""
    traces, weights = four_ranks(), weights_of(SHAPE)
    held = traces[1].phases[MEASURING].held
    assert held == pytest.approx(weights // 4 * 12, rel=0.05)
    assert traces[0].phases[MEASURING].held - held == weights * 2
    assert all(trace.phases[LEARNING].peak > trace.phases[LEARNING].held for trace in traces)
