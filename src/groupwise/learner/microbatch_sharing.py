"""Rank 0 sends each rank its own microbatches: their samples, and the columns that rank 0 computed from all samples.

A message is a line of JSON for all ranks, and for each rank safetensors with its columns. A rank keeps the samples of
an iteration, so a sample is sent to it once. Nothing is pickled.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save
from torch import Tensor

from groupwise.core import BadData
from groupwise.data import Batch, NeededMeasure, Picture, Sample, Segments, TokenMark
from groupwise.data.batch import Key, columns
from groupwise.data.binary_columns import compact, expanded, from_columns, to_columns
from groupwise.learner.distributed import Ranks, ReplicatedRanks
from groupwise.learner.gradient_lane_sums import order_of
from groupwise.learner.routing import routed_positions
from groupwise.models import keep_pictures
from groupwise.models.vision.picture_store import kept_pictures

OTHERWISE = ("samples", "sample_keys", "routes")
"""The columns of a batch that are no tensors."""
REQUIRED = {f.name for f in fields(Batch) if f.default is MISSING and f.default_factory is MISSING}
"""The columns that every batch has."""


@dataclass(frozen=True, slots=True, eq=False)
class RankShare:
    """The microbatches that a rank computes, and of all microbatches the numbers of tokens and of routed positions.

    `step_microbatches` are the microbatches of all ranks, if an auxiliary loss reads them; else it is empty.
    """

    microbatches: Sequence[Batch]
    token_counts: Sequence[int]
    position_counts: Sequence[int]
    step_microbatches: Sequence[Batch] = ()


@contextmanager
def readable() -> Iterator[None]:
    """A context that reads a message of rank 0: `BadData` if it is no such message."""
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError, SafetensorError) as error:
        raise BadData(
            "a message of rank 0 cannot be read",
            evidence=f"{type(error).__name__}: {error}",
            fix="install one version of groupwise for all ranks, and continue with groupwise resume",
        ) from error


class MicrobatchSharing:
    """The microbatches that the ranks of a learner share. `model` holds the pictures of prompts."""

    def __init__(self, ranks: Ranks, model: torch.nn.Module) -> None:
        self.ranks, self.model = ranks, model
        self._numbers: dict[int, tuple[int, Sample]] = {}  # by id(sample); the sample keeps its id in use
        self._numbered = 0
        self._held: list[set[int]] = [set() for _ in range(ranks.size)]
        self._pictures: list[set[str]] = [set() for _ in range(ranks.size)]
        self._received: dict[int, Sample] = {}

    @property
    def sends(self) -> bool:
        """Whether this is rank 0 of several."""
        return self.ranks.size > 1 and self.ranks.rank == 0

    def forget(self) -> None:
        """Rank 0 begins with other samples: the ranks need the earlier ones no more."""
        self._numbers.clear()
        self._held = [set() for _ in range(self.ranks.size)]

    def tell(self, **header: Any) -> None:
        """Send an object to the other ranks, if there are any."""
        if self.sends:
            self._send(header, ())

    def hand_out(
        self, batch: Batch, microbatches: Sequence[Sequence[int]], *, to_all: bool = False, **header: Any
    ) -> RankShare:
        """Rank 0's share of the microbatches, which are indices of the batch's samples. The others are sent theirs.

        With `to_all`, every rank gets all microbatches. `header` says what to do with them.
        """
        assert self.ranks.rank == 0, "rank 0 hands out the microbatches"
        count, size = len(microbatches), self.ranks.size
        share = self.share_of(batch, microbatches, 0, to_all)
        if self.sends:
            orders = [range(count) if to_all else order_of(self.ranks, rank, count) for rank in range(1, size)]
            host = batch.to("cpu")
            parts = [host.take([i for m in order for i in microbatches[m]]) for order in orders]
            sizes = list(zip(map(len, microbatches), share.token_counts, share.position_counts, strict=True))
            header |= {
                "sizes": sizes, "to_all": to_all, "first": not any(self._held), "max_new_tokens": batch.max_new_tokens,
                "subscores": list(batch.subscores), "measures": [key_of_measure(m) for m in batch.measures],
            }  # fmt: skip
            self._send(header, [b"", *(self._encoded(part, rank) for rank, part in enumerate(parts, 1))])
        return share

    def received(
        self, header: Mapping[str, Any], tensors: Mapping[str, Tensor], measures: Iterable[NeededMeasure],
        method_states: Mapping[str, Any],
    ) -> RankShare:  # fmt: skip
        """This rank's share, from a message of rank 0. `measures` are those that a batch may have.

        `BadData` for a message that is none.
        """
        with readable():
            known = {key_of_measure(measure): measure for measure in measures}
            sizes, to_all = header["sizes"], header["to_all"]
            samples, tokens, positions = map(list, zip(*sizes, strict=True))
            batch = self._decoded(header, expanded(tensors), known, method_states).to(_device_of(self.model))
            order = order_of(self.ranks, self.ranks.rank, len(sizes))
            counts = samples if to_all else [samples[i] for i in order]
            if sum(counts) != len(batch):
                raise ValueError(f"there are {len(batch)} samples in microbatches of {sum(counts)}")
            ends = [sum(counts[: i + 1]) for i in range(len(counts))]
            every = [batch.take(range(end - count, end)) for count, end in zip(counts, ends)]
            return RankShare([every[i] for i in order] if to_all else every, tokens, positions, every if to_all else ())

    def share_of(self, batch: Batch, microbatches: Sequence[Sequence[int]], rank: int, to_all: bool) -> RankShare:
        """The share of a rank, without a message."""
        order = order_of(self.ranks, rank, len(microbatches))
        every = [taken(batch, microbatch) for microbatch in microbatches] if to_all else ()
        own = [every[i] if every else taken(batch, microbatches[i]) for i in order]
        if self.ranks.size == 1:
            tokens = [part.tokens for part in own]  # the host need not wait for a GPU
        else:
            lengths = batch.sequences.lengths.tolist()
            tokens = [sum(lengths[i] for i in microbatch) for microbatch in microbatches]
        positions = [sum(routed_positions(batch.samples[i]) for i in microbatch) for microbatch in microbatches]
        return RankShare(own, tokens, positions, every)

    def _send(self, header: Mapping[str, Any], own: Sequence[bytes]) -> None:
        assert isinstance(self.ranks, ReplicatedRanks), "several ranks are replicas or shards"
        self.ranks.send(json.dumps(header).encode() + b"\n", own)

    def _number(self, sample: Sample) -> int:
        if id(sample) not in self._numbers:
            self._numbers[id(sample)] = self._numbered, sample
            self._numbered += 1
        return self._numbers[id(sample)][0]

    def _encoded(self, part: Batch, rank: int) -> bytes:
        """The columns of a rank's microbatches. Samples and pictures are sent to it once."""
        numbers = [self._number(sample) for sample in part.samples]
        new = {n: sample for n, sample in zip(numbers, part.samples) if n not in self._held[rank]}
        self._held[rank] |= new.keys()
        hashes = {h for sample in new.values() for h in (sample.content_hash, *sample.view_hashes.values())}
        pictures = kept_pictures(self.model, sorted(hashes - self._pictures[rank]))
        self._pictures[rank] |= {content_hash for content_hash, _ in pictures}
        found = to_columns(int, numbers, "samples") | to_columns(Key, part.sample_keys, "sample_keys")
        if new:
            found |= to_columns(int, list(new), "new") | to_columns(Sample, list(new.values()), "new.sample")
        if pictures:
            found |= to_columns(tuple[str, tuple[Picture, ...]], pictures, "pictures")
        if any(row is not s.routes and row != s.routes for row, s in zip(part.routes, part.samples, strict=True)):
            found |= to_columns(tuple[bytes, ...], part.routes, "routes")
        for name in columns("segments"):
            segments: Segments = getattr(part, name)
            found |= {f"{name}.index": segments.index, f"{name}.count": torch.tensor([segments.count])}
        for name in (*columns("sample"), *columns("token")):
            column = getattr(part, name)
            if isinstance(column, Mapping):
                found |= {f"{name}.{i}": x for i, x in enumerate(column.values())}
            elif name not in OTHERWISE and column is not None:
                found[name] = column
        return save(compact({name: x.detach() for name, x in found.items()}))

    def _decoded(
        self, header: Mapping[str, Any], found: Mapping[str, Tensor], known: Mapping[str, NeededMeasure],
        method_states: Mapping[str, Any],
    ) -> Batch:  # fmt: skip
        if header["first"]:
            self._received.clear()
        if "new" in found:
            new = from_columns(Sample, found, "new.sample")
            self._received |= dict(zip(from_columns(int, found, "new"), new, strict=True))
        if "pictures.0.length" in found:
            for content_hash, pictures in from_columns(tuple[str, tuple[Picture, ...]], found, "pictures"):
                keep_pictures(self.model, content_hash, pictures)
        samples = tuple(self._received[n] for n in from_columns(int, found, "samples"))
        sent = "routes.length" in found
        routes = from_columns(tuple[bytes, ...], found, "routes") if sent else [sample.routes for sample in samples]
        keys = {"subscores": header["subscores"], "measures": [measure_of(key, known) for key in header["measures"]]}
        row: dict[str, Any] = {
            "samples": samples, "sample_keys": tuple(from_columns(Key, found, "sample_keys")), "routes": tuple(routes),
            "max_new_tokens": header["max_new_tokens"], "method_states": dict(method_states),
        }  # fmt: skip
        row |= {name: _segments(found, name) for name in columns("segments")}
        row |= {name: {key: found[f"{name}.{i}"] for i, key in enumerate(each)} for name, each in keys.items()}
        for name in (*columns("sample"), *columns("token")):
            if name not in row:
                row[name] = found[name] if name in REQUIRED else found.get(name)
        batch = Batch(**row)
        check_lengths(batch)
        return batch


def check_lengths(batch: Batch) -> None:
    """ValueError unless all columns of a batch have the same number of samples, or of tokens."""
    for names, size in ((columns("sample"), len(batch.samples)), (columns("token"), batch.tokens)):
        for name in names:
            column = getattr(batch, name)
            rows = column.values() if isinstance(column, Mapping) else [] if column is None else [column]
            if any(len(row) != size for row in rows):
                raise ValueError(f"the column {name} has not {size} entries")
    for segments, size in zip((batch.sequences, batch.groups, batch.rollouts), (batch.tokens, len(batch), None)):
        index = segments.index
        if (size is not None and len(index) != size) or ((index < 0) | (index >= segments.count)).any():
            raise ValueError("the segments of a batch have other elements")


def taken(batch: Batch, samples: Sequence[int]) -> Batch:
    """The batch of these samples; itself, if they are a range of all."""
    return batch if samples == range(len(batch)) else batch.take(samples)


def key_of_measure(measure: NeededMeasure) -> str:
    """The name of a measure in messages; for a mark its own name, for another one its fields without addresses.

    >>> key_of_measure(TokenMark("line"))
    'mark:line'
    """
    if isinstance(measure, TokenMark):
        return f"mark:{measure.name}"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(measure))


def measure_of(key: str, known: Mapping[str, NeededMeasure]) -> NeededMeasure:
    """The measure of this name; KeyError for an unknown one that is no mark."""
    return TokenMark(key.removeprefix("mark:")) if key.startswith("mark:") else known[key]


def _segments(found: Mapping[str, Tensor], name: str) -> Segments:
    (count,) = found[f"{name}.count"].tolist()
    return Segments(found[f"{name}.index"], count)


def _device_of(model: torch.nn.Module) -> torch.device:
    return next(model.parameters()).device
