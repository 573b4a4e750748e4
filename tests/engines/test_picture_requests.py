"""Pictures of requests to engines in other processes: the wire, its bounds, their places, and the identity of a model.

vLLM does not run here: its own part is in `test_vllm_pictures.py`.
"""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from groupwise.core import BadData, Usage
from groupwise.data import GenerationRequest, Picture
from groupwise.data.pictures import MOST_PICTURES
from groupwise.data.rollout_json import to_json
from groupwise.engines import EngineAccess, EngineIdentity, NativeEngine, Served, Vllm
from groupwise.engines.remote import served_settings
from groupwise.engines.remote.published_weights import published_weights
from groupwise.engines.remote.served_settings import EngineRequirements
from groupwise.engines.remote.weights_probe import WeightsProbe
from groupwise.engines.remote.wire import generation_request
from groupwise.engines.vllm.vllm_engine import prompt_with_pictures
from groupwise.engines.vllm.vllm_pictures import PicturePlacer
from groupwise.engines.vllm.vllm_replicas import check_model, check_windows
from groupwise.models import Lora, VisionSizes, attach, keep_pictures, outline, read_shape, read_tokenizer
from groupwise.models.vision.vision_families import read_processor
from groupwise.models.vision.vision_files import vision_sizes, write_architecture
from tests.engines.lines import remote, run
from tests.models.test_vision_model import FAMILIES, prompt_of
from tests.models.vision_directories import noise, tiny_vision, vision_directory

ON_CPU = EngineRequirements(dtype="float32", device="cpu")


def request_of(*pictures: Picture) -> GenerationRequest:
    _, tokenizer = tiny_vision()
    prompt = prompt_of(tokenizer, "red", *pictures)
    return GenerationRequest(
        context=prompt.token_ids, limit=5, draw_id=3, stream=(0,), content_hash=prompt.content_hash,
        pictures=prompt.pictures,
    )  # fmt: skip


def test_pictures_travel_with_requests_and_scores() -> None:
    """A vision-language model behind the wire has the answers of one in this process."""

    async def go() -> None:
        model, tokenizer = tiny_vision()
        here = NativeEngine(model, tokenizer, seed=1)
        there = await remote(NativeEngine(tiny_vision()[0], tokenizer, seed=1), vocabulary=model.shape.vocabulary_size)
        found = [await there.sample(request_of(noise(i))) for i in (1, 2)]
        assert found == [await here.sample(request_of(noise(i))) for i in (1, 2)]
        assert found[0].logp[0] != found[1].logp[0], "equal tokens, another picture"
        asked = request_of(noise(1), noise(2))
        scores = await there.score(asked.context, (9, 12), pictures=asked.pictures)
        assert scores == await here.score(asked.context, (9, 12), pictures=asked.pictures)
        other = replace(noise(3), png=noise(4).png)
        with pytest.raises(ValueError, match="other pixels than its hash names"):
            await there.score(asked.context, (9, 12), pictures=(other, noise(2)))

    run(go())


GOOD = to_json(noise(1))


@pytest.mark.parametrize(
    "changes",
    [
        {"width": 0},
        {"width": 1 << 13, "height": 1 << 12},
        {"height": "16"},
        {"sha256": "x" * 64},
        {"sha256": 7},
        {"png": "!"},
        {"png": None},
        {"more": 1},
    ],
)
def test_a_malformed_picture_is_refused_before_an_engine_gets_it(changes: dict[str, Any]) -> None:
    asked = to_json(request_of(noise(1)))
    assert generation_request(asked).pictures == (noise(1),)
    with pytest.raises(ValueError):
        generation_request({**asked, "pictures": [{**GOOD, **changes}]})


def test_too_many_pictures_and_another_hash_are_refused() -> None:
    asked = to_json(request_of(noise(1)))
    with pytest.raises(ValueError, match=f"at most {MOST_PICTURES}"):
        generation_request({**asked, "pictures": [GOOD] * (MOST_PICTURES + 1)})
    with pytest.raises(ValueError, match="not that of its pictures"):
        generation_request({**asked, "pictures": [to_json(noise(2))]})


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_pictures_are_placed_at_the_placeholders_that_the_learner_fills(family: str, split: bool) -> None:
    """Also after a placeholder that the policy sampled; the tensors give the features of the learner."""
    model, tokenizer = tiny_vision(family, split=split)
    pictures = (noise(1, width=24), noise(2, width=33, height=20))
    prompt = prompt_of(tokenizer, "red", *pictures)
    keep_pictures(model, prompt.content_hash, pictures)
    placer = PicturePlacer(read_processor(vision_directory(family, split=split)), model.placeholder)
    placed = placer.place((*prompt.token_ids, 9, model.placeholder), pictures)
    places = [p.offset + i for p in placed for i, is_feature in enumerate(p.is_feature) if is_feature]
    assert places == [i for i, token in enumerate(prompt.token_ids) if token == model.placeholder]
    assert len(places) == len(model.features(prompt.content_hash))
    assert [p.sha256 for p in placed] == [p.sha256 for p in pictures]
    again = placer.place(prompt.token_ids, pictures)
    assert all(a.pixel_rows["pixel_values"] is b.pixel_rows["pixel_values"] for a, b in zip(placed, again))
    with pytest.raises(BadData, match="placeholders for"):
        placer.place(tokenizer.encode("red"), pictures)


@pytest.mark.parametrize("family", FAMILIES)
def test_vllms_prompt_has_our_tokens_and_a_hash_a_place_and_rows_for_each_picture(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With stand-ins for the four names of vLLM 0.32 that it takes."""
    field = SimpleNamespace(
        flat_from_sizes=lambda kind, sizes: (kind, sizes.tolist()),
        batched=lambda kind, keep_on_cpu: (kind, keep_on_cpu),
    )
    items = SimpleNamespace(from_hf_inputs=lambda tensors, fields: (tensors, fields))
    places = {"PlaceholderRange": lambda offset, length, is_embed: (offset, length, is_embed)}
    stand_in = SimpleNamespace(MultiModalFieldConfig=field, MultiModalKwargsItems=items, **places)
    mm_input = lambda ids, tensors, hashes, ranges: {"ids": ids, "tensors": tensors, "hashes": hashes, "ranges": ranges}  # noqa: E731
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "vllm.inputs", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "vllm.multimodal", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "vllm.inputs.engine", SimpleNamespace(mm_input=mm_input))
    monkeypatch.setitem(sys.modules, "vllm.multimodal.inputs", stand_in)
    model, tokenizer = tiny_vision(family, split=True)
    pictures = (noise(1), noise(2, width=33, height=20))
    prompt = prompt_of(tokenizer, "red", *pictures)
    placed = PicturePlacer(model.processor, model.placeholder).place(prompt.token_ids, pictures)
    found = prompt_with_pictures((*prompt.token_ids, 9), placed)
    tensors, fields = found["tensors"]
    rows = [len(p.pixel_rows["pixel_values"]) for p in placed]
    assert found["ids"] == [*prompt.token_ids, 9] and found["hashes"] == {"image": [p.sha256 for p in pictures]}
    assert fields["pixel_values"] == ("image", rows) and len(tensors["pixel_values"]) == sum(rows)
    name = "image_grid_thw" if family == "qwen2_5_vl" else "num_patches"
    assert fields[name] == ("image", True) and len(tensors[name]) == 2
    assert [r[0] for r in found["ranges"]["image"]] == [p.offset for p in placed]
    whole = [r[2] is None for r in found["ranges"]["image"]]
    assert whole == [family == "qwen2_5_vl" or len(p.pixel_rows["pixel_values"]) == 1 for p in placed]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_directory_without_weights_has_the_identity_of_the_model(family: str, tmp_path: Path) -> None:
    """The engine reads it in its own process, as an outline; another architecture is another identity."""
    model, tokenizer = tiny_vision(family, dtype=torch.float32)
    write_architecture(model, tmp_path, tokenizer=tokenizer)
    shell = outline(tmp_path)
    assert read_shape(tmp_path) == vision_sizes(shell) == read_shape(vision_directory(family))
    mine = EngineIdentity.of(model, tokenizer, seed=3)
    assert mine == EngineIdentity.of(shell.float(), read_tokenizer(tmp_path), seed=3)
    shell.config.vision_config.hidden_size *= 2  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
    assert mine != EngineIdentity.of(shell.float(), tokenizer, seed=3)


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_have_the_names_of_files_each_once(family: str) -> None:
    model, _ = tiny_vision(family, dtype=torch.float32)
    names = {name for name, _ in outline(vision_directory(family)).named_parameters()}
    assert published_weights(model, model.state_dict(), merges=True).keys() == names
    attach(model, Lora(rank=2, target_modules=("q_proj",)), seed=0)
    for name, matrix in model.named_parameters():
        if ".lora_B" in name:
            torch.nn.init.ones_(matrix)
    merged = published_weights(model, model.state_dict(), merges=True)
    assert merged.keys() == names
    plain = tiny_vision(family, dtype=torch.float32)[0].state_dict()
    changed = {name for name, x in merged.items() if (x != plain[f"causal.{name}"]).any()}
    assert changed == {name for name in names if name.endswith(".q_proj.weight") and ".vision" not in name}


def test_the_probe_sees_the_vision_tower() -> None:
    model, tokenizer = tiny_vision()
    probe = WeightsProbe(model, tokenizer, 1e-3)

    async def go() -> None:
        before = await probe.expect(0, model.state_dict(), None)
        with torch.no_grad():
            for weight in model.tower[0].parameters():
                weight.mul_(1.5)
        after = await probe.expect(1, model.state_dict(), before)
        assert max(abs(a - b) for a, b in zip(after.current, after.previous)) > 1e-3

    assert probe.pictures
    asyncio.run(go())


def test_weights_of_vllm_on_a_cpu_are_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_settings, "can_seal", lambda size: True)
    assert Served().publishes_in_memory(EngineAccess(), 1) and not Vllm().publishes_in_memory(EngineAccess(), 1)


def test_vllm_takes_vision_language_models_and_served_engines_do_not() -> None:
    shell = outline(vision_directory("qwen2_5_vl", wide=True))
    Vllm(replicas=0, addresses=("one.sock",)).check(shell, None, ON_CPU)
    with pytest.raises(Usage, match="engines in other processes cannot run this model") as caught:
        Served().check(shell, None, ON_CPU)
    assert "Vllm" in caught.value.fix
    check_windows(shell)
    with pytest.raises(Usage) as windows:
        check_windows(outline(vision_directory("qwen2_5_vl")))
    assert "some of its layers have an attention window" in windows.value.evidence
    shape = vision_sizes(shell)
    assert isinstance(shape, VisionSizes)
    with pytest.raises(Usage) as refused:
        check_model(replace(shape, heads=6, kv_heads=3), replace(ON_CPU, device="cuda"), sleeps=False, size=3)
    assert "2 heads of its vision tower" in refused.value.evidence
    with pytest.raises(Usage) as small:
        Vllm(replicas=0, addresses=("one.sock",)).check(outline(vision_directory()), None, ON_CPU)
    assert "head_dim is 8" in small.value.evidence
