"""Attention by `varlen_attn` equals masked attention: random packed samples, windows, grouped heads, long contexts."""

from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from groupwise.models import Decoder, DecoderShape, PrefixPacking
from groupwise.models.decoder.varlen_attention import VarlenAttention, VarlenRows, varlen_obstacle
from tests.models.test_layout import TINY, pieces, plain
from tests.pretended_gpu import GPU, counted, pretended_gpu

pytestmark = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13), reason="varlen_attn lacks arguments before torch 2.13"
)
PREFIX_PACKING = "groupwise.models.decoder.prefix_packing"
CLOSE = {torch.float64: 1e-12, torch.float32: 5e-6, torch.bfloat16: 2e-2}


def masked(layout: PrefixPacking, inputs: list[Tensor], window: int | None) -> Tensor:
    """Attention with one mask of all tokens by all tokens, in plain operations."""
    q, k, v, _ = inputs
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    mask = torch.zeros(len(q), len(q), dtype=torch.bool)
    for path, added in layout.attention_rows:
        for i in range(len(path) - added, len(path)):
            mask[path[i], path[max(0, i + 1 - (window or i + 1)) : i + 1]] = True
    score = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("hqk,khd->qhd", score.masked_fill(~mask, -torch.inf).softmax(-1), v)


def draws(tokens: int, heads: tuple[int, int]) -> list[Tensor]:
    draw = torch.Generator().manual_seed(tokens)
    q, kv = heads
    return [torch.randn(tokens, h, 8, generator=draw, dtype=torch.float64) for h in (q, kv, kv, q)]


def on_gpu(layout: PrefixPacking, inputs: list[Tensor], window: int | None, long: int) -> list[Tensor]:
    """Output and gradients on the pretended GPU."""
    with pretended_gpu() as device, patch(f"{PREFIX_PACKING}.LONG_ON_GPU", long):
        q, k, v, grad = (x.to(device).requires_grad_() for x in inputs)
        rows, contexts = layout._varlen_rows(window)
        out = VarlenAttention.apply(q, k, v, rows, contexts, window)
        return [x.cpu() for x in (out.detach(), *torch.autograd.grad((out * grad).sum(), (q, k, v)))]


def to_gpu(contexts: list[tuple[int, ...]], tokens: list[tuple[int, ...]]) -> PrefixPacking:
    with pretended_gpu() as device:
        return PrefixPacking.of(contexts, tokens, device=device)


@pytest.mark.parametrize("dtype", CLOSE)
@settings(max_examples=25)
@given(
    piece=pieces(),
    window=st.sampled_from([None, 1, 3, 20]),
    heads=st.sampled_from([(4, 2), (2, 2), (3, 1)]),
    long=st.sampled_from([1, 8, 1024]),
)
def test_varlen_attention_equals_masked_attention(piece, window, heads, long, dtype) -> None:
    """Shared prompts, trees of answers, windows; contexts of more than `long` tokens take a second call."""
    layout = to_gpu(*piece)
    if not (tokens := len(layout.tokens)):
        return
    inputs = [x.to(dtype) for x in draws(tokens, heads)]
    exact = [x.double().requires_grad_() for x in inputs]
    want = masked(layout, exact, window)
    wanted = [want.detach(), *torch.autograd.grad((want * exact[3]).sum(), exact[:3])]
    for name, got, expected in zip("oqkv", on_gpu(layout, inputs, window, long), wanted, strict=True):
        assert got.dtype == dtype
        assert (got.double() - expected).abs().max() <= CLOSE[dtype] * max(1.0, float(expected.abs().max())), name


def test_an_alignment_with_the_first_key_is_noticed() -> None:
    """The law above fails for the kernel of torch's mask `tril`, which aligns a row with its first key."""
    layout, inputs = to_gpu([(1, 2, 3)] * 2, [(4, 5, 6), (5, 6)]), draws(6, (4, 2))

    def first_key(lengths: Tensor, totals: Tensor, window: list[int] | None) -> Tensor:
        key, query = torch.arange(int(totals.max())), torch.arange(int(lengths.max()))
        beyond = (key >= totals[:, None])[:, None]
        return beyond | (key > query[:, None])

    expected = masked(layout, inputs, None)
    with patch("tests.varlen_kernel.hidden", first_key):
        assert (on_gpu(layout, inputs, None, 1024)[0] - expected).abs().max() > 0.1
    assert (on_gpu(layout, inputs, None, 1024)[0] - expected).abs().max() < 1e-12


def test_a_window_copies_no_more_keys_than_it_sees() -> None:
    rows = [(list(range(50)), 50), ([*range(50), 50, 51], 2)]
    assert len(VarlenRows.of(rows, None, torch.device("cpu")).key_indices) == 50 + 52
    assert len(VarlenRows.of(rows, 4, torch.device("cpu")).key_indices) == 50 + 5


GPU_SHAPE = DecoderShape(
    vocabulary_size=11,
    hidden_size=16,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=8,
    mlp_width=24,
    max_positions=256,
    attention_windows=(5, None),
)


@pytest.mark.parametrize("long", [4, 1024])
def test_a_decoder_in_bfloat16_trains_by_it_on_a_gpu(long: int) -> None:
    """One call a layer, two with a long context; gradients are those of float64."""
    contexts, tokens = [(1, 2, 3, 4, 5, 6)] * 3, [(7,) * 30, (7, 7, 8, 9), (3,) * 20]
    model = Decoder.new(GPU_SHAPE, 0, dtype=torch.bfloat16, spread=0.3)
    exact = Decoder.new(GPU_SHAPE, 0, dtype=torch.float64, spread=0.3)
    exact.load_state_dict(model.state_dict())
    logits = plain(exact, contexts, tokens)
    pull = torch.linspace(-1, 2, logits.numel()).view_as(logits)
    logits.backward(pull.double())
    with pretended_gpu() as device, counted() as counts, patch(f"{PREFIX_PACKING}.LONG_ON_GPU", long):
        there = Decoder.new(GPU_SHAPE, 0, dtype=torch.bfloat16, spread=0.3, device=device)
        layout = PrefixPacking.of(contexts, tokens, device=device)
        there.head(there(layout.tokens, layout)[layout.predicting_indices]).backward(pull.bfloat16().to(device))
        got = flat_gradient(there).cpu()
    calls = counts.operations["_varlen_attn"], counts.operations["_varlen_attn_backward"]
    assert calls == ((3, 3) if long == 4 else (2, 2))
    want = flat_gradient(exact)
    assert (got.double() - want).norm() / want.norm() < 0.05


def flat_gradient(model: Decoder) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_obstacles_are_named() -> None:
    assert not varlen_obstacle(torch.bfloat16, 128, (9, 0))
    assert "not float32" in varlen_obstacle(torch.float32, 64)
    assert "heads of at most 256" in varlen_obstacle(torch.bfloat16, 512) and varlen_obstacle(torch.bfloat16, 20)
    assert "this card has 7.5" in varlen_obstacle(torch.bfloat16, 64, (7, 5))


def test_other_attention_on_a_gpu_has_its_masks() -> None:
    """float32, a soft cap or an odd head: today's kernel, with equal numbers."""
    piece = [(1, 2, 3)] * 2, [(4, 5, 6), (5, 6)]
    inputs = [x.float() for x in draws(6, (4, 2))]
    expected = PrefixPacking.of(*piece).attend(0, *inputs[:3])
    with pretended_gpu(), counted() as counts:
        got = to_gpu(*piece).attend(0, *(x.to(GPU) for x in inputs[:3])).cpu()
    assert not counts.operations["_varlen_attn"] and torch.allclose(got, expected, atol=1e-6)
    assert TINY.head_dim % 8
