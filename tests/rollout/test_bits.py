"""A sample's tokens and log-probs are the same bits, whatever is generated beside it. On one thread."""

import asyncio
from functools import cache

import pytest
import torch

from groupwise.data import Generation, GenerationRequest, Sampling
from groupwise.models import Decoder, find_model, read_model, read_tokenizer
from groupwise.tasks import find_task
from tests.rollout.fakes import answered, ask, decoder, engine, prompt_of

SIZES = {
    "narrow": {"width": 64, "head_dim": 16, "inner": 160, "layers": 3},
    "wide": {"width": 128, "head_dim": 32, "inner": 352},
    "odd": {"width": 96, "head_dim": 24, "inner": 256, "kv_heads": 1},
    "each": {"width": 80, "head_dim": 20, "inner": 200, "kv_heads": 4, "vocabulary": 23},
    "broad": {"width": 96, "head_dim": 96, "inner": 200, "layers": 2},
    "blocked": {"width": 256, "head_dim": 64, "inner": 400, "vocabulary": 300, "layers": 2},
}
CASES = [*((size, torch.float32) for size in SIZES), ("odd", torch.float64)]


@cache
def model(size: str, dtype: torch.dtype) -> Decoder:
    return decoder(dtype, spread=0.08, **SIZES[size])


def chosen(i: int) -> GenerationRequest:
    return ask(i, context=prompt_of(i, 5 + 11 * i), limit=14 + 7 * i, stream=(i % 2,))


def mate(i: int) -> GenerationRequest:
    """Prompts of 1 to 140 tokens, some shared by several; answers of 1 to 50."""
    return ask(100 + i, context=prompt_of(i // 3, 1 + (i // 3) * 37 % 140), limit=1 + i * 23 % 50, stream=(i,))


@cache
def alone(size: str, dtype: torch.dtype) -> tuple[Generation, ...]:
    """Each of the chosen in an engine of its own."""
    return tuple(answered(engine(model(size, dtype)), [chosen(i)])[0] for i in range(5))


@pytest.mark.parametrize(("size", "dtype"), CASES)
def test_the_law_has_entropy(size: str, dtype: torch.dtype) -> None:
    spans = alone(size, dtype)
    assert all(len(set(span.tokens)) > 3 for span in spans)
    assert sum(x for span in spans for x in span.logp) / sum(len(span.logp) for span in spans) < -1


@pytest.mark.parametrize(("size", "dtype"), CASES)
@pytest.mark.parametrize("mates", [0, 12, 35])
def test_mates_change_no_bit(size: str, dtype: torch.dtype, mates: int) -> None:
    asks = [chosen(i) for i in range(5)] + [mate(i) for i in range(mates)]
    assert tuple(answered(engine(model(size, dtype)), asks)[:5]) == alone(size, dtype)
    backwards = answered(engine(model(size, dtype)), asks[::-1])[::-1]
    assert tuple(backwards[:5]) == alone(size, dtype)


@pytest.mark.parametrize(("size", "dtype"), CASES)
def test_neither_room_nor_waiting_changes_a_bit(size: str, dtype: torch.dtype) -> None:
    """Few rows, so that asks enter while others are half done, and a cache so small that it is rebuilt on the way."""
    asks = [mate(i) for i in range(20)] + [chosen(i) for i in range(5)]
    spans = answered(engine(model(size, dtype), rows=7, cache_tokens=3000), asks)
    assert tuple(spans[20:]) == alone(size, dtype)


def test_many_who_come_beside_a_long_one_change_no_bit() -> None:
    """The long one stands in its second chunk when the room of the first must grow."""
    first = ask(7, context=prompt_of(7, 20), limit=150)
    late = [mate(i) for i in range(40)]
    e = engine(model("narrow", torch.float32))

    async def go() -> list[Generation]:
        one = asyncio.create_task(e.sample(first))
        while e._rows.sequences.longest < 80:
            await asyncio.sleep(0)
        return [*await asyncio.gather(*(e.sample(a) for a in late)), await one]

    spans = asyncio.run(asyncio.wait_for(go(), 60))
    assert spans[-1] == answered(engine(model("narrow", torch.float32)), [first])[0]
    assert spans[:-1] == answered(engine(model("narrow", torch.float32)), late)


@pytest.mark.parametrize(("size", "dtype"), CASES)
def test_a_remembered_context_changes_no_bit(size: str, dtype: torch.dtype) -> None:
    e = engine(model(size, dtype))
    e.prefill([chosen(i).context for i in range(5)] + [mate(i).context for i in range(30)])
    assert tuple(answered(e, [chosen(i) for i in range(5)])) == alone(size, dtype)
    assert tuple(answered(e, [chosen(i) for i in range(5)])) == alone(size, dtype)


def test_the_committed_model_says_the_same_bits_alone_and_among_others() -> None:
    """As training uses it: real problems, its own end token, the training law; answers of many lengths."""
    path = find_model("calculator")
    reader, trained = read_tokenizer(path), read_model(path)
    task = find_task("calculator", reader.encode)
    asks = [
        ask(i, context=task[17 * i].context, stream=(j,), limit=48, sampling=Sampling(max_tokens=48))
        for i in range(12)
        for j in range(5)
    ]
    together = answered(engine(trained, reader), asks)
    assert -sum(map(sum, (span.logp for span in together))) / sum(len(span.logp) for span in together) > 0.05
    assert len({span.tokens for span in together}) > 12
    assert len({len(span.tokens) for span in together}) > 5
    for size in (1, 3, 17, 40):
        e = engine(trained, reader)
        parts = [answered(e, asks[at : at + size]) for at in range(0, 10 * size if size < 3 else 60, size)]
        flat = [span for part in parts for span in part]
        assert flat == together[: len(flat)]
    assert answered(engine(trained, reader, rows=9), asks[::-1]) == together[::-1]


def test_rows_read_what_they_have_in_common_from_one_copy() -> None:
    """A row's own room holds its answer and the last token of its prompt."""
    one = engine(model("narrow", torch.float32))
    asks = [ask(0, context=prompt_of(0, 300), limit=20, stream=(i,)) for i in range(16)]
    spans = answered(one, asks)
    assert [keys.shape[3] for keys, _ in one._rows.sequences.cache.chunks] == [64]
    assert spans[3] == answered(engine(model("narrow", torch.float32)), [asks[3]])[0]
