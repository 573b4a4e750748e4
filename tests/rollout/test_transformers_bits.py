"""What mates change for models of transformers: no bit, but for a mixture's log-probs, which agree to rounding.

How many tokens come to an expert depends on the mates, and a matrix product's last bit on how many there are.
"""

from collections.abc import Sequence

import pytest

from groupwise.data import Generation, GenerationRequest
from groupwise.models import Model, read_model
from tests.models.plain import made
from tests.models.test_transformers_model import CASES
from tests.rollout.fakes import answered, engine
from tests.rollout.test_bits import chosen, mate

NAMES = {"gemma2": 0.0, "gpt2": 0.0, "qwen3 moe": 1e-5}
"""How far a log-prob may be from the one that was said alone."""
CHOSEN = [chosen(i) for i in range(5)]


@pytest.fixture(scope="module", params=NAMES)
def environment(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Model, list[Generation], float]:
    """A random model, and what it says to each of the chosen in an engine of its own."""
    kind, changes = CASES[request.param]
    path = tmp_path_factory.mktemp("made")
    made(path, kind, **changes)
    model = read_model(path)
    return model, [answered(engine(model), [ask])[0] for ask in CHOSEN], NAMES[request.param]


def same(found: Sequence[Generation], alone: Sequence[Generation], apart: float) -> bool:
    if not apart:
        return list(found) == list(alone)
    pairs = list(zip(found, alone, strict=True))
    return all(a.tokens == b.tokens for a, b in pairs) and all(
        abs(x - y) <= apart for a, b in pairs for x, y in zip(a.logp, b.logp, strict=True)
    )


def test_the_law_has_entropy(environment: tuple[Model, list[Generation], float]) -> None:
    _, alone, _ = world
    assert all(len(set(span.tokens)) > 3 for span in alone)
    assert sum(x for span in alone for x in span.logp) / sum(len(span.logp) for span in alone) < -1


@pytest.mark.parametrize("backwards", (False, True))
def test_mates_change_nothing(backwards: bool, environment: tuple[Model, list[Generation], float]) -> None:
    model, alone, apart = world
    asks: list[GenerationRequest] = [*CHOSEN, *map(mate, range(20))]
    spans = answered(engine(model), asks[::-1] if backwards else asks)
    assert same((spans[::-1] if backwards else spans)[:5], alone, apart)


def test_neither_room_nor_waiting_nor_memory_changes_anything(
    environment: tuple[Model, list[Generation], float],
) -> None:
    model, alone, apart = world
    small = engine(model, rows=7, cache_tokens=3000)
    assert same(answered(small, [*map(mate, range(12)), *CHOSEN])[12:], alone, apart)
    reminded = engine(model)
    reminded.prefill([ask.context for ask in (*CHOSEN, *map(mate, range(12)))])
    assert same(answered(reminded, CHOSEN), alone, apart)
