"""Blocked weights: the same products, and no stale blocks after a change of weights."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import nn

from groupwise.data import Generation
from groupwise.models import Decoder, PrefixPacking, drop_blocks, read_model, with_blocked_weights
from groupwise.models.decoder.prepacked_weights import LEAST, PrepackedLinear, gains
from tests.models.plain import made
from tests.rollout.fakes import decoder, engine, generate, request

pytestmark = pytest.mark.skipif(not gains(torch.zeros(LEAST)), reason="oneDNN's blocks are used on x86 alone")
LARGE = {"hidden_size": 256, "head_dim": 64, "mlp_width": 300, "layers": 2, "vocabulary_size": 300}
LAYOUT = PrefixPacking.of([(1, 2, 3)] * 3, [(4, 5), tuple(range(6, 40)), (7, 8, 9)])


def large(tied: bool, dtype: torch.dtype = torch.float32) -> Decoder:
    return decoder(dtype, spread=0.08, tied_embeddings=tied, **LARGE)


def parts(model: nn.Module) -> list[PrepackedLinear]:
    return [module for module in model.modules() if isinstance(module, PrepackedLinear)]


@torch.inference_mode()
def logits_of(model: Decoder) -> torch.Tensor:
    return model.head(model(LAYOUT.tokens, LAYOUT))


@pytest.mark.parametrize("tied", [False, True])
def test_blocked_weights_give_the_same_logits(tied: bool) -> None:
    model = large(tied)
    quick = with_blocked_weights(model)
    assert {part.weight.shape for part in parts(quick)} == {(256, 256), (300, 256), (256, 300)}
    assert len(parts(quick)) == 2 * 5 + 1  # the small key and value projections keep plain weights
    assert {id(p) for p in quick.parameters()} == {id(p) for p in model.parameters()}
    torch.testing.assert_close(logits_of(quick), logits_of(model), rtol=1e-4, atol=1e-4)
    assert not parts(model)


def test_a_model_without_large_weights_is_returned_unchanged() -> None:
    for model in (decoder(torch.float32), large(True, torch.float64), large(True, torch.bfloat16)):
        assert with_blocked_weights(model) is model


def test_changed_weights_take_effect_after_drop_blocks() -> None:
    model = large(True)
    quick = with_blocked_weights(model)
    logits_of(quick)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.5)
    assert not torch.allclose(logits_of(quick), logits_of(model), atol=1e-2)
    drop_blocks(quick)
    torch.testing.assert_close(logits_of(quick), logits_of(model), rtol=1e-4, atol=1e-4)


def test_models_of_transformers_get_blocked_weights(tmp_path: Path) -> None:
    made(tmp_path, "Gemma", hidden_size=256, intermediate_size=300, head_dim=64)
    model = read_model(tmp_path, dtype=torch.float32)
    quick = with_blocked_weights(model)
    assert len(parts(quick)) > 4
    torch.testing.assert_close(logits_of(quick), logits_of(model), rtol=1e-4, atol=1e-4)


def test_an_engine_uses_new_weights_at_once_and_holds_no_blocks_when_idle() -> None:
    model = large(True)
    e = engine(model, max_num_seqs=2)

    async def go() -> list[Generation]:
        running = [asyncio.create_task(e.sample(request(i, limit=30, stream=(i,)))) for i in range(3)]
        for _ in range(9):
            await asyncio.sleep(0)
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1.1)
        await e.load(7, model.state_dict())
        return list(await asyncio.gather(*running))

    waiting = asyncio.run(go())[2]
    assert waiting.logp == generate(engine(model), [request(2, limit=30, stream=(2,))])[0].logp
    assert len(parts(e._model)) > 10
    assert all(part.blocks is None for part in parts(e._model))


def test_an_engine_frees_its_blocks_before_it_loads_new_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old weights, those of the file and the blocks would be the engine's peak."""
    model = large(True)
    e = engine(model, max_num_seqs=2)
    held: list[int] = []

    def load(decoder: Decoder, weights: Mapping[str, torch.Tensor]) -> None:
        held.append(sum(part.blocks is not None for part in parts(e._model)))

    monkeypatch.setattr("groupwise.engines.native.native_engine.load_weights", load)

    async def go() -> None:
        running = asyncio.create_task(e.sample(request(0, limit=30, stream=(0,))))
        for _ in range(9):
            await asyncio.sleep(0)
        assert any(part.blocks is not None for part in parts(e._model))
        await e.load(7, model.state_dict())
        await running

    asyncio.run(go())
    assert held == [0]
