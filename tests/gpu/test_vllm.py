"""vLLM on a CUDA device: keyed tokens against the native engine, memory while it sleeps, and merged adapters.

They need vLLM's environment beside the device (`groupwise doctor --json` prints how to make it), in `.venv-vllm`.
"""

import asyncio
from pathlib import Path

import pytest
import torch

from groupwise.data import Generation
from groupwise.engines import EngineAccess, NativeEngine, Vllm
from groupwise.engines.vllm.vllm_python_environment import DEFAULT_PYTHON
from groupwise.models import Decoder, Lora, attach, find_model, read_model, read_tokenizer
from tests.engines.test_vllm import answers, requests

PYTHON = Path(DEFAULT_PYTHON).absolute()
pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not PYTHON.is_file(), reason=f"no environment of vLLM at {DEFAULT_PYTHON}: not run"),
]
ACCESS = EngineAccess(python=str(PYTHON))
SHARE = 0.3
"""The part of the GPU's memory that vLLM gets."""


def model_on(gpu: torch.device) -> Decoder:
    model = read_model(find_model("calculator"), dtype=torch.bfloat16)
    assert isinstance(model, Decoder)
    return model.to(gpu)


def compare(model: Decoder, engine: Vllm) -> tuple[list[Generation], list[Generation]]:
    """The answers of the native engine and of vLLM to the same requests."""
    tokenizer = read_tokenizer(find_model("calculator"))
    asked = requests(tokenizer, prompts=4, samples=4)

    async def go() -> tuple[list[Generation], list[Generation]]:
        fleet = engine.build(model, tokenizer, seed=5, experts=None, access=ACCESS)
        await fleet.load(0, model.state_dict())
        native = NativeEngine(model, tokenizer, seed=5)
        await native.load(0, model.state_dict())
        return await answers(native, asked), await answers(fleet, asked)

    return asyncio.run(go())


def check(native: list[Generation], other: list[Generation]) -> None:
    """Most answers are equal: in bfloat16 a rounded probability may choose another token."""
    same = sum(x.tokens == y.tokens for x, y in zip(native, other, strict=True))
    assert same >= 0.75 * len(native)


def test_keyed_tokens_are_the_native_engines(gpu: torch.device) -> None:
    check(*compare(model_on(gpu), Vllm(replicas=1, placement="colocated", gpu_memory_utilization=SHARE)))


def test_an_adapter_is_published_merged(gpu: torch.device) -> None:
    model = model_on(gpu)
    attach(model, Lora(rank=4), seed=1)
    with torch.no_grad():
        for name, x in model.named_parameters():
            if "lora_B" in name:
                x.normal_(std=0.05, generator=torch.Generator(gpu).manual_seed(0))
    check(*compare(model, Vllm(replicas=1, placement="colocated", gpu_memory_utilization=SHARE)))


def test_a_sleeping_engine_gives_its_memory_back(gpu: torch.device) -> None:
    model = model_on(gpu)
    tokenizer = read_tokenizer(find_model("calculator"))
    engine = Vllm(replicas=1, placement="colocated", gpu_memory_utilization=SHARE)

    async def go() -> tuple[int, int, int]:
        fleet = engine.build(model, tokenizer, seed=5, experts=None, access=ACCESS)
        await fleet.load(0, model.state_dict())
        awake = torch.cuda.mem_get_info(gpu)[0]
        await fleet.sleep()  # type: ignore[attr-defined]
        asleep = torch.cuda.mem_get_info(gpu)[0]
        await fleet.load(1, model.state_dict())
        return awake, asleep, torch.cuda.mem_get_info(gpu)[0]

    awake, asleep, again = asyncio.run(go())
    held = SHARE * torch.cuda.get_device_properties(gpu).total_memory
    assert asleep - awake > 0.5 * held and abs(again - awake) < 0.1 * held
