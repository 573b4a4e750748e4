"""A policy whose actions are points, not words, trains through the same loop as a language model."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from groupwise.data import GenerationRequest
from tests.toys.echo import ToyRun, rate, small
from tests.toys.gaussian import STEPS, GaussianEngine, GaussianPolicy, in_its_quadrant


def toy_run(directory: Path, iterations: int, **changes: Any) -> ToyRun:
    """GRPO with a KL penalty to the initial policy, in two minibatches."""
    policy = GaussianPolicy()
    method = small("grpo", group_size=8, minibatches=2)
    fields: dict[str, Any] = {"prompts": 8, "lr": 0.05, "max_tokens": STEPS, "verifier": in_its_quadrant} | changes
    return ToyRun(
        method, directory, iterations=iterations, policy=policy, engine=GaussianEngine(policy, seed=0), **fields
    )


def test_it_learns_a_quadrant_for_each_prompt(tmp_path: Path) -> None:
    lines = toy_run(tmp_path, 14).go()
    early, late = rate(lines[1:3]), rate(lines[-3:])
    assert early < 0.4 and late > 0.9, (early, late)
    assert lines[-1]["kl"] > 0 and lines[-1]["sampling/sampling_logp_difference/max"] < 1e-4


def test_a_resumed_run_ends_with_equal_bits(tmp_path: Path) -> None:
    whole = toy_run(tmp_path / "whole", 4)
    expected = whole.go()
    toy_run(tmp_path / "cut", 2, save=2).go()
    resumed = toy_run(tmp_path / "cut", 4)
    assert resumed.go() == expected
    assert all(torch.equal(x, whole.weights()[name]) for name, x in resumed.weights().items())


def test_a_request_goes_on_from_its_path() -> None:
    engine = GaussianEngine(GaussianPolicy(), seed=0)
    request = GenerationRequest(context=(2,), limit=STEPS, draw_id=3, stream=(1,))
    whole = asyncio.run(engine.sample(request))
    first = asyncio.run(engine.sample(replace(request, limit=2)))
    rest = asyncio.run(
        engine.sample(
            replace(request, limit=2, already_generated_count=2, context=(2, 0, 1), previous_actions=first.actions)
        )
    )
    assert first.actions + rest.actions == whole.actions and first.logp + rest.logp == whole.logp
