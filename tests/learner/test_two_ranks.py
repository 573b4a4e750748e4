"""Two processes that reduce gradients in every backward: none waits for the other, and the sums are those of one."""

import socket
import subprocess
import sys
from pathlib import Path

import torch

from groupwise.learner import AdamW, Learner
from tests.learner.small import model
from tests.learner.two_ranks import OBJECTIVE, STEP, UNTIED, batch


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_a_microbatch_with_a_zero_gradient_makes_no_rank_wait(tmp_path: Path) -> None:
    """Three microbatches on two ranks: one rank gets an empty one, and one microbatch of each step has no gradient."""
    port = str(free_port())
    command = [sys.executable, "-m", "tests.learner.two_ranks"]
    ranks = [
        subprocess.Popen([*command, str(rank), port, str(tmp_path)], stderr=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    try:
        errors = [process.communicate(timeout=100)[1] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0, 0], "\n".join(errors)
    (first, counts), (second, other_counts) = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert all(torch.equal(x, second[name]) for name, x in first.items())
    assert [a + b for a, b in zip(counts, other_counts)] == [24] * 3 and counts == [19] * 3
    it = Learner(model(shape=UNTIED), optimizer=AdamW(), steps=9, temperature=0.7)
    for zero in (0, 1, 2):
        it._backward(OBJECTIVE.prepare(batch(zero).take(STEP.samples)), STEP, OBJECTIVE)
    for name, parameter in it.model.named_parameters():
        torch.testing.assert_close(first[name], parameter.grad, rtol=1e-10, atol=1e-13)
