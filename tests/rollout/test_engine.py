"""The native engine: its law is the model's, its ends are its own, and its rows come and go."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from groupwise.data import Engine, Finish, Generation, GenerationRequest, Ids, Sampling, Usage
from groupwise.models import Decoder, Purpose, lineage, uniform
from groupwise.rollout import NativeEngine
from groupwise.rollout.layouts import ROWS, padded
from tests.models.directories import bytes_
from tests.rollout.fakes import VOCABULARY, answered, ask, decoder, endless, engine, logits, prompt_of, tokenizer

MODEL = decoder()
LAWS = [
    Sampling(),
    Sampling(temperature=0.6),
    Sampling(temperature=1.3),
    Sampling(top_p=0.7),
    Sampling(top_k=3),
    Sampling(min_p=0.2),
    Sampling(temperature=1.3, top_p=0.9, top_k=6, min_p=0.05),
]


def enumerated(row: Sequence[float], law: Sampling) -> dict[int, float]:
    """The truncated law by hand: temperature, then top-k, then top-p, then min-p, renormalised after each."""
    p = {t: math.exp(x / law.temperature) for t, x in enumerate(row)}

    def normal(p: dict[int, float]) -> dict[int, float]:
        total = math.fsum(p.values())
        return {t: x / total for t, x in p.items()}

    p = dict(sorted(normal(p).items(), key=lambda item: (-item[1], item[0])))
    if law.top_k:
        p = normal(dict(list(p.items())[: law.top_k]))
    kept, before = {}, 0.0
    for t, x in p.items():
        if before < law.top_p:
            kept[t] = x
        before += x
    p = normal(kept)
    return normal({t: x for t, x in p.items() if x >= law.min_p * max(p.values())})


@pytest.mark.t(20)
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_logp_is_that_of_the_law_sampled_from(law: Sampling) -> None:
    """Each law beside all others in one batch, against a plain forward and an enumeration of the vocabulary."""
    asks = [ask(i, sampling=law, stream=(i,), limit=20) for i in range(3)]
    # The others come first and leave one by one, so the asks move up into rows that had other laws.
    others = [ask(9, sampling=other, stream=(i,), limit=3 + i) for i, other in enumerate(LAWS)]
    for a, span in zip(asks, answered(engine(MODEL), others + asks)[len(others) :]):
        for row, token, logp in zip(logits(MODEL, a.context, span.tokens).tolist(), span.tokens, span.logp):
            assert math.exp(logp) == pytest.approx(enumerated(row, law)[token], rel=1e-12)
            assert logp <= 0


@pytest.mark.t(43)
def test_the_token_is_where_the_keyed_number_falls() -> None:
    """Inverse CDF in the order of the vocabulary at Philox(seed, purpose; draw, stream, t), for several of each."""
    asks = [
        ask(i, purpose=purpose, stream=stream, at=at, limit=6)
        for i in (0, 70_000)
        for purpose in (Purpose.SAMPLE, Purpose.EVALUATE)
        for stream, at in (((0,), 0), ((5,), 0), ((5, 2, 1), 2))
    ]
    for a, span in zip(asks, answered(engine(MODEL, seed=77), asks)):
        for t, row in enumerate(logits(MODEL, a.context, span.tokens)):
            u = uniform((77, a.purpose), a.draw, lineage(a.stream), a.at + t)[0]
            below = torch.softmax(row, 0).cumsum(0)
            token = span.tokens[t]
            assert (below[token - 1] if token else 0) <= u <= below[token]


@pytest.mark.t(43)
def test_streams_differ_and_can_be_had_again() -> None:
    e = engine(MODEL)
    asks = [ask(0, stream=(i,), draw=d) for d in (3, 4) for i in range(8)] + [ask(0, draw=3, stream=(0, 0, 1))]
    spans = answered(e, asks)
    assert len({s.tokens for s in spans}) == len(asks)
    assert answered(e, asks[::-1]) == spans[::-1]
    assert answered(engine(MODEL, seed=12), asks[:1]) != spans[:1]


@pytest.mark.t(47)
def test_no_global_state_is_touched() -> None:
    before = torch.random.get_rng_state(), torch.get_num_threads(), torch.get_default_dtype()
    answered(engine(MODEL), [ask(0)])
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert (torch.get_num_threads(), torch.get_default_dtype()) == before[1:]
    assert torch.is_grad_enabled()
    assert all(w.grad is None for w in MODEL.parameters())


def test_greedy_is_the_plain_loop() -> None:
    asks = [ask(i, context=prompt_of(i, 1 + 4 * i), sampling=Sampling(temperature=0.0), limit=20) for i in range(5)]
    for a, span in zip(asks, answered(engine(MODEL), asks)):
        tokens: Ids = ()
        for _ in range(20):
            tokens += (int(logits(MODEL, a.context, (*tokens, 0))[-1].argmax()),)
        assert (span.tokens, span.logp) == (tokens, (0.0,) * 20)


def test_score_is_the_plain_forward() -> None:
    e = engine(MODEL)
    tokens = (4, 9, 9, 1)
    law = torch.log_softmax(logits(MODEL, prompt_of(2), tokens), -1)
    expected = [law[i, t].item() for i, t in enumerate(tokens)]
    assert asyncio.run(e.score(prompt_of(2), tokens)) == pytest.approx(expected, rel=1e-12)
    assert asyncio.run(e.score(prompt_of(2), ())) == ()
    assert isinstance(e, Engine)


# Where answers end


def free(i: int = 0, limit: int = 30) -> Ids:
    """What would be said if nothing ended it. All that follows puts an end into it."""
    return answered(engine(MODEL), [ask(i, limit=limit)])[0].tokens


@pytest.mark.t(14)
def test_any_of_two_end_tokens_stops_and_belongs_to_the_answer() -> None:
    said = free()
    first, second = said[4], next(t for t in said[5:] if t not in said[:5])
    for ends in ((second,), (first, second)):
        (span,) = answered(engine(MODEL, tokenizer(*ends)), [ask(limit=30)])
        assert span.tokens == said[: min(said.index(t) for t in ends) + 1]
        assert span.finish is Finish.stop


@pytest.mark.t(14)
def test_an_end_exactly_at_the_limit_is_a_stop() -> None:
    said = free()
    at = next(i for i, t in enumerate(said) if i > 3 and t not in said[:i])
    e = engine(MODEL, tokenizer(said[at]))
    short, exact, roomy = answered(e, [ask(limit=at), ask(limit=at + 1), ask(limit=at + 2)])
    assert (short.tokens, short.finish) == (said[:at], Finish.length)
    assert (exact.tokens, exact.finish) == (said[: at + 1], Finish.stop)
    assert roomy == exact


@pytest.mark.t(14)
def test_a_stop_string_ends_the_answer_and_stays_in_it() -> None:
    said = free()
    text, ends = endless().read(said)
    for stop in (text[6:9], text[11:12], text[9:14]):
        end = next(i + 1 for i, at in enumerate(ends) if at >= text.index(stop) + len(stop))
        same = ask(sampling=Sampling(stop=("nowhere", stop)), limit=end)
        more = replace(same, limit=30, stream=(1,))
        exact, _ = answered(engine(MODEL), [same, more])
        assert (exact.tokens, exact.finish) == (said[:end], Finish.stop)
        assert answered(engine(MODEL), [replace(same, limit=end - 1)])[0].finish is Finish.length


@pytest.mark.t(14)
def test_a_stop_string_is_looked_for_in_the_answer_alone_but_in_all_of_it() -> None:
    reader, said = endless(), free()
    text = reader.decode(said)
    prompt = reader.decode(prompt_of(0))
    across = Sampling(stop=(prompt[-1] + text[0],))
    assert answered(engine(MODEL), [ask(limit=1, sampling=across)])[0].finish is Finish.length
    begun = ask(context=prompt_of(0) + said[:3], at=3, limit=1, sampling=Sampling(stop=(text[1:4],)))
    (span,) = answered(engine(MODEL), [begun])
    assert (span.tokens, span.finish) == (said[3:4], Finish.stop)
    # Said before, it is no reason to stop again.
    behind = replace(begun, sampling=Sampling(stop=(text[:3],)))
    assert answered(engine(MODEL), [behind])[0].finish is Finish.length


@pytest.mark.t(14)
def test_a_stop_string_of_characters_that_take_several_tokens() -> None:
    reader = bytes_()
    model = decoder(vocabulary=reader.fast.get_vocab_size(), width=16, spread=0.0)
    ids = reader.encode("a€b€")
    # A model that says what it is told: the embedding of each position's predecessor points to the next token.
    e = engine(model, reader)
    rows = e._rows
    said = iter(ids)
    rows._drawn = lambda x, n: (torch.full((len(x),), next(said)), torch.zeros(len(x), dtype=torch.float64))  # pyright: ignore
    (span,) = answered(e, [ask(context=(5,), limit=len(ids), sampling=Sampling(stop=("b€",)))])
    assert (span.tokens, span.finish) == (ids, Finish.stop)


# Rows that come and go


def forwarded(model: Decoder) -> list[Tensor]:
    """The tokens of every forward from now on."""
    seen: list[Tensor] = []
    model.register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
    return seen


def test_equal_contexts_are_read_once_and_remembered_until_other_weights_come() -> None:
    model = decoder(layers=1)
    seen, e = forwarded(model), engine(model)
    context = prompt_of(0, 40)
    asks = [ask(0, context=context, stream=(i,), limit=2) for i in range(20)]
    first = answered(e, asks)
    widths = [40, ROWS, padded(len({span.tokens[0] for span in first}), ROWS)]
    assert [len(x) for x in seen] == widths
    assert answered(e, asks) == first
    assert [len(x) for x in seen[3:]] == widths[1:]
    asyncio.run(e.load(1, model.state_dict()))
    e.prefill([context, context])
    assert [len(x) for x in seen[5:]] == widths[:1]
    answered(e, asks)
    assert [len(x) for x in seen[6:]] == widths[1:]


def test_what_rows_have_said_alike_is_forwarded_once() -> None:
    """Each tick forwards as many texts as differ; those who leave early or are given up leave no hole."""
    model = decoder(layers=1, spread=0.9)
    asks = [ask(i // 30, stream=(i,), draw=i // 30, limit=3 + i % 9) for i in range(60)]
    alone = [answered(engine(model), [a])[0] for a in asks]
    e = engine(model)
    stems = e._rows.sequences
    forward, wide = stems.forward, []

    def watched(*told: Any) -> Tensor:
        wide.append(len(stems))
        return forward(*told)

    stems.forward = watched  # pyright: ignore[reportAttributeAccessIssue]
    assert answered(e, asks) == alone
    expected = [
        {(a.context, span.tokens[:t]) for a, span in zip(asks, alone) if len(span.tokens) > t} for t in range(11)
    ]
    assert wide == list(map(len, expected))
    assert wide[0] == 2 and max(wide) > 16
    assert len(stems) == 0


def test_rows_and_cache_are_bounded_and_nobody_overtakes() -> None:
    model = decoder(layers=1)
    seen = forwarded(model)
    e = engine(model, rows=5)
    order: list[int] = []

    async def one(i: int) -> None:
        await e.sample(ask(i, context=(1,), limit=4))
        order.append(i)

    async def many() -> None:
        await asyncio.gather(*(one(i) for i in range(12)))

    asyncio.run(many())
    assert order == sorted(order)
    assert len(seen) == 12  # three waves of four tokens

    bounded = engine(model, cache_tokens=64 * 32)
    asks = [ask(i, context=prompt_of(i, 20 + i), limit=9, stream=(i,)) for i in range(70)]
    asks[40] = replace(asks[40], limit=300)
    most, tick = [0], bounded._rows.advance

    def watched() -> list:
        answers = tick()
        most.append(bounded._rows.sequences.cache.tokens)
        assert len(bounded._rows) <= 32
        return answers

    bounded._rows.advance = watched  # pyright: ignore[reportAttributeAccessIssue]
    assert answered(bounded, asks) == answered(engine(model), asks)
    assert 64 * 16 < max(most[:-300]) <= 64 * 32
    assert max(most) <= 16 * 384  # one ask alone may need more than its share
    assert bounded._prefixes.tokens <= 64 * 32


def test_a_cancelled_asker_frees_its_row() -> None:
    e = engine(MODEL, rows=2)

    async def go() -> list[Generation]:
        given_up = [asyncio.create_task(e.sample(ask(i, limit=400))) for i in range(3)]
        for _ in range(6):
            await asyncio.sleep(0)
        kept = [asyncio.create_task(e.sample(ask(i))) for i in range(4)]
        await asyncio.sleep(0)
        for task in given_up:
            task.cancel()
        for _ in range(4):
            await asyncio.sleep(0)
        assert len(e._rows) == 2
        assert all(not job.answer.cancelled() for job in e._rows.jobs)
        return list(await asyncio.gather(*kept))

    assert asyncio.run(go()) == answered(engine(MODEL), [ask(i) for i in range(4)])


def test_an_abandoned_loop_leaves_nothing_behind() -> None:
    e = engine(MODEL, rows=2)

    async def leave() -> None:
        asyncio.create_task(e.sample(ask(0, limit=400)))  # noqa: RUF006
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(leave())
    assert len(e._rows) == 0
    assert answered(e, [ask(1)]) == answered(engine(MODEL), [ask(1)])


def test_new_weights_cut_what_runs_and_each_token_knows_its_version() -> None:
    before, after = decoder(), Decoder.new(MODEL.shape, 8, dtype=torch.float64, spread=0.3)
    weights = {name: x.clone() for name, x in after.state_dict().items()}
    e = engine(before, rows=2)

    async def go() -> tuple[list[Generation], list[int]]:
        running = [asyncio.create_task(e.sample(ask(i, limit=30, stream=(i,)))) for i in range(3)]
        for _ in range(9):
            await asyncio.sleep(0)
        await e.load(7, weights)
        return list(await asyncio.gather(*running)), [len(e._rows)]

    (first, second, waiting), _ = asyncio.run(go())
    assert first.finish is second.finish is Finish.cut
    assert 0 < len(first.tokens) < 30
    assert set(first.versions) == {0} and set(waiting.versions) == {7}
    old = answered(engine(decoder()), [ask(i, limit=30, stream=(i,)) for i in range(2)])
    assert [first.tokens, second.tokens] == [x.tokens[: len(first.tokens)] for x in old]
    assert waiting.tokens == answered(engine(after), [ask(2, limit=30, stream=(2,))])[0].tokens


def test_the_learners_own_tensors_are_shared_and_others_copied() -> None:
    model = decoder()
    e = engine(model)
    weight = model.model.norm.weight
    asyncio.run(e.load(1, model.state_dict()))
    assert model.model.norm.weight is weight
    other = {name: x + 1 for name, x in model.state_dict().items()}
    asyncio.run(e.load(2, other))
    assert torch.equal(weight, other["model.norm.weight"])
    assert weight.data_ptr() != other["model.norm.weight"].data_ptr()
    with pytest.raises(ValueError, match=r"another model: model\.norm\.weight"):
        asyncio.run(e.load(3, {**other, "model.norm.weight": torch.ones(1)}))
    assert e.version == 2


def test_weights_that_changed_in_place_are_seen_after_load() -> None:
    model = decoder()
    e = engine(model)
    answered(e, [ask(0)])
    with torch.no_grad():
        model.model.norm.weight.mul_(-1)
    asyncio.run(e.load(1, model.state_dict()))
    assert answered(e, [ask(0)])[0].logp == answered(engine(model), [ask(0)])[0].logp


def test_what_cannot_fit_is_refused_with_a_way_out() -> None:
    e = engine(MODEL)
    with pytest.raises(Usage, match="at most 503"):
        answered(e, [ask(limit=504)])
    with pytest.raises(Usage, match=r"cache_tokens is 100"):
        answered(engine(MODEL, cache_tokens=100), [ask(limit=92)])
    with pytest.raises(Usage, match="does not know"):
        answered(e, [ask(context=(1, VOCABULARY))])
    assert len(answered(e, [ask(limit=503)])[0].tokens) == 503


def test_a_row_that_was_left_is_inert() -> None:
    """It is computed beside the live ones, but stands nowhere: not where it stood in a cache that is gone."""
    e = engine(MODEL)
    answered(e, [ask(i, limit=150) for i in range(3)])
    asyncio.run(e.load(1, MODEL.state_dict()))
    assert answered(e, [ask(0)])[0].tokens == answered(engine(MODEL), [ask(0)])[0].tokens


def test_a_failure_of_the_model_reaches_everyone_who_waits() -> None:
    model = decoder()
    e = NativeEngine(model, endless(), seed=0, rows=1)

    async def go() -> list[object]:
        broken = model.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("no more memory")))
        try:
            asks: list[GenerationRequest] = [ask(0), ask(1)]
            return list(await asyncio.gather(*(e.sample(a) for a in asks), return_exceptions=True))
        finally:
            broken.remove()

    assert [str(x) for x in asyncio.run(go())] == ["no more memory"] * 2
    assert len(answered(e, [ask(0)])[0].tokens) == 12


def test_who_waits_hears_of_a_failure_even_if_no_row_can_be_freed() -> None:
    model = decoder()
    e = NativeEngine(model, endless(), seed=0, rows=1)

    def fail(*_: object) -> None:
        raise RuntimeError("no more memory")

    e._rows.advance = e._rows.leave = fail  # pyright: ignore[reportAttributeAccessIssue]

    async def go() -> list[object]:
        return list(await asyncio.gather(e.sample(ask(0)), e.sample(ask(1)), return_exceptions=True))

    assert [str(x) for x in asyncio.run(asyncio.wait_for(go(), 20))] == ["no more memory"] * 2


@pytest.mark.parametrize(("windows", "head_dim"), [((), 8), ((20, None), 8), ((70, 7), 8), ((), 64), ((70, 7), 64)])
def test_long_prompts_are_read_in_common_and_say_what_a_plain_forward_says(
    windows: tuple[int | None, ...], head_dim: int
) -> None:
    """Prompts around whole chunks of 64 tokens, several answers each, in any order, rows entering when others leave.

    Heads of either kind: narrow ones, and those that come first in products with few queries.
    """
    model = decoder(torch.float64, spread=0.2, windows=windows, head_dim=head_dim)
    asks = [
        ask(length, context=prompt_of(length, length), limit=5 + 9 * i, stream=(i,))
        for i in range(3)
        for length in (63, 64, 65, 66, 130, 193, 10)
    ]
    for rows in (64, 5):
        for wanted, span in zip(asks, answered(engine(model, rows=rows), asks)):
            law = logits(model, wanted.context, span.tokens).log_softmax(-1)
            expected = law[range(len(span.tokens)), list(span.tokens)].tolist()
            assert list(span.logp) == pytest.approx(expected, rel=1e-10)
