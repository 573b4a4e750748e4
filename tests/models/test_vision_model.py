"""Packed prompts with pictures give the logits of transformers, features are cached, and gradients reach the tower."""

import asyncio
import copy
import importlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from groupwise.core import BadData, Usage
from groupwise.data import Generation, GenerationRequest, Picture, Prompt, Sample
from groupwise.engines.native.native_engine import NativeEngine
from groupwise.models import (
    PrefixPacking,
    Tokenizer,
    VisionModel,
    find_model,
    find_template,
    keep_pictures,
    outline,
    pixels_of_picture,
    read_model,
    read_tokenizer,
)
from groupwise.models.vision.processor import IMAGE
from groupwise.models.vision.qwen_processor import END, START
from groupwise.models.vision.qwen_vision_model import QwenVisionModel, rotary_positions, shift
from tests.models.vision_directories import noise, tiny_vision, vision_directory

FAMILIES = ("idefics3", "smolvlm", "qwen2_5_vl")


def prompt_of(tokenizer: Tokenizer, text: str, *pictures: Picture) -> Prompt:
    ids = find_template("no", tokenizer)(text, pictures=pictures)
    return Prompt("p", ids, text, pictures=pictures)


def packed_logits(model: VisionModel, prompts: list[Prompt], answers: list[tuple[int, ...]]) -> torch.Tensor:
    """The logits that predict the answers' tokens, from one packed forward."""
    for prompt in prompts:
        keep_pictures(model, prompt.content_hash, prompt.pictures)
    layout = PrefixPacking.of([p.token_ids for p in prompts], answers, contents=[p.content_hash for p in prompts])
    return model.head(model(layout.tokens, layout))[layout.predicting_indices]


def separate_logits(model: VisionModel, prompts: list[Prompt], answers: list[tuple[int, ...]]) -> torch.Tensor:
    """The same logits by transformers' own forward, one prompt at a time."""
    causal = copy.deepcopy(model.causal)
    causal.set_attn_implementation({"": "sdpa", "text_config": "sdpa", "vision_config": "sdpa"})
    parts = []
    for prompt, answer in zip(prompts, answers):
        ids = torch.tensor([prompt.token_ids + answer])
        extra = library_inputs(model, prompt, len(answer)) if prompt.pictures else {}
        parts.append(causal(input_ids=ids, **extra).logits[0, len(prompt.token_ids) - 1 : -1])
    return torch.cat(parts)


def library_inputs(model: VisionModel, prompt: Prompt, answer: int) -> dict[str, torch.Tensor]:
    """What transformers' forward takes besides ids, for a prompt with pictures and an answer of so many tokens."""
    if not isinstance(model, QwenVisionModel):
        return {"pixel_values": torch.cat([model.processor.frames(p) for p in prompt.pictures])[None].double()}
    path = vision_directory("qwen2_5_vl")
    images = [np.array(pixels_of_picture(picture)) for picture in prompt.pictures]
    processed = importlib.import_module("transformers").Qwen2VLImageProcessorPil.from_pretrained(path)(
        images, input_data_format="channels_last", return_tensors="pt"
    )
    kinds = [int(token == model.placeholder) for token in prompt.token_ids] + [0] * answer
    return {
        "pixel_values": processed["pixel_values"].double(), "image_grid_thw": processed["image_grid_thw"],
        "mm_token_type_ids": torch.tensor([kinds]),
    }  # fmt: skip


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_prompts_with_pictures_have_the_logits_of_transformers(family: str, split: bool) -> None:
    model, tokenizer = tiny_vision(family, split=split)
    a, b = noise(1), noise(2, width=20, height=9)
    prompts = [
        prompt_of(tokenizer, "red", a),
        prompt_of(tokenizer, "red", b),
        prompt_of(tokenizer, "red", a),
        prompt_of(tokenizer, "which?", a, b),
        prompt_of(tokenizer, "no picture"),
        prompt_of(tokenizer, "red", a),
    ]
    mark = model.placeholder  # text if it is sampled
    answers = [(9, 12, 6), (9, 12, 6), (9, 5, 13, 8), (14, 14), (7, 30, 31), (mark, mark, 9)]
    packed, separate = packed_logits(model, prompts, answers), separate_logits(model, prompts, answers[:-1])
    expected = len(separate)
    assert (packed[:expected] - separate).abs().max() < 1e-12
    assert (packed[:3] - packed[3:6]).abs().max() > 1e-3, "another picture, equal tokens: other logits"
    alone = packed_logits(model, prompts[-1:], answers[-1:])
    assert (packed[expected:] - alone).abs().max() < 1e-12
    turn = replace(
        prompts[-1], token_ids=(*prompts[-1].token_ids, mark, mark)
    )  # its sampled tokens, as a later context
    assert (packed_logits(model, [turn], [(9,)]) - alone[2:]).abs().max() < 1e-12


def test_contexts_with_equal_tokens_and_other_pictures_share_nothing() -> None:
    _, tokenizer = tiny_vision()
    a, b = prompt_of(tokenizer, "red", noise(1)), prompt_of(tokenizer, "red", noise(2))
    assert a.token_ids == b.token_ids and a.content_hash != b.content_hash
    packing = {
        hashes: len(PrefixPacking.of([a.token_ids] * 2, [(9, 8), (9, 7)], contents=hashes).tokens)
        for hashes in ((a.content_hash, a.content_hash), (a.content_hash, b.content_hash))
    }
    assert list(packing.values()) == [len(a.token_ids) + 1, 2 * len(a.token_ids) + 2]
    sample = Sample(context=(1,), stream=(0,), content_hash=a.content_hash, prompt_views={"other": a.token_ids})
    assert sample.under("other").context_key == (a.content_hash, a.token_ids), "another prompt keeps the pictures"


@pytest.mark.parametrize("family", FAMILIES)
def test_features_are_computed_once_for_each_version_of_the_tower(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = tiny_vision(family)
    content = prompt_of(tokenizer, "red", noise(1)).content_hash
    keep_pictures(model, content, (noise(1),))
    computed: list[str] = []
    original = type(model)._computed
    monkeypatch.setattr(type(model), "_computed", lambda self, h: computed.append(h) or original(self, h))
    weight = next(model.tower[0].parameters())
    with torch.inference_mode():
        first = model.features(content)
        assert model.features(content) is first and len(computed) == 1
    assert model.features(content).requires_grad and len(computed) == 2, "the learner computes them with a gradient"
    with torch.no_grad():
        weight.mul_(1.5)
        assert (model.features(content) - first).abs().max() > 1e-3, "without one, too: a step changes the weights"
    model.drop_features()
    with torch.inference_mode():
        assert (model.features(content) - first).abs().max() > 1e-3
    assert len(computed) == 4
    model.freeze_tower()
    model.drop_features()
    frozen = model.features(content)
    assert len(computed) == 4 and not frozen.requires_grad, "once in a run"
    assert not frozen.is_inference(), "autograd of a learner uses what an engine computed"


@pytest.mark.parametrize("family", FAMILIES)
def test_an_engine_drops_features_with_its_weights(family: str) -> None:
    model, tokenizer = tiny_vision(family)
    prompt = prompt_of(tokenizer, "red", noise(1))
    engine = NativeEngine(model, tokenizer, seed=0)
    request = GenerationRequest(
        context=prompt.token_ids, limit=3, draw_id=0, stream=(0,), content_hash=prompt.content_hash,
        pictures=prompt.pictures,
    )  # fmt: skip
    before = asyncio.run(engine.sample(request))
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    weights[next(name for name in weights if "patch_embed" in name)] *= -1
    asyncio.run(engine.load(1, weights))
    after = asyncio.run(engine.sample(request))
    assert before.logp != after.logp and after.versions[0] == 1
    expected = packed_logits(model, [prompt], [after.tokens]).log_softmax(-1)
    logp = expected.gather(1, torch.tensor(after.tokens)[:, None])[:, 0]
    assert (logp - torch.tensor(after.logp, dtype=torch.float64)).abs().max() < 1e-12


@pytest.mark.parametrize("text", ["red", "red " * 20])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_engine_and_the_learner_agree_and_pictures_share_nothing(family: str, text: str) -> None:
    """Also a prompt of over 64 tokens, whose keys its answers share."""
    model, tokenizer = tiny_vision(family)
    prompts = [prompt_of(tokenizer, text, noise(1)), prompt_of(tokenizer, text, noise(2))]
    assert prompts[0].token_ids == prompts[1].token_ids

    async def sample() -> list[Generation]:
        engine = NativeEngine(model, tokenizer, seed=0)
        requests = [
            GenerationRequest(
                context=p.token_ids, limit=6, draw_id=7, stream=(stream,), content_hash=p.content_hash,
                pictures=p.pictures,
            )
            for stream in range(3)
            for p in prompts
        ]  # fmt: skip
        return await asyncio.gather(*map(engine.sample, requests))

    generations = asyncio.run(sample())
    logits = packed_logits(model, prompts * 3, [g.tokens for g in generations]).log_softmax(-1)
    tokens = torch.tensor([token for g in generations for token in g.tokens])
    engine = torch.tensor([logp for g in generations for logp in g.logp], dtype=torch.float64)
    assert (logits.gather(1, tokens[:, None])[:, 0] - engine).abs().max() < 1e-12
    assert generations[0].logp[0] != generations[1].logp[0], "equal tokens and random numbers, another picture"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_engine_scores_an_answer_after_pictures_as_the_learner_does(family: str) -> None:
    model, tokenizer = tiny_vision(family)
    prompts = [prompt_of(tokenizer, "red", noise(1)), prompt_of(tokenizer, "red", noise(2))]
    answer, engine = (9, 12, 7), NativeEngine(model, tokenizer, seed=0)
    logits = packed_logits(model, prompts, [answer] * 2).log_softmax(-1)
    learner = logits.gather(1, torch.tensor(answer * 2)[:, None])[:, 0].unflatten(0, (2, 3))
    scores = [asyncio.run(engine.score(p.token_ids, answer, pictures=p.pictures)) for p in prompts]
    assert (torch.tensor(scores, dtype=torch.float64) - learner).abs().max() < 1e-12
    assert scores[0] != scores[1], "equal tokens, another picture"


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_reach_the_tower_unless_it_is_frozen(family: str) -> None:
    model, tokenizer = tiny_vision(family)
    prompt = prompt_of(tokenizer, "red", noise(1))
    for frozen in (False, True):
        if frozen:
            model.freeze_tower()
        model.zero_grad()
        packed_logits(model, [prompt], [(9, 12)]).logsumexp(-1).sum().backward()
        tower = [w.grad for module in model.tower for name, w in module.named_parameters() if "k_proj.b" not in name]
        assert all((g is None) == frozen for g in tower)
        assert frozen or all(g.abs().max() > 0 for g in tower if g is not None)
        assert model.causal.get_input_embeddings().weight.grad is not None


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("size", [(16, 16), (33, 16), (9, 40), (7, 5), (200, 100)])
def test_text_and_pixels_are_those_of_the_processor_of_transformers(split: bool, size: tuple[int, int]) -> None:
    transformers = importlib.import_module("transformers")
    path = vision_directory(split=split)
    model, tokenizer = tiny_vision(split=split)
    picture = noise(3, width=size[0], height=size[1])
    images = transformers.Idefics3ImageProcessorPil.from_pretrained(path)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path / "tokenizer.json"))
    processor = transformers.Idefics3Processor(images, fast, image_seq_len=model.processor.features)
    theirs = processor(images=[np.array(pixels_of_picture(picture))], text=[f"{IMAGE}red?"], return_tensors="pt")
    ours = find_template("no", tokenizer)("red?", pictures=(picture,))
    assert ours == tuple(theirs["input_ids"][0].tolist())
    assert torch.equal(model.processor.frames(picture), theirs["pixel_values"][0].float())


@pytest.mark.parametrize("size", [(16, 16), (33, 16), (9, 40), (7, 5), (200, 100)])
def test_text_and_patches_are_those_of_the_processor_of_qwen(size: tuple[int, int]) -> None:
    transformers = importlib.import_module("transformers")
    path = vision_directory("qwen2_5_vl")
    model, tokenizer = tiny_vision("qwen2_5_vl")
    assert isinstance(model, QwenVisionModel)
    picture = noise(3, width=size[0], height=size[1])
    images = transformers.Qwen2VLImageProcessorPil.from_pretrained(path)
    theirs = images([np.array(pixels_of_picture(picture))], input_data_format="channels_last", return_tensors="pt")
    _, rows, columns = theirs["image_grid_thw"][0].tolist()
    ids = tokenizer.control_tokens.ids_by_spelling
    placeholders = (model.placeholder,) * (rows * columns // 4)
    expected = (ids[START], *placeholders, ids[END], *tokenizer.encode("red?"))
    assert find_template("no", tokenizer)("red?", pictures=(picture,)) == expected
    assert find_template("chat", tokenizer)("red?", pictures=(picture,))[5 : 5 + len(placeholders) + 2] == expected[:-4]
    assert model.processor.grid(picture) == (rows // 2, columns // 2)
    assert torch.equal(model.processor.patches(picture), theirs["pixel_values"].float())


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(0, 3)), min_size=1, max_size=4))
def test_positions_in_time_rows_and_columns_are_those_of_transformers(pictures: list[tuple[int, int, int]]) -> None:
    model, _ = tiny_vision("qwen2_5_vl")
    context: list[int] = []
    for rows, columns, words in pictures:
        context += [5] * words + [6] + [model.placeholder] * (rows * columns) + [7]
    grids = [(rows, columns) for rows, columns, _ in pictures]
    library = model.causal.get_submodule("model")
    kinds = torch.tensor([[int(token == model.placeholder) for token in context]])
    grid = torch.tensor([[1, 2 * rows, 2 * columns] for rows, columns in grids])
    expected, delta = library.get_rope_index(torch.tensor([context]), kinds, image_grid_thw=grid)
    assert (rotary_positions(tuple(context), model.placeholder, grids) == expected[:, 0].numpy()).all()
    assert shift(grids) == int(delta)


def test_a_picture_that_is_too_long_for_its_width_is_refused() -> None:
    _, tokenizer = tiny_vision("qwen2_5_vl")
    with pytest.raises(BadData, match="does not fit the model"):
        find_template("no", tokenizer)("red", pictures=(noise(1, width=402, height=2),))


def test_a_prompt_without_its_placeholders_is_refused() -> None:
    model, tokenizer = tiny_vision()
    prompt = Prompt("p", tokenizer.encode("red"), "red", pictures=(noise(1),))
    with pytest.raises(BadData, match="0 placeholders for 4 features"):
        packed_logits(model, [prompt], [(9,)])


def test_a_text_model_takes_no_pictures() -> None:
    directory = find_model("calculator")
    with pytest.raises(Usage, match="takes none"):
        keep_pictures(read_model(directory), "hash", (noise(1),))
    with pytest.raises(BadData, match="the model takes none"):
        find_template("no", read_tokenizer(directory))("7*5=", pictures=(noise(1),))


def test_a_picture_has_the_pixels_that_its_hash_names() -> None:
    """Pictures come from other processes, too."""
    picture, other = noise(1), noise(2)
    for wrong in (replace(picture, png=other.png), replace(picture, width=8, height=32)):
        with pytest.raises(ValueError, match="other pixels than its hash names"):
            pixels_of_picture(wrong)


def test_unknown_pictures_are_a_typed_error() -> None:
    model, _ = tiny_vision()
    with pytest.raises(BadData, match="not in this process"):
        model.features("0" * 64)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_outline_has_the_weights_of_the_model(family: str) -> None:
    model, _ = tiny_vision(family)
    shapes = {name: tuple(w.shape) for name, w in outline(vision_directory(family)).named_parameters()}
    assert shapes == {name.removeprefix("causal."): tuple(w.shape) for name, w in model.named_parameters()}
