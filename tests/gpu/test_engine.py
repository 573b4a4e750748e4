"""The paged engine on a CUDA device: replayed graphs, equal bits per row, memory, and figures for benchmarks/GPU.md."""

import asyncio
from time import perf_counter

import pytest
import torch
from torch.nn.attention.varlen import varlen_attn

from groupwise.data import Generation, GenerationRequest, Sampling
from groupwise.engines import PagedEngine
from groupwise.engines.native.cuda_step_graphs import CudaStepGraphs
from tests import varlen_kernel
from tests.rollout.fakes import decoder, generate, prompt_of, request, without_end_token

LARGE = {
    "layers": 28, "hidden_size": 1024, "heads": 16, "kv_heads": 8, "head_dim": 128, "mlp_width": 3072,
    "vocabulary_size": 32_000, "max_positions": 4096,
}  # fmt: skip


def paged(gpu: torch.device, *, rows: int = 16, invariant: bool = True, **changes) -> PagedEngine:
    model = decoder(torch.bfloat16, head_dim=changes.pop("head_dim", 64), spread=0.05, **changes).to(gpu)
    return PagedEngine(model, without_end_token(), seed=11, max_num_seqs=rows, batch_invariant=invariant)


def asks(groups: int, size: int = 4, limit: int = 40, length: int = 300) -> list[GenerationRequest]:
    samplings = Sampling(), Sampling(temperature=0.7, top_p=0.9), Sampling(temperature=0.0)
    return [
        request(
            i // size, context=prompt_of(i // size, length - 40 * (i // size)), stream=(i,), limit=limit,
            sampling=samplings[i % 3],
        )
        for i in range(groups * size)
    ]  # fmt: skip


def words(generations: list[Generation]) -> list[tuple]:
    return [(g.tokens, g.logp, g.finish) for g in generations]


def test_a_sample_has_the_same_bits_whatever_else_runs(gpu: torch.device) -> None:
    """`batch_invariant`: equal shapes give equal bits per row."""
    requests = asks(4)
    together = words(generate(paged(gpu), requests))
    alone = [words(generate(paged(gpu), [r]))[0] for r in requests[:6]]
    assert together[:6] == alone
    assert words(generate(paged(gpu), list(reversed(requests)))) == together[::-1]


@pytest.mark.parametrize("invariant", [True, False])
def test_replayed_graphs_give_the_bits_of_eager_steps(gpu: torch.device, invariant: bool) -> None:
    engine = paged(gpu, invariant=invariant)
    assert engine._paged.graphs.capture
    eager = paged(gpu, invariant=invariant)
    eager._paged.graphs = CudaStepGraphs(capture=False)
    assert words(generate(engine, asks(4))) == words(generate(eager, asks(4)))


@pytest.mark.parametrize(("heads", "window"), [((4, 4), None), ((8, 2), None), ((8, 2), 100)])
def test_the_kernel_is_the_reference(gpu: torch.device, heads: tuple[int, int], window: int | None) -> None:
    draws = torch.Generator().manual_seed(0)
    used = torch.tensor([1, 255, 256, 700], dtype=torch.int32)
    table = (torch.randperm(12, generator=draws).view(4, 3) + 1).int()
    keys, values = torch.randn(2, 13, 256, heads[1], 64, generator=draws).bfloat16()
    q, ends = torch.randn(4, heads[0], 64, generator=draws).bfloat16(), torch.arange(5, dtype=torch.int32)
    left = -1 if window is None else window - 1
    want = varlen_kernel.forward(
        q, keys, values, ends, None, 1, 768, window_size=[left, 0], seqused_k=used, block_table=table
    )[0]
    inputs = (x.to(gpu) for x in (q, keys, values, ends))
    got = varlen_attn(
        *inputs, None, 1, 768, window_size=(left, 0), enable_gqa=heads[0] != heads[1], seqused_k=used.to(gpu),
        block_table=table.to(gpu), num_splits=1,
    )  # fmt: skip
    assert torch.allclose(got.cpu().float(), want.float(), atol=0.02)


def test_the_log_probs_are_those_of_the_whole_text(gpu: torch.device) -> None:
    engine = paged(gpu)
    for r, generation in zip(asks(2), generate(engine, asks(2))):
        if r.sampling == Sampling():
            score = asyncio.run(engine.score(r.context, generation.tokens))
            assert generation.logp == pytest.approx(score, abs=0.1)


def test_new_weights_give_the_memory_of_the_cache_back(gpu: torch.device) -> None:
    engine = paged(gpu)
    before = torch.cuda.memory_allocated(gpu)
    generate(engine, asks(4))
    used = torch.cuda.memory_allocated(gpu)
    asyncio.run(engine.load(1, engine._decoder.state_dict()))
    assert used > before + 2**20
    assert torch.cuda.memory_allocated(gpu) < before + 2**20


def test_seconds_and_kernels_per_token_are_written(gpu: torch.device, figures: list[str]) -> None:
    """28 layers of width 1024 (0.5 billion weights), 64 rows: benchmarks/GPU.md."""
    lines = [
        "A model of 28 layers of width 1024 in bfloat16, prompts of 300 tokens, 64 rows, 128 tokens each.", "",
        "| steps | ms per step | tokens per second | kernels per step |", "|---|---|---|---|",
    ]  # fmt: skip
    requests = [request(i // 8, context=prompt_of(i // 8, 300), stream=(i,), limit=128) for i in range(64)]
    for name, capture in (("operation by operation", False), ("CUDA graph", True)):
        engine = paged(gpu, rows=64, **LARGE)
        engine._paged.graphs = CudaStepGraphs(capture=capture)
        generate(engine, requests)
        torch.cuda.synchronize()
        start = perf_counter()
        generate(engine, requests)
        torch.cuda.synchronize()
        seconds = perf_counter() - start
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            generate(engine, requests)
        kernels = sum(e.count for e in profile.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA)
        lines.append(f"| {name} | {seconds / 128 * 1e3:.2f} | {64 * 128 / seconds:,.0f} | {kernels / 128:,.0f} |")
    figures.append("\n".join(lines))
