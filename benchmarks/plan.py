"""Compare the seconds of `groupwise plan` with measured runs: `python -m benchmarks.plan [rates]`. Prints a table.

`rates` calibrates the plan by the first run, as `groupwise plan --rates RUN` does, and plans other runs with it. These
seconds are those of `timings.jsonl`, so the machine should be idle; the load is printed.

All other seconds are CPU seconds of one thread, since other processes may share the core. Those of an iteration are the
difference between a run of several iterations and one of a single iteration, divided by their number. The models have
random weights and rarely end an answer, so all answers have the largest length.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from benchmarks.plan_memory import COMMON, GRADER, LARGE, OTHERS, SMALL, fields_of, tokenizer
from benchmarks.plan_memory import measured as measured_run

from groupwise.config.recipe_toml import read_recipe
from groupwise.config.user_code import Permissions, load_use
from groupwise.data import all_problems
from groupwise.models import Decoder, DecoderShape, write_model
from groupwise.planning.machines import AssumedLengths, PlannedMachines
from groupwise.planning.plan import plan_run
from groupwise.planning.plan_calibration import calibrated, phase_seconds
from groupwise.training.build_run import read_inputs

RUNS = {"4 layers of 256": SMALL}
CALIBRATED: list[tuple[str, Mapping[str, object], Mapping[str, str]]] = [
    ("4 layers of 256", SMALL, {}),
    ("the same, twice the prompts", SMALL, {"prompts": "16"}),
    ("the same, answers of 128 tokens", SMALL, {"sampling.max_tokens": "128"}),
    ("8 layers of 512", LARGE, {}),
]
"""Runs of `rates`: a name, the sizes of the model, fields of the recipe. The first one calibrates."""
ITERATIONS = 4
REPEATED = 2.0
TOKENS = int(COMMON["sampling.max_tokens"])


def seconds_of(action: Callable[[], object]) -> float:
    """The mean CPU time of an action, over `REPEATED` seconds."""
    start, count = time.process_time(), 0
    while (elapsed := time.process_time() - start) < REPEATED or not count:
        action()
        count += 1
    return elapsed / count


def measured_rates(shape: DecoderShape) -> tuple[float, float]:
    """10^12 operations per second of a product of the model's size, and 10^9 bytes per second of reading memory."""
    x, weight = torch.randn(512, shape.hidden_size), torch.randn(shape.mlp_width, shape.hidden_size)
    operations = 2 * 512 * shape.hidden_size * shape.mlp_width / seconds_of(lambda: x @ weight.T)
    block = torch.randn(16 << 20)
    return operations / 1e12, block.nbytes / seconds_of(lambda: block.sum()) / 1e9


def this_core(tflops: float, memory: float, lengths: AssumedLengths) -> PlannedMachines:
    """One core of this machine, with measured rates."""
    return PlannedMachines(
        name="this core", device_count=1, memory_gib=8.0, device_type="cpu", tflops=tflops,
        memory_bandwidth_gb_s=memory,
        decode_step_overhead_ms=1.0, rates_source="measured", assumed_lengths=lengths,
    )  # fmt: skip


def measure(folder: Path, name: str, sizes: Mapping[str, object]) -> str:
    """One row: rates, the predicted seconds of sampling and of learning, those measured for both, and the ratio."""
    directory, grader = folder / name.replace(" ", "-"), folder / "grader.py"
    shape = DecoderShape(**{**OTHERS, **sizes})  # type: ignore[arg-type]
    write_model(Decoder.new(shape, 0, dtype=torch.float32), directory, tokenizer=tokenizer(shape.vocabulary_size))
    grader.write_text(GRADER)
    fields = {"model": str(directory), **COMMON, "verifier": "grader:grade"}
    with contextlib.redirect_stdout(sys.stderr):  # it prints the files that it executes
        use = load_use(Permissions(use=[grader]))
    recipe = read_recipe("", list(fields.items()), use)
    prompt = max(len(problem.token_ids) for problem in all_problems(read_inputs(recipe, use).task))
    (folder / "empty.toml").write_text("")
    options = [word for path, value in fields.items() for word in (f"--{path}", value)]
    words = [sys.executable, "-m", "groupwise", "train", str(folder / "empty.toml"), *options, "--use", str(grader)]
    words += ["--out", str(folder / "runs")]
    tflops, memory = measured_rates(shape)
    one, several = (cpu_seconds([*words, "--iterations", str(n)]) for n in (1, 1 + ITERATIONS))
    machines = this_core(tflops, memory, AssumedLengths(prompt=prompt, median_answer_tokens=TOKENS, spread=0.0))
    trial = plan_run(recipe, shape, machines, prompt).best
    predicted, measured = trial.sampling() + trial.learning, (several - one) / ITERATIONS
    cells = [name, f"{tflops * 1e3:,.0f}", f"{memory:,.1f}", f"{trial.sampling():.2f}", f"{trial.learning:.2f}"]
    return f"| {' | '.join([*cells, f'{measured:.2f}', f'{predicted / measured:.2f}'])} |"


def cpu_seconds(words: list[str]) -> float:
    """The CPU seconds of a command and its children."""
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, words
    return usage.ru_utime + usage.ru_stime


def compare_calibrated(folder: Path) -> None:
    """Print a row for each run: seconds of an iteration by the rates, calibrated, and measured."""
    rates: tuple[float, float] | None = None
    factors: dict[str, float] = {}
    for name, sizes, settings in CALIBRATED:
        home = folder / name.replace(" ", "-")
        home.mkdir()
        fields = {**fields_of(home, sizes, settings), "iterations": str(ITERATIONS)}
        with contextlib.redirect_stdout(sys.stderr):  # it prints the files that it executes
            use = load_use(Permissions(use=[home / "grader.py"]))
        recipe = read_recipe("", list(fields.items()), use)
        shape = DecoderShape(**{**OTHERS, **sizes})  # type: ignore[arg-type]
        prompt = max(len(problem.token_ids) for problem in all_problems(read_inputs(recipe, use).task))
        rates = rates or measured_rates(shape)
        machines = this_core(
            *rates, AssumedLengths(prompt=prompt, median_answer_tokens=recipe.sampling.max_tokens, spread=0.0)
        )
        measured_run(home, fields)
        (run,) = (home / "runs").iterdir()
        if not factors:
            first = calibrated(machines, run, recipe, shape, prompt)
            factors = {"sampling": first.sampling_time_factor, "learning": first.learning_time_factor}
        trials = [plan_run(recipe, shape, each, prompt).best for each in (machines, replace(machines, **factors))]
        by_rates, planned = (trial.sampling() + trial.learning for trial in trials)
        measured = sum(phase_seconds(run))
        cells = f"{by_rates:.2f} | {planned:.2f} | {measured:.2f} | {planned / measured:.2f} | {os.getloadavg()[0]:.1f}"
        print(f"| {name} | {cells} |", flush=True)


if __name__ == "__main__" and sys.argv[1:] == ["rates"]:
    print("| run | by rates, s | calibrated, s | measured, s | calibrated / measured | load |\n" + "|---" * 6 + "|")
    with tempfile.TemporaryDirectory() as parent:
        compare_calibrated(Path(parent))
elif __name__ == "__main__":
    print("| model | GFLOP/s | GB/s | sampling, predicted s | learning, predicted s | both, measured s | ratio |")
    print("|---" * 7 + "|")
    with tempfile.TemporaryDirectory() as parent:
        for run, run_sizes in RUNS.items():
            print(measure(Path(parent), run, run_sizes), flush=True)
