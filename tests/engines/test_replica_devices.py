"""`engine.devices`: the GPUs that a recipe names for its engines."""

import pytest

from groupwise.core import Usage
from groupwise.engines import EngineAccess, Served, Vllm
from groupwise.engines.remote import served_settings
from groupwise.engines.remote.replica_devices import gpu_indices, visible_device
from groupwise.engines.remote.served_settings import EngineRequirements
from groupwise.engines.vllm.vllm_replicas import check_model
from groupwise.models import DecoderShape

NAMED = Served(replicas=2, devices=("cuda:3", "cuda:1"))
ON_GPU = EngineRequirements(dtype="bfloat16", device="cuda:1")


def test_named_gpus_are_those_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be the learner's, and in any order."""
    monkeypatch.setattr(served_settings, "gpu_count", lambda: 4)
    assert NAMED.replica_devices(ON_GPU) == ("cuda:3", "cuda:1")
    monkeypatch.setattr(served_settings, "gpu_count", lambda: 2)
    with pytest.raises(Usage, match="names cuda:3, and this host has 2 GPUs"):
        NAMED.replica_devices(ON_GPU)
    with pytest.raises(Usage, match="the learner computes on cpu"):
        NAMED.replica_devices(EngineRequirements(dtype="float32", device="cpu"))


def test_an_engine_of_vllm_gets_as_many_gpus_as_share_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """And sees them alone. Its weights go through a file, since its workers hold parts of them."""
    monkeypatch.setattr(served_settings, "gpu_count", lambda: 6)
    two = Vllm(replicas=2, tensor_parallel_size=2)
    assert two.replica_devices(ON_GPU) == ("cuda:0,2", "cuda:3,4")
    with pytest.raises(Usage, match="leaves 5 of 6 GPUs") as caught:
        Vllm(replicas=3, tensor_parallel_size=2).replica_devices(ON_GPU)
    assert caught.value.fix == "use --engine.replicas 2"
    assert Vllm(tensor_parallel_size=2, devices=("cuda:5,4",)).replica_devices(ON_GPU) == ("cuda:5,4",)
    for name in ("cuda:1", "cuda:1,1", "cuda:1,2,3"):
        with pytest.raises(ValueError, match="name 2 GPUs for each replica, such as cuda:1,2"):
            Vllm(tensor_parallel_size=2, devices=(name,))
    assert visible_device("cuda:3,4", "7,6,5,4,3") == {"CUDA_VISIBLE_DEVICES": "4,3"}
    assert Vllm().publishes_on_gpu(EngineAccess(), ON_GPU) and not two.publishes_on_gpu(EngineAccess(), ON_GPU)


def test_heads_that_devices_cannot_share_are_refused() -> None:
    shape = DecoderShape(
        vocabulary_size=9, hidden_size=64, layers=1, heads=6, kv_heads=2, head_dim=32, mlp_width=8, max_positions=9
    )
    on_cpu = EngineRequirements(dtype="float32", device="cpu")
    for size in (1, 2, 6):
        check_model(shape, on_cpu, sleeps=False, size=size)
    for size in (3, 4):
        with pytest.raises(Usage) as caught:
            check_model(shape, on_cpu, sleeps=False, size=size)
        assert f"are not shared by {size} devices" in caught.value.evidence
    with pytest.raises(ValueError, match="tensor_parallel_size is 0"):
        Vllm(tensor_parallel_size=0)


def test_each_replica_needs_the_name_of_a_gpu() -> None:
    with pytest.raises(ValueError, match="devices has 1 name for replicas = 2"):
        Served(replicas=2, devices=("cuda:0",))
    for name in ("cpu", "cuda", "cuda:x", "cuda:0,1", "/dev/nvidia0", "cuda:99999"):
        with pytest.raises(ValueError, match="name 1 GPU for each replica, such as cuda:1"):
            Served(replicas=1, devices=(name,))


@pytest.mark.parametrize("name", ["cuda:x", "cuda:1,", "cuda:-1"])
def test_a_name_without_an_index_names_no_gpu(name: str) -> None:
    with pytest.raises(Usage, match=f"'{name}' names no GPU"):
        gpu_indices(name)
