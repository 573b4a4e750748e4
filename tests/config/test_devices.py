"""Device and dtype `auto`, with stubs in place of a GPU."""

import pytest
import torch

from groupwise.config.recipe_toml import read_recipe
from groupwise.config.resolve_devices import device_label, device_of, dtype_of, find_device, resolved
from groupwise.core import MissingRequirement
from tests.checks import check


def stub_gpu(monkeypatch: pytest.MonkeyPatch, *, bfloat16: bool = True) -> None:
    """Let torch report one GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Stub 80GB")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: bfloat16)


def choice(*fields: tuple[str, str]) -> tuple[str, str]:
    """The device and the dtype of a recipe with these fields."""
    machine = resolved(read_recipe('method = "grpo"', fields)).machine
    return str(find_device(machine)), machine.dtype


def test_without_a_gpu_auto_is_the_cpu_in_float32() -> None:
    assert choice() == ("cpu", "float32")
    assert choice(("machine.dtype", "bfloat16")) == ("cpu", "bfloat16")


def test_a_gpu_is_taken_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    stub_gpu(monkeypatch)
    assert choice() == ("cuda", "bfloat16")
    assert choice(("machine.device", "cuda:0")) == ("cuda:0", "bfloat16")
    assert choice(("machine.device", "cpu")) == ("cpu", "float32")
    assert choice(("machine.dtype", "float64")) == ("cuda", "float64")
    assert device_label(torch.device("cuda")) == "cuda (Stub 80GB)"


def test_a_gpu_that_only_emulates_bfloat16_computes_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    stub_gpu(monkeypatch, bfloat16=False)
    assert choice() == ("cuda", "float32")


@pytest.mark.parametrize("model", ["rings", "beads"])
def test_a_small_flow_or_masked_model_computes_in_float32_on_a_gpu(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stub_gpu(monkeypatch)
    assert choice(("model", model)) == ("cuda", "float32")
    assert choice(("model", model), ("machine.dtype", "bfloat16")) == ("cuda", "bfloat16")  # `check` refuses it
    assert choice(("model", "no such model")) == ("cuda", "bfloat16")


def test_another_accelerator_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert device_of("auto") == "cpu"


def test_a_named_device_that_is_missing_is_refused_and_not_replaced() -> None:
    assert dtype_of("auto", "cuda", "calculator") == "float32"
    with pytest.raises(MissingRequirement, match="has no CUDA device"):
        choice(("machine.device", "cuda"))


def test_check_names_device_and_dtype_first() -> None:
    lines: list[str] = []
    assert check(None, notify=lines.append) == []
    assert lines[0] == "machine: cpu, float32"
    lines.clear()
    assert check(None, [("machine.dtype", "bfloat16")], notify=lines.append) == []
    assert lines[0] == "machine: cpu, bfloat16 with float32 master weights"
