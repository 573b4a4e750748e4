"""The likeliest tokens of each position, which a request may ask for beside the sampled ones."""

import asyncio
from dataclasses import replace

import pytest
import torch

from groupwise.data import WRITTEN, Finish, Generation, GenerationRequest, Sample, Sampling
from groupwise.data.rollout_json import from_json, to_json
from tests.rollout.fakes import decoder, draw, engine, generate, logits, prompt_of, request, sampler_of, tokenizer


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_likeliest_tokens_are_those_of_a_plain_forward(temperature: float):
    """At temperature 1, whatever the sampling. Requests with and without them run at the same time."""
    model, sampling = decoder(), Sampling(temperature=temperature)
    tops = [3, 0, 2, 50]
    requests = [request(i, num_top_logprobs=top, sampling=sampling) for i, top in enumerate(tops)]
    generations = generate(engine(model), requests)
    for i, (top, generation) in enumerate(zip(tops, generations)):
        assert len(generation.top_logprobs) == (len(generation.tokens) if top else 0)
        if top:
            best = torch.log_softmax(logits(model, prompt_of(i), generation.tokens), -1).topk(min(top, 20))
            assert [[t for t, _ in top] for top in generation.top_logprobs] == best.indices.tolist()
            found = torch.tensor([[x for _, x in top] for top in generation.top_logprobs], dtype=torch.float64)
            torch.testing.assert_close(found, best.values, rtol=0, atol=1e-9)


def test_they_change_no_token_and_no_bit():
    plain = generate(engine(), [request(i) for i in range(3)])
    wanting = generate(engine(), [request(i, num_top_logprobs=2 * (i == 1)) for i in range(3)])
    assert [replace(g, top_logprobs=()) for g in wanting] == plain and wanting[1].top_logprobs


def test_they_pass_through_json():
    r, (g,) = request(num_top_logprobs=2), generate(engine(), [request(num_top_logprobs=2, limit=2)])
    assert from_json(GenerationRequest, to_json(r)) == r and from_json(Generation, to_json(g)) == g


def test_a_sample_keeps_them():
    sampler = sampler_of(engine(tokens=tokenizer()), draw())

    async def go() -> tuple[Sample, Sample]:
        (start,) = sampler.start(prompt_of(0))
        first = await sampler.extend(start.insert((4,), WRITTEN), limit=2, top=3)
        return first, await sampler.extend(first, limit=1)

    first, second = asyncio.run(go())
    assert first.top_logprobs[0] == () and [len(top) for top in first.top_logprobs[1:]] == [3] * (len(first.tokens) - 1)
    assert second.top_logprobs == first.top_logprobs and first.fork(2, 0).top_logprobs == first.top_logprobs[:2]
    with pytest.raises(ValueError, match="top_logprobs"):
        Sample(context=(1,), stream=(0,), top_logprobs=((),))


def test_a_written_end_token_ends_the_sample():
    sampler = sampler_of(engine(tokens=tokenizer()), draw())
    (start,) = sampler.start(prompt_of(0))
    ended = asyncio.run(sampler.extend(start.insert((4, 0), WRITTEN)))
    assert ended.tokens == (4, 0) and ended.finish is Finish.stop and ended.token_ends == (1, 1)
    assert asyncio.run(sampler.extend(ended)) is ended
