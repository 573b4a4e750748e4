"""Runs of other recipes, killed and resumed: bfloat16, adapters, state of methods, experts, flow models, a lag."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from groupwise.advantages import WhitenedTokens
from groupwise.config.recipe import Cluster, Evaluate, Recipe, WarmStart
from groupwise.data import Sampling
from groupwise.learner import AdamW, RouterBalance, ValueModel
from groupwise.methods import (
    GAE,
    Method,
    co_grpo,
    diffusion_nft,
    dpo,
    flow_grpo,
    freshness_per,
    grpo_care,
    riskpo,
    sft,
    vade,
)
from groupwise.models import Lora, find_model, read_model, read_tokenizer, write_model
from groupwise.objective import Objective
from groupwise.rewards import Correctness
from groupwise.tasks import DataRows, demonstrations
from tests.faults.kill_points import go_on, killed_ends_as, points, undisturbed
from tests.faults.small_runs import ADAPTER, EVERY, HALF, begun, left, lines
from tests.models.mixtures import trainable
from tests.models.plain import made

pytestmark = pytest.mark.t(49)

STATES: dict[str, tuple[Callable[[], Method], Callable[[dict[str, Any]], object]]] = {
    "memory": (riskpo, lambda saved: any(saved["learner"]["memories"]["quantiles"])),
    "curriculum": (vade, lambda saved: saved["buffer"]["curriculum"]["counts"]),
    "average of the policy": (
        partial(grpo_care, keep=0.5, every=1),
        lambda saved: b"models.reference." in saved["tensors"],
    ),
    "stored answers": (freshness_per, lambda saved: len(saved["buffer"]["curriculum"]["entries"]) >= 8),
}
"""A method for each kind of state that is more than the policy's, and whether a checkpoint has it."""


@pytest.mark.kill
def test_in_half_precision(tmp_path: Path) -> None:
    straight = undisturbed(HALF, tmp_path)
    directory = begun(tmp_path / "again", HALF)
    assert not go_on(directory, straight) and left(directory) == straight.files
    for number, death in enumerate((("after step", 3), ("half of tensors.safetensors", 2))):
        killed_ends_as(straight, tmp_path / str(number), death)
    model = safe_open(directory / "model" / "model.safetensors", "pt")
    assert {model.get_tensor(name).dtype for name in model.keys()} == {torch.bfloat16}  # noqa: SIM118


@pytest.mark.kill
def test_with_an_adapter(tmp_path: Path) -> None:
    """Its checkpoints hold the adapter, of the policy and of the reference, and nothing of the base."""
    pytest.importorskip("peft")
    straight = undisturbed(ADAPTER, tmp_path)
    for number, death in enumerate((("before save", 3), ("before writing the model", 1))):
        killed_ends_as(straight, tmp_path / str(number), death)
    checkpoints_hold_adapters_alone(tmp_path / "0")
    assert "model/adapter_model.safetensors" in straight.files


@pytest.mark.kill
def test_with_an_adapter_beside_a_model_of_transformers(tmp_path: Path) -> None:
    """The model's head is its embedding: two names for one tensor, and the checkpoint holds neither."""
    pytest.importorskip("peft")
    model, tokenizer = tmp_path / "model", read_tokenizer(find_model("calculator"))
    sizes = {
        "vocab_size": tokenizer.backend_tokenizer.get_vocab_size(),
        "n_embd": 16,
        "n_head": 2,
        "n_layer": 2,
        "n_positions": 64,
    }
    made(tmp_path / "made", "GPT2", **sizes)
    write_model(read_model(tmp_path / "made"), model, tokenizer=tokenizer)
    recipe = replace(EVERY, model=str(model), lora=Lora(rank=2, target_modules=("c_attn", "c_fc")))
    straight = undisturbed(recipe, tmp_path)
    killed_ends_as(straight, tmp_path / "killed", ("before save", 3))
    checkpoints_hold_adapters_alone(tmp_path / "killed")


def checkpoints_hold_adapters_alone(run: Path) -> None:
    names = safe_open(next(iter((run / "checkpoints").glob("*/tensors.safetensors"))), "pt").keys()
    weights = {name for name in names if not name.startswith("optimizer.")}
    assert weights and all("lora_" in name for name in weights)
    assert {name.partition(".")[0] for name in weights} == {"policy", "models"}


def test_with_a_critic(tmp_path: Path) -> None:
    """Its checkpoints hold the head and the trunk of the value model, and the state of their optimizer."""
    method = replace(
        EVERY.method, credit=WhitenedTokens(GAE()), models=(("critic", ValueModel(optimizer=AdamW(lr=1e-3))),),
        objective=Objective(), shaping=(Correctness(correct_reward=1, wrong_reward=-1),), advantage=(),
    )  # fmt: skip
    straight = undisturbed(replace(EVERY, method=method, iterations=2), tmp_path)
    assert all(line["value/critic/loss"] > 0 for line in lines(tmp_path / "undisturbed")[1:])
    killed_ends_as(straight, tmp_path / "killed", ("after step", 3))


@pytest.mark.parametrize("state", STATES)
def test_with_state_of_a_method(state: str, tmp_path: Path) -> None:
    """Killed in the second iteration of three: the second and the third need the state after the first."""
    make, saved = STATES[state]
    method = replace(make(), group_size=1 if state == "stored answers" else 4, minibatches=2)
    straight = undisturbed(replace(EVERY, method=method), tmp_path)
    checkpoint = straight.files["state"]
    assert saved({**checkpoint, "tensors": straight.files["checkpoints/000003/tensors.safetensors"]})
    killed_ends_as(straight, tmp_path / "killed", ("before save", 3))


@pytest.mark.kill
def test_with_the_engines_experts(tmp_path: Path) -> None:
    method = replace(EVERY.method, router_replay="engine", auxiliary=(RouterBalance(0.1),))
    recipe = replace(
        EVERY, model=str(trainable(tmp_path / "tiny")), method=method, iterations=2,
        optimizer=AdamW(lr=0.01),
    )  # fmt: skip
    straight = undisturbed(recipe, tmp_path)
    assert all(line["routing/changed"] > 0 for line in lines(tmp_path / "undisturbed")[1:])
    for number, death in enumerate((("after sample", 2), ("half of tensors.safetensors", 2))):
        killed_ends_as(straight, tmp_path / str(number), death)
    for shard in (tmp_path / "0" / "samples").glob("*.safetensors"):
        routes = safe_open(shard, "pt").get_tensor("routes")
        assert routes.dtype == torch.int16 and len(routes.unique()) == 8  # every expert occurs


def flow(method: Method) -> Recipe:
    """A recipe of points in the plane, with a checkpoint after each of two iterations."""
    return replace(EVERY, model="rings", task="rings", method=method, iterations=2, sampling=Sampling(max_tokens=10))


def test_with_a_flow_model(tmp_path: Path) -> None:
    """Killed between the denoising steps of an iteration, and in a save. The checkpoint has the policy that sampled."""
    straight = undisturbed(flow(diffusion_nft(group_size=4)), tmp_path)
    assert b"models.old." in straight.files["checkpoints/000002/tensors.safetensors"]
    second = [i for i, name in enumerate(straight.events) if name == "before sample"][1]
    before = straight.events[:second].count("after a denoising step")
    for number, death in enumerate((("after a denoising step", before + 5), ("half of tensors.safetensors", 2))):
        killed_ends_as(straight, tmp_path / str(number), death)


@pytest.mark.kill
def test_with_a_masked_model(tmp_path: Path) -> None:
    """Killed before the samples of its second iteration, and in a save. The checkpoint has the schedule.

    training/test_masked_runs resumes such runs to the bit in every run of the suite.
    """
    sampling = Sampling(max_tokens=48)
    recipe = replace(
        EVERY,
        model="beads",
        task="beads",
        method=replace(co_grpo(group_size=4), minibatches=2),
        iterations=2,
        sampling=sampling,
    )
    straight = undisturbed(recipe, tmp_path)
    assert b"policy.schedule.mean_change" in straight.files["checkpoints/000002/tensors.safetensors"]
    for number, death in enumerate((("before sample", 2), ("half of tensors.safetensors", 2))):
        killed_ends_as(straight, tmp_path / str(number), death)


@pytest.mark.kill
def test_with_a_flow_model_at_every_change_of_its_disk(tmp_path: Path) -> None:
    """One kill after each kind of change, of pictures too, and one between the steps that train."""
    straight = undisturbed(flow(flow_grpo(group_size=4)), tmp_path)
    assert {"samples/000001.png", "samples/000002.png"} <= straight.files.keys()
    tried = [point for point in points(straight.events, 0.6) if point[0] in straight.disk]
    assert {"half of a sample's .png", "all of tensors.safetensors"} <= {name for name, _ in tried}
    for number, death in enumerate([*tried, ("after step", 3), ("before a denoising step", 1)]):
        killed_ends_as(straight, tmp_path / str(number), death)


def test_while_the_next_iteration_is_sampled(tmp_path: Path) -> None:
    """With `cluster.max_staleness` 1, checkpoints hold samples of the next iteration, whose weights are gone."""
    straight = undisturbed(replace(EVERY, cluster=Cluster(max_staleness=1)), tmp_path)
    assert [line.get("staleness/mean") for line in lines(tmp_path / "undisturbed")] == [None, 0.0, 1.0, 1.0]
    for number, death in enumerate((("after step", 3), ("half of tensors.safetensors", 3), ("before wait", 2))):
        killed_ends_as(straight, tmp_path / str(number), death)


@pytest.mark.kill
def test_in_the_warm_start(tmp_path: Path) -> None:
    """Killed in its steps, in its first checkpoint, between it and the run, and in the run."""
    rows = tmp_path / "demonstrations.jsonl"
    rows.write_text("".join(json.dumps({"prompt": p, "answer": a}) + "\n" for p, a in demonstrations(0, 9, 0.35)))
    warm_start = WarmStart(demonstrations=str(rows), steps=5, prompts=4, save_every=2, optimizer=AdamW(lr=1e-4))
    recipe = replace(HALF, warm_start=warm_start, iterations=2)
    straight = undisturbed(recipe, tmp_path)
    metrics = (tmp_path / "undisturbed" / "warm_start" / "metrics.jsonl").read_bytes()
    deaths = [("half of tensors.safetensors", 1), ("half of tensors.safetensors", 2), ("half of a sample's .toml", 1)]
    deaths += [("after step", 5), ("before evaluate", 1), ("before evaluate", 3), ("after step", 7)]
    for number, death in enumerate(deaths):
        killed_ends_as(straight, tmp_path / str(number), death)
        assert (tmp_path / str(number) / "warm_start" / "metrics.jsonl").read_bytes() == metrics, death


@pytest.mark.kill
@pytest.mark.parametrize("name", ["sft", "dpo"])
def test_with_stored_answers(name: str, tmp_path: Path) -> None:
    """Of sft over two epochs, and of pairs with a reference: killed in a save, a step, and the held-out evaluation."""
    rows = tmp_path / "rows.jsonl"
    answers = ["completion", "chosen", "rejected"]
    pairs = ((p, {k: a if k != "rejected" else f"#{len(a)}" for k in answers}) for p, a in demonstrations(0, 12, 0.35))
    rows.write_text("".join(json.dumps({"prompt": p, **a}) + "\n" for p, a in pairs))
    method = {"sft": sft, "dpo": dpo}[name](minibatches=2)
    recipe = replace(EVERY, task=DataRows(str(rows)), method=method, evaluate=Evaluate(every=1))
    recipe = replace(recipe, epochs=2, iterations=6) if name == "sft" else recipe  # 11 rows are trained
    straight = undisturbed(recipe, tmp_path)
    deaths = [("half of tensors.safetensors", 1), ("after step", 3), ("before evaluate", 2), ("before save", 3)]
    deaths += [("half of a line of metrics.jsonl", 3), ("before writing the model", 1)]
    for number, death in enumerate(deaths):
        killed_ends_as(straight, tmp_path / str(number), death)
