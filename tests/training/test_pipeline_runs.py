"""Runs of a tiny pipeline of diffusers: a user's reward on pictures, resumed to the bit, sampled, and planned."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from groupwise.__main__ import main
from groupwise.models import (
    LORA_TARGETS,
    FlowPolicy,
    Lora,
    PipelineSettings,
    PipelineShape,
    attach,
    outline,
    pipeline_family,
    read_model,
    set_pipeline,
)
from groupwise.models.diffusion.tiny_pipeline import write_tiny_pipeline
from groupwise.models.flow.latent_pictures import read_png
from groupwise.planning.pipeline_memory import stored_bytes

pytest.importorskip("diffusers", reason="pipelines need diffusers: pip install 'groupwise[diffusion]'")
pytest.importorskip("peft", reason="adapters need peft: pip install 'groupwise[lora]'")

GRADER = """
def bright(final_state, channel):
    assert final_state.shape == (3, 16, 16) and abs(final_state).max() <= 1
    return float(final_state[channel].mean() + 1) / 2
"""
ROWS = [{"prompt": f"a {colour} ball", "channel": channel} for channel, colour in enumerate(("red", "green", "blue"))]

MODELS = {"tiny": "stable_diffusion_3", "flux": "flux_dev", "schnell": "flux_schnell"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pipeline_runs")
    for name, kind in MODELS.items():
        write_tiny_pipeline(directory / name, kind)
    (directory / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS * 2))
    (directory / "rewards.py").write_text(GRADER)
    return directory


def train(home: Path, name: str, *options: str) -> Path:
    code = main([
        "train", "--model", "tiny", "--task", "rows.jsonl", "--columns.answer", "", "--verifier", "rewards:bright",
        "--use", "rewards.py", "--method", "flow_grpo", "--method.group_size", "2", "--method.denoise.steps", "3",
        "--prompts", "2", "--lora.rank", "2", "--pipeline.guidance_scale", "1.5", "--evaluate.problems", "1",
        "--evaluate.samples", "1", "--evaluate.every", "0", "--save.every", "1", "--name", name, *options,
    ])  # fmt: skip
    (run,) = home.glob(f"runs/{name}-*")
    assert code == 0
    return run


def same_files(a: Path, b: Path, names: Sequence[str]) -> None:
    for name in names:
        assert (a / name).read_bytes() == (b / name).read_bytes(), name


@pytest.mark.parametrize("model", ["tiny", "flux"])
def test_a_run_resumes_to_the_bit_and_its_model_is_sampled(
    home: Path, model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home)
    whole = train(home, f"{model}_whole", "--iterations", "2", "--model", model)
    metrics = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert metrics[1]["grad_norm"] > 0 and metrics[1]["sampling/sampling_logp_difference/max"] < 1e-4
    assert "4 samples of 3 steps per iteration, about 0." in "".join(capsys.readouterr())
    cut = train(home, f"{model}_cut", "--iterations", "1", "--model", model)
    recipe = cut / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("iterations = 1", "iterations = 2"))
    assert main(["resume", str(cut), "--changed", "--use", "rewards.py"]) == 0
    names = [f"samples/00000{i}{suffix}" for i in (1, 2) for suffix in (".jsonl", ".safetensors", ".png")]
    same_files(whole, cut, [*names, "model/pytorch_lora_weights.safetensors", "model/adapter_config.json"])
    sheet = read_png((whole / "samples" / "000001.png").read_bytes())
    assert sheet.std() > 10 and sheet.shape == (4 + 2 * (32 + 4), 4 + 2 * (32 + 4), 3)
    with safe_open(next(whole.glob("checkpoints/000002/*.safetensors")), "pt") as tensors:
        names = [name for name in tensors.keys() if name.startswith(("policy.", "models."))]  # noqa: SIM118
    assert names and all(".lora_" in name for name in names)
    assert main(["sample", str(whole), "a red ball", "--out", "a.png", "--pipeline.guidance_scale", "1.5"]) == 0
    assert main(["sample", model, "a red ball", "--out", "b.png", "--pipeline.guidance_scale", "1.5"]) == 0
    trained, base = (read_png((home / name).read_bytes()) for name in ("a.png", "b.png"))
    assert trained.shape == base.shape == (4 + 32 + 4, 4 + 32 + 4, 3)
    assert main(["sample", str(whole), "a red ball", "--out", "c.png", "--pipeline.guidance_scale", "3"]) == 0
    assert (read_png((home / "c.png").read_bytes()) != trained).any()


@pytest.mark.parametrize(
    ("model", "method"),
    [("tiny", "grpo_guard"), ("tiny", "diffusion_nft"), ("flux", "grpo_guard"), ("schnell", "diffusion_nft")],
)
def test_other_methods_and_bfloat16(home: Path, monkeypatch: pytest.MonkeyPatch, model: str, method: str) -> None:
    monkeypatch.chdir(home)
    low = ["--machine.dtype", "bfloat16"] if method == "grpo_guard" else []
    guidance = ["--pipeline.guidance_scale", "1"] if model == "schnell" else []
    options = ["--iterations", "1", "--method", method, "--model", model]
    run = train(home, f"{model}_{method}", *options, *low, *guidance)
    sheet = read_png((run / "samples" / "000001.png").read_bytes())
    assert sheet.std() > 10, "the pictures of written steps are kept, too"
    line: dict[str, Any] = json.loads((run / "metrics.jsonl").read_text().splitlines()[1])
    assert line["grad_norm"] > 0
    with safe_open(run / "model" / "pytorch_lora_weights.safetensors", "pt") as tensors:
        dtypes = {tensors.get_tensor(name).dtype for name in tensors.keys()}  # noqa: SIM118
    assert dtypes == {torch.bfloat16 if low else torch.float32}


@pytest.mark.parametrize("model", MODELS)
def test_the_plan_counts_what_a_forward_stores(
    home: Path, model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The count on the meta device is near that of a forward on the CPU; a run too large for a device is refused."""
    policy = read_model(home / model)
    assert isinstance(policy, FlowPolicy) and isinstance(policy.shape, PipelineShape)
    set_pipeline(policy, PipelineSettings(guidance_scale=1.0))
    attach(policy, Lora(rank=4, target_modules=LORA_TARGETS), seed=0)
    transformer = outline(home / model)
    attach(transformer, Lora(rank=4, target_modules=LORA_TARGETS), seed=0)
    family = pipeline_family(home / model)
    text = family.prompt_tokens(home / model)
    frozen: Any = policy.surroundings
    assert text == frozen.conditions("a ball")[0].shape[1]
    counted = stored_bytes(family, transformer, policy.shape, text, recompute=False)
    weights = {id(weight.untyped_storage()) for weight in policy.parameters()}
    stored: dict[int, torch.UntypedStorage] = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        stored.setdefault(id(storage), storage)
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        policy.velocity(torch.zeros(1, 4, 8, 8), torch.tensor([0.5]), policy.words([(65 + 97,)]))
    real = sum(storage.nbytes() for key, storage in stored.items() if key not in weights)
    assert counted == pytest.approx(real, rel=0.15)
    assert stored_bytes(family, transformer, policy.shape, text, recompute=True) < 0.7 * counted
    monkeypatch.chdir(home)
    machines = (
        'name = "M"\ndevice_count = 1\nmemory_gib = {}\ntflops = 1.0\nmemory_bandwidth_gb_s = 1.0\n'
        'rates_source = "none"\n'
    )
    plan = ["plan", "--model", model, "--task", "quilts", "--method", "flow_grpo", "--lora.rank", "2", "--machines"]
    for gib, code, words in ((16, 0, "it fits"), (0.5, 2, "it does not fit")):
        (home / "m.toml").write_text(machines.format(gib))
        assert main([*plan, "m.toml"]) == code
        assert words in capsys.readouterr().out
    assert main([*plan, "m.toml", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["memory"]["learning"]["activations"] > 1 << 27
