"""What `check` says about a recipe on a GPU: attention with masks, and engines without batch invariance."""

from typing import Any

import pytest

from groupwise.checks.check_inputs import check_inputs
from groupwise.checks.check_machine import attention_note
from groupwise.config.recipe import Machine, Recipe
from groupwise.config.resolve_devices import resolved
from groupwise.config.user_code import UserCode
from groupwise.data import Sampling
from groupwise.engines import Native, Served, Speculative
from groupwise.methods import grpo
from groupwise.models import find_model, read_shape
from tests.pretended_gpu import pretended_gpu

NOTE = "  attention with masks, whose memory may grow with the square of the length: "


def note(dtype: str, model: str = "calculator", **changes: Any) -> str:
    recipe = resolved(Recipe(method=grpo(), model=model, machine=Machine(dtype=dtype), **changes))  # type: ignore[arg-type]
    directory = find_model(model)
    return attention_note(recipe, directory, read_shape(directory))


def test_masked_attention_is_told_with_its_reason() -> None:
    with pretended_gpu():
        assert note("float32") == NOTE + "varlen_attn takes bfloat16 and float16, not float32"
        assert note("auto") == note("bfloat16") == "" == note("float32", "rings")
    assert note("float32") == "", "on a CPU"


def test_the_note_is_printed_by_the_check() -> None:
    with pretended_gpu():
        notes = check_inputs(
            Recipe(method=grpo(), sampling=Sampling(max_tokens=8), machine=Machine(dtype="float32")), UserCode()
        ).notes
    assert [line for line in notes if line.startswith(NOTE)]


@pytest.mark.parametrize("engine", [Served, Speculative])
def test_an_engine_without_pages_does_not_promise_batch_invariance(engine: type[Native]) -> None:
    """On a GPU. On a CPU its samples do not depend on others."""

    def errors(**settings: Any) -> list[str]:
        recipe = Recipe(method=grpo(), engine=engine(**settings))
        return [error.what for error in check_inputs(recipe, UserCode()).errors if "batch_invariant" in error.what]

    assert errors() == []
    with pretended_gpu():
        assert errors() == [f"engine.batch_invariant is true: the engine {engine.__name__} does not have it on a GPU"]
        assert errors(batch_invariant=False) == []
