"""Train thirteen short runs at an old commit and in the working tree, and compare model bytes and metrics.

    python tools/compare_bits.py                     # all against the base commit
    python tools/compare_bits.py grpo_kl lora        # some of them
    python tools/compare_bits.py --old main --keep /tmp/bits

The runs are written with the recipe keys of the base commit 4fcaf109; the tables below rename keys, values and metrics
for the working tree. Another old commit must have the keys of the base commit.

Exit code 0 if every run has equal model bytes and equal metrics, else 1. With --keep, runs of the old commit that
finished there before are not trained again.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
OLD = "4fcaf109"

OLD_KEYS: dict[str, str] = {
    "cluster.lag": "cluster.max_staleness",
    "cluster.lanes": "cluster.reduction_lanes",
    "engine.rows": "engine.max_num_seqs",
    "lora.targets": "lora.target_modules",
    "machine.recompute": "machine.gradient_checkpointing",
    "method.refill": "method.max_refills",
    "method.shaping.1.buffer": "method.shaping.1.buffer_length",
    "optimizer.clip": "optimizer.max_grad_norm",
    "save.model_every": "save.export_every",
    "warm_start.per_step": "warm_start.prompts",
    "warm_start.optimizer.decay": "warm_start.optimizer.lr_scheduler",
    "warm_start.optimizer.warmup": "warm_start.optimizer.warmup_steps",
}
"""The present dotted path of each recipe field that was renamed since the base commit."""
LENGTHS = ("method.shaping", '["Correctness", {kind="Overlong", buffer=40}]')
"""After so few steps no answer is correct, so only lengths make rewards differ."""
OLD_VALUES: dict[tuple[str, str], tuple[str, str]] = {
    ("method.proximal", "sampled"): ("method.old_logprobs", "engine"),
    LENGTHS: ("method.shaping", '["Correctness", {kind="OverlongPenalty", buffer_length=40}]'),
}
"""The present dotted path and value of each (dotted path, value) whose value was renamed."""
OLD_METRICS: dict[str, str] = {
    "eval/parts/": "eval/subscores/",
    "eval/parts_of_correct/": "eval/subscores_of_correct/",
    "lag/": "staleness/",
    "parts/": "subscores/",
}
"""The present name of each renamed metric. A name that ends with a slash renames all metrics that begin with it."""

WARM_START = "warm_start/metrics.jsonl"
"""The metrics of a warm start. The base commit has a few of each step; only these are compared."""

EVERY = ("iterations=5", "prompts=4", "evaluate.every=0", "evaluate.problems=8", "save.every=0")
"""Overrides of every run."""
BLANK = ("warm_start.steps=80", "warm_start.per_step=16", "method.group_size=8", "method.minibatches=2", "prompts=2")

RUNS: dict[str, tuple[str, ...]] = {
    "gspo": ("method.minibatches=2", "machine.microbatch_tokens=512", "engine.rows=24", "cluster.lag=1"),
    "grpo_kl": ("method=grpo", "method.group_size=8", "method.minibatches=2", "method.epochs=2",
                "optimizer.lr=5e-5", "method.objective.penalties.0.coefficient=0.04", "method.proximal=sampled"),
    "dapo_refill": ("method=dapo", "method.group_size=8", "method.minibatches=2", "method.refill=2",
                    "method.shaping.1.buffer=8"),
    "big_sums": ("recipes/big_sums.toml", *BLANK, "=".join(LENGTHS)),
    "programs": ("recipes/programs.toml", *BLANK, "=".join(LENGTHS)),
    "lora": ("lora.rank=2", 'lora.targets=["q_proj", "down_proj"]', "method.group_size=8", "optimizer.lr=2e-3",
             "machine.dtype=bfloat16"),
    "turns": ("recipes/coin.toml", *BLANK),
    "lanes_shards": ("cluster.ranks=2", "cluster.lanes=4", "cluster.shard=full", "method.group_size=8",
                     "machine.microbatch_tokens=128", "machine.recompute=true"),
    "ranks": ("cluster.ranks=4", "cluster.lanes=8", "method.group_size=8", "machine.microbatch_tokens=128"),
    "flow": ("recipes/rings.toml", "method.group_size=8", "optimizer.clip=0.5"),
    "masked": ("recipes/beads.toml", "method.group_size=8", "save.model_every=5"),
    "warm_start": ("recipes/mixed_sums.toml", "warm_start.steps=20", "warm_start.per_step=8",
                   "warm_start.optimizer.warmup=4", "warm_start.optimizer.decay=linear", "method=ppo"),
    "phases": ("recipes/veripo.toml", "iterations=2", "phase.1.prompts=8"),
}  # fmt: skip
"""Each run: an optional recipe file of the tree that trains it, then overrides."""

SAME = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
"""Environment variables of both runs."""


class Difference(NamedTuple):
    """The first metric that differs: its file and line, its present name, and its values; None where it is missing."""

    line: str
    key: str
    old: Any
    new: Any


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="RUN", help=f"from {', '.join(RUNS)}; default: all")
    parser.add_argument("--old", default=OLD, help=f"the commit to compare with (default {OLD})")
    parser.add_argument("--keep", type=Path, help="a directory that keeps the runs")
    options = parser.parse_args(argv)
    names = options.runs or list(RUNS)
    if unknown := sorted(set(names) - set(RUNS)):
        parser.error(f"{', '.join(unknown)} is not a run; the runs are {', '.join(RUNS)}")
    commit = git("rev-parse", "--short=12", f"{options.old}^{{commit}}")
    with tempfile.TemporaryDirectory(prefix="compare-bits-") as scratch:
        home = (options.keep or Path(scratch)).resolve()
        tree = Path(scratch) / "old"
        git("worktree", "add", "--detach", "--force", str(tree), commit)
        try:
            return compare(names, tree, home / f"old-{commit}", home / "new")
        finally:
            git("worktree", "remove", "--force", str(tree))


def compare(names: Sequence[str], tree: Path, old_home: Path, new_home: Path) -> int:
    """Train missing runs, print one row per run, and return the exit code."""
    same = True
    print(f"{'run':<12} {'model bytes':<12} first metric that differs", flush=True)
    for name in names:
        old, new = old_home / name, new_home / name
        words = (*EVERY, *RUNS[name])
        if not old.is_dir():
            train(tree, old, words)
        train(ROOT, new, [renamed(word) for word in words])
        equal = digest(old) == digest(new) != {}
        gap = first_difference(metrics(old), metrics(new))
        same = same and equal and gap is None
        where = "none" if gap is None else f"{gap.line}, {gap.key}: {gap.old!r} -> {gap.new!r}"
        print(f"{name:<12} {'equal' if equal else 'differ':<12} {where}", flush=True)
    return 0 if same else 1


def train(tree: Path, out: Path, words: Sequence[str]) -> None:
    """Train one run with the code in `tree`. If it fails, print its output and raise CalledProcessError."""
    shutil.rmtree(out, ignore_errors=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    recipe = [str(tree / word) for word in words if word.endswith(".toml")]
    pairs = [word.split("=", 1) for word in words if not word.endswith(".toml")]
    flags = [text for key, value in dict(pairs).items() for text in (f"--{key}", value)]
    output = ["--out", str(out.parent), "--name", out.name]
    command = [sys.executable, "-m", "groupwise", "train", *recipe, *output, *flags]
    environment = os.environ | SAME | {"PYTHONPATH": str(tree / "src")}
    process = subprocess.run(command, cwd=out.parent, env=environment, capture_output=True, text=True)
    if process.returncode:
        print(process.stdout, process.stderr, sep="\n", file=sys.stderr)
        process.check_returncode()
    for run in out.parent.glob(f"{out.name}-*"):  # the directory's name is the run's name and the time
        run.rename(out)


def renamed(word: str) -> str:
    """An override `key=value` of the base commit, with the key and the value of the working tree."""
    key, mark, value = word.partition("=")
    key, value = OLD_VALUES.get((key, value), (OLD_KEYS.get(key, key), value))
    return key + mark + value


def renamed_metric(name: str) -> str:
    """The present name of a metric of the base commit."""
    beginning = next((old for old in OLD_METRICS if old.endswith("/") and name.startswith(old)), "")
    return OLD_METRICS.get(name) or OLD_METRICS.get(beginning, "") + name.removeprefix(beginning)


def digest(run: Path) -> dict[str, str]:
    """The SHA-256 of each weight file of a run's models, also of its phases."""
    paths = run.glob("**/model*/**/*.safetensors")
    return {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def metrics(run: Path) -> dict[str, dict[str, Any]]:
    """The lines of all metrics of a run, also of its warm start and its phases, by file and line number.

    Those of a warm start are numbered by their step, since the base commit has no line for step 0.
    """
    lines: dict[str, dict[str, Any]] = {}
    for path in sorted(run.rglob("metrics.jsonl")):
        for number, text in enumerate(path.read_text().splitlines(), 1):
            line = json.loads(text)
            lines[f"{path.relative_to(run)}:{line['step'] if path.match(WARM_START) else number}"] = line
    return lines


def first_difference(old: Mapping[str, dict[str, Any]], new: Mapping[str, dict[str, Any]]) -> Difference | None:
    """The first metric, by line and then by name, that is not equal under its present name."""
    return next(differences(old, new), None)


def differences(old: Mapping[str, dict[str, Any]], new: Mapping[str, dict[str, Any]]) -> Iterator[Difference]:
    for line in {**old, **new}:
        before = {renamed_metric(key): value for key, value in old.get(line, {}).items()}
        after = new.get(line, {})
        if f"{WARM_START}:" in line:
            after = {key: after[key] for key in before if key in after}
        for key in {**before, **after}:
            if repr(before.get(key)) != repr(after.get(key)):  # NaN is equal to NaN
                yield Difference(line, key, before.get(key), after.get(key))


def git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main())
