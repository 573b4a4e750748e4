"""Train six short runs at an old commit and in the working tree, and compare model bytes and metrics.

    python tools/compare_bits.py                     # all six against 3a310cd
    python tools/compare_bits.py grpo_kl lora        # some of them
    python tools/compare_bits.py --old main --keep /tmp/bits

Another commit than 3a310cd must know the present keys of recipes.

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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from groupwise.data import current_name

ROOT = Path(__file__).resolve().parents[1]
OLD = "3a310cd"
ITERATIONS = 5

EVERY = (f"iterations={ITERATIONS}", "prompts=4", "evaluate.every=0", "evaluate.problems=8", "save.every=0")
"""Overrides of every run, with the keys of the old commit."""
BLANK = ("warm_start.steps=80", "warm_start.per_step=16", "method.group_size=8", "method.minibatches=2", "prompts=2",
         'method.shaping=["Correctness", {kind="Overlong", buffer=40}]')  # fmt: skip
"""After so few steps no answer is correct, so only lengths make rewards differ."""

RUNS: dict[str, tuple[str, ...]] = {
    "gspo": ("method.minibatches=2", "machine.piece_tokens=512"),
    "grpo_kl": ("method=grpo", "method.group_size=8", "method.minibatches=2", "method.passes=2",
                "optimizer.lr=5e-5", "method.objective.penalties.0.coefficient=0.04"),
    "dapo_refill": ("method=dapo", "method.group_size=8", "method.minibatches=2", "method.refill=2",
                    "method.shaping.1.buffer=8"),
    "big_sums": ("recipes/big_sums.toml", *BLANK),
    "programs": ("recipes/programs.toml", *BLANK),
    "lora": ("lora.rank=2", 'lora.targets=["q_proj", "down_proj"]', "method.group_size=8", "optimizer.lr=2e-3",
             "machine.dtype=bfloat16"),
}  # fmt: skip
"""Each run: an optional recipe file, then overrides with the keys of the old commit."""

WORDS = {"machine.piece_tokens": "machine.microbatch_tokens", "method.passes": "method.epochs"}
"""Renamed keys of overrides: old -> new."""


SAME = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "MKL_CBWR": "AUTO,STRICT"}
"""Environment variables of both runs. `import groupwise` sets MKL's mode; the old commit did not."""


class Difference(NamedTuple):
    """The first metric that differs; a key that one side lacks has the value None there."""

    iteration: int
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
        if not (old / "model").is_dir():
            train(tree, old, (*EVERY, *RUNS[name]))
        train(ROOT, new, (*EVERY, *RUNS[name]))
        equal = digest(old / "model") == digest(new / "model")
        gap = first_difference(metrics(old), metrics(new))
        same = same and equal and gap is None
        where = "none" if gap is None else f"iteration {gap.iteration}, {gap.key}: {gap.old!r} -> {gap.new!r}"
        print(f"{name:<12} {'equal' if equal else 'differ':<12} {where}", flush=True)
    return 0 if same else 1


def train(tree: Path, out: Path, words: Sequence[str]) -> None:
    """Train one run with the code in `tree`. If it fails, print its output and raise CalledProcessError."""
    shutil.rmtree(out, ignore_errors=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    recipe = [str(tree / word) for word in words if word.endswith(".toml")]
    words = words if has_old_keys(tree) else [renamed(word) for word in words]
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


def has_old_keys(tree: Path) -> bool:
    """Whether the code in `tree` has the keys of the commit 3a310cd."""
    return not (tree / "src" / "groupwise" / "training").is_dir()


def renamed(word: str) -> str:
    """An override with the keys of the working tree."""
    key, mark, value = word.partition("=")
    return WORDS.get(key, key) + mark + value


def digest(directory: Path) -> dict[str, str]:
    """The SHA-256 of each weight file."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.glob("*.safetensors")}


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def first_difference(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> Difference | None:
    """The first metric, by line and then by name, that is not equal under its new name."""
    return next(differences(old, new), None)


def differences(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> Iterator[Difference]:
    for before, after in zip(old, new):
        line = {current_name(key): value for key, value in before.items()}
        for key in [*line, *(key for key in after if key not in line)]:
            if repr(line.get(key)) != repr(after.get(key)):  # NaN is equal to NaN
                yield Difference(before.get("iteration", -1), key, line.get(key), after.get(key))
    if len(old) != len(new):
        yield Difference(min(len(old), len(new)), "lines", len(old), len(new))


def git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main())
