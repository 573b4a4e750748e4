"""Peak memory of whole runs against the plan's: `python -m benchmarks.plan_memory [NAME | pairs]`. Prints tables.

Each run is `groupwise train` in new processes. A peak is VmHWM of /proc, read every 20 ms until the process ends. The
models have random weights and rarely end an answer. `pairs` repeats runs with and without the return of freed memory.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Fast

from groupwise.config.recipe_toml import read_recipe
from groupwise.config.resolve_devices import resolved
from groupwise.config.user_code import Permissions, load_use
from groupwise.data import all_problems
from groupwise.models import Decoder, DecoderShape, Tokenizer, find_model, read_shape, write_model
from groupwise.planning.process_memory import ProcessMemoryPrediction
from groupwise.planning.run_processes import process_memories
from groupwise.training.build_run import read_inputs

SMALL = {
    "hidden_size": 256,
    "layers": 4,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 64,
    "mlp_width": 1024,
    "tied_embeddings": True,
}
LARGE = {
    "hidden_size": 512,
    "layers": 8,
    "heads": 8,
    "kv_heads": 4,
    "head_dim": 64,
    "mlp_width": 1536,
    "tied_embeddings": True,
}
OTHERS = {"vocabulary_size": 4096, "max_positions": 512, "model_family": "qwen3", "qk_norm": True}
CRITIC = '{ critic = { kind = "ValueModel" } }'
SHARDS = {"cluster.ranks": "2", "cluster.shard": "full"}
RUNS: list[tuple[str, Mapping[str, object], Mapping[str, str]]] = [
    ("the packaged model", {}, {}),
    ("4 layers of 256, float32", SMALL, {}),
    ("the same, bfloat16", SMALL, {"machine.dtype": "bfloat16"}),
    ("the same in float32, a value model", SMALL, {"method.models": CRITIC, "method.credit": '{ kind = "GAE" }'}),
    ("the same, microbatches of 256 tokens", SMALL, {"machine.microbatch_tokens": "256"}),
    ("the same, gradient checkpointing", SMALL, {"machine.gradient_checkpointing": "true"}),
    ("8 layers of 512, float32", LARGE, {}),
    ("the same, embedding and head separate", {**LARGE, "tied_embeddings": False}, {}),
    ("the same tied, LoRA of rank 16", LARGE, {"lora.rank": "16"}),
    ("the same, a reference model (GRPO)", LARGE, {"method": "grpo"}),
    ("the same, staleness 1", LARGE, {"cluster.max_staleness": "1"}),
    ("the same, 2 ranks with shards", LARGE, SHARDS),
    ("the same, 2 engines", LARGE, {"engine": '{ kind = "Served", replicas = 2 }'}),
]
PAIRS, REPEATED = (RUNS[1], RUNS[6]), 3
MIB = 1 << 20
COMMON = {
    "task": "calculator", "method": "gspo", "method.group_size": "8", "prompts": "8", "iterations": "1",
    "sampling.max_tokens": "64", "evaluate.problems": "2", "engine.max_logprob_diff": "100", "max_unverifiable": "1",
    "machine.microbatch_tokens": "4096",
}  # fmt: skip
GRADER = "def grade(prompt, answer, gold):\n    return len(answer) % 7\n"
EVERY = 0.02
"""Seconds between two readings of the peaks."""


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run: the peak of each of its processes in bytes, those that start later last, and its seconds."""

    peaks: Sequence[int]
    user: float
    system: float


def tokenizer(vocabulary: int) -> Tokenizer:
    """Bytes, and other tokens up to the size of the vocabulary; the last one ends an answer."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast = Fast(models.BPE(vocab={character: i for i, character in enumerate(alphabet)}, merges=[]))
    fast.pre_tokenizer, fast.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    fast.add_tokens([AddedToken(f"<{i}>") for i in range(len(alphabet), vocabulary)])
    return Tokenizer.of(fast, {vocabulary - 1})


def fields_of(folder: Path, sizes: Mapping[str, object], settings: Mapping[str, str]) -> dict[str, str]:
    """The recipe's fields for a run with a new model of these sizes, or with the packaged one."""
    directory = folder / f"model{len(list(folder.glob('model*')))}"
    if sizes:
        shape = DecoderShape(**{**OTHERS, **sizes})  # type: ignore[arg-type]
        write_model(Decoder.new(shape, 0, dtype=torch.float32), directory, tokenizer=tokenizer(shape.vocabulary_size))
    (folder / "grader.py").write_text(GRADER)
    (folder / "empty.toml").write_text("")
    model = {"model": str(directory) if sizes else "calculator"}
    return {**model, **COMMON, **settings, "verifier": "grader:grade"}


def predicted(folder: Path, fields: Mapping[str, str]) -> dict[str, ProcessMemoryPrediction]:
    """The plan's memory of each process of a run."""
    with redirect_stdout(sys.stderr):  # it prints the files that it executes
        use = load_use(Permissions(use=[folder / "grader.py"]))
    recipe = resolved(read_recipe("", list(fields.items()), use))
    shape = read_shape(find_model(recipe.model))
    assert isinstance(shape, DecoderShape)
    prompts = all_problems(read_inputs(recipe, use).task)
    return process_memories(recipe, shape, max(len(prompt.token_ids) for prompt in prompts))


def measured(folder: Path, fields: Mapping[str, str], *command: str) -> Run:
    """Run `command` (by default `groupwise train`) with these fields, and measure its processes."""
    words = [*(command or (sys.executable, "-m", "groupwise")), "train", str(folder / "empty.toml")]
    words += [word for path, value in fields.items() for word in (f"--{path}", value)]
    words += ["--use", str(folder / "grader.py"), "--out", str(folder / "runs")]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peaks: dict[int, int] = {}
    while True:
        peaks |= {pid: peak for pid in tree(process.pid) if (peak := high_water(pid))}
        ended, status, usage = os.wait4(process.pid, os.WNOHANG)
        if ended:
            break
        time.sleep(EVERY)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"{words} ended with {process.returncode}"
    models = [peak for peak in peaks.values() if peak > 100 * MIB]  # others are git and the like
    return Run(models, usage.ru_utime, usage.ru_stime)


def tree(pid: int) -> list[int]:
    """A process and its descendants."""
    children: list[str] = []
    with suppress(OSError):  # it has ended
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in tree(int(child)))]


def high_water(pid: int) -> int:
    """The largest resident memory of a process so far, in bytes; 0 if it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    return 0


def compare(name: str, sizes: Mapping[str, object], settings: Mapping[str, str]) -> None:
    """Print a row for each process of a run: weights, prediction, peak, error."""
    with tempfile.TemporaryDirectory() as parent:
        fields = fields_of(Path(parent), sizes, settings)
        memories, run = predicted(Path(parent), fields), measured(Path(parent), fields)
    for (process, memory), peak in zip(memories.items(), run.peaks, strict=True):
        label = f"{name}, {process}" if len(memories) > 1 else name
        cells = [label, f"{memory.parameter_count / 1e6:.1f} M", memory.largest_phase, f"{memory.peak / MIB:,.0f}"]
        cells += [f"{peak / MIB:,.0f}", f"{memory.peak / peak - 1:+.1%}"]
        print(f"| {' | '.join(cells)} |", flush=True)


def compare_pairs() -> None:
    """Print the peak and the seconds of runs that keep freed memory, and of runs that return it, in turn."""
    short = (sys.executable, "-m", "benchmarks.plan_memory", "short")
    for name, sizes, settings in PAIRS:
        with tempfile.TemporaryDirectory() as parent:
            fields = fields_of(Path(parent), sizes, {**settings, "iterations": "2"})
            for _ in range(REPEATED):
                for label, command in (("kept", ()), ("returned", short)):
                    run = measured(Path(parent), fields, *command)
                    seconds = f"{run.user:.1f} | {run.system:.1f}"
                    print(f"| {name} | {label} | {run.peaks[0] / MIB:,.0f} | {seconds} |", flush=True)


def short(words: list[str]) -> int:
    """Run a command of groupwise as on a machine whose memory is short: it returns freed memory."""
    from groupwise.__main__ import main
    from groupwise.models import return_freed_memory  # pyright: ignore[reportAttributeAccessIssue]

    return_freed_memory.available_memory = lambda: 0
    return main(words)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["short", *command]:
            sys.exit(short(command))
        case ["pairs"]:
            print("| run | freed memory | peak MiB | user s | system s |\n" + "|---" * 5 + "|")
            compare_pairs()
        case names:
            print("| run | weights | largest phase | predicted MiB | measured MiB | error |\n" + "|---" * 6 + "|")
            for each in RUNS:
                if not names or each[0] in names:
                    compare(*each)
