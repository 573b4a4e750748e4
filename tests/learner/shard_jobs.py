"""One rank of some jobs with shards: python -m tests.learner.shard_jobs DIRECTORY KIND RANK SIZE PORT."""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import torch
from torch import Tensor

import groupwise as gw
from groupwise.config.recipe import Machine, Recipe
from groupwise.config.user_code import UserCode
from groupwise.core import BadData, WorkerLost
from groupwise.data import Logp
from groupwise.engines.remote.published_weights import published_weights
from groupwise.learner import EMA, AdamW, AdamW8bit, InitialPolicy, Learner, Ranks, measure_plan, mixture
from groupwise.learner.fsdp import ShardedRanks
from groupwise.learner.rank_pulse import RankPulse
from groupwise.learner.rank_store import join_store
from groupwise.models import (
    LanguageModel,
    Lora,
    attach,
    find_model,
    fingerprint,
    outline_on_disk,
    read_model,
    read_tokenizer,
    write_adapter,
)
from groupwise.models.decoder.layer_weights import layer_of
from groupwise.training.build_run import new_learner, read_policy
from groupwise.training.rank_worker import follower
from tests.learner.allocations import Allocations
from tests.learner.rank_jobs import (
    ADAPTER,
    BALANCE,
    DEADLINE,
    JOBS,
    LANES,
    OBJECTIVE,
    R2,
    SEED,
    adapted,
    batch,
    followed,
    plans,
    policy_learner,
    trained,
)
from tests.learner.small import model
from tests.models.directories import directory as write_directory
from tests.models.mixtures import FIELDS

LAYERS = 8
"""Layers of the model of which no rank has all."""
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
        asked = ranks.receive() if isinstance(ranks, ShardedRanks) and ranks.rank else None
        weights = learners[1].weights(json.loads(asked)["names"] if asked else ())
        return found | {f"whole.{name}": x for name, x in weights.items()}

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
    """No rank reads a whole teacher, and only rank 0 a whole policy, for its engine."""
    if not ranks.shards:
        return from_directory(ranks)
    read: list[object] = []
    with patch("groupwise.training.build_run.read_model", lambda *a, **b: read.append(a) or read_model(*a, **b)):
        found = from_directory(ranks)
    assert len(read) == (ranks.rank == 0)
    return found


def rows_alone(ranks: Ranks, lora: Lora | None = None) -> dict[str, Tensor]:
    """No rank has a whole model: each reads its rows, and rank 0 gathers a layer at a time, for engines elsewhere.

    With an adapter those get the sum, which is made a layer at a time, too.
    """
    sides = (("reference", InitialPolicy()), ("average", EMA(decay=0.5)))
    with TemporaryDirectory() as path:
        stored = write_directory(Path(path), layers=LAYERS)
        policy: LanguageModel = read_model(stored)
        counts = {name: x.numel() for name, x in policy.named_parameters()}
        if isinstance(ranks, ShardedRanks):
            outlined = outline_on_disk(stored, dtype=torch.float32, device=torch.device("cpu"))
            assert outlined is not None and all(x.is_meta for x in outlined.parameters())
            policy = outlined
        if lora is not None:
            attach(policy, lora, seed=SEED)
        with Allocations() as allocations:
            it = Learner(policy, optimizer=AdamW(lr=1e-2), steps=9, ranks=ranks, side_models=sides)
    whole, layer = 4 * sum(counts.values()), 4 * sum(n for name, n in counts.items() if ".layers.0." in name)
    if ranks.shards:
        # Weights, two side models and two moments. FSDP has a layer twice, as it is sent and as tensors; the one before
        # may exist, too, until a thread of gloo lets go of it.
        matrices = 4 * sum(x.numel() for name, x in policy.named_parameters() if ".lora_" in name)
        copies = 5 if lora is None else 3 + 5 * matrices / whole
        held, peak = allocations.memory.bytes, allocations.memory.peak
        assert held < 1.1 * copies * whole / ranks.size, (whole, layer, held)
        assert peak - held < 3.1 * (layer + matrices / LAYERS), (layer, held, peak)
    found = trained(it, b := batch(), plans(b))
    context, tokens = (1, 2, 3), (4, 5, 6, 7)
    if isinstance(ranks, ShardedRanks) and ranks.rank:
        for _ in {layer_of(name) for name in counts}:
            it.weights(json.loads(ranks.receive() or b"")["names"])
        asked = json.loads(ranks.receive() or b"")
        scores = it.score(tuple(asked["context"]), tuple(asked["tokens"]))
        weights: Mapping[str, Tensor] = {}
    else:
        with Allocations() as allocations, torch.no_grad():
            published = published_weights(policy, it.weights(), merges=True)
            assert published.keys() == counts.keys()
            weights = {f"whole.{name}": x.clone() for name, x in published.items()}
        extra = allocations.memory.peak - sum(x.nbytes for x in weights.values())
        assert not ranks.shards or extra < (1.2 if lora is None else 2.2) * layer, (layer, extra)
        scores = it.score(context, tokens)
    return found | weights | {"scores": torch.tensor(scores, dtype=torch.float64)}


def rows_alone_with_an_adapter(ranks: Ranks) -> dict[str, Tensor]:
    """As `rows_alone`. Rank 0 has the adapter's own matrices, which it sends to the others."""
    return rows_alone(ranks, ADAPTER)


def others_with_another_model(ranks: Ranks) -> dict[str, Tensor]:
    """Each rank has a different model in its directory, with the same names and shapes."""
    if isinstance(ranks, ShardedRanks):
        with TemporaryDirectory() as path:
            stored = write_directory(Path(path), seed=ranks.rank)
            outlined = outline_on_disk(stored, dtype=torch.float32, device=torch.device("cpu"))
            assert outlined is not None
            try:
                ranks.held(outlined)
                raise AssertionError("the ranks hold rows of different models")
            except BadData as error:
                assert "rank 1 has another model than rank 0" in str(error)
    return {str(i): torch.zeros(()) for i in range(11)}


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
    "directory": directory, "directory of an adapter": directory_of_an_adapter, "rows alone": rows_alone,
    "rows alone with an adapter": rows_alone_with_an_adapter,
    "others with another model": others_with_another_model,
}  # fmt: skip


def modules_of_transformers(directory: Path, dtype: torch.dtype) -> Callable[[Ranks], dict[str, Tensor]]:
    """A model with side models. Some lanes have no token, and the experts of a mixture are chosen once."""

    def job(ranks: Ranks) -> dict[str, Tensor]:
        policy = read_model(directory).to(dtype)  # reading compares logits, which experts in bfloat16 change
        policy.recompute = True
        sides = (("reference", InitialPolicy()), ("average", EMA(decay=0.5)))
        it = Learner(policy, optimizer=AdamW(lr=1e-2), steps=9, ranks=ranks, side_models=sides)
        b = batch([[12, 20, 1, 0], [3, 0, 15, 8], [3, 5]])
        found = trained(it, b, plans(b), *((BALANCE, R2) if mixture(policy) else ()))
        asked = ranks.receive() if isinstance(ranks, ShardedRanks) and ranks.rank else None
        weights = it.weights(json.loads(asked)["names"] if asked else ())
        return found | {f"whole.{name}": x for name, x in weights.items()}

    return job


TRANSFORMERS: dict[str, tuple[str, torch.dtype, dict[str, int]]] = {
    "Qwen3-MoE": ("Qwen3Moe", torch.float32, FIELDS),
    "Qwen3-MoE in bfloat16": ("Qwen3Moe", torch.bfloat16, FIELDS),
    "Mixtral": ("Mixtral", torch.float32, {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "Gemma": ("Gemma2", torch.float32, {"head_dim": 12}),
}
"""Models that run in the modules of transformers: class, dtype, and fields of the configuration."""


def of_transformers(directory: Path) -> dict[str, Callable[[Ranks], dict[str, Tensor]]]:
    """Their jobs. The models are in the directory: ranks above 0 do not write with transformers."""
    return {name: modules_of_transformers(directory / name, dtype) for name, (_, dtype, _) in TRANSFORMERS.items()}


def lost(ranks: ShardedRanks, directory: Path) -> None:
    """Rank 1 leaves before rank 0 gathers weights."""
    if ranks.rank:
        ranks.close()
        return
    try:
        policy_learner(ranks, torch.float32)
    except WorkerLost as error:
        (directory / "lost.txt").write_text(str(error))


def main(directory: Path, jobs: Mapping[str, Callable[[Ranks], dict[str, Tensor]]], rank: int, size: int, port: int):
    torch.set_num_threads(1)
    store = join_store(port, size, deadline=DEADLINE)
    with RankPulse(store, rank, size, DEADLINE) as pulse:
        ranks = ShardedRanks(store, pulse, LANES, deadline=DEADLINE)
        tensors = {f"{name}/{key}": x for name, job in jobs.items() for key, x in job(ranks).items()}
        torch.save(tensors, directory / f"{rank}.pt")
        lost(ranks, directory)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    main(path, SHARDED if sys.argv[2] == "decoders" else of_transformers(path), *map(int, sys.argv[3:]))
