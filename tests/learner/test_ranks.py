"""Ranks in processes of their own: equal bits on 1, 2 and 4 ranks, and a typed error for a rank that dies or hangs."""

import os
import re
import signal
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import groupwise
from groupwise.core import InvalidValue
from groupwise.learner import AdamW, Learner, ReplicatedRanks, SingleProcess, StepPlan, check_lanes
from groupwise.learner.distributed import BLOCKING
from groupwise.learner.gradient_lane_sums import LaneSums, order_of
from groupwise.learner.optimizer import Optimizer
from groupwise.learner.rank_pulse import RankPulse
from groupwise.learner.rank_store import host_store
from tests.docs.warm_shell import environment
from tests.learner.rank_jobs import (
    DEADLINE,
    JOBS,
    LANES,
    OBJECTIVE,
    batch,
    computed,
    on_the_pretended_gpu,
    plans,
    policy_learner,
    trained,
)
from tests.models import mixtures

STATE = re.compile(r"(^|/)(policy|models|optimizer|value_models)\.")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What all jobs computed on 1, 2 and 4 ranks: SIZE-RANK.pt, and the errors of lost ranks."""
    path = tmp_path_factory.mktemp("ranks")
    mixtures.mixture(path / "mixture")
    stores = [host_store(size) for size in (2, 4, 2, 2)]
    command = ["python", "-m", "tests.learner.rank_jobs", str(path)]
    ports = [str(store.port) for store in stores]
    processes = [
        subprocess.Popen([*command, str(rank), *ports], env=environment(), stderr=subprocess.PIPE, text=True)
        for rank in range(4)
    ]
    try:
        torch.save(computed(SingleProcess(lanes=LANES), path), path / "1-0.pt")
        for rank, code in ((0, 0), (1, 128 + signal.SIGKILL), (3, 0)):  # number 2 is stopped
            errors = processes[rank].communicate(timeout=4 * DEADLINE)[1]
            assert processes[rank].returncode == code, errors[-3000:]
        yield path
    finally:
        for process in processes:
            process.kill()
            process.wait()


def read(path: Path, size: int, rank: int, job: str) -> dict[str, Tensor]:
    tensors = torch.load(path / f"{size}-{rank}.pt")
    return {name: x for name, x in tensors.items() if name.startswith(f"{job}/")}


def state_of(names: Iterable[str]) -> set[str]:
    """The names of weights, moments and side models, which ranks above 0 have, too."""
    return {name for name in names if STATE.search(name)}


@pytest.mark.t(52)
@pytest.mark.parametrize("job", (*JOBS, "mixture"))
def test_every_rank_of_every_number_of_ranks_has_the_bits_of_one(directory: Path, job: str) -> None:
    one = read(directory, 1, 0, job)
    assert len(one) > 10
    for size in (2,) if job == "mixture" else (2, 4):
        for rank in range(size):
            other = read(directory, size, rank, job)
            assert other.keys() == (state_of(one) if rank else one.keys())
            assert [name for name, x in other.items() if not torch.equal(x, one[name])] == []


def test_ranks_on_the_pretended_gpu_have_the_bits_of_one_process_there(directory: Path) -> None:
    """Exchanges of the GPU's tensors between ranks keep NCCL's rules; counts and messages are the CPU's."""
    one = on_the_pretended_gpu(SingleProcess(lanes=LANES))
    assert len(one) > 10
    for name in ("2-0", "2-1", "4-0", "4-1", "4-2", "4-3"):
        rank, other = int(name[-1]), torch.load(directory / f"gpu-{name}.pt")
        assert other.keys() == (state_of(one) if rank else one.keys())
        assert [name for name, x in other.items() if not torch.equal(x, one[name])] == []
    policy = read(directory, 1, 0, "float64")
    for name in ("logp_old", "entropy"):  # of the first weights; another kernel, so up to rounding
        torch.testing.assert_close(one[name], policy[f"float64/{name}"], rtol=1e-12, atol=1e-12)


def test_ranks_on_gpus_use_nccl_for_tensors_and_gloo_for_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple] = []
    monkeypatch.setenv(BLOCKING, "0")
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: calls.append((index,)))
    monkeypatch.setattr(
        dist, "init_process_group", lambda backend, **settings: calls.append((backend, settings["rank"]))
    )
    store = dist.HashStore()
    store.set("started/0", "")
    ReplicatedRanks(store, RankPulse(store, 1, 2, 9.0), LANES, deadline=9.0, device=torch.device("cuda", 1))
    assert calls == [(1,), ("cpu:gloo,cuda:nccl", 1)] and os.environ[BLOCKING] == "1"


@pytest.mark.t(51)
@pytest.mark.parametrize("size", (1, 2, 4))
def test_every_trained_tensor_moves_on_every_rank(directory: Path, size: int) -> None:
    start = policy_learner(SingleProcess(), torch.float32).model.state_dict()
    for rank in range(size):
        policy = read(directory, size, rank, "float32")
        assert [name for name, x in start.items() if torch.equal(x, policy[f"float32/policy.{name}"])] == []


def test_lanes_change_the_order_of_a_sum_and_nothing_else(directory: Path) -> None:
    """Four lanes against one: equal up to rounding, and not equal in float32, or the other tests prove nothing."""
    b = batch()
    for dtype, tolerance in (("float32", 1e-4), ("float64", 1e-12)):
        it = policy_learner(SingleProcess(), getattr(torch, dtype))
        it_state = trained(it, b, plans(b, lanes=1))
        four = read(directory, 1, 0, dtype)
        policy = {name: x for name, x in it_state.items() if name.startswith("policy.")}
        for name, x in policy.items():
            torch.testing.assert_close(x, four[f"{dtype}/{name}"], rtol=tolerance, atol=tolerance)
    assert any(not torch.equal(x, read(directory, 1, 0, "float64")[f"float64/{name}"]) for name, x in policy.items())


def test_a_killed_and_a_stopped_rank_are_named(directory: Path) -> None:
    killed, stopped = ((directory / f"{name}.txt").read_text() for name in ("SIGKILL", "SIGSTOP"))
    assert killed.startswith("rank 0 waited for rank 1, which is gone: numbers of a microbatch")
    assert stopped.startswith("rank 0 waited for rank 1, which did not answer within 2 s")
    assert "groupwise resume" in killed


@pytest.mark.parametrize("tokens", (20, 90, 400))
@pytest.mark.parametrize("lanes", (2, 4, 8))
def test_a_plan_has_a_multiple_of_the_lanes_and_loses_no_sample(tokens: int, lanes: int) -> None:
    b = batch()
    for step, plain in zip(plans(b, tokens=tokens, lanes=lanes), plans(b, tokens=tokens, lanes=1), strict=True):
        assert step.samples == plain.samples
        assert len(step.microbatches) % lanes == 0
        assert len(step.microbatches) < len(plain.microbatches) + lanes
        sizes = [sum(len(b.samples[i].tokens) for i in microbatch) for microbatch in step.microbatches]
        assert max(sizes) <= max(tokens, 30)
    # 12 samples in one microbatch of the plain plan are shared by the lanes
    (step,) = plans(b.take(range(12)), tokens=400, lanes=4)
    assert sum(map(bool, step.microbatches)) >= 3


def test_ranks_have_equally_many_microbatches() -> None:
    (step,) = plans(batch([[3, 5]]), lanes=LANES)
    assert len(step.microbatches) == 4 and sum(map(bool, step.microbatches)) == 2
    assert list(order_of(SingleProcess(lanes=2), 0, 4)) == [0, 1, 2, 3]


def test_a_round_is_added_in_a_tree_and_rounds_in_order() -> None:
    """In float32, 2^24 + 1 is 2^24: the sum shows its order."""
    weight, most = torch.ones(1, requires_grad=True), float(1 << 24)
    sums = LaneSums([Optimizer([weight], AdamW())], SingleProcess(lanes=4))
    # (2^24 + 1) + (1 + 1), then - 2^24, then 0: with two rounds, sums that are no round could end as one.
    for x in (most, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, -most, 0.0, 0.0, 0.0, 0.0):
        weight.grad = torch.tensor([x])
        sums.add_microbatch()
    sums.finish()
    assert weight.grad is not None and weight.grad.tolist() == [2.0]


def test_a_step_of_one_lane_needs_no_particular_number_of_microbatches() -> None:
    it: Learner = policy_learner(SingleProcess())
    assert not it.step(batch(), StepPlan((tuple(range(24)),)), OBJECTIVE).skip_reason


def test_a_weight_that_one_lane_reaches_is_trained() -> None:
    """Such as an expert that gets tokens of one microbatch only. A weight that no lane reaches has no gradient."""
    weights = [torch.ones(2, requires_grad=True) for _ in range(2)]
    optimizer = Optimizer(weights, AdamW())
    sums = LaneSums([optimizer], SingleProcess(lanes=2))
    weights[0].grad = torch.tensor([1.0, -2.0])
    sums.add_microbatch()
    sums.add_microbatch()
    sums.finish()
    assert weights[0].grad is not None and weights[0].grad.tolist() == [1.0, -2.0] and weights[1].grad is None


def test_four_files_know_torch_distributed() -> None:
    package = Path(groupwise.__file__).parent
    importers = [
        p.name for p in package.rglob("*.py") if re.search(r"import.*distributed|torch\.distributed\.", p.read_text())
    ]
    assert sorted(importers) == ["distributed.py", "fsdp.py", "rank_pulse.py", "rank_store.py"]


@pytest.mark.parametrize(("lanes", "ranks"), ((3, 1), (0, 1), (4, 3), (2, 4), (2, 0)))
def test_lanes_that_ranks_do_not_divide_are_refused(lanes: int, ranks: int) -> None:
    with pytest.raises(InvalidValue) as caught:
        check_lanes(lanes, ranks)
    assert caught.value.fix.startswith("use ")
