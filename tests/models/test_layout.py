"""The prefix-shared layout gives what each sample alone would give: hidden states, logits and gradients."""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from groupwise.data import AttentionLayout, Backbone
from groupwise.models import Decoder, DecoderShape, PrefixPacking

TINY = DecoderShape(
    vocabulary_size=11,
    hidden_size=16,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=6,
    mlp_width=24,
    max_positions=256,
    qk_norm=True,
    qkv_bias=True,
    tied_embeddings=True,
)
SLIDING = replace(TINY, attention_windows=(5, None))


def decoder(dtype: torch.dtype = torch.float64, shape: DecoderShape = TINY) -> Decoder:
    return Decoder.new(shape, 0, dtype=dtype, spread=0.3)


class Alone:
    """The reference: one sequence with a full lower triangle, written with einsum."""

    def __init__(self, length: int) -> None:
        self.positions = torch.arange(length)

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, window: int | None = None, softcap: float | None = None
    ) -> Tensor:
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        score = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
        score = score if softcap is None else softcap * (score / softcap).tanh()
        back = self.positions[None, :, None] - self.positions[None, None, :]
        score = score.masked_fill((back < 0) | (back >= (window or len(q))), -torch.inf)
        return torch.einsum("hqk,khd->qhd", score.softmax(-1), v)


def plain(model: Decoder, contexts: list[tuple[int, ...]], tokens: list[tuple[int, ...]]) -> Tensor:
    """Logits of every sample's tokens, one forward a sample."""
    rows = [torch.zeros(0, model.shape.vocabulary_size, dtype=model.model.norm.weight.dtype)]
    for context, answer in zip(contexts, tokens):
        logits = model.head(model(torch.tensor([*context, *answer]), Alone(len(context) + len(answer))))
        rows.append(logits[len(context) - 1 : len(context) + len(answer) - 1])
    return torch.cat(rows)


def shared(model: Decoder, contexts: list[tuple[int, ...]], tokens: list[tuple[int, ...]]) -> Tensor:
    layout = PrefixPacking.of(contexts, tokens)
    return model.head(model(layout.tokens, layout)[layout.predicting_indices])


def gradients(model: Decoder, logits: Tensor, tokens: list[tuple[int, ...]]) -> Tensor:
    """One long gradient of a loss that weighs every token differently."""
    target = torch.tensor([t for answer in tokens for t in answer], dtype=torch.long)
    logp = logits.log_softmax(-1)[torch.arange(len(target)), target]
    weight = torch.linspace(-1, 2, len(target), dtype=logits.dtype)
    model.zero_grad()
    (weight * logp).sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def apart(a: Tensor, b: Tensor) -> float:
    return float(((a - b).norm() / b.norm().clamp(min=1e-30)).detach())


TOKENS = st.integers(0, TINY.vocabulary_size - 1)
CONTEXT = st.lists(TOKENS, min_size=1, max_size=40).map(tuple)
ANSWER = st.lists(TOKENS, max_size=40).map(tuple)
ALIKE = st.lists(st.sampled_from([3, 3, 3, 4]), max_size=12).map(tuple)  # answers that often begin the same


@st.composite
def pieces(draw: st.DrawFn) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    pool = draw(st.lists(CONTEXT, min_size=1, max_size=4))
    samples = draw(st.lists(st.tuples(st.sampled_from(pool), ANSWER | ALIKE), min_size=1, max_size=9))
    return [c for c, _ in samples], [t for _, t in samples]


@pytest.mark.t(1)
@pytest.mark.parametrize(
    ("dtype", "close", "shape", "long"),
    [
        (torch.float64, 1e-12, TINY, 64),
        (torch.float32, 5e-6, TINY, 64),
        (torch.float64, 1e-12, SLIDING, 64),
        (torch.float64, 1e-12, TINY, 4),
        (torch.float32, 5e-6, TINY, 4),
        (torch.float64, 1e-12, SLIDING, 4),
    ],
)
@settings(max_examples=25)
@given(piece=pieces())
def test_shared_forward_and_gradients_equal_each_sample_alone(
    piece: tuple[list[tuple[int, ...]], list[tuple[int, ...]]],
    dtype: torch.dtype,
    close: float,
    shape: DecoderShape,
    long: int,
) -> None:
    """All answers attend to one copy of a context of more than `long` tokens, except in a layer with a window."""
    contexts, tokens = piece
    model = decoder(dtype, shape)
    with patch("groupwise.models.decoder.prefix_packing.LONG", long):
        got, expected = shared(model, contexts, tokens), plain(model, contexts, tokens)
        assert got.shape == expected.shape
        assert apart(got.detach(), expected.detach()) <= close
        if any(tokens):
            assert apart(gradients(model, got, tokens), gradients(model, expected, tokens)) <= close


@pytest.mark.t(1)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_shared_long_context_gives_the_attention_of_each_row_alone(dtype: torch.dtype) -> None:
    """Each output and each gradient by itself, against float64; and no copy of the context is saved for backward."""
    contexts = [(1,) * 90, (2,) * 70, (1,) * 90, (1,) * 90, (3,) * 20]
    layout = PrefixPacking.of(contexts, [(1,) * 30, (2, 2), (1, 2, 4, 5), (7,) * 60, (7, 8)])
    draw = torch.Generator().manual_seed(0)
    exact = [torch.randn(len(layout.tokens), h, 8, generator=draw, dtype=torch.float64) for h in (4, 2, 2, 4)]
    exact = [x.to(dtype).double() for x in exact]

    def run(dtype: torch.dtype, softcap: float | None) -> list[Tensor]:
        q, k, v, pull = (x.to(dtype).requires_grad_() for x in exact)
        kept = 0

        def count(x: Tensor) -> Tensor:
            nonlocal kept
            kept += x.numel()
            return x

        with torch.autograd.graph.saved_tensors_hooks(count, lambda x: x):
            out = layout.attend(0, q, k, v, softcap=softcap)
        if softcap is None:
            assert kept <= 8 * 4 * 3 * len(layout.tokens) + 4 * len(layout.tokens)
        return [out, *torch.autograd.grad((out * pull).sum(), (q, k, v))]

    close = {torch.float64: 1e-12, torch.float32: 5e-6, torch.bfloat16: 1e-2}[dtype]
    for output, wanted in zip(
        run(dtype, None), run(torch.float64, 1e9)
    ):  # a cap this high has no effect, and takes another path
        assert output.dtype == dtype
        assert apart(output.double(), wanted) <= close


def test_equal_contexts_are_forwarded_once_and_last_tokens_never() -> None:
    layout = PrefixPacking.of([(1, 2), (3,), (1, 2), (1,), (4,)], [(5, 6), (7,), (8, 9, 10), (), (5,)])
    assert layout.tokens.tolist() == [1, 2, 3, 4, 5, 8, 9]
    assert layout.positions.tolist() == [0, 1, 0, 0, 2, 2, 3]
    assert layout.predicting_indices.tolist() == [1, 4, 2, 1, 5, 6, 3]
    assert layout.target_tokens.tolist() == [5, 6, 7, 8, 9, 10, 5]


def test_shared_prefixes_of_answers_are_forwarded_once() -> None:
    layout = PrefixPacking.of(
        [(1, 2), (1, 2), (3,), (1, 2), (1, 2)], [(5, 6, 7, 0), (5, 6, 8, 0), (5, 6, 0), (5, 0), (5, 6)]
    )
    assert sorted(layout.tokens.tolist()) == [1, 2, 3, 5, 5, 6, 6, 7, 8]
    paths = [(), (5,), (5, 6), (5, 6, 7), (), (5,), (5, 6), (5, 6, 8)], [(), (5,), (5, 6)], [(), (5,), (), (5,)]
    before = [(1, 2, *p) for p in paths[0]] + [(3, *p) for p in paths[1]] + [(1, 2, *p) for p in paths[2]]
    assert layout.positions[layout.predicting_indices].tolist() == [len(path) - 1 for path in before]
    assert layout.tokens[layout.predicting_indices].tolist() == [path[-1] for path in before]
    assert (
        len(set(zip(before, layout.predicting_indices.tolist())))
        == len(set(before))
        == len(layout.predicting_indices.unique())
    )
    assert layout.target_tokens.tolist() == [5, 6, 7, 0, 5, 6, 8, 0, 5, 6, 0, 5, 0, 5, 6]


def test_contexts_with_different_content_share_nothing() -> None:
    """Equal placeholder ids with different images, here given by their hashes."""
    contexts, tokens = [(1, 2)] * 3, [(7, 8), (7, 9), (7, 9)]
    shared = PrefixPacking.of(contexts, tokens, contents=["cat", "dog", "cat"])
    assert len(shared.tokens) == len(PrefixPacking.of(contexts[:2], tokens[::2]).tokens) + 2 + 1
    assert shared.predicting_indices[2:4].tolist() != shared.predicting_indices[4:6].tolist()
    plain = PrefixPacking.of(contexts, tokens)
    assert torch.equal(PrefixPacking.of(contexts, tokens, contents=["cat"] * 3).tokens, plain.tokens)


def test_a_group_of_one_answer_costs_one_answer() -> None:
    layout = PrefixPacking.of([(1, 2, 3)] * 16, [(4,) * 20] * 16)
    assert len(layout.tokens) == 3 + 19
    assert len(layout.predicting_indices) == 16 * 20


def test_a_microbatch_without_tokens_is_valid() -> None:
    model = decoder()
    assert shared(model, [(1,), (2, 3)], [(), ()]).shape == (0, TINY.vocabulary_size)
    assert shared(model, [], []).shape == (0, TINY.vocabulary_size)


def test_an_empty_context_is_refused() -> None:
    with pytest.raises(ValueError, match="context is empty"):
        PrefixPacking.of([(1,), ()], [(2,), (3,)])
    with pytest.raises(ValueError, match="2 contexts for 1 samples"):
        PrefixPacking.of([(1,), (1,)], [(2,)])


@pytest.mark.t(13)
@pytest.mark.t(15)
@pytest.mark.parametrize("long", [64, 2])
def test_padding_brings_in_no_other_row(long: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row but one context's family is NaN and Inf: that family's output and gradients do not change."""
    monkeypatch.setattr("groupwise.models.decoder.prefix_packing.LONG", long)
    contexts = [(1, 2, 3), (4,) * 9, (1, 2, 3), (5,) * 30, (1, 2, 3)]
    tokens = [(1,) * 3, (2,) * 25, (3,) * 14, (4,) * 40, (5,)]
    layout = PrefixPacking.of(contexts, tokens)
    draw = torch.Generator().manual_seed(0)
    n = len(layout.tokens)
    clean = [torch.randn(n, h, 8, generator=draw, dtype=torch.float64) for h in (4, 2, 2)]
    starts = torch.tensor([0, 3, 12, 42, 44, 68, 81, n])  # three contexts, then what is forwarded of four samples
    assert [int(layout.positions[s]) for s in starts[:-1]] == [0, 0, 0, 3, 9, 3, 30]
    family = torch.zeros(n, dtype=torch.bool)
    for row in (0, 3, 5):
        family[starts[row] : starts[row + 1]] = True

    def run(inputs: list[Tensor]) -> list[Tensor]:
        q, k, v = (x.clone().requires_grad_() for x in inputs)
        out = layout.attend(0, q, k, v)[family]
        return [out, *(g[family] for g in torch.autograd.grad(out.square().sum(), (q, k, v)))]

    poisoned = [x.clone() for x in clean]
    for x, poison in zip(poisoned, (torch.nan, torch.inf, torch.nan)):
        x[~family] = poison
    for a, b in zip(run(clean), run(poisoned)):
        assert torch.equal(a, b)


@pytest.mark.parametrize("long", [30, 90])
def test_gradients_are_the_same_bits_on_several_threads(long: int) -> None:
    """A shared context gathers gradients from many rows at once, which may not depend on who comes first."""
    layout = PrefixPacking.of([(1,) * long] * 64, [(i, *(2,) * 20) for i in range(64)])
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(len(layout.tokens), h, 16, generator=draw, requires_grad=True) for h in (4, 2, 2))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        results = {
            tuple(g.numpy().tobytes() for g in torch.autograd.grad(layout.attend(0, q, k, v).square().sum(), (q, k, v)))
            for _ in range(6)
        }
    finally:
        torch.set_num_threads(threads)
    assert len(results) == 1


def test_sockets_fit() -> None:
    assert isinstance(PrefixPacking.of([(1,)], [(2,)]), AttentionLayout)
    assert isinstance(decoder(), Backbone)


def test_positions_and_norms_keep_the_dtype_of_the_weights() -> None:
    layout = PrefixPacking.of([(1, 2, 3)], [(4, 5)])
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        hidden = decoder(dtype)(layout.tokens, layout)
        assert hidden.dtype == dtype
        assert hidden.isfinite().all()


def test_new_is_a_function_of_its_seed() -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first, again, other = (Decoder.new(TINY, seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(first[k], again[k]) for k in first)
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("wrong", [{"kv_heads": 3}, {"head_dim": 5}, {"layers": 0}])
def test_invalid_shapes_are_refused(wrong: dict[str, int]) -> None:
    fields = {
        "vocabulary_size": 5,
        "hidden_size": 8,
        "layers": 1,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 4,
        "mlp_width": 8,
    }
    with pytest.raises(ValueError, match=next(iter(wrong))):
        DecoderShape(**{"max_positions": 8, **fields, **wrong})
