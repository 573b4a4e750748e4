"""The experts that an engine's tokens went to are those that they would go to in the learner, at the same weights."""

import asyncio
from dataclasses import replace

import pytest

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
from groupwise.learner import forward
from groupwise.models.transformers_model import TransformersModel
from groupwise.rollout import NativeEngine
from groupwise.rollout.layouts import ROWS
from tests.models import mixtures
from tests.models.plain import PROMPT
from tests.rollout.fakes import answered, endless


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TransformersModel:
    return mixtures.mixture(tmp_path_factory.mktemp("mixture"))


def engine(model: TransformersModel, rows: int = 256, cache_tokens: int = 1 << 20) -> NativeEngine:
    return NativeEngine(model, endless(), seed=3, experts=model.experts, rows=rows, cache_tokens=cache_tokens)


def asks() -> list[GenerationRequest]:
    """Prompts of 1, 20 and 140 tokens, answers of 3 to 66: rows leave in any order."""
    lengths = [(1, 9), (140, 66), (140, 5), (20, 11), (20, 3)]
    return [GenerationRequest(context=PROMPT[:c], limit=n, draw=c, stream=(i,)) for i, (c, n) in enumerate(lengths)]


def batch(asked: list[GenerationRequest], spans: list[Generation]) -> Batch:
    samples = [
        Sample(context=a.context, stream=a.stream, verdict=Verdict(Outcome.wrong)).with_tokens(
            s.tokens, s.versions, s.logp, s.routes
        )
        for a, s in zip(asked, spans)
    ]
    return pack([Rollout(Draw(0, Prompt("p", PROMPT), len(samples)), tuple(samples))])


def right(model: TransformersModel, b: Batch) -> bool:
    """Whether all tokens but each sample's last are written down, as each sample alone would have it."""
    assert model.experts is not None
    for sample, lines, said in zip(b.samples, b.routes, mixtures.alone(model, b)):
        assert len(lines) == len(sample.context) + len(sample.tokens) - 1
        for number, (_, chosen) in enumerate(said):
            if model.experts.read(lines)[:, number].tolist() != chosen.tolist():
                return False
    return True


@pytest.mark.parametrize("sizes", [{}, {"rows": 3}, {"cache_tokens": 260}])
def test_they_are_what_the_learner_would_choose(model: TransformersModel, sizes: dict[str, int]) -> None:
    b = batch(asks(), answered(engine(model, **sizes), asks()))
    assert right(model, b)
    assert len({line for lines in b.routes for line in lines}) > 50
    logp, _ = forward(model, b, temperature=1.0)
    assert (logp - b.logp_engine).abs().max() < 1e-12


def test_a_remembered_prompt_has_not_forgotten_them(model: TransformersModel) -> None:
    it, asked = engine(model), asks()[1:2]
    first = answered(it, asked)
    calls: list[int] = []
    hook = mixtures.routers(model)[0].register_forward_pre_hook(lambda _, args: calls.append(args[0].shape[0]))
    again = answered(it, [replace(a, stream=(90 + i,)) for i, a in enumerate(asked)])
    hook.remove()
    assert set(calls) == {ROWS}  # rows alone: no prompt was read
    for a, one, other in zip(asked, first, again):
        assert one.routes[: len(a.context)] == other.routes[: len(a.context)] and one.tokens != other.tokens
    assert right(model, batch(asked, again))


def test_an_interrupted_answer_goes_on_where_it_was(model: TransformersModel) -> None:
    """The first weights chose for the tokens before the cut; what is sampled later is chosen for later."""
    it, (ask,) = engine(model), asks()[3:4]

    async def go() -> tuple[Generation, Generation]:
        task = asyncio.create_task(it.sample(ask))
        while not it._rows.jobs or int(it._rows.made[0]) < 5:
            await asyncio.sleep(0)
        await it.load(1, model.state_dict())
        cut = await task
        more = replace(ask, context=ask.context + cut.tokens, limit=11 - len(cut.tokens), at=len(cut.tokens))
        return cut, await it.sample(more)

    cut, rest = asyncio.run(go())
    assert cut.finish is Finish.cut and len(cut.routes) == len(ask.context) + len(cut.tokens) - 1
    sample = Sample(context=ask.context, stream=(3,)).with_tokens(cut.tokens, cut.versions, cut.logp, cut.routes)
    sample = sample.with_tokens(rest.tokens, rest.versions, rest.logp, rest.routes)
    assert sample.tokens == answered(it, [ask])[0].tokens and sample.routes[: len(cut.routes)] == cut.routes
    b = pack([Rollout(Draw(0, Prompt("p", PROMPT), 1), (sample.with_verdict(Verdict(Outcome.wrong)),))])
    assert right(model, b)


def test_nothing_is_written_down_unasked(model: TransformersModel) -> None:
    spans = answered(NativeEngine(model, endless(), seed=3), asks())
    assert not any(span.routes for span in spans)
    assert [s.tokens for s in spans] == [s.tokens for s in answered(engine(model), asks())]


def test_a_samples_verbs_keep_them_in_their_places() -> None:
    lines = tuple(bytes([i]) for i in range(9))
    sample = Sample(context=(1, 2, 3), stream=(0,)).with_tokens((4, 5), (0, 0), (-1.0, -1.0), lines[:4])
    told = sample.insert((6, 7), ENVIRONMENT)
    assert told.routes == lines[:4]  # of neither 5 nor 6 and 7
    other = (b"x",) * 4 + lines[4:8]
    whole = told.with_tokens((8, 9), (1, 1), (-1.0, -1.0), other)
    assert whole.routes == lines[:8] and len(whole.routes) == 3 + 6 - 1
    assert whole.fork(1, 0).routes == lines[:3] and whole.fork(0, 0).routes == lines[:2]
    turn = whole.read("abcdef", tuple(range(1, 7))).last_turn
    assert turn.routes == whole.routes and turn.context == (*range(1, 8),)
