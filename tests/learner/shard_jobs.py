"""One rank of the jobs of `rank_jobs` with shards: python -m tests.learner.shard_jobs DIRECTORY RANK SIZE PORT."""

import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import torch
from torch import Tensor

import groupwise as gw
from groupwise.config.recipe import Machine, Recipe
from groupwise.config.user_code import UserCode
from groupwise.core import WorkerLost
from groupwise.data import Logp
from groupwise.learner import EMA, AdamW8bit, InitialPolicy, Learner, Ranks, measure_plan
from groupwise.learner.fsdp import WEIGHTS, ShardedRanks
from groupwise.learner.rank_store import join_store
from groupwise.models import Lora, attach, find_model, fingerprint, read_model, read_tokenizer, write_adapter
from groupwise.training.build_run import new_learner, read_policy
from groupwise.training.rank_worker import follower
from tests.learner.rank_jobs import (
    DEADLINE,
    JOBS,
    LANES,
    OBJECTIVE,
    SEED,
    adapted,
    batch,
    followed,
    plans,
    policy_learner,
    trained,
)
from tests.learner.small import model

OLD, TEACHER = Logp("policy"), Logp("teacher")


def recomputed(dtype: torch.dtype) -> Callable[[Ranks], dict[str, Tensor]]:
    """Layers that run again in backward. The state goes through `restore` of a second learner."""
    sides = (("reference", InitialPolicy()),)

    def job(ranks: Ranks) -> dict[str, Tensor]:
        learners = [policy_learner(ranks, dtype, side_models=sides) for _ in range(2)]
        for it in learners:
            it.model.recompute = True
        b = batch()
        trained(learners[0], b, plans(b))
        tensors, state = learners[0].state()
        learners[1].restore({name: whole(ranks, x) for name, x in tensors.items()}, state)
        found = trained(learners[1], b, plans(b))
        if isinstance(ranks, ShardedRanks) and ranks.rank:
            assert ranks.receive() == WEIGHTS
        return found | {f"whole.{name}": x for name, x in learners[1].weights().items()}

    return job


def rows_of_an_adapter(ranks: Ranks) -> dict[str, Tensor]:
    """The rows of a frozen base are bfloat16, those of the trained adapter float32, and a frozen copy is bfloat16."""
    policy = adapted(torch.bfloat16)
    if isinstance(ranks, ShardedRanks):
        held, frozen = ranks.held(policy), ranks.copied(policy, frozen=True)
        dtypes = {(x.requires_grad, x.dtype) for x in held.parameters()}
        assert dtypes == {(False, torch.bfloat16), (True, torch.float32)}
        assert {x.dtype for x in frozen.parameters()} == {torch.bfloat16}
        assert any(x.requires_grad for x in policy.parameters())
    return {name: x.detach() for name, x in policy.named_parameters()}


def eight_bits(ranks: Ranks) -> dict[str, Tensor]:
    """Moments in 8 bits, whose blocks are within rows."""
    settings = AdamW8bit(lr=1e-2, max_grad_norm=0.1)
    it = Learner(model(torch.float32), optimizer=settings, steps=9, temperature=0.7, ranks=ranks)
    return trained(it, b := batch(), plans(b))


def averaged(ranks: Ranks) -> dict[str, Tensor]:
    """Log-probs of a moving average before and after it moves: its gathered weights must not be the old ones."""
    it = policy_learner(ranks, torch.float32, side_models=(("average", EMA(decay=0.5)),))
    b, wanted = batch(), frozenset({Logp("average")})
    if ranks.rank:
        return followed(it, 2 * len(plans(b)), measures=[*wanted])
    found: dict[str, Tensor] = {}
    for number, step in enumerate(plans(b)):
        after = it.compute_measures(b, measure_plan(plans(b), b, microbatch_tokens=90, lanes=LANES), wanted)
        found[f"{number}.average"] = after[Logp("average")]
        it.step(b, step, OBJECTIVE)
    return found | it.state()[0]


def from_directory(ranks: Ranks, teacher: str = "calculator") -> dict[str, Tensor]:
    """A policy and a side model from directories, as a run reads them."""
    method = gw.on_policy_distillation(teacher=teacher)
    recipe, use = Recipe(method=method, model="calculator", iterations=9, machine=Machine(dtype="float32")), UserCode()
    it = (
        follower(recipe, use, ranks)
        if ranks.shards and ranks.rank
        else new_learner(read_policy(recipe, use, torch.device("cpu")), recipe, ranks)
    )
    b = batch()
    if ranks.rank:
        return followed(it, 1 + len(plans(b)), measures=[TEACHER])
    b = it.compute_measures(b, measure_plan(plans(b), b, microbatch_tokens=90, lanes=LANES), frozenset({OLD, TEACHER}))
    for step in plans(b):
        it.step(b, step, OBJECTIVE)
    return {"teacher": b[TEACHER]} | it.state()[0]


def directory(ranks: Ranks) -> dict[str, Tensor]:
    """A rank above 0 reads no weights."""
    if not ranks.rank:
        return from_directory(ranks)
    with patch("groupwise.training.build_run.read_model", side_effect=AssertionError):
        return from_directory(ranks)


def directory_of_an_adapter(ranks: Ranks) -> dict[str, Tensor]:
    """Each rank reads it with its base."""
    base = find_model("calculator")
    model = read_model(base)
    attach(model, Lora(rank=2, target_modules=("q_proj",)), seed=SEED)
    with torch.no_grad():
        for weight in (p for p in model.parameters() if p.requires_grad):
            weight.add_(0.1)
    with TemporaryDirectory() as path:
        write_adapter(model, Path(path), base=str(base), base_sha256=fingerprint(base))
        read_tokenizer(base).save(Path(path))
        return from_directory(ranks, path)


def whole(ranks: Ranks, part: Tensor) -> Tensor:
    """The whole tensor of a part, as a checkpoint has it: the parts of all ranks one below the other."""
    if not part.ndim or not ranks.shards:
        return part
    rows = ranks.gather(torch.tensor([len(part)]), [1] * ranks.size)
    return ranks.whole([part], [int(rows.sum())])[0]


SHARDED: dict[str, Callable[[Ranks], dict[str, Tensor]]] = {
    **JOBS, "recomputed": recomputed(torch.float32), "bfloat16 recomputed": recomputed(torch.bfloat16),
    "averaged": averaged, "eight bits": eight_bits, "rows of an adapter": rows_of_an_adapter,
    "directory": directory, "directory of an adapter": directory_of_an_adapter,
}  # fmt: skip


def lost(ranks: ShardedRanks, directory: Path) -> None:
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
    ranks = ShardedRanks(join_store(port, size, deadline=DEADLINE), rank, size, LANES, deadline=DEADLINE)
    tensors = {f"{name}/{key}": x for name, job in SHARDED.items() for key, x in job(ranks).items()}
    torch.save(tensors, directory / f"{rank}.pt")
    lost(ranks, directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
