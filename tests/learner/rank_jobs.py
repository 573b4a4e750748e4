"""One rank of several jobs: python -m tests.learner.rank_jobs DIRECTORY RANK, then the ports of four stores."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from groupwise.advantages import centred, every_token
from groupwise.cluster.rank_messages import read_message
from groupwise.core import WorkerLost
from groupwise.data import Batch, Entropy, Logp, NeededMeasure, Return, UnsplitUnit, Value, pack
from groupwise.learner import (
    EMA,
    AdamW,
    AuxiliaryLoss,
    InitialPolicy,
    Learner,
    Ranks,
    ReplicatedRanks,
    RouterBalance,
    RouterReplay,
    SquaredValueLoss,
    StepPlan,
    ValueModel,
    make_plan,
    measure_plan,
)
from groupwise.learner.rank_pulse import RankPulse
from groupwise.learner.rank_store import join_store
from groupwise.methods.stored.bradley_terry import BradleyTerry
from groupwise.models import Decoder, Lora, SequenceClassifier, attach, read_model
from groupwise.objective import Clip, Objective, pair_mean, sequence_mean
from tests.learner.small import SHAPE, model, rollouts
from tests.nccl_rules import nccl_rules
from tests.pretended_gpu import hosted, pretended_gpu

LANES, SEED = 4, 1
DEADLINE = 60.0
OBJECTIVE = Objective(surrogate=Clip(), aggregate=sequence_mean)
LENGTHS = [[12, 20, 1, 0], [3, 3, 15, 8], [1, 17, 20, 2], [9, 2, 30, 4], [5, 5, 1, 1], [7, 0, 0, 2]]
ADAPTER = Lora(rank=2, target_modules=("q_proj", "down_proj"))
BALANCE, R2, NONE = (RouterBalance(0.5),), "learner", "none"


def batch(lengths: list[list[int]] = LENGTHS) -> Batch:
    b = pack(rollouts(lengths))
    return b.having(advantage=every_token(centred(b.verdict_score, b), b))


def plans(
    b: Batch, size: int = 3, tokens: int = 90, lanes: int = LANES, unsplit_unit: UnsplitUnit = "token"
) -> tuple[StepPlan, ...]:
    return make_plan(
        b, size=size, shuffle="prompts", permutation=range, microbatch_tokens=tokens, lanes=lanes,
        unsplit_unit=unsplit_unit,
    )  # fmt: skip


def trained(
    it: Learner, b: Batch, steps: tuple[StepPlan, ...], auxiliary=(), routing: RouterReplay = NONE,
    objective: Objective = OBJECTIVE,
):  # fmt: skip
    """The state after all steps, and on rank 0 the numbers of their results. The critic's returns are the scores."""
    if it.ranks.rank:
        return followed(it, 1 + len(steps), objective, auxiliary)
    wanted = frozenset({Logp("policy"), Entropy(), *([Value("critic")] if "critic" in it.models else [])})
    b = it.compute_measures(b, measure_plan(steps, b, microbatch_tokens=90, lanes=it.ranks.lanes), wanted, routing)
    if "critic" in it.models:
        b = b.having(measures={Return("critic"): b.sequences.spread(b.verdict_score)})
    found: dict[str, Tensor] = {"logp_old": b.logp_old, "entropy": b[Entropy()]}
    for number, step in enumerate(steps):
        result = it.step(b, step, objective, routing, auxiliary)
        assert not result.skip_reason
        numbers = [
            result.loss,
            result.grad_norm,
            result.changed_route_count,
            result.route_count,
            *result.auxiliary_losses.values(),
        ]
        found[f"{number}"] = torch.tensor(numbers, dtype=torch.float64)
        found |= {f"{number}.logp": result.batch.logp, f"{number}.gradient": result.logp_gradient}
    return found | {name: x.clone() for name, x in it.state()[0].items()}


def followed(
    it: Learner, calls: int, objective: Objective = OBJECTIVE, auxiliary: Sequence[AuxiliaryLoss] = (),
    measures: Sequence[NeededMeasure] = (Value("critic"), Return("critic")),
) -> dict[str, Tensor]:  # fmt: skip
    """The state of a rank above 0 after so many calls on rank 0."""
    assert isinstance(it.ranks, ReplicatedRanks)
    for _ in range(calls):
        content = it.ranks.receive()
        assert content is not None
        it.follow(*read_message(content), objective, auxiliary, measures)
    return {name: x.clone() for name, x in it.state()[0].items()}


def policy_learner(ranks: Ranks, dtype: torch.dtype = torch.float64, **settings) -> Learner:
    return Learner(
        model(dtype), optimizer=AdamW(lr=1e-2, max_grad_norm=0.1), steps=9, temperature=0.7, ranks=ranks, **settings
    )


def policy(dtype: torch.dtype) -> Callable[[Ranks], dict[str, Tensor]]:
    sides = (("reference", InitialPolicy()), ("average", EMA(decay=0.5)))
    return lambda ranks: trained(policy_learner(ranks, dtype, side_models=sides), b := batch(), plans(b))


def critic(trunk: str, dtype: torch.dtype = torch.float32) -> Callable[[Ranks], dict[str, Tensor]]:
    part = ValueModel(trunk=trunk, loss=SquaredValueLoss(coefficient=0.5), optimizer=AdamW(lr=3e-2))

    def job(ranks: Ranks) -> dict[str, Tensor]:
        it = policy_learner(ranks, dtype, side_models=(("critic", part),))
        return trained(it, b := batch(), plans(b), (part.loss,))

    return job


def adapted(dtype: torch.dtype) -> Decoder:
    it = model(dtype, shape=replace(SHAPE, tied_embeddings=False))
    attach(it, ADAPTER, seed=SEED)
    return it


def adapter(dtype: torch.dtype) -> Callable[[Ranks], dict[str, Tensor]]:
    def job(ranks: Ranks) -> dict[str, Tensor]:
        it = Learner(adapted(dtype), optimizer=AdamW(lr=1e-2), steps=9, ranks=ranks)
        return trained(it, b := batch(), plans(b))

    return job


def reward_model(dtype: torch.dtype, lora: Lora | None = None) -> Callable[[Ranks], dict[str, Tensor]]:
    """A score in place of logits, trained on pairs. Some lanes have no pair, or none with trained tokens."""

    def job(ranks: Ranks) -> dict[str, Tensor]:
        it = SequenceClassifier.on(model(dtype), 0)
        if lora:
            attach(it, lora, seed=SEED)
        b = batch([[12, 20], [3, 0], [1, 17], [9, 2], [5, 5]])
        b = b.having(reward=b.verdict_score, method_states={})
        learner = Learner(it, optimizer=AdamW(lr=1e-2), steps=9, ranks=ranks)
        objective = Objective(surrogate=BradleyTerry(centring=0.1), aggregate=pair_mean)
        return trained(learner, b, plans(b, unsplit_unit="group"), objective=objective)

    return job


def few_samples(ranks: Ranks) -> dict[str, Tensor]:
    """Two answers in a step: at most two of four lanes have anything to learn, and one of these has no gradient."""
    b = batch([[3, 5]])
    b = b.having(advantage=torch.where(b.sequences.index == 0, 0.0, b.advantage))
    return trained(policy_learner(ranks, torch.float32), b, plans(b))


def mixture(ranks: Ranks, directory: Path) -> dict[str, Tensor]:
    it = read_model(directory / "mixture", dtype=torch.float64)
    return trained(Learner(it, optimizer=AdamW(lr=0.05), steps=9, ranks=ranks), b := batch(), plans(b), BALANCE, R2)


JOBS: dict[str, Callable[[Ranks], dict[str, Tensor]]] = {
    "float32": policy(torch.float32),
    "float64": policy(torch.float64),
    "own critic": critic("own"),
    "shared critic": critic("shared"),
    "adapter": adapter(torch.float32),
    "bfloat16": policy(torch.bfloat16),
    "bfloat16 critic": critic("own", torch.bfloat16),
    "bfloat16 adapter": adapter(torch.bfloat16),
    "few samples": few_samples,
    "reward model": reward_model(torch.float32),
    "bfloat16 reward model": reward_model(torch.bfloat16),
    "reward model's adapter": reward_model(torch.float32, ADAPTER),
    "bfloat16 reward model's adapter": reward_model(torch.bfloat16, ADAPTER),
}


def computed(ranks: Ranks, directory: Path) -> dict[str, Tensor]:
    """The tensors of all jobs on these ranks. Four ranks leave out the mixture, for which each imports transformers."""
    found = {name: job(ranks) for name, job in JOBS.items()}
    if ranks.size <= 2:
        found["mixture"] = mixture(ranks, directory)
    return {f"{name}/{key}": x for name, tensors in found.items() for key, x in tensors.items()}


def on_the_pretended_gpu(ranks: Ranks) -> dict[str, Tensor]:
    """Models and numbers on the pretended GPU, under NCCL's rules."""
    sides = (("reference", InitialPolicy()), ("average", EMA(decay=0.5)))
    with pretended_gpu() as device, nccl_rules() as batches:
        it = Learner(
            model().to(device), optimizer=AdamW(lr=1e-2), steps=9, temperature=0.7, ranks=ranks, side_models=sides
        )
        found = trained(it, b := batch(), plans(b))
    assert ranks.size == 1 or batches["cuda"] > batches["cpu"] > 0
    return {name: hosted(x) for name, x in found.items()}


def messages(ranks: ReplicatedRanks) -> None:
    """Two messages of rank 0, as the others receive them: one for all, and one with a part for each."""
    texts = [b"first", bytes(range(256)) * 100]
    own = [b"x" * 1000 * rank for rank in range(ranks.size)]
    if ranks.rank == 0:
        ranks.send(texts[0])
        ranks.send(texts[1], own)
    else:
        assert [ranks.receive(), ranks.receive()] == [texts[0], texts[1] + own[ranks.rank]]


def lose_rank_1(ranks: ReplicatedRanks, number: signal.Signals) -> None:
    """Rank 1 gets a signal, and rank 0 waits for its numbers."""
    if ranks.rank == 1:
        os.kill(os.getpid(), number)
    try:
        ranks.gather(torch.ones(1), [1, 1])
    except WorkerLost as error:
        (Path(sys.argv[1]) / f"{number.name}.txt").write_text(str(error))


@contextmanager
def joined(rank: int, port: str, size: int, deadline: float = DEADLINE) -> Iterator[ReplicatedRanks]:
    """The ranks of a store. `deadline` is that of their later messages."""
    store = join_store(int(port), size, deadline=DEADLINE)
    with RankPulse(store, rank, size, deadline) as pulse:
        ranks = ReplicatedRanks(store, pulse, LANES, deadline=deadline)
        yield ranks
        ranks.close()


def main(directory: Path, rank: int, two: str, four: str, killed: str, stopped: str) -> None:
    torch.set_num_threads(1)
    with joined(rank, four, 4) as ranks:
        messages(ranks)
        torch.save(computed(ranks, directory), directory / f"4-{rank}.pt")
        torch.save(on_the_pretended_gpu(ranks), directory / f"gpu-4-{rank}.pt")
    if rank < 2:
        with joined(rank, two, 2) as ranks:
            torch.save(computed(ranks, directory), directory / f"2-{rank}.pt")
            torch.save(on_the_pretended_gpu(ranks), directory / f"gpu-2-{rank}.pt")
    if rank in (0, 1):
        with joined(rank, killed, 2) as ranks:
            lose_rank_1(ranks, signal.SIGKILL)
    if rank in (0, 2):
        with joined(rank // 2, stopped, 2, deadline=2.0) as ranks:
            lose_rank_1(ranks, signal.SIGSTOP)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
