"""The engine Vllm with vLLM and pictures in prompts: `make test-vllm` runs these.

Tokens, pixels and log-probs are those of the native engine, other pictures share no cache, and new weights reach the
vision tower.
"""

import asyncio
import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from groupwise.core import MissingRequirement, Usage
from groupwise.data import Generation, GenerationRequest, Picture, Sampling
from groupwise.data.pictures import hash_of_pictures
from groupwise.engines import EngineAccess, Fleet, NativeEngine, Vllm
from groupwise.engines.vllm.vllm_pictures import ARCHITECTURES, PicturePlacer
from groupwise.engines.vllm.vllm_python_environment import DEFAULT_PYTHON, check_torchvision, child_environment
from groupwise.engines.vllm.vllm_replicas import NEED_TORCHVISION
from groupwise.models import Tokenizer, find_template, pixels_of_picture
from groupwise.models.vision.processor import IMAGE
from groupwise.models.vision.qwen_processor import END, PAD, START
from tests.engines.test_vllm import ROUNDING, calculator, equal, gap, run
from tests.models.vision_directories import noise, tiny_vision, vision_directory

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]

PYTHON = str(Path(DEFAULT_PYTHON).absolute())
ACCESS = EngineAccess(python=PYTHON)
FAMILIES = [("idefics3", True), ("smolvlm", False), ("qwen2_5_vl", False)]


@pytest.fixture(autouse=True)
def torchvision(request: pytest.FixtureRequest) -> None:
    """Skips where a family needs torchvision, and no index had the build that belongs to the environment's torch."""
    if "family" in request.fixturenames and request.getfixturevalue("family") in NEED_TORCHVISION:
        try:
            check_torchvision(PYTHON)
        except MissingRequirement as missing:
            pytest.skip(f"not run: {missing}")


def asked(
    tokenizer: Tokenizer, *pictures: Picture, stream: int = 0, text: str = "red", limit: int = 8
) -> GenerationRequest:
    """A request about pictures, in the chat template: each picture has its part."""
    content = [*({"type": "image"} for _ in pictures), {"type": "text", "text": text}]
    context = find_template("chat", tokenizer)([{"role": "user", "content": content}], pictures=pictures)
    return GenerationRequest(
        context=context, limit=limit, draw_id=7, stream=(stream,), sampling=Sampling(max_tokens=limit),
        content_hash=hash_of_pictures(pictures), pictures=pictures,
    )  # fmt: skip


async def answers(engine: Fleet | NativeEngine, requests: list[GenerationRequest]) -> list[Generation]:
    return list(await asyncio.gather(*map(engine.sample, requests)))


@pytest.mark.parametrize(("family", "split"), FAMILIES)
def test_answers_and_scores_are_those_of_the_native_engine_before_and_after_a_load(family: str, split: bool) -> None:
    """Groups of one picture, of two, of none, and equal tokens with other pictures, together; then a new tower."""

    async def go() -> None:
        model, tokenizer = tiny_vision(family, dtype=torch.float32, split=split, wide=True)
        native = NativeEngine(model, tokenizer, seed=7)
        fleet = Vllm(max_num_seqs=16).build(model, tokenizer, seed=7, experts=None, access=ACCESS)
        await fleet.load(0, dict(model.state_dict()))
        long = "red " * 20
        prompts = [(noise(1),), (noise(2),), (noise(1), noise(2)), (noise(2), noise(1)), ()]
        requests = [asked(tokenizer, *p, stream=s, text=t) for p in prompts for s in range(3) for t in ("red", long)]
        equal(found := await answers(fleet, requests), await answers(native, requests))
        assert len({g.logp for g in found}) > len(requests) // 2
        one, other = asked(tokenizer, noise(1), text=long), asked(tokenizer, noise(2), text=long)
        assert one.context == other.context
        scores = [await fleet.score(r.context, (9, 12, 7), pictures=r.pictures) for r in (one, other)]
        assert gap_of(scores[0], await native.score(one.context, (9, 12, 7), pictures=one.pictures)) < ROUNDING
        assert gap_of(scores[0], scores[1]) > 100 * ROUNDING, "equal tokens, another picture"
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if any(part in name for part in ("vision", "visual", "connector")):
                    weight.mul_(1.5)
        await native.load(1, dict(model.state_dict()))
        await fleet.load(1, dict(model.state_dict()))
        after = await answers(fleet, requests)
        equal(after, await answers(native, requests))
        assert max(map(gap, found, after)) > ROUNDING, "the tower's new weights count"

    run(go())


EXPAND = """
import json, sys
import numpy as np
from vllm.config import ModelConfig
from vllm.multimodal import MULTIMODAL_REGISTRY
directory, ids, pictures, overrides = json.loads(sys.argv[1])
config = ModelConfig(model=directory, dtype="float32", hf_overrides=overrides, mm_device_do_normalize=False)
processor = MULTIMODAL_REGISTRY.create_processor(config)
from PIL import Image
images = [Image.fromarray(np.array(p, np.uint8)) for p in pictures]
found = processor(ids, processor.info.parse_mm_data({"image": images}))
items = [item.get_data() for item in found["mm_kwargs"]["image"]]
places = [[p.offset, (p.is_embed.tolist() if p.is_embed is not None else [True] * p.length)]
          for p in found["mm_placeholders"]["image"]]
print(json.dumps([found["prompt_token_ids"], places, [item["pixel_values"].flatten().tolist() for item in items]]))
"""
"""Prints vLLM's own expansion of a prompt with one placeholder for each picture: tokens, places and pixels."""


@pytest.mark.parametrize(("family", "split"), FAMILIES)
def test_vllm_would_expand_a_prompt_to_our_tokens_and_pixels(family: str, split: bool, tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(vision_directory(family, split=split, wide=True), directory)
    if family not in NEED_TORCHVISION:  # as checkpoints have it: transformers' default is the number of another model
        (directory / "processor_config.json").write_text(json.dumps({"image_seq_len": 4}))
    model, tokenizer = tiny_vision(family, dtype=torch.float32, split=split, wide=True)
    pictures = (noise(1), noise(2, width=24, height=16))
    context = asked(tokenizer, *pictures).context
    place = f"{START}{PAD}{END}" if family in NEED_TORCHVISION else IMAGE
    ids = tokenizer.encode_template(f"user:{place}{place}red\na:")
    overrides = {"architectures": [ARCHITECTURES[family]]} if family in ARCHITECTURES else {}
    request = json.dumps([str(directory), ids, [pixels_of_picture(p).tolist() for p in pictures], overrides])
    output = subprocess.run(
        [PYTHON, "-P", "-c", EXPAND, request], env=child_environment(tmp_path, 1), capture_output=True, text=True,
    )  # fmt: skip
    assert output.returncode == 0, output.stderr
    tokens, places, pixels = json.loads(output.stdout.splitlines()[-1])
    placed = PicturePlacer(model.processor, model.placeholder).place(context, pictures)
    assert tuple(tokens) == context != ids
    assert [(p.offset, list(p.is_feature)) for p in placed] == [(at, features) for at, features in map(trimmed, places)]
    for picture, theirs in zip(placed, pixels):
        assert (picture.pixel_rows["pixel_values"].flatten() - torch.tensor(theirs)).abs().max() < 1e-6


def trimmed(place: tuple[int, list[bool]]) -> tuple[int, list[bool]]:
    """A place from its first feature to its last one: vLLM's own places have the marks around, too."""
    offset, features = place
    first = features.index(True)
    return offset + first, features[first : len(features) - features[::-1].index(True)]


def gap_of(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


def test_a_text_model_takes_no_pictures() -> None:
    async def go() -> None:
        model, tokenizer = calculator()
        fleet = Vllm().build(model, tokenizer, seed=0, experts=None, access=ACCESS)
        await fleet.load(0, dict(model.state_dict()))
        with pytest.raises(Usage, match="takes none"):
            await fleet.score((1, 2), (3,), pictures=(noise(1),))

    run(go())
