"""Plans on given machines: machine files, the memory of each process, what fits, and the nearest recipe that does."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from groupwise.commands.plan_table import best_lines, plan_lines
from groupwise.config.recipe import Recipe
from groupwise.config.recipe_toml import read_recipe
from groupwise.core import BadData, Usage
from groupwise.engines import Vllm
from groupwise.models import DecoderShape, Lora, find_model
from groupwise.planning.cost_model import draw_lengths, learning_seconds, passes, times_of
from groupwise.planning.device_splits import DevicePlacement, any_fits, obstacle, placements
from groupwise.planning.draw_simulation_timeline import lanes, timeline_svg, timeline_text
from groupwise.planning.fit_in_memory import changed, largest_microbatch, longest_sample, nearest_changes
from groupwise.planning.gpu_cards import named_machines
from groupwise.planning.machines import AssumedLengths, PlannedMachines, on_machines, read_machines
from groupwise.planning.plan import enough_devices, plan_run
from groupwise.planning.process_memory import ProcessWork, microbatch, run_memory
from groupwise.planning.read_model_shape import (
    MixtureOfExpertsShape,
    active_weights,
    layer_weights,
    planned_shape,
    weights_of,
)

PUBLISHED = Path(__file__).parents[2] / "recipes" / "published"
SHAPE = DecoderShape(
    vocabulary_size=1000,
    hidden_size=64,
    layers=4,
    heads=4,
    kv_heads=2,
    head_dim=16,
    mlp_width=256,
    max_positions=4096,
    tied_embeddings=False,
)
ATTENTION = 64 * 64 + 2 * 64 * 32 + 64 * 64
LAYER = ATTENTION + 3 * 64 * 256 + 2 * 64
WEIGHTS = 2 * 1000 * 64 + 4 * LAYER + 64
EIGHT = PlannedMachines(
    name="small", device_count=8, memory_gib=0.75, tflops=1.0, memory_bandwidth_gb_s=10.0, link_bandwidth_gb_s=1.0,
    decode_step_overhead_ms=5.0, rates_source="made up",
    assumed_lengths=AssumedLengths(prompt=100, median_answer_tokens=50),
)  # fmt: skip
FIELDS = {"prompts": "16", "method.group_size": "8", "method.minibatches": "2", "sampling.max_tokens": "400"}
FIELDS |= {"evaluate.problems": "4", "engine.max_num_seqs": "32", "machine.microbatch_tokens": "2000"}
RECIPE = on_machines(read_recipe("method = 'dapo'", [*FIELDS.items()]), EIGHT)
FILE = """
name = "A100"
device_count = 8
memory_gib = 74.5
tflops = 125
memory_bandwidth_gb_s = 1500.0
link_bandwidth_gb_s = 150.0
rates_source = "given"
"""


def machines_from(tmp_path: Path, text: str) -> PlannedMachines:
    (tmp_path / "machines.toml").write_text(text)
    return read_machines(tmp_path / "machines.toml")


def test_a_machine_file_is_read(tmp_path: Path) -> None:
    machines = machines_from(tmp_path, FILE + "[assumed_lengths]\nmedian_answer_tokens = 700\n")
    assert (
        machines.device_count,
        machines.tflops,
        machines.device_type,
        machines.assumed_lengths.median_answer_tokens,
    ) == (8, 125.0, "cuda", 700)
    assert machines.memory == int(74.5 * 2**30)


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        (FILE + "tflop = 3\n", "no field 'tflop'", "did you mean tflops?"),
        (
            FILE + "[assumed_lengths]\nmedian_answer_token = 3\n",
            "no field 'median_answer_token'",
            "did you mean median_answer_tokens?",
        ),
        (FILE.replace("device_count = 8", ""), "PlannedMachines needs device_count", "add device_count = ..."),
        (FILE.replace("count = 8", "count = 0"), "device_count is 0", "use a number of devices from 1 to 65536"),
        (FILE.replace("count = 8", "count = 'x'"), "'x' is a string", ""),
        (FILE.replace("74.5", "-1.0"), "memory_gib is -1.0", "use a number above 0"),
        (FILE.replace("125", "nan"), "tflops is nan", "use a number above 0"),
        (FILE + "sampling_time_factor = 0.0\n", "sampling_time_factor is 0.0", "use a number above 0"),
        (FILE.replace("74.5", "inf"), "memory_gib is inf", "at most 1e+09"),
        (
            FILE.replace("link_bandwidth_gb_s = 150.0", ""),
            "8 devices have no link_bandwidth_gb_s",
            "add the rate of the link",
        ),
        (FILE + "host_count = 0\n", "host_count is 0", "use a number of hosts from 1 to 65536"),
        (FILE + "host_count = 2\n", "2 hosts have no network_bandwidth_gb_s", "the rate at which a host sends"),
        (FILE + "network_bandwidth_gb_s = 0.0\n", "network_bandwidth_gb_s is 0.0", "use a number above 0"),
        (FILE + "device_type = 'tpu'\n", "'tpu' is not one of cuda, cpu", "groupwise plan --help"),
        (FILE + "[assumed_lengths]\nspread = 9.0\n", "spread=9.0", "spread is from 0 to 4"),
        ("name = ", "is not TOML", "correct the syntax in that line"),
    ],
)
def test_errors_of_a_machine_file_name_the_fix(tmp_path: Path, text: str, what: str, fix: str) -> None:
    with pytest.raises(Usage) as error:
        machines_from(tmp_path, text)
    assert what in str(error.value) and fix in str(error.value)


def test_a_missing_machine_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Usage, match=r"none.toml cannot be read"):
        read_machines(tmp_path / "none.toml")


def test_the_dtype_is_that_of_the_planned_machines() -> None:
    recipe = read_recipe("method = 'dapo'", list(FIELDS.items()))
    assert on_machines(recipe, EIGHT).machine.dtype == "bfloat16"
    assert on_machines(recipe, replace(EIGHT, device_type="cpu")).machine.dtype == "float32"


# Memory of a process


def test_ranks_share_the_state_of_the_learner() -> None:
    assert (weights_of(SHAPE), layer_weights(SHAPE)) == (WEIGHTS, LAYER)
    memory = run_memory(RECIPE, SHAPE, 100, ProcessWork(has_engine=False, learner_rank_count=4))
    assert memory.permanent_bytes == {"weights": WEIGHTS, "optimizer": 2 * WEIGHTS, "side models": 0, "samples": 0}
    assert memory.phase_bytes["updating"] == {"gradients": WEIGHTS}
    learning = memory.phase_bytes["learning"]
    assert learning["gathered"] == 2 * (2 * LAYER + 2 * 1000 * 64)
    # Shards of earlier microbatches and of this one; the head's; a layer's, in bfloat16 and twice in float32; those of
    # the layer before, still on their way. After the layers, those of embedding, head and norm in the same way.
    assert learning["gradients"] == 2 * WEIGHTS + 2 * 1000 * 64 + (2 + 4 + 4 + 4) * LAYER
    assert memory.phase_bytes["adding"] == {"gradients": 2 * WEIGHTS + 10 * (WEIGHTS - 4 * LAYER) + 4 * LAYER}
    assert "sampling" not in memory.phase_bytes and "rows" not in learning
    assert microbatch(RECIPE, 100, lanes=16)[0].answer_count == 4  # 64 answers of a step, of which each rank has 4


def test_devices_of_an_engine_share_its_weights_and_cache() -> None:
    whole = run_memory(RECIPE, SHAPE, 100, ProcessWork(has_learner=False, run_engine_count=2))
    half = run_memory(RECIPE, SHAPE, 100, ProcessWork(has_learner=False, run_engine_count=2, tensor_parallel=2))
    assert whole.permanent_bytes["weights"] == 2 * WEIGHTS and half.permanent_bytes["weights"] == WEIGHTS
    assert (
        whole.phase_bytes["sampling"]["rows"] == 32 * 512 * 4 * 2 * 32 * 2 == 2 * half.phase_bytes["sampling"]["rows"]
    )
    assert whole.permanent_bytes["prompts"] == 10 * 100 * 4 * 2 * 32 * 2  # of 20 prompts, each engine has 10
    assert whole.phase_bytes.keys() == {"sampling"} and "optimizer" not in whole.permanent_bytes


def test_devices_that_do_both_free_the_cache_before_they_learn() -> None:
    memory = run_memory(RECIPE, SHAPE, 100, ProcessWork(learner_rank_count=8, run_engine_count=8))
    engine = run_memory(RECIPE, SHAPE, 100, ProcessWork(has_learner=False, run_engine_count=8))
    assert memory.phase_bytes["sampling"]["engine"] == engine.phase_bytes["sampling"]["engine"] + 2 * WEIGHTS
    assert memory.phase_bytes["sampling"].keys() == {"engine", "rows", "prompts"}
    assert not {"rows", "prompts"} & (memory.phase_bytes["learning"].keys() | memory.permanent_bytes.keys())
    alone = run_memory(RECIPE, SHAPE, 100)
    assert {"rows"} <= alone.phase_bytes["learning"].keys() and "prompts" in alone.permanent_bytes


def test_the_published_shapes_have_the_published_numbers_of_weights() -> None:
    shapes = {path.parent.name: planned_shape(path.parent) for path in PUBLISHED.glob("*/config.json")}
    assert {name: weights_of(shape) for name, shape in shapes.items()} == {
        "llama3.1-8b": 8_030_261_248,
        "qwen2.5-32b": 32_763_876_352,
        "qwen2.5-math-7b": 7_615_616_512,
        "qwen3-30b-a3b": 30_532_122_624,
        "qwen3-32b": 32_762_123_264,
    }
    sparse = shapes["qwen3-30b-a3b"]
    attention, experts, router = 2 * 2048 * (32 + 4) * 128, 8 * 3 * 2048 * 768, 128 * 2048
    assert isinstance(sparse, MixtureOfExpertsShape)
    assert active_weights(sparse) == 48 * (attention + experts + router) + 151936 * 2048  # 3.0 of 30.5 billion


def test_a_model_that_is_not_modelled_is_refused(tmp_path: Path) -> None:
    config = json.loads((PUBLISHED / "qwen3-30b-a3b" / "config.json").read_text())
    for change, error in (
        ({"num_experts": 0}, "num_experts is 0"),
        ({"mlp_only_layers": [0]}, "some layers are dense"),
        ({"num_experts_per_tok": 129}, "num_experts_per_tok is 129"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(BadData, match=error):
            planned_shape(tmp_path)
    for name, kind in (("rings", "flow"), ("beads", "masked")):
        with pytest.raises(Usage, match=f"{name} is a {kind} model of this package"):
            planned_shape(find_model(name))
    sparse = planned_shape(PUBLISHED / "qwen3-30b-a3b")
    with pytest.raises(Usage, match="an adapter on a mixture of experts"):
        plan_run(replace(RECIPE, lora=Lora(rank=4)), sparse, EIGHT, 100)
    with pytest.raises(Usage, match="prompt and answer may have 4,400 tokens"):
        plan_run(RECIPE, SHAPE, EIGHT, 4000)


# Seconds


def test_seconds_by_hand() -> None:
    lengths = draw_lengths(AssumedLengths(median_answer_tokens=50, spread=0.0), 100, 400)
    assert (lengths.mean, lengths.live) == (50, 125)
    times = times_of(RECIPE, SHAPE, EIGHT, lengths, ProcessWork(has_learner=False, tensor_parallel=2))
    active = 4 * (ATTENTION + 3 * 64 * 256) + 1000 * 64
    forward = 2 * active + 4 * 4 * 64 * 125
    assert times.decode_step_seconds == pytest.approx(5e-3 + 2 * WEIGHTS / 20e9)
    assert times.decode_row_seconds == pytest.approx(125 * 4 * 2 * 32 * 2 / 20e9 + forward / 2e12)
    assert times.publish_seconds == pytest.approx(2 * WEIGHTS / 1e9)
    measured = replace(EIGHT, publish_bandwidth_gb_s=0.25)  # to each host of engines, to all at a time
    engine = ProcessWork(has_learner=False, tensor_parallel=2)
    assert times_of(RECIPE, SHAPE, measured, lengths, engine).publish_seconds == pytest.approx(2 * WEIGHTS / 0.25e9)
    assert passes(RECIPE) == 4  # forward, backward, and the old log-probs of two minibatches
    assert learning_seconds(RECIPE, SHAPE, EIGHT, lengths, 1) == pytest.approx(4 * forward / 1e12)
    quick = replace(EIGHT, link_bandwidth_gb_s=10.0)
    assert learning_seconds(RECIPE, SHAPE, quick, lengths, 8) == pytest.approx(4 * forward / 1e12 / 8)
    slow = replace(EIGHT, link_bandwidth_gb_s=0.1)  # moving the weights takes longer than computing
    # Two steps of 4,000 tokens: one microbatch of 500 on each rank. Each sends 7/8 of: the layers twice and the
    # other weights once in bfloat16, the gradients in float32, and for the old log-probs the layers once. All old
    # log-probs of the iteration need the other weights once.
    sent = 7 / 8 * (2 * (WEIGHTS + 4 * LAYER) + 4 * WEIGHTS + 2 * 4 * LAYER + (WEIGHTS - 4 * LAYER))
    assert learning_seconds(RECIPE, SHAPE, slow, lengths, 8) == pytest.approx(sent / 1e8 / 500 / 8)
    assert times_of(RECIPE, SHAPE, EIGHT, lengths, ProcessWork()).publish_seconds == 0


def test_seconds_of_ranks_on_two_hosts_by_hand() -> None:
    """Two steps of 4,000 tokens: one microbatch of 250 on each of 16 ranks, of which 8 are on each host.

    A host sends its rows of the weights as in a ring, and its ranks' gradients to the 8 ranks of the other host.
    """
    lengths = draw_lengths(AssumedLengths(median_answer_tokens=50, spread=0.0), 100, 400)
    slow = replace(EIGHT, host_count=3, link_bandwidth_gb_s=100.0, network_bandwidth_gb_s=0.1)
    gathered = 15 / 16 * (2 * (WEIGHTS + 4 * LAYER) + 2 * 4 * LAYER + (WEIGHTS - 4 * LAYER))
    reduced = 8 * 8 / 16 * 4 * WEIGHTS
    expected = (gathered + reduced) / 1e8 / 250 / 16
    assert learning_seconds(RECIPE, SHAPE, slow, lengths, 16) == pytest.approx(expected)
    forward = 2 * (4 * (ATTENTION + 3 * 64 * 256) + 1000 * 64) + 4 * 4 * 64 * 125
    assert learning_seconds(RECIPE, SHAPE, slow, lengths, 8) == pytest.approx(4 * forward / 1e12 / 8)  # on one host
    engine = ProcessWork(has_learner=False)
    for machines, receivers, rate in (
        (slow, 1, 1e8),
        (slow, 2, 0.5e8),  # the learner's host sends two copies
        (slow, 9, 1e8 / 5),  # four copies of the learner's host, and one of each of five hosts
        (slow, 15, 1e8 / 6),  # then ten hosts have them, and six need them
        (replace(slow, publish_bandwidth_gb_s=0.02), 2, 0.02e9),
        (replace(slow, publish_bandwidth_gb_s=0.02), 15, 0.02e9 / 3),
    ):
        times = times_of(RECIPE, SHAPE, machines, lengths, engine, receivers=receivers)
        assert times.publish_seconds == pytest.approx(2 * WEIGHTS / rate)


def test_lengths_are_cut_at_the_limit() -> None:
    lengths = draw_lengths(AssumedLengths(spread=1.0), 10, 400)
    assert max(lengths.answer_lengths) == 400 and min(lengths.answer_lengths) >= 1
    assert sorted(lengths.answer_lengths)[len(lengths.answer_lengths) // 2] == pytest.approx(100, rel=0.05)


# What fits


def test_the_largest_microbatch_fits_and_a_larger_one_does_not() -> None:
    process = ProcessWork(has_engine=False, learner_rank_count=8)
    small = replace(EIGHT, memory_gib=0.3686)
    tokens = largest_microbatch(RECIPE, SHAPE, 100, small, process)

    def peak(n: int) -> int:
        return run_memory(changed(RECIPE, [("machine.microbatch_tokens", str(n))]), SHAPE, 100, process).peak

    assert 0 < tokens < 16 * 100 + 128 * 400 and peak(tokens) <= small.memory < peak(tokens + 1)


def test_the_longest_sample_fits_alone_and_a_longer_one_does_not() -> None:
    process = ProcessWork(has_engine=False, learner_rank_count=8)
    small, shape = replace(EIGHT, memory_gib=0.3686), replace(SHAPE, max_positions=1 << 20)
    longest = longest_sample(RECIPE, shape, 100, small, process)

    def peak(tokens: int) -> int:
        lengths = [("machine.microbatch_tokens", str(tokens)), ("sampling.max_tokens", str(tokens - 100))]
        return run_memory(changed(RECIPE, lengths), shape, 100, process).peak

    assert 100 < longest < 1 << 20 and peak(longest) <= small.memory < peak(longest + 1)
    assert longest_sample(RECIPE, replace(shape, max_positions=400), 100, small, process) == 400
    assert longest_sample(RECIPE, shape, 100, replace(small, memory_gib=0.1), process) == 0


def test_a_run_that_fits_needs_no_change() -> None:
    assert any_fits(RECIPE, SHAPE, 100, EIGHT)
    assert nearest_changes(RECIPE, SHAPE, lambda recipe: True, 100) == ()


def test_the_nearest_recipe_fits_and_each_of_its_changes_is_needed() -> None:
    machines = replace(EIGHT, device_count=1, memory_gib=0.3262)

    def fits(recipe: Recipe) -> bool:
        return any_fits(recipe, SHAPE, 100, machines)

    changes = nearest_changes(RECIPE, SHAPE, fits, 100)
    assert changes and not fits(RECIPE) and fits(changed(RECIPE, list(changes)))
    for change in changes:
        assert not fits(changed(RECIPE, [other for other in changes if other != change]))
    assert nearest_changes(RECIPE, SHAPE, lambda recipe: False, 100) is None


def test_only_the_changes_that_are_needed_are_named() -> None:
    def fits(recipe: Recipe) -> bool:
        return recipe.engine.kv_cache_tokens <= 1000  # type: ignore[attr-defined]

    assert nearest_changes(RECIPE, SHAPE, fits, 100) == (("engine.kv_cache_tokens", "1000"),)


def test_placements_use_all_devices_once() -> None:
    splits = list(placements(RECIPE, SHAPE, 100, EIGHT, together=False))
    assert [p.generator_devices for p in splits] == [1, 2, 3, 4, 5, 6, 7]
    assert all(p.generator_devices + p.learner_devices == 8 and not p.together for p in splits)
    (both,) = placements(RECIPE, SHAPE, 100, EIGHT, together=True)
    assert both.together and both.label == "8 do both" and both.engines == 8
    assert list(placements(RECIPE, SHAPE, 100, replace(EIGHT, device_count=1), together=False)) == []


def test_an_engine_spans_as_many_devices_as_it_needs() -> None:
    sparse = planned_shape(PUBLISHED / "qwen3-30b-a3b")
    recipe = changed(RECIPE, [("prompts", "32")])
    large = replace(EIGHT, memory_gib=24.0)
    splits = list(placements(recipe, sparse, 100, large, together=False))
    assert splits == []  # a few learners have no room for the moments
    (both,) = placements(recipe, sparse, 100, replace(large, device_count=64), together=True)
    assert both.tensor_parallel == 4 and both.engines == 16


# The whole plan


def test_a_plan_has_one_trial_for_each_lag() -> None:
    plan = plan_run(RECIPE, SHAPE, EIGHT, 100, every=True)
    assert [trial.max_staleness for trial in plan.simulated_placements] == [0, 1, 2, 4]
    assert plan.simulated_placements[0].placement.together and not plan.simulated_placements[1].placement.together
    assert plan.best.rate >= 0.98 * max(trial.rate for trial in plan.simulated_placements)
    assert plan.one_version.max_staleness <= 1
    for trial in plan.simulated_placements:
        assert trial.simulation.largest_staleness <= trial.max_staleness
        alone = max(trial.sampling(), trial.learning) if trial.max_staleness <= 1 else trial.learning
        assert trial.seconds >= 0.8 * alone  # lengths differ between iterations
    text = "\n".join(plan_lines(plan))
    for words in (
        "8 x small",
        f"{WEIGHTS:,} weights",
        "staleness 4, ",
        "best: staleness ",
        "predicted, not measured",
        "made up",
    ):
        assert words in text


@pytest.mark.parametrize("count", [1, 8])
def test_a_plan_calls_only_runs_with_equal_bytes_reproducible(count: int) -> None:
    on_cpus = plan_run(RECIPE, SHAPE, replace(EIGHT, device_count=count, device_type="cpu", memory_gib=4.0), 100)
    assert (on_cpus.best == on_cpus.one_version) == (count == 1)  # both forms of the line
    assert "reproducible" in "\n".join(best_lines(on_cpus)) and "may differ" not in "\n".join(best_lines(on_cpus))
    recipe, experts = on_cpus.recipe, planned_shape(PUBLISHED / "qwen3-30b-a3b")
    for cause, other in {
        "a GPU": replace(on_cpus, recipe=replace(recipe, machine=replace(recipe.machine, device="cuda"))),
        "several threads": replace(on_cpus, recipe=replace(recipe, machine=replace(recipe.machine, threads=2))),
        "vLLM": replace(on_cpus, recipe=replace(recipe, engine=Vllm())),
        "experts": replace(on_cpus, model_shape=experts),
    }.items():
        text = "\n".join(best_lines(other))
        assert "one version" in text and "reproducible" not in text
        assert any(line.startswith("equal runs may differ: ") and cause in line for line in text.splitlines()), text


def test_the_plan_names_the_rate_of_sending_weights_and_its_basis() -> None:
    def line(machines: PlannedMachines) -> str:
        found = [text for text in plan_lines(plan_run(RECIPE, SHAPE, machines, 100)) if "publishing sends" in text]
        return found[0] if found else ""

    expected = "publishing sends one copy of the weights to each host of engines, to all at a time: "
    assert line(EIGHT) == expected + "1 GB/s (assumed: the link's)"
    assert line(replace(EIGHT, publish_bandwidth_gb_s=0.25)) == expected + "0.25 GB/s (measured or given)"
    assert line(replace(EIGHT, device_count=1)) == ""
    hosts = replace(EIGHT, host_count=17, device_count=1, network_bandwidth_gb_s=4.0)
    rounds = "in 2 rounds, in which hosts pass them on; the first one: 1 GB/s (assumed: the network's)"
    assert line(hosts) == f"publishing sends one copy of the weights to each host of engines, {rounds}"


def test_a_plan_of_one_device_is_synchronous() -> None:
    plan = plan_run(RECIPE, SHAPE, replace(EIGHT, device_count=1), 100)
    assert [trial.max_staleness for trial in plan.simulated_placements] == [
        0
    ] and plan.best.simulation_setup.publish_seconds == 0
    assert plan.best.seconds == pytest.approx(plan.best.sampling() + plan.best.learning, rel=0.2)


def test_a_plan_that_does_not_fit_names_the_nearest_recipe_and_enough_devices() -> None:
    plan = plan_run(RECIPE, SHAPE, replace(EIGHT, device_count=1, memory_gib=0.3262), 100)
    assert plan.simulated_placements == () and plan.recipe_changes
    text = "\n".join(plan_lines(plan))
    assert "it does not fit: 1 do both with " in text and f"--{plan.recipe_changes[0][0]} " in text
    hopeless = plan_run(RECIPE, SHAPE, replace(EIGHT, memory_gib=0.1), 100, every=True)
    assert (hopeless.simulated_placements, hopeless.recipe_changes, hopeless.smallest_device_count) == ((), None, 0)
    assert "no number of devices is enough: use a smaller model" in plan_lines(hopeless)[-1]


def test_the_default_plans_only_what_this_version_runs() -> None:
    """A power of two of the devices learn; with `every`, others are marked with the reason why they are refused."""
    plan = plan_run(RECIPE, SHAPE, EIGHT, 100)
    assert {p.learner_devices for p in placements(RECIPE, SHAPE, 100, EIGHT, together=False, every=False)} == {1, 2, 4}
    assert [trial.max_staleness for trial in plan.simulated_placements] == [0, 1, 2, 4]
    seven = replace(EIGHT, device_count=7)
    every = "\n".join(plan_lines(plan_run(RECIPE, SHAPE, seven, 100, every=True)))
    assert "not runnable by this version: 7 do both: the number of ranks is a power of two" in every
    compiled = changed(RECIPE, [("machine.compile", "true")])
    alone = plan_run(compiled, SHAPE, EIGHT, 100)
    assert {trial.placement.label for trial in alone.simulated_placements} == {"7 generate, 1 learn"}
    assert alone.unsupported_split_fits and "--all-splits plans them, too" in "\n".join(plan_lines(alone))
    alone = plan_run(RECIPE, SHAPE, replace(EIGHT, device_count=1), 100)
    assert not alone.unsupported_split_fits and "not runnable" not in "\n".join(plan_lines(alone))


def test_shared_weights_on_cpus_are_planned_where_the_checks_allow_them() -> None:
    cpus = replace(EIGHT, device_type="cpu", decode_step_overhead_ms=1.0)
    recipe = on_machines(read_recipe("method = 'dapo'", [*FIELDS.items()]), cpus)
    assert (
        max(trial.placement.learner_devices for trial in plan_run(recipe, SHAPE, cpus, 100).simulated_placements) == 8
    )
    compiled = changed(recipe, [("machine.compile", "true")])
    plan = plan_run(compiled, SHAPE, cpus, 100)
    assert all(trial.placement.learner_devices == 1 for trial in plan.simulated_placements)


def test_the_devices_of_several_hosts() -> None:
    three = replace(EIGHT, host_count=3, network_bandwidth_gb_s=1.0)
    plan = plan_run(RECIPE, SHAPE, three, 100)
    found = {p.learner_devices: p for p in placements(RECIPE, SHAPE, 100, three, together=False, every=False)}
    numbers = {ranks: (p.learner_hosts, p.engine_hosts, p.local_engines) for ranks, p in found.items()}
    assert numbers == {1: (1, 2, 7), 2: (1, 2, 6), 4: (1, 2, 4), 8: (1, 2, 0), 16: (2, 1, 0)}
    assert [trial.max_staleness for trial in plan.simulated_placements] == [1, 2, 4]
    lines = plan_lines(plan)
    assert lines[0].startswith("3 hosts of 8 x small, ") and "0.5 GB/s (assumed: the network's)" in "\n".join(lines)
    nothing = replace(plan, simulated_placements=(), recipe_changes=None, smallest_device_count=48)
    assert "unchanged it fits on 48 devices in hosts of 8" in plan_lines(nothing)


def test_a_run_that_is_too_large_for_two_hosts_fits_on_more() -> None:
    """The moments of 7.6 billion weights fit on four ranks, which leave as many hosts for engines."""
    large = planned_shape(PUBLISHED / "qwen2.5-math-7b")
    assert enough_devices(RECIPE, large, named_machines("2x1xh100"), 100, every=False) == 8


@pytest.mark.parametrize(
    ("change", "fields", "reason"),
    [
        ({"generator_devices": 12, "learner_devices": 8}, {}, "its host"),
        ({"generator_devices": 8, "learner_devices": 4}, {"tensor_parallel": 2}, ""),
        ({"generator_devices": 4, "learner_devices": 8}, {}, "8 ranks do not fill hosts of 6 devices"),
        ({"generator_devices": 8, "learner_devices": 4}, {}, ""),
        ({"generator_devices": 8, "learner_devices": 4}, {"host_count": 1}, ""),
    ],
)
def test_the_reason_why_a_split_of_several_hosts_is_not_run(
    change: dict[str, int], fields: dict[str, int], reason: str
) -> None:
    fields = {"device_count": 12, "tensor_parallel": 1, "host_count": 2} | change | fields
    placement, recipe = DevicePlacement(**fields), replace(RECIPE, engine=Vllm())
    found = obstacle(placement, recipe, SHAPE)
    assert found.endswith(reason) and bool(found) == bool(reason)


def test_engines_of_this_package_on_other_hosts_load_no_adapter() -> None:
    placement = DevicePlacement(device_count=4, generator_devices=3, learner_devices=1, tensor_parallel=1, host_count=2)
    adapter = replace(RECIPE, lora=Lora(rank=4))
    assert "an adapter" in obstacle(placement, adapter, SHAPE)
    assert not obstacle(placement, replace(adapter, engine=Vllm()), SHAPE)


@pytest.mark.parametrize(
    ("count", "split", "reason"), [(6, 1, "power of two"), (8, 1, ""), (1, 1, ""), (1, 2, "on several devices")]
)
def test_the_reason_why_a_split_is_not_run(count: int, split: int, reason: str) -> None:
    placement = DevicePlacement(
        device_count=8, generator_devices=8 - count, learner_devices=count, tensor_parallel=split
    )
    assert obstacle(placement, RECIPE, SHAPE).endswith(reason) and bool(reason) == bool(
        obstacle(placement, RECIPE, SHAPE)
    )
    assert split == 1 or not obstacle(placement, replace(RECIPE, engine=Vllm()), SHAPE)


def test_the_timeline_shows_two_iterations() -> None:
    trial = plan_run(RECIPE, SHAPE, EIGHT, 100, every=True).simulated_placements[0]
    drawn = lanes(trial.simulation, trial.warm, 200)
    assert drawn.keys() == {"rows", "learn", "publish"} and all(len(shares) == 200 for shares in drawn.values())
    assert max(drawn["rows"]) == 1 and all(0 <= x <= 1 + 1e-9 for shares in drawn.values() for x in shares)
    alternates = [rows > 0.5 and learn > 0.5 for rows, learn in zip(drawn["rows"], drawn["learn"])]
    assert not any(alternates)
    lines = timeline_text(trial.simulation, trial.warm)
    assert len(lines) == 4 and len({len(line) for line in lines[:3]}) == 1
    svg = timeline_svg(trial.simulation, trial.warm, "a < b")
    assert svg.startswith("<svg") and "a &lt; b" in svg and svg.count("<polygon") == 3


def test_the_label_of_a_placement() -> None:
    assert (
        DevicePlacement(device_count=8, generator_devices=6, learner_devices=2, tensor_parallel=2).label
        == "6 generate, 2 learn"
    )
