"""The native engine: it samples from the model's distribution, ends answers correctly, and manages rows and caches."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from groupwise.core import EngineLost, Usage
from groupwise.data import Engine, Finish, Generation, GenerationRequest, Ids, Sampling
from groupwise.engines import NativeEngine
from groupwise.engines.native.attention_layouts import ROWS, padded
from groupwise.models import Decoder, RandomPurpose, lineage, uniform
from tests.models.directories import bytes_
from tests.processes import PATIENCE
from tests.rollout.fakes import (
    VOCABULARY,
    decoder,
    engine,
    generate,
    logits,
    prompt_of,
    request,
    tokenizer,
    without_end_token,
)

MODEL = decoder()
SAMPLINGS = [
    Sampling(), Sampling(temperature=0.6), Sampling(temperature=1.3), Sampling(top_p=0.7), Sampling(top_k=3),
    Sampling(min_p=0.2), Sampling(temperature=1.3, top_p=0.9, top_k=6, min_p=0.05),
]  # fmt: skip


def enumerated(row: Sequence[float], sampling: Sampling) -> dict[int, float]:
    """The truncated distribution: temperature, then top-k, top-p and min-p, renormalised after each."""
    p = {t: math.exp(x / sampling.temperature) for t, x in enumerate(row)}

    def normal(p: dict[int, float]) -> dict[int, float]:
        total = math.fsum(p.values())
        return {t: x / total for t, x in p.items()}

    p = dict(sorted(normal(p).items(), key=lambda item: (-item[1], item[0])))
    if sampling.top_k:
        p = normal(dict(list(p.items())[: sampling.top_k]))
    nucleus, before = {}, 0.0
    for t, x in p.items():
        if before < sampling.top_p:
            nucleus[t] = x
        before += x
    p = normal(nucleus)
    return normal({t: x for t, x in p.items() if x >= sampling.min_p * max(p.values())})


@pytest.mark.t(20)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_logp_is_under_the_sampling_distribution(sampling: Sampling) -> None:
    """Each setting in one batch with all others, against a plain forward and an enumeration of the vocabulary."""
    requests = [request(i, sampling=sampling, stream=(i,), limit=20) for i in range(3)]
    # The others come first and leave one by one, so the requests move to rows that had other settings.
    others = [request(9, sampling=other, stream=(i,), limit=3 + i) for i, other in enumerate(SAMPLINGS)]
    for a, generation in zip(requests, generate(engine(MODEL), others + requests)[len(others) :]):
        for row, token, logp in zip(
            logits(MODEL, a.context, generation.tokens).tolist(), generation.tokens, generation.logp
        ):
            assert math.exp(logp) == pytest.approx(enumerated(row, sampling)[token], rel=1e-12)
            assert logp <= 0


@pytest.mark.t(43)
def test_the_token_is_the_inverse_cdf_of_the_keyed_number() -> None:
    """The inverse CDF in vocabulary order at Philox(seed, purpose; draw, stream, t), for several of each."""
    requests = [
        request(i, random_purpose=purpose, stream=stream, already_generated_count=at, limit=6)
        for i in (0, 70_000)
        for purpose in (RandomPurpose.SAMPLE, RandomPurpose.EVALUATE)
        for stream, at in (((0,), 0), ((5,), 0), ((5, 2, 1), 2))
    ]
    for a, generation in zip(requests, generate(engine(MODEL, seed=77), requests)):
        for t, row in enumerate(logits(MODEL, a.context, generation.tokens)):
            u = uniform((77, a.random_purpose), a.draw_id, lineage(a.stream), a.already_generated_count + t)[0]
            below = torch.softmax(row, 0).cumsum(0)
            token = generation.tokens[t]
            assert (below[token - 1] if token else 0) <= u <= below[token]


@pytest.mark.t(43)
def test_streams_differ_and_are_repeatable() -> None:
    e = engine(MODEL)
    requests = [request(0, stream=(i,), draw_id=d) for d in (3, 4) for i in range(8)] + [
        request(0, draw_id=3, stream=(0, 0, 1))
    ]
    generations = generate(e, requests)
    assert len({s.tokens for s in generations}) == len(requests)
    assert generate(e, requests[::-1]) == generations[::-1]
    assert generate(engine(MODEL, seed=12), requests[:1]) != generations[:1]


@pytest.mark.t(47)
def test_no_global_state_changes() -> None:
    before = torch.random.get_rng_state(), torch.get_num_threads(), torch.get_default_dtype()
    generate(engine(MODEL), [request(0)])
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert (torch.get_num_threads(), torch.get_default_dtype()) == before[1:]
    assert torch.is_grad_enabled()
    assert all(w.grad is None for w in MODEL.parameters())


def test_greedy_is_the_plain_loop() -> None:
    requests = [
        request(i, context=prompt_of(i, 1 + 4 * i), sampling=Sampling(temperature=0.0), limit=20) for i in range(5)
    ]
    for a, generation in zip(requests, generate(engine(MODEL), requests)):
        tokens: Ids = ()
        for _ in range(20):
            tokens += (int(logits(MODEL, a.context, (*tokens, 0))[-1].argmax()),)
        assert (generation.tokens, generation.logp) == (tokens, (0.0,) * 20)


def test_score_is_the_plain_forward() -> None:
    e = engine(MODEL)
    tokens = (4, 9, 9, 1)
    logprobs = torch.log_softmax(logits(MODEL, prompt_of(2), tokens), -1)
    expected = [logprobs[i, t].item() for i, t in enumerate(tokens)]
    assert asyncio.run(e.score(prompt_of(2), tokens)) == pytest.approx(expected, rel=1e-12)
    assert asyncio.run(e.score(prompt_of(2), ())) == ()
    assert isinstance(e, Engine)


# Where answers end


def free(i: int = 0, limit: int = 30) -> Ids:
    """The answer without an end token. The tests below make one of its tokens or strings the end."""
    return generate(engine(MODEL), [request(i, limit=limit)])[0].tokens


@pytest.mark.t(14)
def test_any_of_two_end_tokens_ends_the_answer_and_is_part_of_it() -> None:
    answer = free()
    first, second = answer[4], next(t for t in answer[5:] if t not in answer[:5])
    for ends in ((second,), (first, second)):
        (generation,) = generate(engine(MODEL, tokenizer(*ends)), [request(limit=30)])
        assert generation.tokens == answer[: min(answer.index(t) for t in ends) + 1]
        assert generation.finish is Finish.stop


@pytest.mark.t(14)
def test_an_end_exactly_at_the_limit_is_a_stop() -> None:
    answer = free()
    at = next(i for i, t in enumerate(answer) if i > 3 and t not in answer[:i])
    e = engine(MODEL, tokenizer(answer[at]))
    short, exact, roomy = generate(e, [request(limit=at), request(limit=at + 1), request(limit=at + 2)])
    assert (short.tokens, short.finish) == (answer[:at], Finish.length)
    assert (exact.tokens, exact.finish) == (answer[: at + 1], Finish.stop)
    assert roomy == exact


@pytest.mark.t(14)
def test_a_stop_string_ends_the_answer_and_is_part_of_it() -> None:
    answer = free()
    text, ends = without_end_token().decode_with_ends(answer)
    for stop in (text[6:9], text[11:12], text[9:14]):
        end = next(i + 1 for i, at in enumerate(ends) if at >= text.index(stop) + len(stop))
        same = request(sampling=Sampling(stop=("nowhere", stop)), limit=end)
        longer = replace(same, limit=30, stream=(1,))
        exact, _ = generate(engine(MODEL), [same, longer])
        assert (exact.tokens, exact.finish) == (answer[:end], Finish.stop)
        assert generate(engine(MODEL), [replace(same, limit=end - 1)])[0].finish is Finish.length


@pytest.mark.t(14)
def test_stop_strings_match_in_the_whole_answer_and_not_in_the_prompt() -> None:
    vocabulary, answer = without_end_token(), free()
    text = vocabulary.decode(answer)
    prompt = vocabulary.decode(prompt_of(0))
    across = Sampling(stop=(prompt[-1] + text[0],))
    assert generate(engine(MODEL), [request(limit=1, sampling=across)])[0].finish is Finish.length
    resumed = request(
        context=prompt_of(0) + answer[:3], already_generated_count=3, limit=1, sampling=Sampling(stop=(text[1:4],))
    )
    (generation,) = generate(engine(MODEL), [resumed])
    assert (generation.tokens, generation.finish) == (answer[3:4], Finish.stop)
    # A stop string that was complete before does not stop again.
    earlier = replace(resumed, sampling=Sampling(stop=(text[:3],)))
    assert generate(engine(MODEL), [earlier])[0].finish is Finish.length


@pytest.mark.t(14)
def test_a_stop_string_of_characters_that_take_several_tokens() -> None:
    vocabulary = bytes_()
    model = decoder(vocabulary_size=vocabulary.backend_tokenizer.get_vocab_size(), hidden_size=16, spread=0.0)
    ids = vocabulary.encode("a€b€")
    # A model that generates given tokens: token sampling is replaced.
    e = engine(model, vocabulary)
    batch = e._batch
    tokens = iter(ids)
    batch._sample_tokens = lambda x, n: (torch.full((len(x),), next(tokens)), torch.zeros(len(x), dtype=torch.float64))  # pyright: ignore
    (generation,) = generate(e, [request(context=(5,), limit=len(ids), sampling=Sampling(stop=("b€",)))])
    assert (generation.tokens, generation.finish) == (ids, Finish.stop)


# Rows that come and go


def forwarded(model: Decoder) -> list[Tensor]:
    """The tokens of each later forward of the model."""
    inputs: list[Tensor] = []
    model.register_forward_pre_hook(lambda _, args: inputs.append(args[0].clone()))
    return inputs


def test_equal_contexts_are_prefilled_once_and_cached_until_load() -> None:
    model = decoder(layers=1)
    inputs, e = forwarded(model), engine(model)
    context = prompt_of(0, 40)
    requests = [request(0, context=context, stream=(i,), limit=2) for i in range(20)]
    first = generate(e, requests)
    widths = [40, ROWS, padded(len({generation.tokens[0] for generation in first}), ROWS)]
    assert [len(x) for x in inputs] == widths
    assert generate(e, requests) == first
    assert [len(x) for x in inputs[3:]] == widths[1:]
    asyncio.run(e.load(1, model.state_dict()))
    e.prefill([("", context), ("", context)])
    assert [len(x) for x in inputs[5:]] == widths[:1]
    generate(e, requests)
    assert [len(x) for x in inputs[6:]] == widths[1:]


def test_contexts_with_different_content_are_prefilled_separately() -> None:
    """Equal ids with another content hash are another context: other images stand behind the placeholder ids."""
    model = decoder(layers=1)
    inputs, e = forwarded(model), engine(model)
    requests = [request(0, context=prompt_of(0, 40), content_hash=c, limit=1) for c in ("cat", "dog", "cat", "")]
    first = generate(e, requests)
    assert [len(x) for x in inputs] == [3 * 40, ROWS] and len(e._batch.sequences) == 0
    assert generate(e, requests) == first and [len(x) for x in inputs[2:]] == [ROWS]  # all three are cached


def test_a_prefilled_context_is_that_of_its_content() -> None:
    """A context with the same ids behind another image, or after other actions, is not the prefilled one."""
    model = decoder(layers=1)
    inputs, e = forwarded(model), engine(model)
    cat = request(0, context=prompt_of(0, 40), content_hash="cat", limit=1)
    e.prefill([cat.context_key])
    assert [len(x) for x in inputs] == [40]
    generate(e, [cat])
    assert [len(x) for x in inputs] == [40, ROWS]
    for another in (
        replace(cat, content_hash=""),
        replace(cat, content_hash="dog"),
        replace(cat, previous_actions=(b"a",)),
    ):
        generate(e, [another])
        assert [len(x) for x in inputs[-2:]] == [40, ROWS]


def test_rows_with_equal_tokens_are_forwarded_once() -> None:
    """Each decoding step forwards the distinct sequences only; rows that leave early leave no gap."""
    model = decoder(layers=1, spread=0.9)
    requests = [request(i // 30, stream=(i,), draw_id=i // 30, limit=3 + i % 9) for i in range(60)]
    alone = [generate(engine(model), [a])[0] for a in requests]
    e = engine(model)
    sequences = e._batch.sequences
    forward, counts = sequences.forward, []

    def watched(*args: Any) -> Tensor:
        counts.append(len(sequences))
        return forward(*args)

    sequences.forward = watched  # pyright: ignore[reportAttributeAccessIssue]
    assert generate(e, requests) == alone
    expected = [{(a.context, g.tokens[:t]) for a, g in zip(requests, alone) if len(g.tokens) > t} for t in range(11)]
    assert counts == list(map(len, expected))
    assert counts[0] == 2 and max(counts) > 16
    assert len(sequences) == 0


def test_rows_and_cache_are_bounded_and_requests_finish_in_order() -> None:
    model = decoder(layers=1)
    inputs = forwarded(model)
    e = engine(model, max_num_seqs=5)
    order: list[int] = []

    async def one(i: int) -> None:
        await e.sample(request(i, context=(1,), limit=4))
        order.append(i)

    async def many() -> None:
        await asyncio.gather(*(one(i) for i in range(12)))

    asyncio.run(many())
    assert order == sorted(order)
    assert len(inputs) == 12  # three waves of four tokens

    bounded = engine(model, kv_cache_tokens=64 * 32)
    requests = [request(i, context=prompt_of(i, 20 + i), limit=9, stream=(i,)) for i in range(70)]
    requests[40] = replace(requests[40], limit=300)
    cached, decode = [0], bounded._batch.decode

    def watched() -> list:
        finished = decode()
        cached.append(bounded._batch.sequences.cache.tokens)
        assert len(bounded._batch) <= 32
        return finished

    bounded._batch.decode = watched  # pyright: ignore[reportAttributeAccessIssue]
    assert generate(bounded, requests) == generate(engine(model), requests)
    assert 64 * 16 < max(cached[:-300]) <= 64 * 32
    assert max(cached) <= 16 * 384  # one request alone may need more than the bound
    assert bounded._prefixes.tokens <= 64 * 32


def test_cancelling_a_request_frees_its_row() -> None:
    e = engine(MODEL, max_num_seqs=2)

    async def go() -> list[Generation]:
        cancelled = [asyncio.create_task(e.sample(request(i, limit=400))) for i in range(3)]
        for _ in range(6):
            await asyncio.sleep(0)
        tasks = [asyncio.create_task(e.sample(request(i))) for i in range(4)]
        await asyncio.sleep(0)
        for task in cancelled:
            task.cancel()
        for _ in range(4):
            await asyncio.sleep(0)
        assert len(e._batch) == 2
        assert all(not pending.future.cancelled() for pending in e._batch.running)
        return list(await asyncio.gather(*tasks))

    assert asyncio.run(go()) == generate(engine(MODEL), [request(i) for i in range(4)])


def test_a_closed_event_loop_leaves_no_rows() -> None:
    e = engine(MODEL, max_num_seqs=2)

    async def leave() -> None:
        asyncio.create_task(e.sample(request(0, limit=400)))  # noqa: RUF006
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(leave())
    assert len(e._batch) == 0
    assert generate(e, [request(1)]) == generate(engine(MODEL), [request(1)])


def test_load_cuts_running_requests_and_each_token_has_its_version() -> None:
    before, after = decoder(), Decoder.new(MODEL.shape, 8, dtype=torch.float64, spread=0.3)
    weights = {name: x.clone() for name, x in after.state_dict().items()}
    e = engine(before, max_num_seqs=2)

    async def go() -> tuple[list[Generation], list[int]]:
        running = [asyncio.create_task(e.sample(request(i, limit=30, stream=(i,)))) for i in range(3)]
        for _ in range(9):
            await asyncio.sleep(0)
        await e.load(7, weights)
        return list(await asyncio.gather(*running)), [len(e._batch)]

    (first, second, waiting), _ = asyncio.run(go())
    assert first.finish is second.finish is Finish.cut
    assert 0 < len(first.tokens) < 30
    assert set(first.versions) == {0} and set(waiting.versions) == {7}
    old = generate(engine(decoder()), [request(i, limit=30, stream=(i,)) for i in range(2)])
    assert [first.tokens, second.tokens] == [x.tokens[: len(first.tokens)] for x in old]
    assert waiting.tokens == generate(engine(after), [request(2, limit=30, stream=(2,))])[0].tokens


def test_load_shares_the_decoders_tensors_and_copies_others() -> None:
    model = decoder()
    e = engine(model)
    weight = model.model.norm.weight
    asyncio.run(e.load(1, model.state_dict()))
    assert model.model.norm.weight is weight
    other = {name: x + 1 for name, x in model.state_dict().items()}
    asyncio.run(e.load(2, other))
    assert torch.equal(weight, other["model.norm.weight"])
    assert weight.data_ptr() != other["model.norm.weight"].data_ptr()
    with pytest.raises(ValueError, match=r"other shapes: model\.norm\.weight"):
        asyncio.run(e.load(3, {**other, "model.norm.weight": torch.ones(1)}))
    assert e.version == 2


def test_an_engine_with_half_loaded_weights_is_lost() -> None:
    e = engine(decoder())
    weights = {name: x + 1 for name, x in e._decoder.state_dict().items()}
    broken = {name: x.to_sparse() if name == "model.norm.weight" else x for name, x in weights.items()}
    with pytest.raises(RuntimeError):
        asyncio.run(e.load(1, broken))
    assert e.version == -1
    for call in (e.sample(request(0)), e.score(prompt_of(0), (1,))):
        with pytest.raises(EngineLost, match="no complete weights"):
            asyncio.run(call)  # pyright: ignore[reportArgumentType]
    asyncio.run(e.load(1, weights))
    assert e.version == 1 and len(generate(e, [request(0)])[0].tokens) == 12


def test_weights_changed_in_place_take_effect_after_load() -> None:
    model = decoder()
    e = engine(model)
    generate(e, [request(0)])
    with torch.no_grad():
        model.model.norm.weight.mul_(-1)
    asyncio.run(e.load(1, model.state_dict()))
    assert generate(e, [request(0)])[0].logp == generate(engine(model), [request(0)])[0].logp


def test_a_request_that_cannot_fit_is_an_error_with_a_fix() -> None:
    e = engine(MODEL)
    with pytest.raises(Usage, match="at most 503"):
        generate(e, [request(limit=504)])
    with pytest.raises(Usage, match=r"kv_cache_tokens is 100"):
        generate(engine(MODEL, kv_cache_tokens=100), [request(limit=92)])
    with pytest.raises(Usage, match="does not have"):
        generate(e, [request(context=(1, VOCABULARY))])
    assert len(generate(e, [request(limit=503)])[0].tokens) == 503


def test_an_unused_row_is_inert() -> None:
    """Padding rows are computed too, but not at positions of a cache that was cleared."""
    e = engine(MODEL)
    generate(e, [request(i, limit=150) for i in range(3)])
    asyncio.run(e.load(1, MODEL.state_dict()))
    assert generate(e, [request(0)])[0].tokens == generate(engine(MODEL), [request(0)])[0].tokens


def test_an_error_of_the_model_reaches_all_callers() -> None:
    model = decoder()
    e = NativeEngine(model, without_end_token(), seed=0, max_num_seqs=1)

    async def go() -> list[object]:
        broken = model.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("no more memory")))
        try:
            requests: list[GenerationRequest] = [request(0), request(1)]
            return list(await asyncio.gather(*(e.sample(a) for a in requests), return_exceptions=True))
        finally:
            broken.remove()

    assert [str(x) for x in asyncio.run(go())] == ["no more memory"] * 2
    assert len(generate(e, [request(0)])[0].tokens) == 12


def test_an_error_reaches_all_callers_even_if_rows_cannot_be_freed() -> None:
    model = decoder()
    e = NativeEngine(model, without_end_token(), seed=0, max_num_seqs=1)

    def fail(*_: object) -> None:
        raise RuntimeError("no more memory")

    e._batch.decode = e._batch.finish = fail  # pyright: ignore[reportAttributeAccessIssue]

    async def go() -> list[object]:
        return list(await asyncio.gather(e.sample(request(0)), e.sample(request(1)), return_exceptions=True))

    assert [str(x) for x in asyncio.run(asyncio.wait_for(go(), PATIENCE))] == ["no more memory"] * 2


@pytest.mark.parametrize(("windows", "head_dim"), [((), 8), ((20, None), 8), ((70, 7), 8), ((), 64), ((70, 7), 64)])
def test_shared_long_prefixes_give_the_logp_of_a_plain_forward(windows: tuple[int | None, ...], head_dim: int) -> None:
    """Contexts around multiples of 64 tokens, several answers each, in any order; rows enter when others leave.

    Head dimensions of both layouts, plain and transposed.
    """
    model = decoder(torch.float64, spread=0.2, attention_windows=windows, head_dim=head_dim)
    requests = [
        request(length, context=prompt_of(length, length), limit=5 + 9 * i, stream=(i,))
        for i in range(3)
        for length in (63, 64, 65, 66, 130, 193, 10)
    ]
    for rows in (64, 5):
        for wanted, generation in zip(requests, generate(engine(model, max_num_seqs=rows), requests)):
            logprobs = logits(model, wanted.context, generation.tokens).log_softmax(-1)
            expected = logprobs[range(len(generation.tokens)), list(generation.tokens)].tolist()
            assert list(generation.logp) == pytest.approx(expected, rel=1e-10)
