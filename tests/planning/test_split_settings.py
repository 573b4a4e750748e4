"""A law: each split that a plan prints can be started, with the settings and commands that the plan prints for it."""

import json
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import groupwise as gw
from groupwise.__main__ import main
from groupwise.checks.check_by_model_kind import kind_errors
from groupwise.checks.check_machine import (
    check_batch_invariance,
    check_machine,
    check_place,
    check_scores,
    check_sharding,
)
from groupwise.commands.parsing import parse, parser
from groupwise.commands.served_engine import served_engine
from groupwise.config.model_dependent_defaults import starting_point
from groupwise.config.recipe import Recipe
from groupwise.config.recipe_toml import read_recipe
from groupwise.config.resolve_devices import resolved
from groupwise.config.user_code import UserCode
from groupwise.core import Usage, raise_all
from groupwise.engines import EngineAccess, Native, Served, Vllm
from groupwise.engines.remote.replica_devices import gpu_count, gpu_indices, rank_devices
from groupwise.engines.remote.served_settings import EngineRequirements
from groupwise.models import DecoderShape, find_model
from groupwise.planning.device_splits import LAGS, DevicePlacement, obstacle, placements
from groupwise.planning.fit_in_memory import Change
from groupwise.planning.gpu_cards import named_machines
from groupwise.planning.machines import on_machines
from groupwise.planning.read_model_shape import planned_shape
from groupwise.planning.run_processes import check_memory
from groupwise.planning.split_settings import ADDRESSES, access_words, other_hosts_commands, split_settings, takes_nccl
from tests.pretended_gpu import MEMORY, pretended_gpu

RECIPES: dict[str, list[Change]] = {
    "packaged": [],
    "an engine with a small cache": [("engine.max_num_seqs", "8"), ("engine.kv_cache_tokens", "4096")],
    "an adapter": [("lora.rank", "4"), ("method", "rloo")],
    "a base in 4 bits": [("lora.rank", "4"), ("machine.quantization", "nf4"), ("method", "rloo")],
    "a reference model": [("method", "grpo")],
    "a critic": [("method", "ppo")],
    "engines in other processes": [("engine.kind", "Served"), ("cluster.max_staleness", "1")],
    "stored answers as drafts": [("engine.kind", "Speculative"), ("engine.batch_invariant", "false")],
    "vLLM": [("engine.kind", "Vllm")],
}
"""Changes of the packaged recipe."""
PUBLISHED = Path(__file__).parents[2] / "recipes" / "published"
COUNTS = (1, 2, 8, 16)
HOSTS = ((2, 1), (2, 8), (3, 8), (3, 6))
"""Numbers of hosts, and of the devices of each."""
PROMPT = 40


@cache
def read(name: str, settings: tuple[Change, ...] = ()) -> Recipe:
    """A recipe on GPUs with further settings, as a command line gives them."""
    start = starting_point(None, [*RECIPES[name], *settings])
    return on_machines(read_recipe(start.source, start.overrides), named_machines("h100"))


def splits(recipe: Recipe, shape: DecoderShape, count: int, hosts: int = 1) -> Iterator[tuple[DevicePlacement, int]]:
    """Every split that the plan may print, with a bound on the staleness."""
    machines = named_machines(f"{hosts}x{count}xh100")
    for together, lags in ((True, LAGS[:1]), (False, LAGS[1:])):
        found = placements(recipe, shape, PROMPT, machines, together=together, every=False)
        yield from ((placement, lag) for placement in found for lag in lags)


def refuse(recipe: Recipe, shape: DecoderShape) -> None:
    """Raise the errors of the checks of `train` about devices and processes."""
    raise_all([*check_machine(recipe, UserCode(), train=True).errors, *check_batch_invariance(recipe)])
    raise_all([*check_place(recipe), *check_scores(recipe)])
    recipe = resolved(recipe)
    raise_all(kind_errors(recipe, shape))
    check_sharding(recipe, shape)
    check_memory(recipe, shape, PROMPT, MEMORY, "the GPU")


def devices(recipe: Recipe) -> tuple[list[int], list[int]]:
    """The GPUs of the ranks, and those of the engines."""
    ranks, engine = rank_devices(recipe.cluster.ranks, "cuda", gpu_count()), recipe.engine
    target = EngineRequirements(dtype="bfloat16", device="cuda", ranks=recipe.cluster.ranks)
    replicas = engine.replica_devices(target) if isinstance(engine, Served) else ranks[:1]
    return [gpu for name in ranks for gpu in gpu_indices(name)], [gpu for name in replicas for gpu in gpu_indices(name)]


@pytest.mark.parametrize("name", RECIPES)
def test_each_split_of_a_plan_is_accepted_and_uses_every_device(name: str) -> None:
    planned = read(name)
    shape = planned_shape(find_model(planned.model))
    labels = set()
    for count in COUNTS:
        with pretended_gpu(count=count):
            for placement, lag in splits(planned, shape, count):
                settings = split_settings(planned, placement, lag)
                recipe = read(name, tuple(settings))
                refuse(recipe, shape)
                assert recipe.cluster.max_staleness == lag and not split_settings(recipe, placement, lag)
                assert ("--engine-python" in access_words(planned, placement)) == starts_vllm(recipe)
                learners, engines = devices(recipe)
                assert len(learners) == placement.learner_devices and len(engines) == placement.generator_devices
                assert sorted({*learners, *engines}) == [*range(count)]
                assert placement.together or not {*learners} & {*engines}
                colocated = isinstance(recipe.engine, Served) and recipe.engine.placement == "colocated"
                assert colocated == (placement.together and count > 1)
                labels.add(placement.label)
    alone = {f"{count - 1} generate, 1 learn" for count in COUNTS[1:]}
    one = {"stored answers as drafts", "a base in 4 bits"}
    assert labels == {"1 do both"} if name in one else labels >= {"8 do both", *alone}, labels


def addresses(count: int) -> str:
    """The value of the shell's variable in the plan's settings, for engines on another host."""
    return str([f"b:{7000 + index}#sha256={'0' * 64}" for index in range(count)])


def starts_vllm(recipe: Recipe) -> bool:
    """Whether a run starts engines of vLLM itself, and so needs their interpreter."""
    return isinstance(recipe.engine, Vllm) and recipe.engine.replicas > 0


@pytest.mark.parametrize("launch", ["external", "ray"])
@pytest.mark.parametrize("name", ["packaged", "vLLM"])
def test_each_split_of_one_host_has_a_launcher_that_starts_it(
    name: str, launch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray gives a rank and an engine no common GPU, and a run with external ranks starts no engine."""
    monkeypatch.setattr("groupwise.cluster.check_launch.library", lambda: None)
    planned, launchers = read(name, (("cluster.launch", launch),)), set()
    shape = planned_shape(find_model(planned.model))
    for count in (1, 8):
        with pretended_gpu(count=count):
            for placement, lag in splits(planned, shape, count):
                settings = {"cluster.launch": launch, **dict(split_settings(planned, placement, lag))}
                refuse(read(name, tuple(settings.items())), shape)
                launchers.add((placement.together, settings["cluster.launch"]))
    assert launchers == {(True, "local"), (False, "ray" if launch == "ray" else "local")}


def engine_devices(engine: Native) -> int:
    """The number of devices of each engine."""
    return engine.tensor_parallel_size if isinstance(engine, Vllm) else 1


def with_wider_engines(
    recipe: Recipe, shape: DecoderShape, found: Iterable[tuple[DevicePlacement, int]]
) -> Iterator[tuple[DevicePlacement, int]]:
    """These splits, and the same with engines of two devices where they are not refused, as for a larger model."""
    for placement, lag in found:
        yield placement, lag
        wide = replace(placement, tensor_parallel=2)
        if not (placement.generator_devices % 2 or obstacle(wide, recipe, shape)):
            yield wide, lag


@pytest.mark.parametrize("name", RECIPES)
def test_each_split_of_several_hosts_is_accepted_and_uses_every_device(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = read(name)
    shape, table = planned_shape(find_model(planned.model)), parser()
    labels, wide = set(), set()
    for hosts, count in HOSTS:
        with pretended_gpu(count=count):
            for placement, lag in with_wider_engines(planned, shape, splits(planned, shape, count, hosts)):
                far, ranks = placement.engines - placement.local_engines, placement.learner_devices
                settings = dict(split_settings(planned, placement, lag))
                assert settings["engine.addresses"] == ADDRESSES
                recipe = read(name, tuple((settings | {"engine.addresses": addresses(far)}).items()))
                for variable, value in {"RANK": 0, "WORLD_SIZE": ranks, "MASTER_ADDR": "a", "MASTER_PORT": 1}.items():
                    monkeypatch.setenv(variable, str(value))
                refuse(recipe, shape)
                assert recipe.cluster.max_staleness == lag and not split_settings(recipe, placement, lag)
                assert ("--engine-python" in access_words(planned, placement)) == starts_vllm(recipe)
                commands = [*other_hosts_commands(planned, placement).values()]
                served, words = parse(*table, shlex.split(commands.pop(0))[1:])
                engine = served_engine(words)
                assert served.replicas * engine_devices(engine) == count and isinstance(planned.engine, Native)
                assert isinstance(engine, Vllm) == isinstance(planned.engine, Vllm)
                assert (served.device, served.dtype) == ("cuda", "bfloat16")
                for setting in {*engine.served_settings} - {"tensor_parallel_size"}:
                    assert getattr(engine, setting) == getattr(planned.engine, setting)
                assert engine_devices(engine) == placement.tensor_parallel
                assert far == served.replicas * placement.engine_hosts
                target = EngineRequirements(dtype="bfloat16", device="cuda", gathers_layers=ranks > 1)
                access = EngineAccess(hosts=("b",), nccl_hosts=("b",))
                by_file = not isinstance(recipe.engine, Served) or bool(recipe.engine.reason_for_file(access, target))
                assert takes_nccl(planned, placement) != by_file
                wide.add((placement.tensor_parallel, by_file))
                if recipe.cluster.launch == "local":
                    learners, engines = devices(recipe)
                    assert sorted([*learners, *engines]) == [*range(count)] and not commands
                    on_learner_hosts = len(learners) + len(engines)
                else:
                    assert isinstance(recipe.engine, Served) and not recipe.engine.replicas
                    (torchrun,) = commands
                    nodes, each = (int(re.findall(rf"{word} (\d+)", torchrun)[0]) for word in ("nnodes", "node"))
                    assert each <= count and nodes * each == ranks
                    on_learner_hosts = ranks
                assert on_learner_hosts + far * placement.tensor_parallel == hosts * count
                labels.add(placement.label)
    refused = {"stored answers as drafts", "an adapter", "a base in 4 bits"}
    assert name in refused or labels >= {"1 generate, 1 learn", "8 generate, 8 learn", "8 generate, 16 learn"}, labels
    assert bool(labels) == (name not in refused)
    assert wide == ({(1, False), (1, True), (2, True)} if name == "vLLM" else {(1, True)} if labels else {*()})


def test_a_mixture_of_experts_is_planned_on_one_device() -> None:
    """Engines in other processes, as each further device needs them, are refused such a model."""
    sparse, recipe = planned_shape(PUBLISHED / "qwen3-30b-a3b"), read("packaged", (("prompts", "8"),))
    large = replace(named_machines("8xh100"), memory_gib=1000.0)
    for together in (True, False):
        assert not [*placements(recipe, sparse, PROMPT, large, together=together, every=False)]
    (alone,) = placements(recipe, sparse, PROMPT, replace(large, device_count=1), together=True, every=False)
    assert alone.label == "1 do both"


def test_an_engine_keeps_its_settings_in_other_processes() -> None:
    name = "an engine with a small cache"
    shape, count = planned_shape(find_model("calculator")), 8
    for placement, lag in splits(read(name), shape, count):
        engine = read(name, tuple(split_settings(read(name), placement, lag))).engine
        assert isinstance(engine, Served) and (engine.max_num_seqs, engine.kv_cache_tokens) == (8, 4096)


def test_a_refused_split_is_refused_by_a_check_as_well() -> None:
    """The reasons of a plan are those of the checks: three ranks, compiled shards, and engines of several devices."""
    shape = planned_shape(find_model("calculator"))
    three = DevicePlacement(device_count=4, generator_devices=1, learner_devices=3, tensor_parallel=1)
    with pytest.raises(Usage, match="power of two"):
        read("packaged", tuple(split_settings(read("packaged"), three, 1)))
    assert "power of two" in obstacle(three, read("packaged"), shape)
    two = replace(three, generator_devices=2, learner_devices=2)
    compiled = read("packaged", (("machine.compile", "true"), *split_settings(read("packaged"), two, 1)))
    with pretended_gpu(count=4), pytest.raises(Usage, match="cannot be sharded") as caught:
        refuse(compiled, shape)
    assert obstacle(two, compiled, shape) in caught.value.evidence
    wide = replace(two, tensor_parallel=2)
    assert "only engines of vLLM" in obstacle(wide, read("packaged"), shape)
    recipe = read("vLLM", tuple(split_settings(read("vLLM"), wide, 1)))
    assert isinstance(recipe.engine, Vllm) and (recipe.engine.replicas, recipe.engine.tensor_parallel_size) == (1, 2)


def started_with(text: str) -> list[list[str]]:
    """The settings that a plan prints."""
    return [shlex.split(line) for line in re.findall(r"^  started with: (.*)$", text, re.M)]


def test_the_settings_that_a_plan_prints_are_accepted_by_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--machines", "8xh100"]) == 0
    printed = started_with(capsys.readouterr().out)
    assert printed and all("--cluster.ranks" in words or "--engine.replicas" in words for words in printed)
    with pretended_gpu(count=8):
        for words in printed:
            assert main(["check", *words]) == 0, capsys.readouterr()


def test_the_commands_that_a_plan_prints_for_two_hosts_are_accepted_by_check(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("secret").write_text("s" * 64)
    Path("secret").chmod(0o600)
    assert main(["plan", "--machines", "2x8xh100"]) == 0
    text = capsys.readouterr().out
    printed = started_with(text.replace("$addresses", addresses(8)[1:-1]).replace("HOST", "b"))
    assert printed and all(words[-4:] == ["--engine-host", "b", "--engine-secret", "secret"] for words in printed)
    assert text.count("  engines on the other host: groupwise serve calculator --replicas 8 ") == len(printed)
    with pretended_gpu(count=8):
        for words in printed:
            assert main(["check", *words]) == 0, capsys.readouterr()


@pytest.mark.parametrize("machines", ["1xh100", "4xh100", "3x1xh100"])
def test_the_settings_that_a_plan_prints_are_those_of_its_json(
    machines: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", "--machines", machines, "--engine.kind", "Vllm"]
    assert main(words) == main([*words, "--json"]) == 0
    text, _, numbers = capsys.readouterr().out.partition("\n{")
    trials = json.loads("{" + numbers)["trials"]
    settings = [each["settings"] for each in trials]
    listed = [[word for path, value in each.items() for word in (f"--{path}", value)] for each in settings]
    whole = [words + each["access"] for words, each in zip(listed, trials, strict=True)]
    assert started_with(text) and all(words in whole for words in started_with(text))
    assert all(f"  {what}: {command}\n" in text for each in trials for what, command in each["commands"].items())


@pytest.mark.slow
def test_every_split_of_two_devices_runs_on_a_cpu(home: Path) -> None:
    """Ranks and engines are processes of this machine, one for each device of the plan."""
    small = {"iterations": 2, "prompts": 2, "method.group_size": 4, "method.minibatches": 1, "max_tokens": 12}
    small["evaluate.problems"] = 2
    recipe, shape = read("packaged"), planned_shape(find_model("calculator"))
    recipe = replace(recipe, machine=replace(recipe.machine, device="cpu", dtype="float32"))
    found = [(placement, lag) for placement, lag in splits(recipe, shape, 2) if lag < 2]
    assert {placement.label for placement, _ in found} == {"2 do both", "1 generate, 1 learn"}
    for placement, lag in found:
        settings = {path: int(x) if x.isdecimal() else x for path, x in split_settings(recipe, placement, lag)}
        run = gw.train(out="runs", **small, **settings)
        assert run.done == 2
