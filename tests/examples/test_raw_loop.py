"""The example computes the same tokens and the same losses as the library."""

import asyncio
import importlib.util
from pathlib import Path

import pytest

from groupwise.config.recipe_toml import read_recipe
from groupwise.config.user_code import UserCode
from groupwise.training.build_run import build
from groupwise.training.loop import learn

EXAMPLE = Path(__file__).parents[2] / "examples" / "raw_loop.py"
RECIPE = """
model = "calculator"
task = "calculator"
prompts = 16
iterations = 3

[method]
group_size = 8
minibatches = 2
shaping = [{ kind = "Correctness", correct_reward = 1.0, wrong_reward = -1.0 }]
advantage = ["Standardised"]
objective = { surrogate = { kind = "Clip", low = 0.2, high = 0.28 }, aggregate = "token_mean" }

[sampling]
max_tokens = 48

[optimizer]
lr = 1e-4
"""


def library_losses(iterations: int) -> tuple[list[float], list[tuple[int, ...]]]:
    from groupwise.data import pack

    recipe = read_recipe(RECIPE)
    ready = build(recipe, UserCode())
    losses, tokens = [], []

    async def run() -> None:
        learner, buffer = ready.new_learner(), ready.new_buffer()
        await ready.engine.load(0, learner.weights())
        for iteration in range(iterations):
            m = recipe.method
            collected = await buffer.take(recipe.prompts, m.group_size, m.strategy, m.filter, m.max_refills)
            batch = pack(collected.selected)
            tokens.extend(s.tokens for s in batch.samples)
            _, results = learn(recipe, m, learner, batch, iteration)
            losses.extend(result.loss for result in results)
            await ready.engine.load(learner.publish(), learner.weights())

    asyncio.run(run())
    return losses, tokens


def test_losses_and_tokens_equal_the_library_s(monkeypatch):
    spec = importlib.util.spec_from_file_location("raw_loop", EXAMPLE)
    assert spec and spec.loader
    raw = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(raw)
    raw_tokens: list[tuple[int, ...]] = []

    def pack(rollouts):
        raw_tokens.extend(s.tokens for f in rollouts for s in f.samples)
        return library_pack(rollouts)

    library_pack = raw.pack
    monkeypatch.setattr(raw, "pack", pack)
    losses = raw.main(iterations=2)
    expected, tokens = library_losses(2)
    assert raw_tokens == tokens
    assert len(losses) == 4 and all(abs(x) > 1e-3 for x in losses)
    assert losses == pytest.approx(expected, rel=1e-4)


def test_it_stays_short_and_uses_no_loop():
    text = EXAMPLE.read_text()
    assert len(text.splitlines()) < 200
    assert "groupwise.training" not in text and "groupwise.learner" not in text and "groupwise.rollout" not in text
