"""One rank of a run on two: python -m tests.learner.two_ranks RANK PORT DIRECTORY. Each backward reduces gradients."""

import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from groupwise.data import Batch
from groupwise.learner import AdamW, Learner, StepPlan
from tests.learner.small import SHAPE, model
from tests.learner.test_gradients import OBJECTIVES, credited
from tests.learner.test_value_model import TRUNKS, valued
from tests.learner.test_value_model import learner as with_critic

STEP = StepPlan((tuple(range(7)), tuple(range(7, 12)), tuple(range(12, 24))))
UNTIED = replace(SHAPE, tied=False)
OBJECTIVE = OBJECTIVES["tokens"]
CRITICS = ("own", "shared", "shared, head alone")


def batch(zero: int) -> Batch:
    """The credited batch; all advantages of microbatch number `zero` are 0, so its gradient is."""
    b = credited()
    samples = torch.tensor([i in STEP.microbatches[zero] for i in range(len(b))])
    return b.having(advantage=torch.where(b.sequences.spread(samples), 0.0, b.advantage))


def reduce_in_backward(it: Learner) -> None:
    """Sum the policy's gradients of each backward over ranks. A rank with fewer backwards makes the other wait."""
    it.model.model.adds_in_place = False  # the embedding's gradient goes through autograd, where it is reduced
    parameters = list(it.model.parameters())
    sums: list[Tensor] = []
    ready: list[Tensor] = []

    def reduce(parameter: Tensor) -> None:
        ready.append(parameter)
        if len(ready) < len(parameters):
            return
        ready.clear()
        for i, p in enumerate(parameters):
            assert p.grad is not None
            earlier = sums[i] if sums else torch.zeros_like(p)
            dist.all_reduce(p.grad.sub_(earlier))
            p.grad.add_(earlier)
        sums[:] = [p.grad.clone() for p in parameters if p.grad is not None]

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(reduce)


def trained(name: str, **settings: int) -> dict[str, Tensor]:
    """The state after a step with a value model whose trunk is `name`: policy, trunk, head and both optimizers."""
    it = with_critic(TRUNKS[name], shape=UNTIED, **settings)
    if it.ranks > 1:
        reduce_in_backward(it)
    result = it.step(valued(), STEP, OBJECTIVE, auxiliary=(TRUNKS[name].loss,))
    assert not result.skipped
    return {key: x.clone() for key, x in it.state()[0].items()}


def main(rank: int, port: str, directory: Path) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", int(port), 2, is_master=rank == 0, timeout=timedelta(seconds=60))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=20))
    it = Learner(model(shape=UNTIED), optimizer=AdamW(lr=1e-2, clip=1e9), steps=9, temperature=0.7, rank=rank, ranks=2)
    reduce_in_backward(it)
    counts = []
    for zero in (0, 1, 2):
        whole = OBJECTIVE.prepare(batch(zero).take(STEP.samples))
        _, forwarded, *_ = it._backward(whole, STEP, OBJECTIVE)
        counts.append(len(forwarded))
    gradients = {name: p.grad for name, p in it.model.named_parameters()}
    states = {name: trained(name, rank=rank, ranks=2) for name in CRITICS}
    torch.save((gradients, counts, states), directory / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
