"""Budgets of work on a GPU, counted on the pretended one: optimizer steps, checkpoints, metrics and pushed weights.

A step of the learner launches a fixed number of kernels per layer and waits a fixed number of times for the device. It
copies token ids and numbers per token to the device, and some numbers per sample back, never a matrix.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from groupwise.config.recipe import Machine, Recipe
from groupwise.data import Sampling, pack
from groupwise.engines import write_weights
from groupwise.learner import AdamW, Learner
from groupwise.methods import grpo, ppo
from groupwise.models import Lora
from groupwise.runs.checkpoints import newest_checkpoint
from groupwise.runs.run_layout import RunLayout
from groupwise.training.loop import learn
from groupwise.training.run_recorder import RunRecorder
from tests.faults.small_runs import EVERY, lines, ran, run_recipe
from tests.learner.small import SHAPE, model, rollouts
from tests.pretended_gpu import Counts, counted, pretended_gpu

SHORT = replace(EVERY, iterations=1, sampling=Sampling(max_tokens=6))


@dataclass(frozen=True)
class Budget:
    """The most that one optimizer step with one microbatch may use."""

    kernels: int
    waits: int
    bytes_to_device: int
    bytes_to_host: int


def language(**changes: Any) -> Callable[[Path], Path]:
    return lambda run: ran(run, replace(SHORT, **changes))


def steps(name: str) -> Callable[[Path], Path]:
    """A run of a flow or a masked policy, whose dtype `auto` is float32."""
    return lambda run: run_recipe(run, name, 1, 0, {"method.group_size": 4})


RUNS = {
    "reference": (language(), Budget(850, 9, 5_000, 250)),
    "adapter": (language(lora=Lora(rank=2, target_modules=("q_proj", "down_proj"))), Budget(720, 9, 5_000, 250)),
    "critic": (language(method=replace(ppo(), minibatches=2)), Budget(1_500, 11, 5_000, 250)),
    "flow": (steps("rings"), Budget(300, 16, 7_000, 3_000)),
    "masked": (steps("beads"), Budget(450, 10, 20_000, 7_500)),
}
"""Whole runs of small models, with the budget of a step. Copies are of at most 80 tokens."""


@contextmanager
def counting(patch: pytest.MonkeyPatch, cls: type, name: str) -> Iterator[list[Counts]]:
    """The counts of each call of a method."""
    counts: list[Counts] = []
    method = getattr(cls, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        with counted() as one:
            counts.append(one)
            return method(*args, **kwargs)

    with patch.context() as context:
        context.setattr(cls, name, call)
        yield counts


@pytest.mark.parametrize("name", RUNS)
def test_an_optimizer_step_is_within_its_budget(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, budget = RUNS[name]
    with pretended_gpu(), counting(monkeypatch, Learner, "step") as counts:
        metrics = lines(run(tmp_path / "run"))
    assert counts and metrics[-1]["step"] == len(counts)
    for step in counts:
        used = Budget(step.kernels, step.waits, step.bytes_to_device, step.bytes_to_host)
        over = {field: (n, most) for field, n in vars(used).items() if n > (most := getattr(budget, field))}
        assert not over, (over, step.places, step.operations.most_common(12))


def test_a_metrics_line_and_a_checkpoint_are_copied_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line reads one number at a time, at most 100; a checkpoint copies each of its tensors to the host once."""
    recorder = [counting(monkeypatch, RunRecorder, name) for name in ("iteration", "save")]
    with pretended_gpu(), recorder[0] as metrics, recorder[1] as saves:
        run = ran(tmp_path / "run", SHORT)
    assert metrics[-1].waits <= 100 and metrics[-1].bytes_to_host < 8_000
    checkpoint = newest_checkpoint(RunLayout(run), strict=True)
    assert checkpoint
    stored = (checkpoint.path / "tensors.safetensors").stat().st_size
    save = max(saves, key=lambda counts: counts.bytes_to_host)
    assert 0.8 * stored < save.bytes_to_host <= 1.01 * stored and save.kernels < 100


def test_pushed_weights_are_copied_once(tmp_path: Path) -> None:
    with pretended_gpu() as device:
        policy = model(torch.bfloat16, shape=SHAPE).to(device)
        with counted() as push:
            file = write_weights(tmp_path, 1, policy.state_dict())
        size = sum(x.nbytes for x in policy.parameters())
    assert (push.kernels, push.bytes_to_host, push.waits) == (0, size, push.to_host)
    assert size < file.path.stat().st_size < size + 8_000


def test_a_step_of_deeper_models_has_a_fixed_number_of_kernels_per_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each further microbatch waits at most 7 times more."""

    def counts_of(layers: int, tokens: int) -> Counts:
        recipe = Recipe(method=grpo(group_size=4), prompts=2, machine=Machine(microbatch_tokens=tokens))
        with pretended_gpu() as device, counting(monkeypatch, Learner, "step") as counts:
            policy = model(torch.bfloat16, shape=replace(SHAPE, layers=layers)).to(device)
            learner = Learner(policy, optimizer=AdamW(lr=1e-2), steps=4, side_models=recipe.method.models)
            learn(recipe, recipe.method, learner, pack(rollouts([[9, 5, 12, 3], [7, 7, 2, 11]], limit=64)), 0)
        return counts[0]

    two, three, four = (counts_of(layers, 4096) for layers in (2, 3, 4))
    assert three.kernels - two.kernels == four.kernels - three.kernels <= 360
    assert two.waits == four.waits <= 9
    pieces = counts_of(2, 40)
    assert 9 < pieces.waits <= 9 + 7 * 2
