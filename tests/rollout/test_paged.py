"""Decoding with pages on the pretended GPU: the native engine's samples, one wait per step, and equal operations."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from groupwise.config.recipe import Machine
from groupwise.data import Finish, GenerationRequest, Sampling
from groupwise.engines import Native, NativeEngine, PagedEngine, without_pages
from groupwise.engines.native.paged_attention_layout import PagedLayout
from groupwise.engines.native.paged_batch import AHEAD, PagedBatch
from groupwise.engines.native.pages import PAGE, PagePool, pages_for
from groupwise.engines.native.row_sampling import largest_needed, row_bounds, row_logprobs, row_truncated, row_uniforms
from groupwise.models import choose, truncated, uniform
from tests.pretended_gpu import Counts, counted, pretended_gpu
from tests.rollout.fakes import decoder, engine, generate, prompt_of, request, tokenizer, without_end_token
from tests.test_pretended_gpu import plain_attention

LAYER, QK_NORMS, OUTSIDE, TRUNCATION = 22, 2, 71, 60
"""The most kernels of a step: for each layer, for norms of its queries and keys, for embedding, layout, head and
sampling together, and for top-p, top-k and min-p."""
SAMPLINGS = (
    Sampling(), Sampling(temperature=0.0), Sampling(temperature=0.7, top_p=0.9), Sampling(top_k=5),
    Sampling(top_p=0.8, min_p=0.1, top_k=9),
)  # fmt: skip


def asks(lengths: tuple[int, ...], limit: int, samplings: tuple[Sampling, ...] = SAMPLINGS) -> list[GenerationRequest]:
    """Groups of four requests, of several limits and distributions."""
    return [
        request(
            i // 4, context=prompt_of(i // 4, lengths[(i // 4) % len(lengths)]), stream=(i,),
            limit=max(limit - 3 * (i % 3), 1), sampling=samplings[i % len(samplings)],
        )
        for i in range(4 * len(lengths))
    ]  # fmt: skip


def paged(device: torch.device, tokens=None, *, invariant: bool = True, rows: int = 7, **changes) -> PagedEngine:
    model = decoder(**changes).to(device)
    return PagedEngine(model, tokens or without_end_token(), seed=11, max_num_seqs=rows, batch_invariant=invariant)


CASES = {
    "short": ((1, 9, 70), 20, {}),
    "windows": ((9, 130), 12, {"attention_windows": (5, None)}),
    "all heads": ((30,), 8, {"kv_heads": 4, "qk_norm": False, "qkv_bias": True}),
    "page border": ((255, 257), 9, {"head_dim": 64, "layers": 1}),
    "large vocabulary": ((9,), 6, {"vocabulary_size": 1500, "layers": 1}),
}


@pytest.mark.parametrize("invariant", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_the_samples_are_those_of_the_native_engine(case: str, invariant: bool) -> None:
    """Groups, page borders, windows, grouped and plain heads, each kind of sampling; more requests than rows."""
    lengths, limit, changes = CASES[case]
    requests = asks(lengths, limit)
    here = generate(engine(decoder(**changes), max_num_seqs=7), requests)
    with pretended_gpu() as device:
        far = paged(device, invariant=invariant, **changes)
        there = generate(far, requests)
    assert [(g.tokens, g.finish) for g in there] == [(g.tokens, g.finish) for g in here]
    assert [g.logp for g in there] == [pytest.approx(g.logp, abs=1e-9) for g in here]
    assert len({t for g in here for t in g.tokens}) > 5
    assert far._paged.cache.prefilled <= sum(lengths), "a group prefills its prompt once"


def test_end_tokens_stop_strings_and_likeliest_tokens_are_those_of_the_native_engine() -> None:
    requests = asks((9, 20), 30, (Sampling(), Sampling(stop=("1", "23")), Sampling(temperature=0.5)))
    requests[0] = replace(requests[0], num_top_logprobs=3)
    here = generate(engine(decoder(), tokenizer(3, 4)), requests)
    with pretended_gpu() as device:
        there = generate(paged(device, tokenizer(3, 4)), requests)
    assert [(g.tokens, g.finish) for g in there] == [(g.tokens, g.finish) for g in here]
    assert {g.finish for g in here} == {Finish.stop, Finish.length}
    for x, y in zip(here[0].top_logprobs, there[0].top_logprobs, strict=True):
        assert [t for t, _ in x] == [t for t, _ in y] and [p for _, p in x] == pytest.approx([p for _, p in y])


def steps(requests: list[GenerationRequest], rows: int, **changes) -> list[Counts]:
    """The counts of each decoding step, with bfloat16 weights."""
    counts: list[Counts] = []
    decode = PagedBatch.decode

    def call(self: PagedBatch):
        with counted() as one:
            counts.append(one)
            return decode(self)

    with pytest.MonkeyPatch.context() as patch, pretended_gpu() as device:
        patch.setattr(PagedBatch, "decode", call)
        generate(paged(device, rows=rows, dtype=torch.bfloat16, vocabulary_size=1500, **changes), requests)
    return counts


def test_a_step_has_a_fixed_number_of_kernels_and_one_wait() -> None:
    """At any number of rows and lengths: the same operations with the same shapes, which a CUDA graph can hold."""
    plain = (Sampling(),)
    few = steps(asks((9,), 5, plain)[:1], 4, layers=2, qk_norm=False)
    many = steps(asks((300, 1, 40), 5, plain), 12, layers=2, qk_norm=False)
    deep = steps(asks((9,), 5, plain)[:1], 4, layers=3, qk_norm=False)
    normed = steps(asks((9,), 5, plain)[:1], 4, layers=2)
    cut = steps(asks((9,), 5, (Sampling(top_p=0.9, min_p=0.1),))[:1], 4, layers=2, qk_norm=False)
    top = steps(asks((9,), 5, (Sampling(top_p=0.9, top_k=7),))[:1], 4, layers=2, qk_norm=False)
    kernels = few[1].kernels
    layer = deep[1].kernels - kernels
    assert layer <= LAYER and kernels - 2 * layer <= OUTSIDE  # the vocabulary is searched by blocks
    assert {c.kernels for c in (*few[1:], *many[1:])} == {kernels}
    assert normed[1].kernels - kernels <= 2 * QK_NORMS and cut[1].kernels - kernels <= TRUNCATION
    for counts in (few, many, deep, normed, cut, top):
        assert all((c.waits, c.to_host) == (1, 1) for c in counts)
        assert all(c.to_device == 0 and c.trace == counts[1].trace for c in counts[1:])
    assert many[1].bytes_to_host == 2 * 8 * 12
    assert cut[1].largest <= 4 * 1500 * 8  # the order of the sort; no float64 matrix of rows and vocabulary
    assert cut[1].float64 - few[1].float64 < 20
    assert top[1].kernels < cut[1].kernels and "sort" not in top[1].operations
    assert top[1].largest == few[1].largest < cut[1].largest, "no order of the vocabulary"


def test_rows_are_padded_to_powers_of_two_without_batch_invariance() -> None:
    shapes = {}
    for invariant in (True, False):
        with pretended_gpu() as device:
            far = paged(device, invariant=invariant, rows=64, layers=1)
            generate(far, asks((9,), 4)[:3])
            shapes[invariant] = far._paged._size
    assert shapes == {True: 64, False: 8}


def test_turns_keep_the_pages_of_the_turns_before() -> None:
    """A turn prefills the environment's reply and the last page, not the whole conversation; samples are the same."""

    def talk(far: NativeEngine) -> tuple[list, int]:
        async def go() -> list:
            context, turns = prompt_of(1, 300), []
            for turn in range(3):
                turns.append(await far.sample(request(1, context=context, limit=20, already_generated_count=23 * turn)))
                context = (*context, *turns[-1].tokens, 1, 2, 3)
            return [t.tokens for t in turns]

        return asyncio.run(go()), far._paged.cache.prefilled if isinstance(far, PagedEngine) else 0

    here, _ = talk(engine(decoder(layers=1)))
    with pretended_gpu() as device:
        fast, slow = (talk(paged(device, invariant=invariant, layers=1)) for invariant in (False, True))
    assert fast[0] == slow[0] == here
    assert fast[1] <= 299 + 2 * 4  # three tokens of the reply, and the answer's last token
    assert fast[1] < slow[1] <= 299 + (322 - PAGE) + (345 - PAGE)  # from the border of a page


def test_new_weights_cut_running_requests_and_free_the_memory() -> None:
    with pretended_gpu() as device:
        far = paged(device)

        async def go():
            task = asyncio.gather(*(far.sample(r) for r in asks((9, 30), 40)))
            for _ in range(8):
                await asyncio.sleep(0)
            held = far._paged.cache.keys.shape[1]
            await far.load(1, far._decoder.state_dict())
            empty = far._paged.cache.keys.shape[1]
            again = asyncio.gather(*(far.sample(r) for r in asks((9,), 6)))
            return held, empty, await task, await again

        held, empty, cut, again = asyncio.run(go())
    assert held > 1 and empty == 0
    assert {g.finish for g in cut if g.versions[:1] == (0,)} >= {Finish.cut}
    assert {g.versions[0] for g in again} == {1}
    assert far._paged.held == 0


def test_a_small_cache_makes_requests_wait() -> None:
    requests = asks((200, 255, 9, 40), 12)
    with pretended_gpu() as device:
        model = decoder(layers=1).to(device)
        far = PagedEngine(model, without_end_token(), seed=11, max_num_seqs=16, kv_cache_tokens=3 * PAGE)
        there = generate(far, requests)
        assert far._paged.cache.keys.shape[1] <= 5
    here = generate(engine(decoder(layers=1)), requests)
    assert [g.tokens for g in there] == [g.tokens for g in here]


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 600)), min_size=1, max_size=4),
    st.sampled_from([(4, 4), (4, 2), (6, 1)]),
    st.sampled_from([None, 1, 7, 300]),
    st.integers(0, 99),
)
def test_attention_to_random_pages_is_that_to_whole_texts(rows, heads, window, seed) -> None:
    """New tokens at any place of a page, windows, plain and grouped heads: keys are written, then attended to."""
    draws = torch.Generator().manual_seed(seed)
    new, totals = [min(n, total) for n, total in rows], [total for _, total in rows]
    columns = pages_for(max(totals))
    table = torch.randperm(len(rows) * columns, generator=draws).view(len(rows), columns).int() + 1
    pool = torch.randn(2, 1, len(rows) * columns + 1, PAGE, heads[1], 8, dtype=torch.float64, generator=draws)
    position = torch.cat([torch.arange(total - n, total) for n, total in zip(new, totals)])
    row = torch.arange(len(rows)).repeat_interleave(torch.tensor(new))
    slot = table[row, position // PAGE].long() * PAGE + position % PAGE
    q, k, v = (torch.randn(sum(new), h, 8, dtype=torch.float64, generator=draws) for h in (heads[0], *[heads[1]] * 2))
    ends = torch.tensor([0, *new]).cumsum(0).int()
    inputs = position, slot, ends, torch.tensor(totals, dtype=torch.int32), table, *pool
    with pretended_gpu() as device:
        layout = PagedLayout(*(x.to(device) for x in inputs), max_query_length=max(new))
        out = layout.attend(0, *(x.to(device) for x in (q, k, v)), window=window).cpu()
        keys, values = (x.cpu()[0] for x in (layout.key_cache, layout.value_cache))
    assert torch.equal(keys.flatten(0, 1)[slot], k) and torch.equal(values.flatten(0, 1)[slot], v)
    for i, (x, total) in enumerate(zip(out.split(new), totals)):
        text = (y[table[i].long()].flatten(0, 1)[:total] for y in (keys, values))
        want, _ = plain_attention(q[ends[i] : ends[i + 1]], *text, window)
        assert torch.allclose(x, want, atol=1e-13)


@settings(max_examples=60)
@given(st.data())
def test_pages_are_shared_by_equal_beginnings_only(data: st.DataObject) -> None:
    """Random sequences start, end and are cached: nobody's page is taken, and a match is a true beginning."""
    pages, running, written = PagePool(7), [], {}
    texts = st.lists(st.sampled_from((100, 156, 200)), min_size=1, max_size=5)
    for _ in range(20):
        if running and data.draw(st.booleans()):
            ids, held = running.pop(data.draw(st.integers(0, len(running) - 1)))
            if data.draw(st.booleans()):
                pages.store(("", ids), held)
            pages.release(held)
            continue
        ids = tuple(np.repeat(range(9), 100)[: sum(data.draw(texts))].tolist())
        ids = (*ids[:-1], data.draw(st.integers(0, 2)))
        match = pages.match(("", ids))
        whole = [t for page in match.whole_pages for t in written[page.index]]
        partial = written[match.partial_page.index][: match.partial_tokens] if match.partial_page else []
        assert [*whole, *partial] == list(ids[: match.tokens])
        needed = pages_for(len(ids)) - len(match.whole_pages)
        if pages.held + needed + len(match.whole_pages) > pages.most:
            continue
        pages.hold(match.whole_pages)
        new = pages.take(needed)
        taken = {page.index for _, held in running for page in held} | {page.index for page in match.whole_pages}
        assert not taken & {page.index for page in new} and 0 not in {page.index for page in new}
        held = [*match.whole_pages, *new]
        for i, page in enumerate(new, len(match.whole_pages)):
            written[page.index] = list(ids[i * PAGE : (i + 1) * PAGE])
        running.append((ids, held))
        assert pages.held == len({page.index for _, held in running for page in held}) <= pages.most >= pages.highest
    for _, held in running:
        pages.release(held)
    assert pages.held == 0


NUMBERS = st.tuples(
    st.sampled_from([1.0, 0.7, 0.0]), st.sampled_from([1.0, 0.9, 0.5, 0.01]), st.sampled_from([0, 1, 7, 5000]),
    st.sampled_from([0.0, 0.05, 0.99]),
)  # fmt: skip


@example(rows=[(1.0, 0.5, 4, 0.0)], vocabulary=17, seed=0, tied=None)  # the sum of two of four is exactly p
@given(st.lists(NUMBERS, min_size=1, max_size=4), st.sampled_from([17, 1100]), st.integers(0, 99), st.booleans())
def test_rows_are_truncated_and_chosen_as_one_by_one(rows, vocabulary, seed, tied) -> None:
    """Also with equal logits, of which the first in the vocabulary are kept."""
    samplings = [Sampling(temperature=t, top_p=p, top_k=k, min_p=m) for t, p, k, m in rows]
    draws = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(samplings), vocabulary, dtype=torch.float64, generator=draws)
    logits = logits.mul(2).round() if tied else logits * 0 if tied is None else logits
    bounds = torch.from_numpy(row_bounds(samplings, vocabulary))
    logp = row_logprobs(logits, bounds[0], greedy=any(s.temperature == 0 for s in samplings))
    if (most := largest_needed(samplings, vocabulary)) is not None:
        logp = row_truncated(logp, bounds[1:], most)
    u = torch.rand(len(samplings), dtype=torch.float64, generator=draws)
    for i, sampling in enumerate(samplings):
        want = truncated(logits[i : i + 1], sampling)
        assert torch.allclose(logp[i : i + 1].exp(), want.exp(), atol=1e-12), sampling
        assert choose(logp, u)[i] == choose(want, u[i : i + 1])[0]


@example(seed=2**64 - 1, streams=[2**64 - 1, 2**63], at=5)
@given(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=3), st.integers(0, 2**31))
def test_random_numbers_on_the_device_have_the_hosts_bits(seed: int, streams: list[int], at: int) -> None:
    n = len(streams)
    purpose, draw = torch.arange(n) % 4, torch.arange(n) * 77
    stream = torch.from_numpy(np.array(streams, np.uint64).astype(np.int64))
    device = row_uniforms(seed, purpose, draw, stream, torch.full((n,), at), 3)
    for i in range(n):
        host = uniform((seed, i % 4), 77 * i, streams[i], [at, at + 1, at + 2])
        assert device[:, i].tolist() == host.tolist()
    assert AHEAD > 1


def test_the_engine_of_a_gpu_has_pages_where_the_kernel_can_be_used() -> None:
    tokens, machine = without_end_token(), Machine()
    assert machine.dtype == "auto"
    with pretended_gpu() as device:
        built = {}
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            model = decoder(dtype).to(device)
            built[dtype] = type(Native().build(model, tokens, seed=1, experts=None)), without_pages(Native(), model)
    line = (
        "note: the engine decodes without pages, in many more kernels a token: "
        "varlen_attn takes bfloat16 and float16, not float32 (docs/gpu.md)"
    )
    assert built == {
        torch.bfloat16: (PagedEngine, None), torch.float16: (PagedEngine, None), torch.float32: (NativeEngine, line),
    }  # fmt: skip
    model = decoder(torch.bfloat16)
    assert type(Native().build(model, tokens, seed=1, experts=None)) is NativeEngine
    assert without_pages(Native(), model) is None
