"""The engine Vllm beside the native one: python -m benchmarks.vllm_engine [--size middle] [--prompts N] [--rounds N].

Both answer the same requests in turns, `rounds` times. Prints the start, the memory, tokens per second (wall clock and
CPU time of all processes), the gap of log-probs, and how many answers and tokens differ: from the native engine's, and
between two orders of the same requests. A token differs from the first difference of an answer on.
"""

import argparse
import asyncio
import os
import resource
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from groupwise.data import Engine, Generation, GenerationRequest, Sampling
from groupwise.engines import EngineAccess, NativeEngine, Vllm
from groupwise.engines.remote.replica import Replica
from groupwise.engines.vllm.vllm_python_environment import DEFAULT_PYTHON
from groupwise.models import Decoder, DecoderShape, find_model, read_model, read_tokenizer

MIDDLE = DecoderShape(
    vocabulary_size=32_000,
    hidden_size=512,
    layers=8,
    heads=8,
    kv_heads=4,
    head_dim=64,
    mlp_width=1536,
    max_positions=512,
    tied_embeddings=True,
    qk_norm=True,
    model_family="qwen3",
)


@dataclass(frozen=True)
class Workload:
    """`prompts` prompts of `length` tokens with `samples` answers of at most `limit` tokens each."""

    prompts: int
    samples: int
    length: int
    limit: int


WORKLOADS = {"small": Workload(32, 16, 0, 48), "middle": Workload(8, 8, 64, 64)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=WORKLOADS, default="small")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--prompts", type=int, help="more prompts than the engine has rows mix other answers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--python", default=DEFAULT_PYTHON)
    a = parser.parse_args()
    work = WORKLOADS[a.size] if a.prompts is None else replace(WORKLOADS[a.size], prompts=a.prompts)
    if work.prompts < 1 or a.rounds < 1:
        parser.error("--prompts and --rounds are at least 1")
    torch.set_num_threads(1)
    asyncio.run(compare(a.size, work, a.rounds, a.dtype, a.python))


async def compare(size: str, work: Workload, rounds: int, dtype: str, python: str) -> None:
    """Run both engines and print the figures."""
    directory = find_model("calculator")
    tokenizer, kind = read_tokenizer(directory), getattr(torch, dtype)
    model = read_model(directory, dtype=kind) if size == "small" else Decoder.new(MIDDLE, 1, dtype=kind, spread=0.08)
    assert isinstance(model, Decoder)
    asked = requests(work, tokenizer.encode, model.shape.vocabulary_size)
    print(f"{sum(x.numel() for x in model.parameters()):,} weights, {dtype}, {len(asked)} requests")
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, one thread per engine")
    native = NativeEngine(model, tokenizer, seed=0)
    fleet = Vllm().build(model, tokenizer, seed=0, experts=None, access=EngineAccess(python=python))
    begin = time.perf_counter()
    await fleet.load(0, dict(model.state_dict()))
    (replica,) = fleet.replicas
    assert isinstance(replica, Replica)
    pids = [replica.process.pid, *children(replica.process.pid)]
    print(f"start {time.perf_counter() - begin:.0f} s, {cpu_seconds(pids):.0f} CPU s")
    await answers(native, asked), await answers(fleet, asked)
    found: list[Generation] = []
    expected: list[Generation] = []
    for _ in range(rounds):
        own, there, begin = own_seconds(), cpu_seconds(pids), time.perf_counter()
        expected = await answers(native, asked)
        own, middle = own_seconds() - own, time.perf_counter()
        client = own_seconds()
        found = await answers(fleet, asked)
        end, there = time.perf_counter(), cpu_seconds(pids) - there + own_seconds() - client
        tokens, more = count(expected), count(found)
        print(f"native {tokens / (middle - begin):,.0f} tokens/s, {tokens / own:,.0f} per CPU s; "
              f"vLLM {more / (end - middle):,.0f} tokens/s, {more / there:,.0f} per CPU s")  # fmt: skip
    memory = [f"{resident(pid):,.0f}" for pid in pids]
    print(f"resident memory of vLLM's processes: {' + '.join(memory)} MiB")
    report("vLLM and native", found, expected)
    turned = await answers(fleet, asked[::-1])
    report("vLLM in two orders", turned[::-1], found)
    turned = await answers(native, asked[::-1])
    report("native in two orders", turned[::-1], expected)


def requests(work: Workload, encode, vocabulary: int) -> list[GenerationRequest]:
    """The requests: sums for the packaged model, else token ids spread over the vocabulary."""
    asked = []
    for i in range(work.prompts):
        context = tuple((i * 7919 + j * 104729) % vocabulary for j in range(work.length))
        context = context or encode(f"{i % 9 + 1}*{i * 7 % 9 + 1}+{i * 5 % 9 + 1}-{i % 4 + 1}=")
        asked += [
            GenerationRequest(context=context, limit=work.limit, draw_id=i, stream=(j,), sampling=Sampling())
            for j in range(work.samples)
        ]
    return asked


async def answers(engine: Engine, asked: list[GenerationRequest]) -> list[Generation]:
    return list(await asyncio.gather(*map(engine.sample, asked)))


def count(generations: list[Generation]) -> int:
    return sum(len(x.tokens) for x in generations)


def report(name: str, a: list[Generation], b: list[Generation]) -> None:
    """Print how many answers and tokens differ, and the gap of the others."""
    equal = [common(x.tokens, y.tokens) for x, y in zip(a, b)]
    gaps = [abs(s - t) for x, y, n in zip(a, b, equal) for s, t in zip(x.logp[:n], y.logp[:n])]
    answers = sum(x.tokens != y.tokens for x, y in zip(a, b))
    print(f"{name}: {answers} of {len(a)} answers differ, {count(b) - sum(equal)} of {count(b)} tokens; "
          f"gap max {max(gaps):.2g}, mean {sum(gaps) / len(gaps):.2g}")  # fmt: skip


def common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """The length of the common beginning."""
    return next((i for i, (s, t) in enumerate(zip(a, b)) if s != t), min(len(a), len(b)))


def own_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def cpu_seconds(pids: list[int]) -> float:
    """User and system time of these processes so far."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(field[11]) + int(field[12]) for field in fields) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> float:
    """Resident memory in MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def children(pid: int) -> list[int]:
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in files for child in file.read_text().split()]


if __name__ == "__main__":
    main()
