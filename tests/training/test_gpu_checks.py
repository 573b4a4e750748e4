"""What `check` says about a recipe on a GPU: attention with masks, and engines without batch invariance."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from groupwise.checks.check_inputs import check_inputs
from groupwise.checks.check_machine import attention_note, check_machine
from groupwise.cluster.local import LocalProcesses
from groupwise.config.recipe import Cluster, Machine, Recipe
from groupwise.config.recipe_toml import read_recipe
from groupwise.config.resolve_devices import resolved
from groupwise.config.user_code import UserCode
from groupwise.core import Usage
from groupwise.data import Sampling
from groupwise.engines import Native, Served, Speculative
from groupwise.engines.remote.served_settings import EngineRequirements
from groupwise.learner.rank_pulse import RankPulse
from groupwise.learner.rank_store import LOOPBACK, host_store
from groupwise.methods import grpo
from groupwise.models import find_model, read_shape
from groupwise.planning.run_processes import process_memories, sharing
from groupwise.runs.run_layout import RunLayout
from groupwise.training.build_run import RunObjects
from groupwise.training.rank_worker import RankRendezvous, processes_of
from tests.pretended_gpu import pretended_gpu

NOTE = "  attention with masks, whose memory may grow with the square of the length: "


def note(dtype: str, model: str = "calculator", **changes: Any) -> str:
    recipe = resolved(Recipe(method=grpo(), model=model, machine=Machine(dtype=dtype), **changes))  # type: ignore[arg-type]
    directory = find_model(model)
    return attention_note(recipe, directory, read_shape(directory))


def test_masked_attention_is_told_with_its_reason() -> None:
    with pretended_gpu():
        assert note("float32") == NOTE + "varlen_attn takes bfloat16 and float16, not float32"
        assert note("auto") == note("bfloat16") == "" == note("float32", "rings")
    assert note("float32") == "", "on a CPU"


def test_the_note_is_printed_by_the_check() -> None:
    with pretended_gpu():
        notes = check_inputs(
            Recipe(method=grpo(), sampling=Sampling(max_tokens=8), machine=Machine(dtype="float32")), UserCode()
        ).notes
    assert [line for line in notes if line.startswith(NOTE)]


@pytest.mark.parametrize("engine", [Served, Speculative])
def test_an_engine_without_pages_does_not_promise_batch_invariance(engine: type[Native]) -> None:
    """On a GPU. On a CPU its samples do not depend on others."""

    def errors(**settings: Any) -> list[str]:
        recipe = Recipe(method=grpo(), engine=engine(**settings))
        return [error.what for error in check_inputs(recipe, UserCode()).errors if "batch_invariant" in error.what]

    assert errors() == []
    with pretended_gpu():
        assert errors() == [f"engine.batch_invariant is true: the engine {engine.__name__} does not have it on a GPU"]
        assert errors(batch_invariant=False) == []


def test_each_rank_needs_a_gpu_of_its_own() -> None:
    recipe = Recipe(method=grpo(), cluster=Cluster(ranks=4), sampling=Sampling(max_tokens=8))
    with pretended_gpu():
        (error,) = check_machine(recipe, UserCode(), train=True).errors
        assert error.what == "cluster.ranks is 4, and this host has 1 GPU: each process needs its own"
        assert "cluster.launch external" in error.fix
    with pretended_gpu(count=4):
        assert check_machine(recipe, UserCode(), train=True).errors == []


def test_each_rank_sees_its_gpu_alone_and_engines_get_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,6,5,4")
    engine = Served(replicas=1)
    recipe = Recipe(method=grpo(), cluster=Cluster(ranks=2), machine=Machine(device="cuda:2"), engine=engine)
    objects = object.__new__(RunObjects)
    for name, value in (("recipe", recipe), ("user_code", UserCode())):
        object.__setattr__(objects, name, value)
    store = host_store(2)
    meeting = RankRendezvous(store, LOOPBACK, RankPulse(store, 0, 2, 9.0))
    with pretended_gpu(count=4):
        processes = processes_of(RunLayout(Path("run")), objects, meeting)
        target = EngineRequirements(dtype="bfloat16", device="cuda:2", ranks=2)
        assert replace(engine, replicas=2).replica_devices(target) == ("cuda:0", "cuda:1")
        assert replace(engine, replicas=2, placement="colocated").replica_devices(target) == ("cuda:2", "cuda:3")
        with pytest.raises(Usage, match="the learner leaves 2 of 4 GPUs"):
            replace(engine, replicas=3).replica_devices(target)
    assert isinstance(processes, LocalProcesses) and processes._environments["rank 1"]["CUDA_VISIBLE_DEVICES"] == "4"
    assert json.loads(processes._arguments["rank 1"][2])["device"] == "cuda"


def test_the_memory_of_a_gpu_is_that_of_the_processes_on_it() -> None:
    recipe = Recipe(method=grpo(), cluster=Cluster(ranks=2), machine=Machine(device="cuda"), engine=Served(replicas=2))
    processes = process_memories(resolved(recipe), read_shape(find_model("calculator")), 9)
    for count, names in ((2, ["rank 0", "engine 0"]), (4, ["rank 0"])):
        with pretended_gpu(count=count):
            assert list(sharing(recipe, processes)) == names
    on_cpu = replace(recipe, machine=Machine(device="cpu"))
    for other in (on_cpu, recipe):  # without GPUs, the checks of the machine report it
        assert list(sharing(other, processes)) == ["rank 0", "rank 1", "engine 0", "engine 1"]


def test_shards_of_one_rank_are_noted() -> None:
    """Not refused: `--ranks 1` continues a sharded run."""
    text = "cluster.shard = 'full'\nengine.kind = 'Served'\ncluster.ranks = "
    recipes = [read_recipe(f"{text}{ranks}\nmethod = 'grpo'") for ranks in (1, 2)]
    notes = [check_machine(recipe, UserCode(), train=True).notes for recipe in recipes]
    assert [any("it has no effect" in line for line in each) for each in notes] == [True, False]
