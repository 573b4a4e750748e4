"""Compare `groupwise.planning` with measured runs: `python benchmarks/memory.py`. Prints the table of docs/memory.md.

Each run is one process; its peak is `ru_maxrss`. The models have random weights and rarely end an answer.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path

import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Fast

from groupwise.config.devices import resolved
from groupwise.config.text import read_recipe
from groupwise.config.user_code import Permissions, load_use
from groupwise.data import all_problems
from groupwise.models import Decoder, Shape, Tokenizer, find_model, read_shape, write_model
from groupwise.planning.memory import run_memory
from groupwise.training.build import read_inputs

SMALL = {"width": 256, "layers": 4, "heads": 4, "kv_heads": 2, "head_dim": 64, "inner": 1024}
LARGE = {"width": 512, "layers": 8, "heads": 8, "kv_heads": 4, "head_dim": 64, "inner": 1536}
QWEN3 = {"family": "qwen3", "qk_norm": True}
CRITIC = '{ critic = { kind = "ValueModel" } }'
RUNS: list[tuple[str, Mapping[str, object], Mapping[str, str]]] = [
    ("the packaged model", {}, {}),
    ("4 layers of 256, float32", SMALL, {}),
    ("the same, bfloat16", SMALL, {"machine.dtype": "bfloat16"}),
    ("the same in float32, a value model", SMALL, {"method.models": CRITIC, "method.credit": '{ kind = "GAE" }'}),
    ("the same, microbatches of 256 tokens", SMALL, {"machine.microbatch_tokens": "256"}),
    ("the same, recompute", SMALL, {"machine.recompute": "true"}),
    ("8 layers of 512, float32", LARGE, {}),
    ("the same, LoRA of rank 16", LARGE, {"lora.rank": "16"}),
    ("the same, a reference model (GRPO)", LARGE, {"method": "grpo"}),
]
MIB = 1 << 20
THRESHOLDS = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""Settings of glibc's allocator with which it returns freed memory to the system at once."""
COMMON = {
    "task": "calculator", "method": "gspo", "method.group_size": "8", "prompts": "8", "iterations": "1",
    "sampling.max_tokens": "64", "evaluate.problems": "2", "engine.max_gap": "100", "max_unverifiable": "1",
    "machine.microbatch_tokens": "4096",
}  # fmt: skip


def tokenizer(vocabulary: int) -> Tokenizer:
    """Bytes, and other tokens up to the size of the vocabulary; the last one ends an answer."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast = Fast(models.BPE(vocab={character: i for i, character in enumerate(alphabet)}, merges=[]))
    fast.pre_tokenizer, fast.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    fast.add_tokens([AddedToken(f"<{i}>") for i in range(len(alphabet), vocabulary)])
    return Tokenizer.of(fast, {vocabulary - 1})


def measure(folder: Path, name: str, sizes: Mapping[str, object], settings: Mapping[str, str]) -> str:
    """One row of the table: weights, the prediction, and for both settings of the allocator peak and error."""
    directory, grader = folder / str(len(list(folder.iterdir()))), folder / "grader.py"
    if sizes:
        shape = Shape(vocabulary=4096, positions=512, tied=True, **{**sizes, **QWEN3})  # type: ignore[arg-type]
        write_model(Decoder.new(shape, 0, dtype=torch.float32), directory, tokenizer=tokenizer(shape.vocabulary))
    fields = {"model": str(directory) if sizes else "calculator", **COMMON, **settings, "verifier": "grader:grade"}
    grader.write_text("def grade(prompt, answer, gold):\n    return len(answer) % 7\n")
    with redirect_stdout(sys.stderr):  # it prints the files that it executes
        use = load_use(Permissions(use=[grader]))
    recipe = resolved(read_recipe("iterations = 1", list(fields.items()), use))
    read = read_shape(find_model(recipe.model))
    assert isinstance(read, Shape)
    prompts = all_problems(read_inputs(recipe, use).task)
    memory = run_memory(recipe, read, max(len(prompt.context) for prompt in prompts))
    options = [word for path, value in fields.items() for word in (f"--{path}", value)]
    (folder / "empty.toml").write_text("")
    options += ["--use", str(grader)]
    command = [sys.executable, "-m", "groupwise", "train", str(folder / "empty.toml"), *options]
    cells = [name, f"{memory.total / 1e6:.1f} M", f"{memory.peak / MIB:,.0f}"]
    for environment in ({}, THRESHOLDS):
        words = [*command, "--out", str(folder / "runs")]
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, env=os.environ | environment)
        _, status, usage = os.wait4(process.pid, 0)
        assert status == 0, name
        peak = usage.ru_maxrss * 1024
        cells += [f"{peak / MIB:,.0f}", f"{(memory.peak - peak) / peak:+.0%}"]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print("| run | weights | predicted MiB | measured MiB | error | thresholds fixed | error |\n" + "|---" * 7 + "|")
    with tempfile.TemporaryDirectory() as folder:
        for run in RUNS:
            print(measure(Path(folder), *run), flush=True)
