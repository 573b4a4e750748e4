"""One rank of the jobs of `rank_jobs` with shards: python -m tests.learner.shard_jobs DIRECTORY RANK SIZE PORT."""

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from groupwise.data import Logp, WorkerLost
from groupwise.learner import EMA, InitialPolicy, Ranks, measure_plan
from groupwise.learner.ranks import join_store
from groupwise.learner.shards import WEIGHTS, Shards
from tests.learner.rank_jobs import DEADLINE, JOBS, LANES, OBJECTIVE, batch, plans, policy_learner, trained


def recomputed(ranks: Ranks) -> dict[str, Tensor]:
    """Layers that run again in backward. The state goes through `restore` of a second learner."""
    learners = [policy_learner(ranks, torch.float32, side_models=(("reference", InitialPolicy()),)) for _ in range(2)]
    for it in learners:
        it.model.recompute = True
    b = batch()
    trained(learners[0], b, plans(b))
    tensors, state = learners[0].state()
    learners[1].restore({name: whole(ranks, x) for name, x in tensors.items()}, state)
    found = trained(learners[1], b, plans(b))
    if isinstance(ranks, Shards) and ranks.rank:
        assert ranks.receive() == WEIGHTS
    return found | {f"whole.{name}": x for name, x in learners[1].weights().items()}


def averaged(ranks: Ranks) -> dict[str, Tensor]:
    """Log-probs of a moving average before and after it moves: its gathered weights must not be the old ones."""
    it = policy_learner(ranks, torch.float32, side_models=(("average", EMA(keep=0.5)),))
    b, wanted = batch(), frozenset({Logp("average")})
    found: dict[str, Tensor] = {}
    for number, step in enumerate(plans(b)):
        after = it.compute_measures(b, measure_plan(plans(b), b, microbatch_tokens=90, lanes=LANES), wanted)
        found[f"{number}.average"] = after[Logp("average")]
        it.step(b, step, OBJECTIVE)
    return found | it.state()[0]


def whole(ranks: Ranks, part: Tensor) -> Tensor:
    """The whole tensor of a part, as a checkpoint has it: the parts of all ranks one below the other."""
    if not part.ndim or not ranks.shards:
        return part
    rows = ranks.gather(torch.tensor([len(part)]), [1] * ranks.size)
    return ranks.whole([part], [int(rows.sum())])[0]


SHARDED: dict[str, Callable[[Ranks], dict[str, Tensor]]] = {**JOBS, "recomputed": recomputed, "averaged": averaged}


def lost(ranks: Shards, directory: Path) -> None:
    """Rank 1 leaves before rank 0 gathers weights."""
    if ranks.rank:
        ranks.close()
        return
    try:
        policy_learner(ranks, torch.float32)
    except WorkerLost as error:
        (directory / "lost.txt").write_text(str(error))


def main(directory: Path, rank: int, size: int, port: int) -> None:
    torch.set_num_threads(1)
    ranks = Shards(join_store(port, size, deadline=DEADLINE), rank, size, LANES, deadline=DEADLINE)
    tensors = {f"{name}/{key}": x for name, job in SHARDED.items() for key, x in job(ranks).items()}
    torch.save(tensors, directory / f"{rank}.pt")
    lost(ranks, directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
