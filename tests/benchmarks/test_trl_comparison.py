"""The benchmark against TRL: equal work on both sides, measurements, and pages that equal the measurements."""

import asyncio
import doctest
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from benchmarks.trl_comparison import (
    chart,
    page,
    pairs,
    paths,
    prepare,
    regimes,
    results,
    rewards,
    run_groupwise,
    run_groupwise_stored,
    sections,
    stopwatch,
    tables,
    turns,
    workload,
)
from benchmarks.trl_comparison.regimes import GROWTH, REGIMES, STORED, Fixed, Net, Ragged, Regime
from benchmarks.trl_comparison.settings import settings, stored_settings

from groupwise.config.recipe import Machine
from groupwise.data import Outcome, Prompt, Sample
from groupwise.tasks import calculator_answer

HOME = Path(__file__).parents[2]
TINY = Regime(
    letter="tiny", title="tiny", target=2.0, memory=0.5, prompts=2, group=3, prompt_tokens=5, max_tokens=9, timed=1,
    net=Net(vocabulary_size=23, hidden_size=8, layers=2, heads=2, kv_heads=1, head_dim=4, mlp_width=12,
            max_positions=32),
    lengths=Ragged(least=2, median=4, most=9), micro_batch=3,
)  # fmt: skip


# Regimes


def test_each_iteration_has_the_same_lengths_in_another_order() -> None:
    ragged = REGIMES["c"].lengths
    assert isinstance(ragged, Ragged)
    first, second = ragged.of(0, 32), ragged.of(1, 32)
    assert sorted(first) == sorted(second) and first != second and first == ragged.of(0, 32)
    assert (min(first), max(first)) == (8, 512) and 46 <= sorted(first)[16] <= 50
    assert sum(first) / 32 < max(first) / 6, "a heavy tail: padding to the longest wastes most of the work"


@pytest.mark.parametrize("letter", REGIMES)
@pytest.mark.parametrize("processes", [1, 2])
def test_trl_makes_the_steps_of_the_regime(letter: str, processes: int) -> None:
    one = REGIMES[letter]
    micro_batch = one.micro_batch // processes
    config = settings(one, iterations=7, micro_batch=micro_batch, processes=processes)
    step = micro_batch * processes * config["gradient_accumulation_steps"]
    assert step * one.minibatches == one.rows == micro_batch * processes * config["steps_per_generation"]
    assert config["max_steps"] == 7 * one.minibatches * one.epochs
    assert config["num_generations"] == one.group and config["beta"] == 0 and not config["gradient_checkpointing"]


def test_micro_batches_divide_a_step() -> None:
    assert REGIMES["a"].micro_batches == (8, 32, 64) and REGIMES["e"].micro_batches == (8, 16)
    assert all(one.micro_batch in one.micro_batches for one in (REGIMES | STORED).values())
    assert STORED["sft"].micro_batches == (1, 2, 4, 8, 16, 32) and STORED["dpo"].micro_batches == (1, 2, 4, 8, 16)


def test_both_systems_have_the_same_verdicts() -> None:
    texts = ["#35", "7*5=35;#35", "#035", "#+35", "#-35", "35", "#", "#3#35", "#35 ", "#٣٥", "", "#350"]
    for answer in (35, 0, -35):
        prompt = Prompt(id="p", token_ids=(1,), text="7*5+0+0=", row={"answer": answer})
        for text in [*texts, "#-0", "#-35"]:
            sample = Sample(context=(1,), stream=(0,), limit=9, text=text)
            verdict = asyncio.run(calculator_answer(prompt, sample))
            assert rewards.calculator(text, answer) == float(verdict.outcome is Outcome.correct), (text, answer)


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of the tiny workload."""
    for module in (paths, prepare):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    prepare.prepare(TINY)


def test_groupwise_trains_on_the_forced_number_of_tokens(prepared: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_groupwise.builder, "read_tokenizer", run_groupwise.builder.read_tokenizer)
    run = run_groupwise.measure(TINY, iterations=3, seed=0, machine=Machine())
    expected = sum(TINY.lengths_of(0) or [])
    assert [i["tokens"] for i in run["iterations"]] == [expected] * 3
    assert all(0 < i["phases"]["sample"][0] < i["seconds"] for i in run["iterations"])
    assert run["peak_mib"] >= run["floor_mib"] > 0 and run["start_seconds"] > 0
    mean_rewards = {i["reward"] for i in run["iterations"]}
    assert mean_rewards != {0.0} and mean_rewards != {1.0}, "parity of random ids gives mixed groups"


@pytest.fixture(params=["sft", "dpo"])
def stored(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Regime:
    """A tiny regime of stored answers, with its files."""
    for module in (paths, prepare):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    one = replace(TINY, letter=request.param, loss=request.param, group=1 + (request.param == "dpo"))
    prepare.prepare(one)
    return one


def test_groupwise_trains_the_stored_answers(stored: Regime) -> None:
    """In the order of TRL's rows, with an end token for each answer, and with the method's loss."""
    run = run_groupwise_stored.measure(stored, iterations=3, seed=0, machine=Machine())
    rows = [json.loads(line) for line in paths.prompts_of(stored, 0).read_text().splitlines()][: 3 * stored.prompts]
    lengths = [sum(len(row[column].split()) + 1 for column in stored.columns) for row in rows]
    steps = [sum(lengths[i : i + stored.prompts]) for i in range(0, len(rows), stored.prompts)]
    assert [i["tokens"] for i in run["iterations"]] == steps and len({*lengths}) > 1
    expected = math.log(2) if stored.loss == "dpo" else math.log(23)
    assert run["iterations"][0]["loss"] == pytest.approx(expected, rel=0.01)


def test_trl_takes_the_rows_of_a_step_in_order() -> None:
    for one in STORED.values():
        config = stored_settings(one, iterations=7, micro_batch=one.micro_batch)
        assert config["per_device_train_batch_size"] * config["gradient_accumulation_steps"] == one.prompts
        assert config["max_steps"] == 7 and config["train_sampling_strategy"] == "sequential"


def test_a_pair_with_other_losses_is_refused() -> None:
    ours, theirs = run_of(1.0), run_of(3.0)
    for run, loss in ((ours, 0.5), (theirs, 0.50001)):
        run["iterations"] = [iteration | {"loss": loss} for iteration in run["iterations"]]
    pairs.refuse_unequal(TINY, {"groupwise": ours, "trl": theirs})
    for name, value in (("loss", 0.51), ("tokens", 99)):
        other = theirs | {"iterations": [iteration | {name: value} for iteration in theirs["iterations"]]}
        with pytest.raises(SystemExit, match="did other work"):
            pairs.refuse_unequal(TINY, {"groupwise": ours, "trl": other})


def test_engines_in_other_processes_sample_the_same_answers_ahead(prepared: None, monkeypatch: Any) -> None:
    monkeypatch.setattr(run_groupwise.builder, "read_tokenizer", run_groupwise.builder.read_tokenizer)
    how: dict[str, Any] = {"iterations": 2, "seed": 0, "machine": Machine()}
    alone, ahead = run_groupwise.measure(TINY, **how), run_groupwise.measure(TINY, **how, engines=1, max_staleness=1)
    rewards_of = [[iteration["reward"] for iteration in run["iterations"]] for run in (alone, ahead)]
    assert rewards_of[0][0] == rewards_of[1][0], "the first iteration is sampled from the same weights"
    assert [i["tokens"] for i in ahead["iterations"]] == [sum(TINY.lengths_of(0) or [])] * 2
    assert "wait" in ahead["iterations"][0]["phases"] and "wait" not in alone["iterations"][0]["phases"]


def test_a_prompt_has_the_same_ids_in_both_systems(prepared: None) -> None:
    tokenizer = prepare.read_tokenizer(paths.model_of(TINY))
    rows = [json.loads(line) for line in paths.prompts_of(TINY, 0).read_text().splitlines()]
    ids = [int(word[1:]) for word in rows[0]["prompt"].split()]
    assert tokenizer.encode(rows[0]["prompt"], bos=True) == tuple(ids) and len(ids) == TINY.prompt_tokens
    from transformers import PreTrainedTokenizerFast

    assert PreTrainedTokenizerFast.from_pretrained(paths.model_of(TINY))(text=[rows[0]["prompt"]])["input_ids"] == [ids]


def test_the_parent_imports_neither_torch_nor_trl() -> None:
    forbidden = "{'torch', 'trl', 'groupwise'}"
    code = f"import sys, benchmarks.trl_comparison.__main__; sys.exit(bool({forbidden} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], cwd=HOME, check=False).returncode == 0


# Workload


def test_flops_equal_a_loop_over_tokens() -> None:
    net, lengths = TINY.net, TINY.lengths_of(0)
    assert net is not None and lengths is not None
    queries, keys = net.heads * net.head_dim, net.kv_heads * net.head_dim
    layer = net.hidden_size * queries * 2 + net.hidden_size * keys * 2 + 3 * net.hidden_size * net.mlp_width
    linear = attention = 0
    for group in range(TINY.prompts):
        for place in range(TINY.prompt_tokens):
            linear += 2 * net.layers * layer
            attention += net.layers * 4 * queries * (place + 1)
        for n in lengths[group * TINY.group : (group + 1) * TINY.group]:
            linear += 2 * net.layers * layer * n + 2 * net.vocabulary_size * net.hidden_size * n
            attention += sum(net.layers * 4 * queries * (TINY.prompt_tokens + i + 1) for i in range(n))
    assert workload.engine(TINY) == workload.Flops(linear=linear, attention=attention)
    last_tokens = 3 * 2 * net.layers * layer * TINY.rows  # the last token of an answer predicts nothing
    assert workload.learner(TINY).linear == 3 * linear - last_tokens


def test_each_growth_doubles_one_size_four_times() -> None:
    for axis, series in GROWTH.items():
        assert len(series) == 5
        sizes = [(w.group, w.net.vocabulary_size if w.net else 0, w.prompt_tokens, w.max_tokens) for w in series]
        changed = [i for i in range(4) if sizes[0][i] != sizes[4][i]]
        assert len(changed) == 1 and sizes[4][changed[0]] == 16 * sizes[0][changed[0]], axis
        assert all(w.net and w.prompt_tokens + w.max_tokens <= w.net.max_positions for w in series)


# Stopwatch


def test_time_in_a_nested_phase_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(stopwatch, "clocks", lambda: (now[0], now[0] / 2))

    def spend(seconds: float) -> None:
        now[0] += seconds

    watch = stopwatch.Stopwatch()
    watch.begin()
    with watch.phase("sample"):
        spend(1)
        with watch.phase("learn"):
            spend(10)
        spend(2)
    with watch.phase("learn"):
        spend(20)
    spend(100)
    watch.note(tokens=7)
    watch.begin()
    spend(5)
    watch.end()
    watch.end()
    first, second = watch.iterations
    assert first == {"phases": {"sample": (3, 1.5), "learn": (30, 15)}, "tokens": 7, "seconds": 133, "cpu": 66.5}
    assert second["seconds"] == 5 and second["phases"] == {}


def test_memory_and_age_of_this_process() -> None:
    before = stopwatch.resident()
    block = bytearray(64 << 20)
    assert stopwatch.resident() - before > 60 and stopwatch.peak() >= stopwatch.resident() and len(block)
    assert 0 < stopwatch.age() < 24 * 3600


# Pairs


def run_of(seconds: float, *, tokens: int = 100, peak: float = 300.0, sample: float = 0.25, warmup: int = 1) -> Any:
    """A run with a very long warm-up, which must not count."""
    iteration = {
        "seconds": seconds, "cpu": seconds * 0.9, "tokens": tokens, "reward": 0.5,
        "phases": {"sample": [sample * seconds, 0.0], "learn": [(0.9 - sample) * seconds, 0.0]},
    }  # fmt: skip
    return {
        "iterations": [{**iteration, "seconds": 1e6}] * warmup + [iteration] * 2, "floor_mib": 100.0, "peak_mib": peak,
        "start_seconds": 3.0, "versions": {"python": "3.11"},
    }  # fmt: skip


class Fake:
    """A machine with fixed probe results."""

    def __init__(self, probes: list[float]) -> None:
        self.probes = iter(probes)
        self.calls: list[str | int] = []

    @contextmanager
    def probe(self) -> Iterator[Callable[[], float]]:
        yield lambda: next(self.probes)

    @contextmanager
    def both(self, one: Regime, turns: int) -> Iterator[tuple[Callable[[], Any], Callable[[], Any]]]:
        self.calls.append(turns)
        yield lambda: self.turn("ours", 1.0), lambda: self.turn("theirs", 3.0)

    def turn(self, who: str, seconds: float) -> Any:
        self.calls.append(who)
        return run_of(seconds)


def test_a_pair_between_unequal_probes_is_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    fake = Fake([100, 98, 80, 81, 82])
    lines: list[str] = []
    measured_pairs = pairs.pairs(TINY, 3, fake, lines.append)  # type: ignore[arg-type]
    assert [pair["counts"] for pair in measured_pairs] == [True, False, True, True]
    assert (
        fake.calls == [3 + pairs.REPEATS, *["ours", "theirs"] * 4]
        and "repeated" in lines[1]
        and "repeated" not in lines[2]
    )


def test_without_forced_lengths_each_pair_has_new_processes() -> None:
    fake = Fake([100, 98, 80, 81, 80, 60, 60, 60])
    measured_pairs = pairs.pairs(replace(TINY, lengths=None), 3, fake, lambda line: None)  # type: ignore[arg-type]
    assert [pair["probes"] for pair in measured_pairs] == [[100, 98], [80, 81], [80, 60], [60, 60]]
    assert fake.calls == [1, "ours", "theirs"] * 4


def test_the_probe_prints_its_rate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    small = torch.ones(4, 4)
    monkeypatch.setattr(torch, "randn", lambda *_: small)
    monkeypatch.setattr(sys, "stdin", ["\n", "\n"])
    exec(pairs.PROBE, {})
    assert [json.loads(line)["gflops"] > 0 for line in capsys.readouterr().out.splitlines()] == [True, True]


def test_repeats_are_bounded() -> None:
    measured_pairs = pairs.pairs(TINY, 2, Fake([100, 50] * 9), lambda line: None)  # type: ignore[arg-type]
    assert [pair["counts"] for pair in measured_pairs] == [False] * pairs.REPEATS + [True] * 2


def test_a_ratio_is_per_trained_token_without_warm_up() -> None:
    pair = {"groupwise": run_of(1.0, tokens=200), "trl": run_of(3.0, tokens=100)}
    assert pairs.ratio(TINY, pair) == pytest.approx(6.0)
    assert pairs.per_iteration(TINY, pair["trl"]) == 3.0


# Turns


def test_groupwise_takes_turns_and_removes_its_files(tmp_path: Path) -> None:
    """Runs the real process on a tiny regime; the results of a turn cover only that turn."""
    code = [
        "from pathlib import Path",
        "from benchmarks.trl_comparison import paths, prepare, regimes, run_groupwise",
        "from tests.benchmarks.test_trl_comparison import TINY",
        f"paths.ROOT = prepare.ROOT = Path({str(tmp_path / 'files')!r})",
        "prepare.prepare(TINY)",
        "regimes.ALL_REGIMES['tiny'] = TINY",
        "run_groupwise.main(['tiny', '--turns', '--iterations', '9'])",
    ]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    how: dict[str, Any] = {"cwd": HOME, "env": os.environ | {"TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}}
    with turns.TurnProcess([sys.executable, "-c", "\n".join(code)], **how) as process:
        warm = process.receive()
        assert len(warm["iterations"]) == TINY.warmup and list(temporary.iterdir())
        runs = [pairs.newest(TINY, process.turn()) for _ in range(3)]
    assert [len(run["iterations"]) for run in runs] == [TINY.warmup + TINY.timed] * 3
    assert len({run["iterations"][-1]["seconds"] for run in runs}) == 3
    assert {run["start_seconds"] for run in runs} == {warm["start_seconds"]} and runs[0]["system"] == "groupwise"
    assert not list(temporary.iterdir())


def test_a_process_that_fails_is_an_error() -> None:
    code = "import sys; print('noise'); print('{\"a\": 1}', flush=True); sys.stdin.readline(); sys.exit('no more')"
    with (
        pytest.raises(SystemExit, match="ended with 1:\nno more"),
        turns.TurnProcess([sys.executable, "-c", code]) as process,
    ):
        assert process.receive() == {"a": 1}
        process.turn()


def test_a_process_that_has_ended_is_an_error() -> None:
    with (
        pytest.raises(SystemExit, match="ended with 1:\nno more"),
        turns.TurnProcess([sys.executable, "-c", "import sys; sys.exit('no more')"]) as process,
    ):
        process._process.wait(60)
        process.turn()


def test_a_run_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "DEADLINE", 0.2)
    with pytest.raises(SystemExit, match="took longer than 0 seconds"):
        pairs.Machine().run([sys.executable, "-c", "import time; time.sleep(60)"])


def test_a_process_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "DEADLINE", 0.2)
    with (
        pytest.raises(SystemExit, match="ended with -9"),
        turns.TurnProcess([sys.executable, "-c", "import time; time.sleep(60)"]) as process,
    ):
        process.receive()


# Pages


def measured(factors: list[float], **more: Any) -> Any:
    sound = [
        {"groupwise": run_of(1.0), "trl": run_of(f, peak=500.0), "probes": [90.0, 91.0], "counts": True}
        for f in factors
    ]
    unsound = {"groupwise": run_of(1.0), "trl": run_of(99.0), "probes": [90.0, 30.0], "counts": False}
    return {
        "commit": "abc",
        "date": "2026-01-01",
        "cpu": "a core",
        "cores": 2,
        "data": {"pairs": [*sound, unsound], **more},
    }


@pytest.fixture
def everything() -> Any:
    """Results of all sections."""
    limits = {"limits": {"gflops": 100.0, "read": 10.0, "copy": 9.0}}
    whole = {
        letter: measured([3.0, 2.5, 4.0], **({} if one.net is None else limits)) for letter, one in REGIMES.items()
    }
    for letter in "ae":  # two iterations of warm-up, or one
        for pair in whole[letter]["data"]["pairs"]:
            for who in ("groupwise", "trl"):
                pair[who]["iterations"] = [pair[who]["iterations"][0]] * REGIMES[letter].warmup + pair[who][
                    "iterations"
                ][1:]
    answered = {name: measured([2.0, 3.0], load=[1.25, 1.5]) for name in STORED}
    for pair in answered["sft"]["data"]["pairs"] + answered["dpo"]["data"]["pairs"]:
        for who in ("groupwise", "trl"):
            pair[who]["iterations"] = [iteration | {"loss": 0.6931471} for iteration in pair[who]["iterations"]]
    stamp = {"commit": "def", "date": "2026-01-02", "cpu": "a core", "cores": 2}
    one = {"a": [{**run_of(1.0, warmup=2), "way": "micro-batch 8"}, {**run_of(0.5, warmup=2), "way": "micro-batch 32"}]}
    stored_sweep = {"dpo": [{**run_of(2.0), "way": "micro-batch 4"}]}
    ways = {"groupwise, 2 threads": [run_of(1.0)], "trl, 2 threads": [run_of(4.0)], "trl, 2 processes": [run_of(2.0)]}
    growth = {axis: [run_of(2.0**i, peak=200.0) for i in range(5)] for axis in GROWTH}
    curves = {"a": {"groupwise": [[0.1] * 30 + [0.9] * 30] * 3, "trl": [[0.2] * 60] * 3}}
    pinned = {
        way: [run_of(f) | {"load": f} for f in (factor, 2 * factor)]
        for way, factor in (("groupwise, 2 engines, lag 1", 1.0), ("trl, 2 threads", 3.0))
    }
    parts = {
        "h": pinned, "sweep": one, "stored_sweep": stored_sweep, "two": {"b": ways},
        "frugal": {"b": run_of(9.0)}, "growth": growth, "curves": curves,
    }  # fmt: skip
    return whole | answered | {name: {**stamp, "data": data} for name, data in parts.items()}


def test_the_page_has_median_range_targets_and_repeats(everything: Any) -> None:
    text = page.page(everything, "fused: 7 %")
    row = next(line for line in text.splitlines() if line.startswith("| (b) shared"))
    assert "**3.00** [2.50 .. 4.00]" in row and "5: **no**" in row and "3 + 1" in row
    assert "200 / 400 = 0.50 (<= 0.5: yes)" in row
    assert "2: yes" in next(line for line in text.splitlines() if line.startswith("| (a) default"))
    assert "Measured 2026-01-01, commit abc, a core, 2 cores: (a), (b)" in text and "fused: 7 %" in text
    assert "*not measured*" in text and "| (b) | 2 threads 10000 | 2 threads 40000; 2 processes 20000 | 2.00 |" in text
    assert (
        "| (a) | micro-batch 32 | 5000 | 200 | fastest |" in text and "| (a) | Groupwise | 0 | 0.100 | 0.900 |" in text
    )
    assert "| (dpo) | micro-batch 4 | 20000 | 200 | fastest |" in text and "above use (dpo) 1." in text
    assert "| group | 1.00 / 2.00 / 4.00 / 8.00 / 16.00 | **1.00** |" in text
    row = next(line for line in text.splitlines() if line.startswith("| (dpo) preference"))
    assert "**2.50** [2.00 .. 3.00]" in row and "200 / 400 = 0.50" in row and "0.693147 / 0.693147" in row
    assert "| 2 + 1 | 1.2 to 1.5 |" in row and "(sft), (dpo)" in text
    assert "| trl, 2 threads | 4.50 [3.00 .. 6.00] | **3.00 [3.00 .. 3.00]** | 3.0 .. 6.0 |" in text


def test_sections_without_measurements_are_left_out(everything: Any) -> None:
    text = page.page({"b": everything["b"]}, "")
    assert "(b) shared" in text and "(a) default" not in text.split("## Settings")[0] and "## Growth" not in text
    assert "## Two engines" in text and "*Not measured.*" in text
    assert page.excerpt({"b": everything["b"]}).startswith("TRL takes 3.0 to 3.0 times")


def test_phases_add_up_to_the_iteration() -> None:
    run = run_of(4.0, tokens=100, sample=0.25)
    assert tables.sampled(TINY, run) == 100 and tables.learned(TINY, run) == pytest.approx(100 / 3)


def test_a_page_is_written_with_readme_and_pictures(everything: Any, tmp_path: Path) -> None:
    (tmp_path / "benchmarks" / "trl_comparison").mkdir(parents=True)
    (tmp_path / "benchmarks" / "notes.md").write_text("nothing yet")
    (tmp_path / "README.md").write_text("before\n<!-- trl -->\nold\n<!-- /trl -->\nafter\n")
    paths_written = page.write(everything, tmp_path)
    assert {path.name for path in paths_written} == {"RESULTS.md", "README.md", "growth.svg", "reward-a.svg"}
    readme = (tmp_path / "README.md").read_text()
    assert "old" not in readme and readme.startswith("before\n") and readme.endswith("after\n")
    assert "TRL takes 3.0 to 3.0 times as long" in readme
    for picture in ("growth", "reward-a"):
        ElementTree.parse(tmp_path / "benchmarks" / "trl_comparison" / f"{picture}.svg")


def test_a_section_is_replaced_and_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    results.store("b", {"x": 1.23456789012}, path)
    results.store("a", [1], path)
    results.store("b", {"x": 2.0}, path)
    read = results.read(path)
    assert list(read) == ["a", "b"] and read["a"]["data"] == [1] and read["b"]["data"] == {"x": 2.0}
    assert {"commit", "date", "cpu", "cores"} <= read["a"].keys() and results.read(tmp_path / "none.json") == {}


def test_pages_equal_the_measurements() -> None:
    """RESULTS.md and the README are generated from results.json; no figure is edited by hand."""
    stored = results.read()
    if not stored:
        pytest.skip("no measurements")
    assert (HOME / "benchmarks" / "RESULTS.md").read_text() == page.page(stored, page.notes())
    readme = (HOME / "README.md").read_text()
    assert page.between(readme, page.excerpt(stored)) == readme


def test_a_proportional_line_is_straight_on_logarithmic_axes() -> None:
    axis = chart.Axis("x", (1, 2, 4), log=True, low=1, high=4)
    svg = ElementTree.fromstring(chart.chart("t<", axis, axis, [("ours", [(1, 1), (2, 2), (4, 4)])], {"ours": "a & b"}))
    line = next(e for e in svg.iter("{http://www.w3.org/2000/svg}polyline"))
    (x0, y0), (x1, y1), (x2, y2) = [tuple(map(float, p.split(","))) for p in line.get("points", "").split()]
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2) and y0 - y1 == pytest.approx(y1 - y2, abs=0.2) and x2 > x0 > 0
    assert y0 > y2, "larger values are higher"
    assert math.isclose(chart.exponent([1, 2, 4, 8], [5, 10, 20, 40]), 1.0)


@pytest.mark.parametrize("module", [chart, page, pairs, regimes, results, rewards, tables, turns])
def test_examples_in_docstrings(module: ModuleType) -> None:
    outcome = doctest.testmod(module)
    assert outcome.attempted and not outcome.failed


def test_every_section_has_a_title() -> None:
    assert all(sections.title(name) for name in sections.SECTIONS) and sections.short() == list("abcde")


def test_a_fixed_length_is_the_same_for_all_samples() -> None:
    assert replace(TINY, lengths=Fixed(tokens=4)).lengths_of(3) == [4] * 6 and REGIMES["a"].lengths_of(0) is None
