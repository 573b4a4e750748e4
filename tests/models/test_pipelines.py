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
from tokenizers.pre_tokenizers import ByteLevel

from groupwise.config.user_code import Use
from groupwise.data import BadData, GenerationRequest, GroupwiseError, MissingRequirement, Sampling
from groupwise.models import (
    LORA_TARGETS,
    Denoise,
    FlowNoise,
    FlowPolicy,
    Lora,
    Pipeline,
    attach,
    decoded_picture,
    final_state,
    fingerprint,
    graded_state,
    is_pipeline,
    read_model,
    read_shape,
    read_tokenizer,
    recompute_pipeline,
    set_pipeline,
    write_adapter,
)
from groupwise.models.flow.actions import decode_action
from groupwise.models.flow.noise import euler
from groupwise.models.flow.normals import LARGE, normals
from groupwise.models.pipelines import index
from groupwise.models.pipelines.prompts import byte_characters, prompt_text
from groupwise.models.pipelines.tiny import write_tiny_pipeline
from groupwise.rollout.denoiser import DenoisingEngine
from groupwise.training.check import check
from groupwise.training.pictures import reduced

diffusers = pytest.importorskip("diffusers", reason="pipelines need diffusers: pip install 'groupwise[diffusion]'")
pytest.importorskip("peft", reason="adapters need peft: pip install 'groupwise[lora]'")
PROMPT = "a red ball"
LORA = Lora(rank=3, alpha=12.0, targets=LORA_TARGETS)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pipelines") / "tiny"
    write_tiny_pipeline(directory)
    return directory


def policy_of(directory: Path, steps: int = 4, guidance: float = 4.5, **options: Any) -> FlowPolicy:
    policy = read_model(directory, **options)
    assert isinstance(policy, FlowPolicy)
    policy.denoise = Denoise(steps=steps)
    set_pipeline(policy, Pipeline(guidance=guidance))
    return policy


def theirs(directory: Path) -> Any:
    pipe = diffusers.StableDiffusion3Pipeline.from_pretrained(
        directory, local_files_only=True, text_encoder_3=None, tokenizer_3=None
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def picture_of(pipe: Any, noise: np.ndarray, steps: int, guidance: float) -> np.ndarray:
    latents = torch.from_numpy(noise.copy())[None]
    shares = pipe(PROMPT, latents=latents, num_inference_steps=steps, guidance_scale=guidance, output_type="np").images[
        0
    ]
    return (shares * 255).round().astype(np.uint8)


def samples(policy: FlowPolicy, directory: Path, n: int = 1, temperature: float = 0.0, rows: int = 256) -> list[Any]:
    """`n` samples of one draw."""
    context = read_tokenizer(directory).encode(PROMPT)
    sampling = Sampling(temperature=temperature, max_tokens=policy.denoise.steps)

    async def generate() -> list[Any]:
        engine = DenoisingEngine(policy, seed=0, rows=rows)
        requests = [
            GenerationRequest(context=context, limit=99, draw=0, stream=(i,), at=0, sampling=sampling) for i in range(n)
        ]
        return await asyncio.gather(*map(engine.sample, requests))

    return asyncio.run(generate())


@pytest.mark.parametrize(("steps", "guidance"), [(4, 4.5), (3, 1.0)])
def test_without_noise_a_sample_is_the_picture_of_diffusers(tiny: Path, steps: int, guidance: float) -> None:
    (sample,) = samples(policy_of(tiny, steps, guidance), tiny)
    expected = picture_of(theirs(tiny), decode_action(sample.path[0])[0], steps, guidance)
    picture, graded = decoded_picture(sample.path), graded_state(sample.path)
    assert picture is not None and graded is not None and picture.shape == (16, 16, 3)
    assert np.abs(picture.astype(int) - expected).max() <= 1 and picture.std() > 10
    assert graded.shape == read_shape(tiny).graded and np.allclose(
        graded.transpose(1, 2, 0), picture / 127.5 - 1, atol=1e-5
    )
    assert final_state(sample.path).shape == (4, 8, 8)  # type: ignore[union-attr]


@pytest.mark.parametrize("changes", [{}, {"shift": 1.0}, {"use_dynamic_shifting": True, "base_image_seq_len": 16}])
def test_times_and_steps_are_those_of_the_scheduler(tiny: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    """The shift is not applied twice; the last times are the scheduler's own, not those of the formula."""
    directory = changed(tiny, tmp_path, "scheduler/scheduler_config.json", **changes)
    policy, pipe = policy_of(directory, steps=5), theirs(directory)
    pipe(PROMPT, num_inference_steps=5, output_type="latent")  # sets the times as the pipeline does
    scheduler = pipe.scheduler
    assert list(policy.times) == scheduler.sigmas.tolist()
    set_pipeline(policy, Pipeline(size=32))
    pipe(PROMPT, num_inference_steps=5, height=32, width=32, output_type="latent")
    assert list(policy.times) == scheduler.sigmas.tolist()
    set_pipeline(policy, Pipeline())
    pipe(PROMPT, num_inference_steps=5, output_type="latent")
    state, velocity = torch.randn(2, 2, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    for i, t in enumerate(scheduler.timesteps):
        scheduler._step_index = None
        now, then = (torch.tensor([policy.times[j]] * 2) for j in (i, i + 1))
        assert torch.equal(euler(state, velocity, now, then), scheduler.step(velocity, t, state).prev_sample)


def test_other_samples_change_no_bit_and_states_stay_float32(tiny: Path) -> None:
    policy = policy_of(tiny, steps=3, guidance=1.0)
    together, alone = samples(policy, tiny, 3, 1.0), samples(policy, tiny, 1, 1.0)
    assert alone[0].path == together[0].path != together[1].path
    few = samples(policy, tiny, 3, 1.0, rows=2)
    states = [np.stack([decode_action(a) for a in sample.path]) for sample in (few[2], together[2])]
    assert np.allclose(*states, atol=1e-5)
    low = policy_of(tiny, steps=3, guidance=2.0, dtype=torch.bfloat16)
    assert low.place["dtype"] == torch.float32 and next(low.parameters()).dtype == torch.bfloat16
    (sample,) = samples(low, tiny, 1, 1.0)
    before, after, mean = decode_action(sample.path[0])
    x, t = torch.from_numpy(before.copy())[None], torch.tensor([1.0])
    velocity = low.velocity(x, t, low.words([read_tokenizer(tiny).encode(PROMPT)]))
    assert velocity.dtype == torch.float32
    exact, _ = FlowNoise()(x, velocity, t, torch.tensor([low.times[1]]))
    assert np.abs(exact[0].detach().numpy() - mean).max() < 1e-2  # products of 16 rows round otherwise than of one
    assert len(np.unique(after.astype(np.float16).astype(np.float32) == after)) == 2  # not rounded to half precision


def trained(tiny: Path) -> FlowPolicy:
    policy = policy_of(tiny)
    attach(policy, LORA, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in policy.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn(weight.shape, generator=generator) / 5)
    return policy


def test_diffusers_reads_the_adapter_and_makes_equal_pictures(tiny: Path, tmp_path: Path) -> None:
    policy = trained(tiny)
    write_adapter(policy, tmp_path / "a", base=str(tiny), base_sha256=fingerprint(tiny))
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == [
        "adapter_config.json", "pytorch_lora_weights.safetensors",
    ]  # fmt: skip
    pipe = theirs(tiny)
    (sample,) = samples(policy, tiny)
    noise, picture = decode_action(sample.path[0])[0], decoded_picture(sample.path)
    plain = picture_of(pipe, noise, 4, 4.5)
    pipe.load_lora_weights(tmp_path / "a")
    expected = picture_of(pipe, noise, 4, 4.5)
    assert picture is not None and np.abs(picture.astype(int) - expected).max() <= 1
    assert np.abs(plain.astype(int) - expected).max() > 20  # alpha over rank is 4: without it, the pictures differ
    (again,) = samples(policy_of(tmp_path / "a"), tiny)
    assert again.path == sample.path
    write_adapter(policy, tmp_path / "b", base=str(tiny), base_sha256="0" * 64)
    with pytest.raises(BadData, match="trained on another base"):
        read_model(tmp_path / "b")
    shutil.copytree(tmp_path / "a", tmp_path / "c")
    (tmp_path / "c" / "pytorch_lora_weights.safetensors").rename(tmp_path / "c" / "adapter_model.safetensors")
    with pytest.raises(BadData, match="has no pytorch_lora_weights"):
        read_model(tmp_path / "c")


def test_copies_share_what_is_frozen_and_checkpoints_lack_it(tiny: Path) -> None:
    policy = trained(tiny)
    other = copy.deepcopy(policy)
    assert other.surroundings is policy.surroundings and other.velocity.frozen is policy.velocity.frozen
    assert not any("vae" in name or "text_encoder" in name for name in policy.state_dict())
    frozen = {name for name, weight in policy.named_parameters() if not weight.requires_grad}
    left = policy.state_dict().keys() - frozen
    assert left and all(".lora_" in name for name in left), "no table of positions in a checkpoint"


def test_recomputed_gradients_are_equal(tiny: Path) -> None:
    def gradient(recompute: bool) -> list[torch.Tensor]:
        policy = trained(tiny)
        if recompute:
            recompute_pipeline(policy)
        words = policy.words([read_tokenizer(tiny).encode(PROMPT)])
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


def pickled(directory: Path) -> None:
    file = directory / "vae" / "diffusion_pytorch_model.safetensors"
    file.rename(file.with_suffix(".bin"))


def cut(directory: Path) -> None:
    file = directory / "transformer" / "diffusion_pytorch_model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])


@pytest.mark.parametrize(
    ("file", "fields", "damage", "message"),
    [
        ("model_index.json", {"_class_name": "WanPipeline"}, None, "makes videos"),
        ("model_index.json", {"_class_name": "FluxPipeline"}, None, "'FluxPipeline' are not supported"),
        ("model_index.json", {"scheduler": ["diffusers", "DDIMScheduler"]}, None, "no flow matching"),
        ("model_index.json", {"text_encoder_2": [None, None]}, None, "lacks parts"),
        ("model_index.json", {"transformer": ["antigravity", "SD3Transformer2DModel"]}, None, "lacks parts"),
        ("text_encoder/config.json", {"text_config": {"_attn_implementation": "user/kernel"}}, None, "names code"),
        ("scheduler/scheduler_config.json", {"stochastic_sampling": True}, None, "not those of the ODE"),
        ("transformer/config.json", {"in_channels": 16}, None, "do not describe a pipeline"),
        ("vae/config.json", {}, without("vae"), "lacks its part vae"),
        ("vae/config.json", {}, pickled, "pickles are never loaded"),
        ("vae/config.json", {}, cut, "is damaged"),
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


def test_without_diffusers_the_fix_installs_it(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_pipeline(tiny)
    monkeypatch.setattr(index, "find_spec", lambda name: None)
    with pytest.raises(MissingRequirement, match="needs diffusers") as caught:
        read_shape(tiny)
    assert caught.value.fix == "pip install 'groupwise[diffusion]'"


def small(tiny: Path, **changes: Any) -> list[tuple[str, str]]:
    fields = {
        "model": tiny, "task": "quilts", "method": "flow_grpo", "lora.rank": 2, "method.group_size": 2, "prompts": 2,
        "method.denoise.steps": 3, "pipeline.guidance": 1, "evaluate.problems": 1, "evaluate.samples": 1,
        "machine.device": "cpu",
    }  # fmt: skip
    return [(name, str(value)) for name, value in (fields | changes).items()]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "grpo"}, "does not set method.denoise"),
        ({"lora": "none"}, "lora = none does not fit"),
        ({"method.denoise.shift": 3}, "method.denoise.shift does not fit"),
        ({"pipeline.size": 15}, "use --pipeline.size 14"),
        ({"pipeline.size": 64}, "use --pipeline.size 32"),
        ({"pipeline.guidance": 0.5}, "guidance is 0.5"),
        ({"sampling.max_tokens": 2}, "sampling.max_tokens does not fit"),
        ({"lora.targets": '["q_proj"]'}, "no linear layer is called 'q_proj'"),
        ({"model": "rings", "task": "rings", "lora": "none"}, "pipeline does not fit"),
        ({"machine.dtype": "bfloat16", "machine.recompute": "true"}, ""),
    ],
)
def test_check_refuses_recipes_that_do_not_fit_a_pipeline(tiny: Path, changes: dict[str, Any], message: str) -> None:
    fields = dict(small(tiny, **changes))
    if fields.get("lora") == "none":
        del fields["lora.rank"]
    if fields["method"] == "grpo":
        del fields["method.denoise.steps"]
    errors = check(None, [*fields.items()], Use())
    assert any(message in str(error) for error in errors) if message else errors == [], errors


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
    small = reduced(picture)
    assert small is not None and small.shape == (100, 86, 3)
    assert (small[:, :43] == 255).all() and (small[:, 44:] == 0).all()
    assert reduced(None) is None and reduced(picture[:128]) is not None
    assert np.array_equal(reduced(picture[:128]), picture[:128])  # type: ignore[arg-type]
