"""Transformers models: other rows change no bit, except a mixture's log-probs, which agree up to rounding.

The number of tokens per expert depends on the other rows, and the last bit of a matrix product on that number.
"""

from collections.abc import Sequence

import pytest

from groupwise.data import Generation, GenerationRequest
from groupwise.models import Model, read_model
from tests.models.plain import made
from tests.models.test_families import BACKBONES
from tests.rollout.fakes import engine, generate
from tests.rollout.test_bits import measured, other

TOLERANCES = {"gemma2": 0.0, "gpt2": 0.0, "qwen3 moe": 1e-5}
"""The largest difference of a log-prob from the one of a row alone."""
MEASURED = [measured(i) for i in range(5)]


@pytest.fixture(scope="module", params=TOLERANCES)
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Model, list[Generation], float]:
    """A random model, its generations for the measured requests, each in its own engine, and the tolerance."""
    kind, changes = BACKBONES[request.param]
    path = tmp_path_factory.mktemp("made")
    made(path, kind, **changes)
    model = read_model(path)
    return model, [generate(engine(model), [one])[0] for one in MEASURED], TOLERANCES[request.param]


def same(batched: Sequence[Generation], alone: Sequence[Generation], tolerance: float) -> bool:
    if not tolerance:
        return list(batched) == list(alone)
    pairs = list(zip(batched, alone, strict=True))
    return all(a.tokens == b.tokens for a, b in pairs) and all(
        abs(x - y) <= tolerance for a, b in pairs for x, y in zip(a.logp, b.logp, strict=True)
    )


def test_the_model_has_entropy(case: tuple[Model, list[Generation], float]) -> None:
    _, alone, _ = case
    assert all(len(set(generation.tokens)) > 3 for generation in alone)
    assert sum(x for g in alone for x in g.logp) / sum(len(g.logp) for g in alone) < -1


@pytest.mark.parametrize("backwards", (False, True))
def test_other_rows_change_nothing(backwards: bool, case: tuple[Model, list[Generation], float]) -> None:
    model, alone, tolerance = case
    requests: list[GenerationRequest] = [*MEASURED, *map(other, range(20))]
    generations = generate(engine(model), requests[::-1] if backwards else requests)
    assert same((generations[::-1] if backwards else generations)[:5], alone, tolerance)


def test_queueing_a_small_cache_and_cached_contexts_change_nothing(case: tuple[Model, list[Generation], float]) -> None:
    model, alone, tolerance = case
    small = engine(model, max_num_seqs=7, kv_cache_tokens=3000)
    assert same(generate(small, [*map(other, range(12)), *MEASURED])[12:], alone, tolerance)
    prefilled = engine(model)
    prefilled.prefill([request.context_key for request in (*MEASURED, *map(other, range(12)))])
    assert same(generate(prefilled, MEASURED), alone, tolerance)
