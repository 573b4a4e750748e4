"""Two processes that reduce gradients in every backward: none waits for the other, and the sums are those of one."""

import socket
import subprocess
import sys
from typing import Any

import pytest
import torch

from groupwise.learner import AdamW, Learner
from tests.learner.small import model
from tests.learner.two_ranks import CRITICS, OBJECTIVE, STEP, UNTIED, batch, trained


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    """What each of two processes computed: gradients, numbers of samples, and states after a step with a critic."""
    directory, port = tmp_path_factory.mktemp("ranks"), str(free_port())
    command = [sys.executable, "-m", "tests.learner.two_ranks"]
    processes = [
        subprocess.Popen([*command, str(rank), port, str(directory)], stderr=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    try:
        errors = [process.communicate(timeout=100)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)
    return [torch.load(directory / f"{rank}.pt") for rank in (0, 1)]


def test_a_microbatch_with_a_zero_gradient_makes_no_rank_wait(ranks: list[tuple[Any, ...]]) -> None:
    """Three microbatches on two ranks: one rank gets an empty one, and one microbatch of each step has no gradient."""
    (first, counts, _), (second, other_counts, _) = ranks
    assert all(torch.equal(x, second[name]) for name, x in first.items())
    assert [a + b for a, b in zip(counts, other_counts)] == [24] * 3 and counts == [19] * 3
    it = Learner(model(shape=UNTIED), optimizer=AdamW(), steps=9, temperature=0.7)
    for zero in (0, 1, 2):
        it._backward(OBJECTIVE.prepare(batch(zero).take(STEP.samples)), STEP, OBJECTIVE)
    for name, parameter in it.model.named_parameters():
        torch.testing.assert_close(first[name], parameter.grad, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("trunk", CRITICS)
def test_value_models_of_two_ranks_are_those_of_one(ranks: list[tuple[Any, ...]], trunk: str) -> None:
    """The learner sums the gradients of head and own trunk; those of a shared trunk are the policy's."""
    first, second = (states[trunk] for _, _, states in ranks)
    one = trained(trunk)
    assert first.keys() == second.keys() == one.keys()
    assert any(".head." in key for key in one)
    for key, x in one.items():
        assert torch.equal(first[key], second[key]), key
        torch.testing.assert_close(first[key], x, rtol=1e-8, atol=1e-11, msg=lambda text, key=key: f"{key}: {text}")
