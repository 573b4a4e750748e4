"""Peak memory of the learner's ranks: python -m benchmarks.shard_memory [KIND RANKS]. A step of four microbatches.

Each case runs in new processes. Rank 0 has the whole model of its engine beside its shard, as in a run. A peak is VmHWM
of /proc, in MiB, above that of a process that has imported everything and built the model on the meta device.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from groupwise.cluster.rank_messages import read_message
from groupwise.data import Batch, Draw, Finish, Outcome, Prompt, Rollout, Sample, Verdict, pack
from groupwise.learner import AdamW, Learner, Ranks, ReplicatedRanks, SingleProcess, StepPlan
from groupwise.learner.fsdp import ShardedRanks
from groupwise.learner.rank_store import host_store, join_store
from groupwise.models import Decoder, DecoderShape
from groupwise.objective import Objective

SHAPE = DecoderShape(
    vocabulary_size=32_000,
    hidden_size=512,
    layers=12,
    heads=8,
    kv_heads=8,
    head_dim=64,
    mlp_width=1376,
    tied_embeddings=True,
    max_positions=512,
)
SAMPLES, PROMPT, ANSWER = 8, 32, 32
CASES = (("alone", 1), ("replicas", 2), ("shards", 2), ("shards", 4))
KINDS = {"replicas": ReplicatedRanks, "shards": ShardedRanks}
MMAP = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""Settings of glibc with which freed tensors go back to the system. Otherwise the peak measures fragmentation, too."""


def batch() -> Batch:
    """One rollout of random answers to one prompt."""
    draws = torch.Generator().manual_seed(0)
    prompt, *answers = (
        tuple(torch.randint(0, SHAPE.vocabulary_size, (n,), generator=draws).tolist())
        for n in (PROMPT, *[ANSWER] * SAMPLES)
    )
    samples = [
        Sample(
            context=prompt, stream=(i,), limit=ANSWER, tokens=answer, origin=(0,) * ANSWER, logp=(-1.0,) * ANSWER,
            finish=Finish.stop, verdict=Verdict(Outcome.correct if i % 2 else Outcome.wrong),
        )
        for i, answer in enumerate(answers)
    ]  # fmt: skip
    b = pack([Rollout(Draw(0, Prompt("p", prompt), SAMPLES), tuple(samples))])
    return b.having(advantage=b.sequences.spread(torch.arange(float(SAMPLES)) % 2 - 0.5))


def peak() -> float:
    """The largest resident memory of this process so far, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def measure(kind: str, rank: int, size: int, port: int) -> None:
    """Print the peak of this rank after one step."""
    torch.set_num_threads(1)
    ranks: Ranks = SingleProcess()
    if kind != "alone":
        ranks = KINDS[kind](join_store(port, size, deadline=500), rank, size, size, deadline=500)
    model = Decoder(SHAPE)
    before = peak()
    if rank == 0 or kind == "replicas":
        model = Decoder.new(SHAPE, seed=0)
    learner = Learner(model, optimizer=AdamW(lr=1e-4), steps=1, ranks=ranks)
    held = sum(ranks.local(x).numel() for x in learner.model.parameters())
    started = peak()
    parts = [tuple(range(i, i + SAMPLES // 4)) for i in range(0, SAMPLES, SAMPLES // 4)]
    norm = "of rank 0"
    if rank:
        content = ranks.receive()  # type: ignore[union-attr]
        learner.follow(*read_message(content or b""), Objective())
    else:
        norm = repr(learner.step(batch(), StepPlan(tuple(parts)), Objective()).grad_norm)
    numbers = f"weights {held:>10,}  start {started - before:6.0f}  peak {peak() - before:6.0f}  base {before:4.0f}"
    print(f"{kind:>8} {size} rank {rank}  {numbers}  norm {norm}", flush=True)


def main(cases: Sequence[tuple[str, int]]) -> None:
    """Run the cases, one after the other."""
    for kind, size in cases:
        store = host_store(size)
        command = [sys.executable, "-m", "benchmarks.shard_memory", kind]
        numbers = [[str(rank), str(size), str(store.port)] for rank in range(size)]
        processes = [subprocess.Popen([*command, *each], env=os.environ | MMAP) for each in numbers]
        if any([process.wait(timeout=600) for process in processes]):  # noqa: C419
            sys.exit(f"{kind} {size} failed")


if __name__ == "__main__":
    match sys.argv[1:]:
        case [kind, rank, size, port]:
            measure(kind, int(rank), int(size), int(port))
        case [kind, size]:
            main([(kind, int(size))])
        case _:
            main(CASES)
