"""The engine records the same experts for each token as the learner chooses with the same weights."""

import asyncio
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from groupwise.data import (
    ENVIRONMENT,
    Batch,
    Draw,
    Finish,
    Generation,
    GenerationRequest,
    Outcome,
    Prompt,
    Rollout,
    Sample,
    Verdict,
    pack,
)
from groupwise.engines import NativeEngine
from groupwise.engines.native.attention_layouts import ROWS
from groupwise.learner import forward
from groupwise.models.decoder.transformers_model import TransformersBackbone
from tests.models import mixtures
from tests.models.plain import PROMPT
from tests.rollout.fakes import generate, without_end_token


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TransformersBackbone:
    return mixtures.mixture(tmp_path_factory.mktemp("mixture"))


def engine(model: TransformersBackbone, max_num_seqs: int = 256, kv_cache_tokens: int = 1 << 20) -> NativeEngine:
    return NativeEngine(
        model,
        without_end_token(),
        seed=3,
        experts=model.experts,
        max_num_seqs=max_num_seqs,
        kv_cache_tokens=kv_cache_tokens,
    )


def all_requests() -> list[GenerationRequest]:
    """Contexts of 1, 20 and 140 tokens, answers of 3 to 66 tokens: rows leave in any order."""
    lengths = [(1, 9), (140, 66), (140, 5), (20, 11), (20, 3)]
    return [GenerationRequest(context=PROMPT[:c], limit=n, draw_id=c, stream=(i,)) for i, (c, n) in enumerate(lengths)]


def batch(requests: list[GenerationRequest], generations: list[Generation]) -> Batch:
    samples = [
        Sample(context=a.context, stream=a.stream, verdict=Verdict(Outcome.wrong)).with_tokens(
            s.tokens, s.versions, s.logp, s.routes
        )
        for a, s in zip(requests, generations)
    ]
    return pack([Rollout(Draw(0, Prompt("p", PROMPT), len(samples)), tuple(samples))])


def routes_match(model: TransformersBackbone, b: Batch) -> bool:
    """Whether the recorded routes of all tokens but each sample's last equal those of the sample alone."""
    assert model.experts is not None
    for sample, lines, alone in zip(b.samples, b.routes, mixtures.alone(model, b)):
        assert len(lines) == len(sample.context) + len(sample.tokens) - 1
        for number, (_, experts) in enumerate(alone):
            if model.experts.decode(lines)[:, number].tolist() != experts.tolist():
                return False
    return True


@pytest.mark.parametrize("sizes", [{}, {"max_num_seqs": 3}, {"kv_cache_tokens": 260}])
def test_the_learner_chooses_the_same_experts(model: TransformersBackbone, sizes: dict[str, int]) -> None:
    b = batch(all_requests(), generate(engine(model, **sizes), all_requests()))
    assert routes_match(model, b)
    assert len({line for lines in b.routes for line in lines}) > 50
    logp, _ = forward(model, b, temperature=1.0)
    assert (logp - b.logp_engine).abs().max() < 1e-12


def test_a_cached_context_keeps_its_routes(model: TransformersBackbone) -> None:
    it, requests = engine(model), all_requests()[1:2]
    first = generate(it, requests)
    calls: list[int] = []
    hook = mixtures.routers(model)[0].register_forward_pre_hook(lambda _, args: calls.append(args[0].shape[0]))
    again = generate(it, [replace(a, stream=(90 + i,)) for i, a in enumerate(requests)])
    hook.remove()
    assert set(calls) == {ROWS}  # only rows: no context was prefilled
    for a, one, other in zip(requests, first, again):
        assert one.routes[: len(a.context)] == other.routes[: len(a.context)] and one.tokens != other.tokens
    assert routes_match(model, batch(requests, again))


def test_a_used_engine_routes_the_same_rows_as_a_fresh_one(model: TransformersBackbone) -> None:
    """The padding of a step too: the rows that reach an expert decide the last bits of its product."""
    used, request = engine(model), all_requests()[0]
    generate(used, all_requests())
    rows = router_inputs(model, used, request)
    assert len(rows) == 2 * request.limit and {len(x) for x in rows} == {ROWS}
    assert all(map(torch.equal, rows, router_inputs(model, engine(model), request)))


def router_inputs(model: TransformersBackbone, it: NativeEngine, request: GenerationRequest) -> list[Tensor]:
    """The rows of each router, token by token, while the engine answers."""
    inputs: list[Tensor] = []
    hooks = [r.register_forward_pre_hook(lambda _, args: inputs.append(args[0])) for r in mixtures.routers(model)]
    generate(it, [request])
    for hook in hooks:
        hook.remove()
    return inputs


def test_routes_of_an_interrupted_answer(model: TransformersBackbone) -> None:
    """Tokens before the interruption keep the routes of the old weights; later tokens have those of the new weights."""
    it, (request,) = engine(model), all_requests()[3:4]

    async def go() -> tuple[Generation, Generation]:
        task = asyncio.create_task(it.sample(request))
        while not it._batch.running or int(it._batch.length[0]) < 5:
            await asyncio.sleep(0)
        await it.load(1, model.state_dict())
        cut = await task
        resumed = replace(
            request,
            context=request.context + cut.tokens,
            limit=11 - len(cut.tokens),
            already_generated_count=len(cut.tokens),
        )
        return cut, await it.sample(resumed)

    cut, rest = asyncio.run(go())
    assert cut.finish is Finish.cut and len(cut.routes) == len(request.context) + len(cut.tokens) - 1
    sample = Sample(context=request.context, stream=(3,)).with_tokens(cut.tokens, cut.versions, cut.logp, cut.routes)
    sample = sample.with_tokens(rest.tokens, rest.versions, rest.logp, rest.routes)
    assert sample.tokens == generate(it, [request])[0].tokens and sample.routes[: len(cut.routes)] == cut.routes
    b = pack([Rollout(Draw(0, Prompt("p", PROMPT), 1), (sample.with_verdict(Verdict(Outcome.wrong)),))])
    assert routes_match(model, b)


def test_without_experts_no_routes_are_recorded(model: TransformersBackbone) -> None:
    generations = generate(NativeEngine(model, without_end_token(), seed=3), all_requests())
    assert not any(generation.routes for generation in generations)
    assert [s.tokens for s in generations] == [s.tokens for s in generate(engine(model), all_requests())]


def test_insert_extend_and_fork_keep_the_routes_aligned() -> None:
    lines = tuple(bytes([i]) for i in range(9))
    sample = Sample(context=(1, 2, 3), stream=(0,)).with_tokens((4, 5), (0, 0), (-1.0, -1.0), lines[:4])
    longer = sample.insert((6, 7), ENVIRONMENT)
    assert longer.routes == lines[:4]  # none for 5, 6 and 7
    other = (b"x",) * 4 + lines[4:8]
    whole = longer.with_tokens((8, 9), (1, 1), (-1.0, -1.0), other)
    assert whole.routes == lines[:8] and len(whole.routes) == 3 + 6 - 1
    assert whole.fork(1, 0).routes == lines[:3] and whole.fork(0, 0).routes == lines[:2]
    turn = whole.with_text("abcdef", tuple(range(1, 7))).last_turn
    assert turn.routes == whole.routes and turn.context == (*range(1, 8),)
