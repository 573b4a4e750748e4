"""Moments in 8 bits against float32, their checkpoints, and moments that are on the host while the engine samples."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save

from groupwise.learner import AdamW, AdamW8bit, Learner
from groupwise.learner.optimizer import Optimizer
from groupwise.learner.quantized_moments import BLOCK, Moment8bit, table
from tests.learner.small import model
from tests.learner.test_precision import steps
from tests.pretended_gpu import GPU, counted, pretended_gpu


@pytest.mark.parametrize("signed", [True, False])
@given(rows=st.integers(0, 3), width=st.integers(1, 2 * BLOCK + 3), seed=st.integers(0, 9))
def test_a_stored_moment_is_near_and_stays(signed: bool, rows: int, width: int, seed: int) -> None:
    """Within half a step of the table, relative to the block's largest. Zeros are exact, and a largest above 0."""
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) ** 3
    x = x if signed else x.abs()
    moment, all_rows = Moment8bit.zeros_like(x, signed=signed), slice(0, rows)
    assert torch.equal(moment.read(all_rows), torch.zeros_like(x))
    moment.write(all_rows, x)
    stored = moment.read(all_rows)
    numbers = torch.tensor(table(signed=signed))
    step = numbers.diff().max() / 2
    scale = moment.scales.repeat_interleave(BLOCK, 1)[:, :width]
    assert bool(((stored - x).abs() <= step * scale * 1.001).all()) and step < 0.008
    if not signed:
        assert not rows or torch.equal(stored.amax(), x.amax())
        codes = moment.codes.clone()
        moment.write(all_rows, stored)
        assert torch.equal(moment.codes, codes)


def learner(settings: AdamW, dtype: torch.dtype = torch.float32) -> Learner:
    return Learner(model(dtype), optimizer=settings, steps=10, temperature=0.7)


def test_eight_bits_move_weights_as_float32_does() -> None:
    start = torch.cat([p.detach().flatten().clone() for p in model(torch.float32).parameters()])
    moved = []
    for kind in (AdamW, AdamW8bit):
        it = steps(learner(kind(lr=1e-4)), 10)
        moved.append(torch.cat([p.detach().flatten() for p in it.model.parameters()]) - start)
    exact, stored = moved
    assert float(torch.nn.functional.cosine_similarity(exact, stored, dim=0)) > 0.98
    assert 0 < float((exact - stored).norm() / exact.norm()) < 0.2


def test_eight_bits_reach_the_least_squares_of_float32() -> None:
    """300 steps on a quadratic of a matrix of two blocks a row."""
    draw = torch.Generator().manual_seed(1)
    goal, start = (torch.randn(8, 300, generator=draw) for _ in range(2))
    losses = []
    for kind in (AdamW, AdamW8bit):
        weight = start.clone()
        optimizer = Optimizer([weight], kind(lr=0.02, max_grad_norm=1e9))
        for step in range(300):
            weight.grad = weight - goal
            optimizer.step(0.05 * (1 - step / 300), 1.0)
        losses.append(float((weight - goal).square().mean()))
    assert losses[0] < 1e-3 and losses[1] < 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_eight_bits_continue_from_a_safetensors_file_to_the_bit(dtype: torch.dtype) -> None:
    settings = AdamW8bit(lr=1e-2)
    whole, first, second = (
        steps(learner(settings, dtype), 4),
        steps(learner(settings, dtype), 2),
        learner(settings, dtype),
    )
    tensors, state = first.state()
    assert {tensors[f"optimizer.0.{name}"].dtype for name in ("exp_avg", "exp_avg_sq")} == {torch.uint8}
    second.restore(load(save({name: x.contiguous().clone() for name, x in tensors.items()})), state)
    steps(second, 2)
    for name, x in whole.state()[0].items():
        assert torch.equal(x, second.state()[0][name]), name


@pytest.mark.parametrize("settings", [AdamW(lr=1e-2), AdamW8bit(lr=1e-2)], ids=("AdamW", "AdamW8bit"))
def test_moments_on_the_host_change_no_bit(settings: AdamW, tmp_path: Path) -> None:
    """They and the masters are on the GPU between an iteration's first step and its end; then their bytes are free."""
    from groupwise.config.recipe import Machine, Recipe
    from groupwise.data import pack
    from groupwise.methods import gspo
    from groupwise.training.loop import learn
    from tests.learner.small import rollouts

    recipe = Recipe(method=gspo(group_size=2), prompts=4, machine=Machine(dtype="bfloat16"))
    states = []
    with pretended_gpu() as device:
        for offload in (False, True):
            policy = model(torch.bfloat16).to(device)
            it = Learner(policy, optimizer=settings, steps=9, optimizer_offload=offload)
            batch = pack(rollouts([[4, 5]] * 4))
            for iteration in range(2):
                optimizer = it.optimizer
                place = torch.device("cpu") if offload else GPU
                moments = [x for n, x in optimizer.state().items() if not n.endswith(".step")]
                assert {x.device for x in (*optimizer.masters, *moments)} == {place}
                with counted() as counts:
                    learn(recipe, recipe.method, it, batch, iteration)
                moved = sum(x.nbytes for x in moments)
                assert (counts.bytes_to_device > moved) == (counts.bytes_to_host > moved) == offload
            states.append({name: x.cpu() for name, x in it.state()[0].items()})
    for name, x in states[0].items():
        assert torch.equal(x, states[1][name]), name
