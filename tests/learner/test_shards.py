"""Sharded ranks in processes of their own: the bits of one process, in float32 and float64."""

import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

from groupwise.core import Usage
from groupwise.learner import SingleProcess
from groupwise.learner.fsdp import ShardedRanks, on_meta, rows_before, rows_of_ranks
from groupwise.learner.rank_store import host_store
from tests.docs.warm_shell import environment
from tests.learner.rank_jobs import DEADLINE, LANES
from tests.learner.shard_jobs import SHARDED, TRANSFORMERS, of_transformers
from tests.learner.small import model
from tests.learner.test_ranks import STATE
from tests.models.plain import made


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of all jobs on sharded ranks: RANK.pt."""
    return results_of("decoders", request.param, tmp_path_factory.mktemp("shards"))


def results_of(jobs: str, size: int, path: Path) -> Path:
    """The directory with the results of some jobs on sharded ranks, each in a process."""
    store = host_store(size)
    command = ["python", "-m", "tests.learner.shard_jobs", str(path), jobs]
    numbers = [[str(rank), str(size), str(store.port)] for rank in range(size)]
    processes = [
        subprocess.Popen([*command, *each], env=environment(), stderr=subprocess.PIPE, text=True) for each in numbers
    ]
    try:
        for process in processes:
            errors = process.communicate(timeout=4 * DEADLINE)[1]
            assert process.returncode == 0, errors[-3000:]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return path


def results(path: Path) -> list[dict[str, Tensor]]:
    """The results of each rank."""
    return [torch.load(file) for file in sorted(path.glob("*.pt"))]


@pytest.mark.parametrize("job", SHARDED)
def test_shards_have_the_bits_of_one_process(directory: Path, job: str) -> None:
    check_bits(results(directory), job, SHARDED[job](SingleProcess(lanes=LANES)))


@pytest.mark.slow
def test_mixtures_of_experts_have_the_bits_of_one_process(tmp_path: Path) -> None:
    """Also those of dense modules of transformers. Ranks without a token gather the layers with the others."""
    for name, (kind, _, fields) in TRANSFORMERS.items():
        made(tmp_path / name, kind, **fields)
    ranks = results(results_of("modules of transformers", 2, tmp_path))
    for job, run in of_transformers(tmp_path).items():
        check_bits(ranks, job, run(SingleProcess(lanes=LANES)))


def check_bits(ranks: list[dict[str, Tensor]], job: str, expected: dict[str, Tensor]) -> None:
    """Compare the results of a job with those of one process. Only rank 0 has whole weights."""
    one = {f"{job}/{key}": x for key, x in expected.items()}
    assert len(one) > 10
    for name, x in one.items():
        state = STATE.search(name)
        if not (state and x.ndim):  # ranks above 0 have the numbers of a step for their own microbatches alone
            parts = [rank[name] for rank in (ranks if state else ranks[:1])]
            assert all(torch.equal(part, x) for part in parts), name
        else:
            parts = [rank[name] for rank in ranks]
            assert [len(part) for part in parts] == rows_of_ranks(len(x), len(ranks)), name
            assert torch.equal(torch.cat(parts), x), name


def test_a_rank_holds_its_rows_of_weights_and_moments(directory: Path) -> None:
    ranks = results(directory)
    for name in ("policy.model.embed_tokens.weight", "optimizer.0.exp_avg", "models.average.model.embed_tokens.weight"):
        assert [len(rank[f"float32/{name}"]) for rank in ranks] == rows_of_ranks(17, len(ranks))


def test_a_lost_rank_is_named(directory: Path) -> None:
    text = (directory / "lost.txt").read_text()
    assert text.startswith("rank 0 waited for ") and "is gone" in text and "groupwise resume" in text


@pytest.mark.parametrize("count", range(9))
@pytest.mark.parametrize("size", (1, 2, 4))
def test_rows_of_ranks_are_those_of_torch(count: int, size: int) -> None:
    chunks = torch.arange(count).chunk(size) if count else ()
    rows = rows_of_ranks(count, size)
    assert rows == [*map(len, chunks), *[0] * (size - len(chunks))]
    assert [rows_before(count, size, rank) for rank in range(size)] == [sum(rows[:rank]) for rank in range(size)]


def test_a_copy_on_the_meta_device_has_no_weights() -> None:
    policy = model(torch.float32)
    policy.recompute = True
    skeleton = on_meta(policy)
    assert all(x.is_meta for x in skeleton.parameters()) and skeleton.recompute
    assert {n: x.shape for n, x in skeleton.state_dict().items()} == {
        n: x.shape for n, x in policy.state_dict().items()
    }


def test_other_models_than_language_models_are_refused() -> None:
    with pytest.raises(Usage, match="Sequential cannot be sharded"):
        ShardedRanks.held(object.__new__(ShardedRanks), torch.nn.Sequential())
    stored = model(torch.float32)
    stored.register_buffer("bias", torch.zeros(1))
    with pytest.raises(Usage, match="Decoder cannot be sharded") as caught:
        ShardedRanks.held(object.__new__(ShardedRanks), stored)
    assert "stores bias" in caught.value.evidence
