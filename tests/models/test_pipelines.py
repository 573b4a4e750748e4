"""Pipelines of diffusers: equal pictures and steps, adapters that diffusers reads, refusals.

diffusers itself is the reference: no number here is from our code alone.
"""

import asyncio
import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers.pre_tokenizers import ByteLevel

from groupwise.config.user_code import UserCode
from groupwise.core import BadData, GroupwiseError, MissingRequirement
from groupwise.data import GenerationRequest, Sampling
from groupwise.engines.steps.denoising import DenoisingEngine
from groupwise.models import (
    LORA_TARGETS,
    DenoisingSettings,
    FlowGrpoNoise,
    FlowPolicy,
    FluxFamily,
    Lora,
    PipelineSettings,
    attach,
    decoded_picture,
    final_state,
    fingerprint,
    graded_state,
    guidance_scale,
    is_pipeline,
    read_model,
    read_shape,
    read_tokenizer,
    set_pipeline,
    sized,
    write_adapter,
)
from groupwise.models.diffusion import pipeline_index
from groupwise.models.diffusion.prompt_bytes import byte_characters, prompt_text
from groupwise.models.diffusion.tiny_pipeline import KINDS, T5_LENGTH, write_tiny_pipeline
from groupwise.models.flow.counter_based_normals import LARGE, normals
from groupwise.models.flow.denoising_actions import decode_action
from groupwise.models.flow.denoising_noise import euler
from groupwise.training.sample_pictures import on_sheet
from tests.checks import check

diffusers = pytest.importorskip("diffusers", reason="pipelines need diffusers: pip install 'groupwise[diffusion]'")
pytest.importorskip("peft", reason="adapters need peft: pip install 'groupwise[lora]'")
PROMPT = "a red ball"
LORA = Lora(rank=3, alpha=12.0, target_modules=LORA_TARGETS)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pipelines") / "tiny"
    write_tiny_pipeline(directory)
    return directory


@pytest.fixture(scope="module")
def flux(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pipelines") / "flux"
    write_tiny_pipeline(directory, "flux_dev")
    return directory


@pytest.fixture(scope="module", params=KINDS)
def any_tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny pipeline of each kind, for what holds for all."""
    directory = tmp_path_factory.mktemp("pipelines") / request.param
    write_tiny_pipeline(directory, request.param)
    return directory


def policy_of(directory: Path, steps: int = 4, guidance: float | None = None, **options: Any) -> FlowPolicy:
    policy = read_model(directory, **options)
    assert isinstance(policy, FlowPolicy)
    policy.denoise = DenoisingSettings(steps=steps)
    set_pipeline(policy, PipelineSettings(guidance_scale=guidance))
    return policy


def theirs(directory: Path) -> Any:
    """The pipeline of diffusers."""
    name = json.loads((directory / "model_index.json").read_text())["_class_name"]
    third = {} if name == "FluxPipeline" else {"text_encoder_3": None, "tokenizer_3": None}
    pipe = getattr(diffusers, name).from_pretrained(directory, local_files_only=True, **third)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def made_by(pipe: Any, steps: int, size: int = 16, **options: Any) -> Any:
    """What diffusers makes of the prompt."""
    length = {"max_sequence_length": T5_LENGTH} if is_flux(pipe) else {}
    scale = {} if is_flux(pipe) else {"guidance_scale": 4.5}  # that of FLUX is diffusers' own
    return pipe(PROMPT, num_inference_steps=steps, height=size, width=size, **(scale | length | options)).images[0]


def is_flux(pipe: Any) -> bool:
    return type(pipe).__name__ == "FluxPipeline"


def picture_of(pipe: Any, noise: np.ndarray, steps: int, **options: Any) -> np.ndarray:
    latents = torch.from_numpy(noise.copy())[None]
    if is_flux(pipe):
        latents = pipe._pack_latents(latents, *latents.shape)
    return (made_by(pipe, steps, latents=latents, output_type="np", **options) * 255).round().astype(np.uint8)


def samples(policy: FlowPolicy, directory: Path, n: int = 1, temperature: float = 0.0, rows: int = 256) -> list[Any]:
    """`n` samples of one draw."""
    context = read_tokenizer(directory).encode(PROMPT)
    sampling = Sampling(temperature=temperature, max_tokens=policy.denoise.steps)

    async def generate() -> list[Any]:
        engine = DenoisingEngine(policy, seed=0, max_num_seqs=rows)
        requests = [
            GenerationRequest(
                context=context, limit=99, draw_id=0, stream=(i,), already_generated_count=0, sampling=sampling
            )
            for i in range(n)
        ]
        return await asyncio.gather(*map(engine.sample, requests))

    return asyncio.run(generate())


@pytest.mark.parametrize(("steps", "guidance"), [(4, None), (3, 1.0), (2, 7.0)])
def test_without_noise_a_sample_is_the_picture_of_diffusers(any_tiny: Path, steps: int, guidance: float | None) -> None:
    guidance = None if any_tiny.name == "flux_schnell" else guidance
    (sample,) = samples(policy_of(any_tiny, steps, guidance), any_tiny)
    options = {} if guidance is None else {"guidance_scale": guidance}
    expected = picture_of(theirs(any_tiny), decode_action(sample.actions[0])[0], steps, **options)
    picture, graded = decoded_picture(sample.actions), graded_state(sample.actions)
    assert picture is not None and graded is not None and picture.shape == (16, 16, 3)
    assert np.abs(picture.astype(int) - expected).max() <= 1 and picture.std() > 10
    assert graded.shape == policy_of(any_tiny).shape.graded and np.allclose(
        graded.transpose(1, 2, 0), picture / 127.5 - 1, atol=1e-5
    )
    assert final_state(sample.actions).shape == (4, 8, 8)  # type: ignore[union-attr]


@pytest.mark.parametrize("changes", [{}, {"shift": 1.0}, {"use_dynamic_shifting": True, "base_image_seq_len": 16}])
def test_times_and_steps_are_those_of_the_scheduler(any_tiny: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    """The shift is not applied twice; the last times are the scheduler's own, not those of the formula."""
    directory = changed(any_tiny, tmp_path, "scheduler/scheduler_config.json", **changes)
    policy, pipe = policy_of(directory, steps=5), theirs(directory)
    scheduler = pipe.scheduler
    for size in (32, 16):  # FLUX dev shifts the times of larger pictures more
        set_pipeline(policy, PipelineSettings(picture_size=size))
        made_by(pipe, 5, size, output_type="latent")  # sets the times as the pipeline does
        assert list(policy.times) == scheduler.sigmas.tolist()
    state, velocity = torch.randn(2, 2, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    pack = (lambda x: pipe._pack_latents(x, *x.shape)) if is_flux(pipe) else (lambda x: x)
    for i, t in enumerate(scheduler.timesteps):
        scheduler._step_index = i
        now, then = (torch.tensor([policy.times[j]] * 2) for j in (i, i + 1))
        stepped = scheduler.step(pack(velocity), t, pack(state)).prev_sample
        assert torch.equal(pack(euler(state, velocity, now, then)), stepped)


def test_other_samples_change_no_bit_and_states_stay_float32(any_tiny: Path) -> None:
    policy = policy_of(any_tiny, steps=3, guidance=1.0)
    together, alone = samples(policy, any_tiny, 3, 1.0), samples(policy, any_tiny, 1, 1.0)
    assert alone[0].actions == together[0].actions != together[1].actions
    few = samples(policy, any_tiny, 3, 1.0, rows=2)
    states = [np.stack([decode_action(a) for a in sample.actions]) for sample in (few[2], together[2])]
    assert np.allclose(*states, atol=1e-5)
    low = policy_of(any_tiny, steps=3, dtype=torch.bfloat16)
    assert low.dtype_device["dtype"] == torch.float32 and next(low.parameters()).dtype == torch.bfloat16
    (sample,) = samples(low, any_tiny, 1, 1.0)
    before, after, mean = decode_action(sample.actions[0])
    x, t = torch.from_numpy(before.copy())[None], torch.tensor([1.0])
    velocity = low.velocity(x, t, low.words([read_tokenizer(any_tiny).encode(PROMPT)]))
    assert velocity.dtype == torch.float32
    exact, _ = FlowGrpoNoise()(x, velocity, t, torch.tensor([low.times[1]]))
    assert np.abs(exact[0].detach().numpy() - mean).max() < 1e-2  # products of 16 rows round otherwise than of one
    assert (after.astype(np.float16) == after).mean() < 0.1  # not rounded to half precision


def trained(tiny: Path) -> FlowPolicy:
    policy = policy_of(tiny)
    attach(policy, LORA, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in policy.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn(weight.shape, generator=generator) / 5)
    return policy


def test_diffusers_reads_the_adapter_and_makes_equal_pictures(any_tiny: Path, tmp_path: Path) -> None:
    policy = trained(any_tiny)
    write_adapter(policy, tmp_path / "a", base=str(any_tiny), base_sha256=fingerprint(any_tiny))
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == [
        "adapter_config.json", "pytorch_lora_weights.safetensors",
    ]  # fmt: skip
    pipe = theirs(any_tiny)
    (sample,) = samples(policy, any_tiny)
    noise, picture = decode_action(sample.actions[0])[0], decoded_picture(sample.actions)
    plain = picture_of(pipe, noise, 4)
    pipe.load_lora_weights(tmp_path / "a")
    expected = picture_of(pipe, noise, 4)
    assert picture is not None and np.abs(picture.astype(int) - expected).max() <= 1
    assert np.abs(plain.astype(int) - expected).max() > 20  # alpha over rank is 4: without it, the pictures differ
    (again,) = samples(policy_of(tmp_path / "a"), any_tiny)
    assert again.actions == sample.actions
    write_adapter(policy, tmp_path / "b", base=str(any_tiny), base_sha256="0" * 64)
    with pytest.raises(BadData, match="trained on another base"):
        read_model(tmp_path / "b")
    shutil.copytree(tmp_path / "a", tmp_path / "c")
    (tmp_path / "c" / "pytorch_lora_weights.safetensors").rename(tmp_path / "c" / "adapter_model.safetensors")
    with pytest.raises(BadData, match="has no pytorch_lora_weights"):
        read_model(tmp_path / "c")


def test_copies_share_what_is_frozen_and_checkpoints_lack_it(any_tiny: Path) -> None:
    policy = trained(any_tiny)
    other = copy.deepcopy(policy)
    assert other.surroundings is policy.surroundings and other.velocity.frozen is policy.velocity.frozen
    assert not any("vae" in name or "text_encoder" in name for name in policy.state_dict())
    frozen = {name for name, weight in policy.named_parameters() if not weight.requires_grad}
    left = policy.state_dict().keys() - frozen
    assert left and all(".lora_" in name for name in left), "no table of positions in a checkpoint"


def test_recomputed_gradients_are_equal(any_tiny: Path) -> None:
    def gradient(recompute: bool) -> list[torch.Tensor]:
        policy = trained(any_tiny)
        if recompute:
            policy.recompute = True
        words = policy.words([read_tokenizer(any_tiny).encode(PROMPT)])
        x = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(0))
        policy.velocity(x, torch.tensor([0.5]), words).square().sum().backward()
        return [w.grad for w in policy.parameters() if w.grad is not None]

    assert all(map(torch.equal, gradient(True), gradient(False)))


def test_prompts_are_bytes_that_give_every_text_back(tiny: Path) -> None:
    assert {*byte_characters()} == {*ByteLevel.alphabet()} and len(byte_characters()) == 256
    text = "Zwei Bälle, 'Ω' \n\t<3> <end> 猫"
    assert prompt_text((*read_tokenizer(tiny).encode(text), 64, 64)) == text
    words = tuple(65 + byte for byte in range(256))
    assert read_tokenizer(tiny).decode(words[:128]) == bytes(range(128)).decode()


def changed(tiny: Path, home: Path, file: str, **fields: Any) -> Path:
    """A copy of the pipeline with changed fields in one of its files; None removes a field."""
    directory = home / "changed"
    shutil.copytree(tiny, directory)
    content = json.loads((directory / file).read_text()) | fields
    (directory / file).write_text(json.dumps({k: v for k, v in content.items() if v is not None}))
    return directory


def without(part: str) -> Callable[[Path], None]:
    return lambda directory: shutil.rmtree(directory / part)


def null(file: str, field: str) -> Callable[[Path], None]:
    """Sets a field of a JSON file to null."""

    def damage(directory: Path) -> None:
        content = json.loads((directory / file).read_text()) | {field: None}
        (directory / file).write_text(json.dumps(content))

    return damage


def pickled(directory: Path) -> None:
    file = directory / "vae" / "diffusion_pytorch_model.safetensors"
    file.rename(file.with_suffix(".bin"))


def cut(directory: Path) -> None:
    file = directory / "transformer" / "diffusion_pytorch_model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])


def without_a_weight(directory: Path) -> None:
    file = directory / "text_encoder_2" / "model.safetensors"
    weights = load_file(file)
    del weights[next(name for name in weights if name.endswith("final_layer_norm.weight"))]
    save_file(weights, file, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("file", "fields", "damage", "message"),
    [
        ("model_index.json", {"_class_name": "WanPipeline"}, None, "makes videos"),
        ("model_index.json", {"_class_name": "Flux2Pipeline"}, None, "'Flux2Pipeline' are not supported"),
        ("model_index.json", {"_class_name": "FluxKontextPipeline"}, None, "make pictures from pictures"),
        ("model_index.json", {"_class_name": "FluxControlNetPipeline"}, None, "make pictures from pictures"),
        ("model_index.json", {"scheduler": ["diffusers", "DDIMScheduler"]}, None, "no flow matching"),
        ("model_index.json", {"text_encoder_2": [None, None]}, None, "lacks parts"),
        ("model_index.json", {"transformer": ["antigravity", "SD3Transformer2DModel"]}, None, "lacks parts"),
        ("text_encoder/config.json", {"text_config": {"_attn_implementation": "user/kernel"}}, None, "names code"),
        ("scheduler/scheduler_config.json", {"stochastic_sampling": True}, None, "not those of the ODE"),
        ("scheduler/scheduler_config.json", {"shift": 0}, None, "does not describe the times"),
        ("scheduler/scheduler_config.json", {"num_train_timesteps": "1000"}, None, "does not describe the times"),
        ("transformer/config.json", {"in_channels": 16}, None, "do not describe a pipeline"),
        ("vae/config.json", {"scaling_factor": 0}, None, "scaling_factor is 0"),
        ("vae/config.json", {}, without("vae"), "lacks its part vae"),
        ("vae/config.json", {}, pickled, "pickles are never loaded"),
        ("vae/config.json", {}, cut, "is damaged"),
        ("vae/config.json", {}, without_a_weight, "text_encoder_2 lack weights that its config.json describes"),
    ],
)
def test_directories_that_cannot_be_trained_are_refused(
    tiny: Path, tmp_path: Path, file: str, fields: Any, damage: Callable[[Path], None] | None, message: str
) -> None:
    directory = changed(tiny, tmp_path, file, **fields)
    if damage is not None:
        damage(directory)
    with pytest.raises(GroupwiseError, match=message) as caught:
        read_model(directory)
    assert caught.value.fix


@pytest.mark.parametrize(
    ("file", "fields", "damage", "message"),
    [
        ("model_index.json", {"text_encoder_2": [None, None]}, None, "lacks parts"),
        ("model_index.json", {"tokenizer_2": ["antigravity", "T5TokenizerFast"]}, None, "lacks parts"),
        ("model_index.json", {"transformer": ["diffusers", "SD3Transformer2DModel"]}, None, "lacks parts"),
        ("text_encoder_2/config.json", {"auto_map": {"AutoModel": "code.T5"}}, None, "names code"),
        ("text_encoder/config.json", {"_attn_implementation": "user/kernel"}, None, "names code"),
        ("scheduler/scheduler_config.json", {"invert_sigmas": True}, None, "not those of the ODE"),
        ("scheduler/scheduler_config.json", {"base_shift": "x"}, None, "base_shift is 'x'"),
        (
            "scheduler/scheduler_config.json",
            {},
            null("scheduler/scheduler_config.json", "max_shift"),
            "max_shift is None",
        ),
        (
            "scheduler/scheduler_config.json",
            {"base_image_seq_len": 9, "max_image_seq_len": 9},
            None,
            "base_image_seq_len is 9",
        ),
        ("scheduler/scheduler_config.json", {"time_shift_type": "x"}, None, "time_shift_type is 'x'"),
        ("vae/config.json", {}, null("vae/config.json", "shift_factor"), "shift_factor is None"),
        ("vae/config.json", {"shift_factor": None}, None, "shift_factor is missing"),
        ("transformer/config.json", {"in_channels": 96, "out_channels": 16}, None, "do not describe a pipeline"),
        ("transformer/config.json", {"axes_dims_rope": [4, 4, 4]}, None, "do not describe a pipeline"),
        ("transformer/config.json", {"guidance_embeds": False}, None, "weights that its config.json does not describe"),
        ("tokenizer_2/tokenizer_config.json", {"model_max_length": 0}, None, "do not describe a pipeline"),
        ("vae/config.json", {"block_out_channels": []}, None, "do not describe a pipeline"),
        ("vae/config.json", {}, without("text_encoder_2"), "lacks its part text_encoder_2"),
        ("vae/config.json", {}, without_a_weight, "text_encoder_2 lack weights that its config.json describes"),
        ("vae/config.json", {}, pickled, "pickles are never loaded"),
    ],
)
def test_directories_of_flux_are_refused(
    flux: Path, tmp_path: Path, file: str, fields: Any, damage: Callable[[Path], None] | None, message: str
) -> None:
    test_directories_that_cannot_be_trained_are_refused(flux, tmp_path, file, fields, damage, message)


def test_a_shift_beyond_all_times_is_refused(flux: Path, tmp_path: Path) -> None:
    """Its numbers are valid one by one: the shift grows by 99.5 from each token of a picture to the next."""
    steep = {"base_image_seq_len": 1, "max_image_seq_len": 2, "max_shift": 100}
    policy = policy_of(changed(flux, tmp_path, "scheduler/scheduler_config.json", **steep))
    with pytest.raises(BadData, match="shifts the times of a picture") as caught:
        _ = policy.times
    assert "pipeline.picture_size" in str(caught.value.fix)


def test_the_index_of_the_published_flux_is_read(flux: Path, tmp_path: Path) -> None:
    """It names the fast tokenizer and no part for pictures, and whole checkpoints lie beside it."""
    named = {"tokenizer_2": ["transformers", "T5TokenizerFast"], "image_encoder": None, "feature_extractor": None}
    directory = changed(flux, tmp_path, "model_index.json", **named)
    (directory / "flux1-dev.safetensors").write_bytes(b"the same weights in another layout, which nothing reads")
    (sample,), (known,) = (samples(policy_of(path, 2), path) for path in (directory, flux))
    assert sample.actions == known.actions and fingerprint(directory) == fingerprint(flux)


def test_the_sizes_of_the_published_flux() -> None:
    """Its configuration leaves out what diffusers has as defaults."""
    transformer = {
        "attention_head_dim": 128, "guidance_embeds": True, "in_channels": 64, "joint_attention_dim": 4096,
        "num_attention_heads": 24, "num_layers": 19, "num_single_layers": 38, "pooled_projection_dim": 768,
    }  # fmt: skip
    vae = {"block_out_channels": [128, 256, 512, 512], "latent_channels": 16, "sample_size": 1024}
    shape = FluxFamily().shape(transformer, vae)
    assert (shape.state_shape, shape.tokens, shape.size, shape.layers) == ((16, 128, 128), 4096, 1024, 57)
    assert (
        sized(shape, PipelineSettings(picture_size=512)).tokens == 1024
        and guidance_scale(shape, PipelineSettings()) == 3.5
    )
    with pytest.raises(ValueError, match="2x2 latents of 16 channels"):  # FLUX.1 Fill reads a picture and a mask
        FluxFamily().shape(transformer | {"in_channels": 384, "out_channels": 64}, vae)


def test_prompts_reach_both_encoders_of_flux(flux: Path) -> None:
    frozen: Any = policy_of(flux).surroundings
    tokens, pooled = zip(*map(frozen.conditions, ("a red ball", "a blue ball")))
    assert tokens[0].shape == (1, T5_LENGTH, 32) and pooled[0].shape == (1, 32)
    assert not torch.equal(*tokens) and not torch.equal(*pooled)


def test_without_diffusers_the_fix_installs_it(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_pipeline(tiny)
    monkeypatch.setattr(pipeline_index, "find_spec", lambda name: None)
    with pytest.raises(MissingRequirement, match="needs diffusers") as caught:
        read_shape(tiny)
    assert caught.value.fix == "pip install 'groupwise[diffusion]'"


def small(tiny: Path, **changes: Any) -> list[tuple[str, str]]:
    fields = {
        "model": tiny, "task": "quilts", "method": "flow_grpo", "lora.rank": 2, "method.group_size": 2, "prompts": 2,
        "method.denoise.steps": 3, "pipeline.guidance_scale": 1, "evaluate.problems": 1, "evaluate.samples": 1,
        "machine.device": "cpu",
    }  # fmt: skip
    return [(name, str(value)) for name, value in (fields | changes).items()]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "grpo"}, "does not set method.denoise"),
        ({"lora": "none"}, 'lora = "none" does not fit'),
        ({"method.denoise.time_shift": 3}, "method.denoise.time_shift does not fit"),
        ({"pipeline.picture_size": 15}, "use --pipeline.picture_size 14"),
        ({"pipeline.picture_size": 64}, "use --pipeline.picture_size 32"),
        ({"pipeline.guidance_scale": 0.5}, "guidance_scale is 0.5"),
        ({"sampling.max_tokens": 2}, "sampling.max_tokens is 2: a sample of"),
        ({"lora.target_modules": '["q_proj"]'}, "no linear layer is called 'q_proj'"),
        ({"model": "rings", "task": "rings", "lora": "none"}, "pipeline does not fit"),
        ({"machine.dtype": "bfloat16", "machine.gradient_checkpointing": "true"}, ""),
    ],
)
def test_check_refuses_recipes_that_do_not_fit_a_pipeline(tiny: Path, changes: dict[str, Any], message: str) -> None:
    fields = dict(small(tiny, **changes))
    if fields.get("lora") == "none":
        del fields["lora.rank"]
    if fields["method"] == "grpo":
        del fields["method.denoise.steps"]
    errors = check(None, [*fields.items()], UserCode())
    assert any(message in str(error) for error in errors) if message else errors == [], errors


def test_check_knows_which_flux_takes_guidance(flux: Path, tmp_path: Path) -> None:
    schnell = tmp_path / "schnell"
    write_tiny_pipeline(schnell, "flux_schnell")

    def found(model: Path, **changes: Any) -> str:
        fields = dict(small(model)) | changes
        return "\n".join(map(str, check(None, [*fields.items()], UserCode())))

    assert found(flux, **{"pipeline.guidance_scale": "7"}) == found(schnell) == ""
    assert "distilled to make pictures without guidance" in found(schnell, **{"pipeline.guidance_scale": "3.5"})
    assert "use --pipeline.picture_size 16" in found(flux, **{"pipeline.picture_size": "18"}), (
        "latents are packed two by two"
    )
    assert found(flux, **{"machine.dtype": "bfloat16", "machine.gradient_checkpointing": "true"}) == ""


def test_the_noise_of_latents_is_keyed_and_normal() -> None:
    rows = normals((7, 0), draws=[1, 1, 2, 1], streams=[0, 1, 0, 0], steps=[0, 0, 0, 3], size=LARGE)
    assert rows.shape == (4, LARGE) and rows.dtype == torch.float32
    assert torch.equal(rows[1], normals((7, 0), [1], [1], [0], LARGE)[0])
    others = [*rows, *normals((8, 0), [1], [0], [0], LARGE), *normals((7, 4), [1], [0], [0], LARGE)]
    correlations = torch.corrcoef(torch.stack(others)) - torch.eye(len(others))
    assert correlations.abs().max() < 0.05, "five standard deviations are 0.04"
    assert abs(float(rows.mean())) < 0.02 and abs(float(rows.std()) - 1) < 0.02


def test_large_pictures_are_reduced_on_a_sheet() -> None:
    picture = np.zeros((300, 260, 3), np.uint8)
    picture[:, :130] = 255
    small = on_sheet(picture)
    assert small is not None and small.shape == (100, 86, 3)
    assert (small[:, :43] == 255).all() and (small[:, 44:] == 0).all()
    assert on_sheet(None) is None and on_sheet(picture[:128, :128]) is not None
    assert np.array_equal(on_sheet(picture[:128, :128]), picture[:128, :128])  # type: ignore[arg-type]
