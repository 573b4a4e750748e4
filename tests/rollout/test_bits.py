"""A sample's tokens and log-probs are bit-identical for any other rows in the batch, on one thread."""

import asyncio
from functools import cache

import pytest
import torch

from groupwise.data import Generation, GenerationRequest, Sampling
from groupwise.engines.native.attention_layouts import ROWS, CommonPrefix
from groupwise.models import Decoder, find_model, read_model, read_tokenizer
from groupwise.tasks import named_task
from tests.processes import PATIENCE
from tests.rollout.fakes import decoder, engine, generate, prompt_of, request

SIZES = {
    "narrow": {"hidden_size": 64, "head_dim": 16, "mlp_width": 160, "layers": 3},
    "wide": {"hidden_size": 128, "head_dim": 32, "mlp_width": 352},
    "odd": {"hidden_size": 96, "head_dim": 24, "mlp_width": 256, "kv_heads": 1},
    "no grouped queries": {"hidden_size": 80, "head_dim": 20, "mlp_width": 200, "kv_heads": 4, "vocabulary_size": 23},
    "broad": {"hidden_size": 96, "head_dim": 96, "mlp_width": 200, "layers": 2},
    "blocked": {"hidden_size": 256, "head_dim": 64, "mlp_width": 400, "vocabulary_size": 300, "layers": 2},
}
CASES = [*((size, torch.float32) for size in SIZES), ("odd", torch.float64)]


@cache
def model(size: str, dtype: torch.dtype) -> Decoder:
    return decoder(dtype, spread=0.08, **SIZES[size])


def measured(i: int) -> GenerationRequest:
    return request(i, context=prompt_of(i, 5 + 11 * i), limit=14 + 5 * i, stream=(i % 2,))


def other(i: int) -> GenerationRequest:
    """Contexts of 1 to 140 tokens, some of them equal; answers of 1 to 40 tokens."""
    return request(100 + i, context=prompt_of(i // 3, 1 + (i // 3) * 37 % 140), limit=1 + i * 23 % 40, stream=(i,))


@cache
def alone(size: str, dtype: torch.dtype) -> tuple[Generation, ...]:
    """The measured requests, each in its own engine."""
    return tuple(generate(engine(model(size, dtype)), [measured(i)])[0] for i in range(5))


@pytest.mark.parametrize(("size", "dtype"), CASES)
def test_the_model_has_entropy(size: str, dtype: torch.dtype) -> None:
    generations = alone(size, dtype)
    assert all(len(set(x.tokens)) > 3 for x in generations)
    assert sum(x for x in generations for x in x.logp) / sum(len(x.logp) for x in generations) < -1


@pytest.mark.parametrize(("size", "dtype", "others"), [(*CASES[0], 0), *((*case, 35) for case in CASES)])
def test_other_rows_change_no_bit(size: str, dtype: torch.dtype, others: int) -> None:
    requests = [measured(i) for i in range(5)] + [other(i) for i in range(others)]
    assert tuple(generate(engine(model(size, dtype)), requests)[:5]) == alone(size, dtype)
    reversed_ = generate(engine(model(size, dtype)), requests[::-1])[::-1]
    assert tuple(reversed_[:5]) == alone(size, dtype)


@pytest.mark.parametrize(("size", "dtype"), CASES)
def test_queueing_and_a_small_cache_change_no_bit(size: str, dtype: torch.dtype) -> None:
    """With few rows, requests enter while other rows are half finished; a small cache is rebuilt during the run."""
    requests = [other(i) for i in range(20)] + [measured(i) for i in range(5)]
    generations = generate(engine(model(size, dtype), max_num_seqs=7, kv_cache_tokens=3000), requests)
    assert tuple(generations[20:]) == alone(size, dtype)


def test_many_rows_that_enter_beside_a_long_row_change_no_bit() -> None:
    """The long row is in its second block when the first block must grow."""
    first = request(7, context=prompt_of(7, 20), limit=150)
    late = [other(i) for i in range(40)]
    e = engine(model("narrow", torch.float32))

    async def go() -> list[Generation]:
        task = asyncio.create_task(e.sample(first))
        while e._batch.sequences.last_slot < 80:
            await asyncio.sleep(0)
        return [*await asyncio.gather(*(e.sample(a) for a in late)), await task]

    generations = asyncio.run(asyncio.wait_for(go(), PATIENCE))
    assert generations[-1] == generate(engine(model("narrow", torch.float32)), [first])[0]
    assert generations[:-1] == generate(engine(model("narrow", torch.float32)), late)


@pytest.mark.parametrize(("size", "dtype"), CASES)
def test_a_cached_context_changes_no_bit(size: str, dtype: torch.dtype) -> None:
    e = engine(model(size, dtype))
    e.prefill([measured(i).context_key for i in range(5)] + [other(i).context_key for i in range(30)])
    assert tuple(generate(e, [measured(i) for i in range(5)])) == alone(size, dtype)
    assert tuple(generate(e, [measured(i) for i in range(5)])) == alone(size, dtype)


def test_the_packaged_model_gives_the_same_bits_alone_and_in_a_batch() -> None:
    """As in training: real problems, the model's end token and sampling settings, answers of many lengths."""
    path = find_model("calculator")
    tokens, trained = read_tokenizer(path), read_model(path)
    task = named_task("calculator").build(tokens.encode)
    requests = [
        request(i, context=task[17 * i].token_ids, stream=(j,), limit=48, sampling=Sampling(max_tokens=48))
        for i in range(12)
        for j in range(5)
    ]
    together = generate(engine(trained, tokens), requests)
    assert -sum(map(sum, (x.logp for x in together))) / sum(len(x.logp) for x in together) > 0.05
    assert len({x.tokens for x in together}) > 12
    assert len({len(x.tokens) for x in together}) > 5
    for size in (1, 17, 40):
        e = engine(trained, tokens)
        parts = [generate(e, requests[at : at + size]) for at in range(0, 10 if size == 1 else 60, size)]
        flat = [generation for part in parts for generation in part]
        assert flat == together[: len(flat)]
    assert generate(engine(trained, tokens, max_num_seqs=9), requests[::-1]) == together[::-1]


def test_rows_with_one_context_share_one_copy_of_its_keys_and_values() -> None:
    """A row's own cache contains only its answer and the last token of its context."""
    one = engine(model("narrow", torch.float32))
    requests = [request(0, context=prompt_of(0, 300), limit=20, stream=(i,)) for i in range(16)]
    generations = generate(one, requests)
    assert [keys.shape[3] for keys, _ in one._batch.sequences.cache.blocks] == [64]
    assert generations[3] == generate(engine(model("narrow", torch.float32)), [requests[3]])[0]


@pytest.mark.parametrize("rows", [[4], [1, 2, 3], [0, 5, 2, 9], [*range(ROWS)], [*range(ROWS + 1)]])
def test_products_with_a_shared_prefix_have_a_multiple_of_rows(rows: list[int]) -> None:
    """Only some processors sum in another order for another number of rows."""
    keys = torch.zeros(1, 1, 70, 4)
    prefix = CommonPrefix.of((keys, keys), rows, keys.device)
    used = torch.arange(2 * ROWS)[prefix.padded_row_indices]
    assert len(used) % ROWS == 0 and used[: prefix.row_count].tolist() == rows
