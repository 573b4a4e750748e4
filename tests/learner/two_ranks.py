"""One rank of a run on two: python -m tests.learner.two_ranks RANK PORT DIRECTORY. Each backward reduces gradients."""

import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from groupwise.data import Batch
from groupwise.learner import AdamW, Learner, StepPlan
from tests.learner.small import SHAPE, model
from tests.learner.test_gradients import OBJECTIVES, credited

STEP = StepPlan((tuple(range(7)), tuple(range(7, 12)), tuple(range(12, 24))))
UNTIED = replace(SHAPE, tied=False)
OBJECTIVE = OBJECTIVES["tokens"]


def batch(zero: int) -> Batch:
    """The credited batch; all advantages of microbatch number `zero` are 0, so its gradient is."""
    b = credited()
    samples = torch.tensor([i in STEP.microbatches[zero] for i in range(len(b))])
    return b.having(advantage=torch.where(b.sequences.spread(samples), 0.0, b.advantage))


def main(rank: int, port: str, directory: Path) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", int(port), 2, is_master=rank == 0, timeout=timedelta(seconds=60))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=20))
    decoder = model(shape=UNTIED)
    it = Learner(decoder, optimizer=AdamW(lr=1e-2, clip=1e9), steps=9, temperature=0.7, rank=rank, ranks=2)
    decoder.model.adds_in_place = False  # the embedding's gradient goes through autograd, where it is reduced
    parameters = dict(decoder.named_parameters())
    held = {name: torch.zeros_like(p) for name, p in parameters.items()}
    ready: list[torch.Tensor] = []

    def reduce(parameter: torch.Tensor) -> None:
        """Sum the gradients of one backward over ranks. A rank with fewer backwards makes the other wait."""
        ready.append(parameter)
        if len(ready) < len(parameters):
            return
        ready.clear()
        for name, p in parameters.items():
            assert p.grad is not None
            dist.all_reduce(p.grad)
            held[name] += p.grad
            p.grad = None

    for parameter in parameters.values():
        parameter.register_post_accumulate_grad_hook(reduce)
    counts = []
    for zero in (0, 1, 2):
        whole = OBJECTIVE.prepare(batch(zero).take(STEP.samples))
        _, forwarded, *_ = it._backward(whole, STEP, OBJECTIVE)
        counts.append(len(forwarded))
    torch.save((held, counts), directory / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
