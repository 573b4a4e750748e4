"""Rehearsed figures beside the plan's: bytes that a rank sends, and the peak of its memory, by phase."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.rehearsal.exchanges import GATHER, RECEIVE, SEND, SWAP, sent_bytes
from benchmarks.rehearsal.rank_step import LEARNING, MEASURING, PUBLISHING, START, UPDATING, RankTrace

from groupwise.config.recipe import Recipe
from groupwise.models import DecoderShape
from groupwise.planning.cost_model import measuring_passes
from groupwise.planning.learner_traffic import learner_traffic
from groupwise.planning.process_memory import BYTES, GIB, ProcessMemoryPrediction, adapter_weights, gathers_layers
from groupwise.planning.read_model_shape import weights_of
from groupwise.planning.run_processes import rank_memories

__all__ = ["Row", "rows_of", "table"]

ADDING = "adding"
"""The plan's phase in which the gradients of embedding and head are added, at the end of a backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A figure in bytes: counted in the rehearsal, and by the plan; None if the plan has no such figure."""

    name: str
    counted: float
    planned: float | None = None

    @property
    def cells(self) -> list[str]:
        """Name, counted and planned GiB, and their ratio."""
        planned, ratio = "-", "-"
        if self.planned is not None:
            planned, ratio = gib(self.planned), f"{self.counted / self.planned:.2f}" if self.planned else "-"
        return [self.name, gib(self.counted), planned, ratio]


def gib(count: float) -> str:
    """Bytes in GiB.

    >>> gib(3 << 29), gib(1 << 20)
    ('1.50', '0.00098')
    """
    return f"{count / GIB:,.2f}" if count >= GIB / 100 else f"{count / GIB:.2g}"


def rows_of(recipe: Recipe, shape: DecoderShape, prompt: int, traces: Sequence[RankTrace]) -> Iterator[Row]:
    """The figures of the ranks: the most that one of them sends, and the largest peak."""
    yield from sent_rows(recipe, shape, traces)
    memories = rank_memories(recipe, shape, prompt, samples=False)
    yield from memory_rows("rank 0", traces[:1], memories[0])
    yield from memory_rows("other ranks", traces[1:], memories[-1])


def sent_rows(recipe: Recipe, shape: DecoderShape, traces: Sequence[RankTrace]) -> Iterator[Row]:
    """The bytes that a rank sends in a step, and to publish the weights."""

    def most(phase: str, *operations: str, first: int = 0) -> int:
        each = [sent_bytes(trace.phases[phase].exchanges) for trace in traces[first:]]
        return max(sum(sent[x] for x in operations) for sent in each)

    size, weights = recipe.cluster.ranks, weights_of(shape)
    each = traces[0].microbatches
    if recipe.cluster.sharded:
        traffic = learner_traffic(recipe, shape, size)
        yield Row(name="sent: weights, to measure", counted=most(MEASURING, GATHER),
                  planned=measuring_passes(recipe) * (each * traffic.forward_bytes + traffic.ends_bytes))  # fmt: skip
        yield Row(name="sent: weights, to learn", counted=most(LEARNING, GATHER), planned=each * traffic.gathered_bytes)
        yield Row(name="sent: gradients", counted=most(LEARNING, SWAP), planned=each * traffic.reduced_bytes)
        yield Row(name="sent: numbers of tokens", counted=most(MEASURING, SEND) + most(LEARNING, SEND))
        adapter = adapter_weights(shape, recipe.lora) if recipe.lora else 0
        base = 0 if adapter and not gathers_layers(recipe, size) else weights
        published = (base + adapter) * BYTES[recipe.machine.dtype] / size
        yield Row(name="sent: weights, to rank 0", counted=most(PUBLISHING, SEND, first=1), planned=published)
    else:
        halves = (1 - 1 / size) * max(BYTES[recipe.machine.dtype], 4) * weights
        yield Row(name="sent: gradients", counted=most(LEARNING, SEND), planned=(each + 1) * halves)
    yield Row(name="sent: norms of rows", counted=most(UPDATING, SEND))


def memory_rows(name: str, traces: Sequence[RankTrace], memory: ProcessMemoryPrediction) -> Iterator[Row]:
    """The memory of some ranks: what exists before the step, and the peaks of its phases."""
    permanent = sum(memory.permanent_bytes.values())
    engine = min(parts.get("engine", 0) for phase, parts in memory.phase_bytes.items() if phase != "saving")
    held = max(trace.phases[MEASURING].held for trace in traces)
    yield Row(name=f"{name}: before the step", counted=held, planned=permanent + engine)
    for phase in (MEASURING, LEARNING, UPDATING):
        peak = max(trace.phases[phase].peak for trace in traces)
        during = [
            parts for each, parts in memory.phase_bytes.items() if each == phase or (phase, each) == (LEARNING, ADDING)
        ]
        yield Row(
            name=f"{name}: {phase}", counted=peak, planned=permanent + max(sum(parts.values()) for parts in during)
        )


def exchange_lines(traces: Sequence[RankTrace]) -> list[str]:
    """The number of exchanges of a rank above 0 in each phase, by operation."""
    lines = []
    for name in (START, MEASURING, LEARNING, UPDATING, PUBLISHING):
        counts = dict.fromkeys((GATHER, SWAP, SEND, RECEIVE), 0)
        for each in traces[-1].phases[name].exchanges:
            counts[each.operation] += 1
        parts = [f"{count:,} {operation.rstrip('_')}" for operation, count in counts.items() if count]
        lines.append(f"{name}: {', '.join(parts) or 'none'}")
    return lines


def table(rows: Sequence[Row]) -> str:
    """The rows as a table in Markdown."""
    head = ["GiB per rank", "counted", "planned", "counted / planned"]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * 4, *(row.cells for row in rows)))
