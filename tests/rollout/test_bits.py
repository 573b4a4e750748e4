"""A sample's tokens and log-probs are the same bits, whatever is generated beside it. On one thread."""

from functools import cache

import pytest
import torch

from groupwise.data import Ask, Span
from groupwise.models import Decoder
from tests.rollout.worlds import answered, ask, decoder, engine, prompt_of

SIZES = {
    "narrow": {"width": 64, "head_dim": 16, "inner": 160, "layers": 3},
    "wide": {"width": 128, "head_dim": 32, "inner": 352},
    "odd": {"width": 96, "head_dim": 24, "inner": 256, "kv_heads": 1},
    "each": {"width": 80, "head_dim": 20, "inner": 200, "kv_heads": 4, "vocabulary": 23},
}
CASES = [*((size, torch.float32) for size in SIZES), ("odd", torch.float64)]


@cache
def model(size: str, dtype: torch.dtype) -> Decoder:
    return decoder(dtype, spread=0.08, **SIZES[size])


def chosen(i: int) -> Ask:
    return ask(i, context=prompt_of(i, 5 + 11 * i), limit=14 + 7 * i, stream=(i % 2,))


def mate(i: int) -> Ask:
    """Prompts of 1 to 140 tokens, some shared by several; answers of 1 to 50."""
    return ask(100 + i, context=prompt_of(i // 3, 1 + (i // 3) * 37 % 140), limit=1 + i * 23 % 50, stream=(i,))


@cache
def alone(size: str, dtype: torch.dtype) -> tuple[Span, ...]:
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


@pytest.mark.parametrize(("size", "dtype"), CASES)
def test_a_remembered_context_changes_no_bit(size: str, dtype: torch.dtype) -> None:
    e = engine(model(size, dtype))
    e.foresee([chosen(i).context for i in range(5)] + [mate(i).context for i in range(30)])
    assert tuple(answered(e, [chosen(i) for i in range(5)])) == alone(size, dtype)
    assert tuple(answered(e, [chosen(i) for i in range(5)])) == alone(size, dtype)
