"""Compare this commit with an earlier one on equal work: CPU seconds and peak memory of `groupwise train`, in pairs.

`make bench-self BASE=COMMIT` compares the last commit with COMMIT and writes benchmarks/SELF.md. Each side is its own
clone with its own virtual environment, below build/self. A trial, which writes no page:

    python -m benchmarks.earlier_commit BASE --regimes packaged --pairs 1

Each run is a process of one thread, `groupwise train` without evaluation and checkpoints. The CPU seconds (user and
system) of a short run are subtracted from those of a long one, so start and end of a run do not count. Both sides read
the same model files and rows. A ratio is the earlier commit's CPU seconds per trained token over this commit's: above
1, this commit is faster.

CPU seconds depend on the other work of a machine, by caches, hyperthreads and the clock. Two counts do not: retired
instructions, where `perf` can count them (not on most virtual machines), and the calls of functions from Python, which
one more run of each side counts under cProfile. The first see all work, the second only Python's.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from pstats import Stats
from random import Random
from resource import struct_rusage
from statistics import median
from threading import Timer
from typing import Any

import tomli_w
from tokenizers import AddedToken, models, pre_tokenizers
from tokenizers import Tokenizer as Fast

HOME = Path(__file__).resolve().parents[1]
ROOT = HOME / "build" / "self"
PAGE = HOME / "benchmarks" / "SELF.md"
DEADLINE = 1800
"""Seconds after which one run is ended."""

INSTRUCTIONS = "instructions:u"
"""The event of `perf` that is counted: instructions in user mode."""

EVEN = '''"""A reward that half of all answers get."""


def grade(prompt, answer, gold):
    return sum(map(ord, answer)) % 2 == 0
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One workload. `shape` is None for the packaged model and task; else the shape of a model with random weights.

    A sample ends with a probability of `1 / mean` per token, or never (0), and after `max_tokens`. `iterations` are
    those of the short and the long run.
    """

    title: str
    shape: Mapping[str, int] | None = None
    prompts: int = 0
    group: int = 0
    prompt_tokens: int = 0
    max_tokens: int = 0
    mean: int = 0
    method: Mapping[str, Any]
    iterations: tuple[int, int]


FORMER_NAMES = {
    "vocabulary_size": "vocabulary", "hidden_size": "width", "max_positions": "positions", "model_family": "family",
}  # fmt: skip
"""The names that earlier commits have for the sizes of a decoder."""


def shape(vocabulary: int, width: int, layers: int, heads: int, kv_heads: int, inner: int) -> dict[str, int]:
    """The fields of a decoder's shape, with heads as wide as `width / heads`."""
    return {
        "vocabulary_size": vocabulary, "hidden_size": width, "layers": layers, "heads": heads, "kv_heads": kv_heads,
        "head_dim": width // heads, "mlp_width": inner, "max_positions": 1024,
    }  # fmt: skip


GRPO = {"base": "grpo", "objective": {"penalties": []}, "minibatches": 1}
DAPO = {
    "base": "grpo", "minibatches": 4,
    "objective": {"penalties": [], "aggregate": "token_mean", "surrogate": {"low": 0.2, "high": 0.28}},
}  # fmt: skip
WORKS = {
    "packaged": Work(title="the packaged recipe", method={}, iterations=(4, 60)),
    "shared": Work(
        title="one prompt of 512 tokens, group 16, answers of 64, 10M weights",
        shape=shape(1024, 320, 8, 5, 5, 864), prompts=1, group=16, prompt_tokens=512, max_tokens=64, method=GRPO,
        iterations=(1, 4),
    ),
    "vocabulary": Work(
        title="vocabulary 151,936, width 256, 2 layers, 2 groups of 8, answers of 32",
        shape=shape(151_936, 256, 2, 4, 4, 704), prompts=2, group=8, prompt_tokens=32, max_tokens=32, method=GRPO,
        iterations=(1, 4),
    ),
    "small_groups": Work(
        title="8 groups of 4, prompts of 40 tokens, answers of 24, vocabulary 8,192, 4 layers of width 256",
        shape=shape(8192, 256, 4, 4, 2, 704), prompts=8, group=4, prompt_tokens=40, max_tokens=24, method=GRPO,
        iterations=(2, 14),
    ),
    "ragged": Work(
        title="one group of 24, prompt of 200 tokens, answers up to 256 (median 40), vocabulary 32,000, token mean",
        shape=shape(32_000, 256, 4, 4, 2, 704), prompts=1, group=24, prompt_tokens=200, max_tokens=256, mean=58,
        method={**DAPO, "minibatches": 1}, iterations=(1, 5),
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Side:
    """One commit: its clone and its interpreter."""

    commit: str
    home: Path

    @property
    def python(self) -> Path:
        return self.home / ".venv" / "bin" / "python"

    def install(self) -> None:
        """Clone the commit and install it into its own environment, unless that is done."""
        if self.python.with_name("groupwise").exists():
            return
        run(["git", "clone", "-q", str(HOME), str(self.home)])
        run(["git", "-C", str(self.home), "checkout", "-q", self.commit])
        run([sys.executable, "-m", "venv", str(self.home / ".venv")])
        run([str(self.python), "-m", "pip", "install", "-q", "-c", "constraints.txt", "-e", "."], cwd=self.home)

    def arguments(self, work: Work, name: str) -> list[str]:
        """The arguments of `groupwise train`. SystemExit if this commit refuses the recipe."""
        without = ["--evaluate.every", "0", "--save.every", "0"]
        if work.shape is None:
            return without
        path = ROOT / f"{name}-{self.commit}.toml"
        use = ["--use", str(ROOT / "even.py")]
        path.write_text(tomli_w.dumps(recipe_of(work, name)))
        run([str(self.python), "-m", "groupwise", "check", str(path), *use])
        return [str(path), *use, *without]

    def measure(self, arguments: Sequence[str], iterations: int) -> "Measured":
        """One run of this many iterations."""
        counted = self.home / "instructions.csv"
        prefix = ["perf", "stat", "-x,", "-e", INSTRUCTIONS, "-o", str(counted), "--"] if perf_counts() else []
        used, directory = self._train([*prefix, str(self.python), "-m", "groupwise"], arguments, iterations)
        lines = [json.loads(line) for line in (directory / "timings.jsonl").read_text().splitlines()]
        tokens = sum(line["tokens_per_second"] * line["seconds"] for line in lines)
        instructions = count_in(counted.read_text()) if prefix else None
        return Measured(used.ru_utime + used.ru_stime, tokens, used.ru_maxrss / 1024, instructions)

    def calls(self, arguments: Sequence[str], iterations: tuple[int, int]) -> int:
        """The calls of functions from Python in the iterations by which a long run exceeds a short one."""
        profile = self.home / "calls"
        counts = []
        for n in iterations:
            self._train([str(self.python), "-m", "cProfile", "-o", str(profile), "-m", "groupwise"], arguments, n)
            counts.append(Stats(str(profile)).total_calls)  # type: ignore[attr-defined]
        return counts[1] - counts[0]

    def _train(self, program: Sequence[str], arguments: Sequence[str], iterations: int) -> tuple[struct_rusage, Path]:
        """One run: the resources of its process, and its directory."""
        out = self.home / "runs"
        before = set(out.glob("*"))
        command = [*program, "train", *arguments, "--iterations", str(iterations), "--out", str(out)]
        null, pipe = subprocess.DEVNULL, subprocess.PIPE
        process = subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=null, stderr=pipe)
        assert process.stderr is not None
        late = Timer(DEADLINE, process.kill)
        late.start()
        errors = process.stderr.read()
        late.cancel()
        _, status, used = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"{' '.join(command)}:\n{errors.decode()}")
        (directory,) = set(out.glob("*")) - before
        return used, directory


@dataclass(frozen=True, slots=True)
class Measured:
    """CPU seconds (user and system), trained tokens, peak memory (MiB) and instructions of a run; None if uncounted."""

    cpu: float
    tokens: float
    memory: float
    instructions: int | None = None

    def less(self, short: "Measured") -> "Measured":
        """Without the start and the first iterations, which a shorter run measures."""
        counted = self.instructions is not None and short.instructions is not None
        instructions = self.instructions - short.instructions if counted else None  # type: ignore[operator]
        return Measured(self.cpu - short.cpu, self.tokens - short.tokens, self.memory, instructions)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A workload on both sides: the pairs (earlier, now), and the calls from Python of the earlier commit and now."""

    pairs: Sequence[tuple[Measured, Measured]]
    calls: tuple[int, int]


@cache
def perf_counts() -> bool:
    """Whether `perf` is installed and counts instructions on this machine."""
    if not shutil.which("perf"):
        return False
    done = run(["perf", "stat", "-x,", "-e", INSTRUCTIONS, "true"], check=False)
    return count_in(done.stderr) is not None


def count_in(printed: str) -> int | None:
    """The number in the output of `perf stat -x,`; None if the machine does not count.

    >>> count_in("# started\\n\\n1234,,instructions:u,5678,100.00,,")
    1234
    >>> count_in("<not supported>,,instructions:u,0,100.00,,")
    """
    first = next((line.partition(",")[0] for line in printed.splitlines() if INSTRUCTIONS in line), "")
    return int(first) if first.isdigit() else None


def run(command: Sequence[str], *, check: bool = True, cwd: Path = HOME) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end. SystemExit with its output if it fails."""
    done = subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=DEADLINE)
    if check and done.returncode:
        raise SystemExit(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
    return done


def environment() -> dict[str, str]:
    """The environment of both sides: one thread, no package of this process."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "MKL_", "PYTHON", "GROUPWISE_"))}
    return kept | {"OMP_NUM_THREADS": "1"}


def recipe_of(work: Work, name: str) -> dict[str, Any]:
    """The recipe of a workload with random weights, in keys that both commits know."""
    return {
        "model": str(ROOT / name / "model"), "task": str(ROOT / name / "problems.jsonl"), "verifier": "even:grade",
        "prompts": work.prompts, "method": {**work.method, "group_size": work.group},
        "sampling": {"max_tokens": work.max_tokens}, "optimizer": {"lr": 1e-5}, "machine": {"threads": 1},
    }  # fmt: skip


def prepare(work: Work, name: str) -> None:
    """Write a workload's model, rows and reward."""
    from groupwise.models import Decoder, DecoderShape, Tokenizer, write_model

    ROOT.mkdir(parents=True, exist_ok=True)
    (ROOT / "even.py").write_text(EVEN)
    home = ROOT / name
    if work.shape is None or (home / "problems.jsonl").exists():
        return
    vocabulary = work.shape["vocabulary_size"]
    ends = range(2, 2 + (vocabulary // work.mean if work.mean else 1))
    words = {"<pad>": 0, "<end>": 1} | {f"t{i}": i for i in range(2, vocabulary)}
    fast = Fast(models.WordLevel(words, unk_token=""))
    fast.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in ("<pad>", "<end>")])
    sizes = {**work.shape, "model_family": "llama"}
    if "hidden_size" not in DecoderShape.__dataclass_fields__:  # an earlier commit
        sizes = {FORMER_NAMES.get(name, name): size for name, size in sizes.items()}
    decoder = Decoder.new(DecoderShape(**sizes, qkv_bias=False, tied_embeddings=True), seed=0)
    write_model(decoder, home / "model", tokenizer=Tokenizer.of(fast, [1, *ends]))
    random = Random(name)
    rows = [
        " ".join(f"t{random.randrange(ends.stop, vocabulary)}" for _ in range(work.prompt_tokens))
        for _ in range(40 * work.prompts)
    ]
    lines = [json.dumps({"prompt": row, "answer": "0"}) + "\n" for row in rows]
    (home / "problems.jsonl").write_text("".join(lines))


def compare(name: str, earlier: Side, now: Side, pairs: int) -> Comparison:
    """Measure a workload on both sides in turn."""
    work = WORKS[name]
    prepare(work, name)
    sides = [(side, side.arguments(work, name)) for side in (earlier, now)]
    found = []
    for pair in range(pairs):
        measured = {}
        for side, arguments in sides[:: 1 if pair % 2 else -1]:
            short, long = (side.measure(arguments, n) for n in work.iterations)
            measured[side.commit] = long.less(short)
        found.append((measured[earlier.commit], measured[now.commit]))
        ratio = ratios(found)[-1]
        print(f"{name}: pair {pair + 1} of {pairs}, ratio of CPU seconds {ratio:.3f}", file=sys.stderr, flush=True)
    before, after = (side.calls(arguments, work.iterations) for side, arguments in sides)
    return Comparison(found, (before, after))


def ratios(pairs: Sequence[tuple[Measured, Measured]]) -> list[float]:
    """The earlier commit's CPU seconds per token over this commit's, for each pair.

    >>> ratios([(Measured(3.0, 100, 0), Measured(2.0, 100, 0))])
    [1.5]
    """
    return [(before.cpu / before.tokens) / (after.cpu / after.tokens) for before, after in pairs]


def row(name: str, compared: Comparison) -> str:
    """The line of a workload in the table."""
    found, sides = ratios(compared.pairs), list(zip(*compared.pairs))
    seconds = [1e6 * median(one.cpu / one.tokens for one in side) for side in sides]
    memory = [median(one.memory for one in side) for side in sides]
    calls = [count / side[0].tokens for count, side in zip(compared.calls, sides)]
    instructions = [
        f"{median((one.instructions or 0) / one.tokens for one in side) / 1e6:,.2f}"
        if all(one.instructions for one in side) else "-"
        for side in sides
    ]  # fmt: skip
    return (
        f"| {WORKS[name].title} | **{median(found):.2f}** [{min(found):.2f} .. {max(found):.2f}] "
        f"| {seconds[0]:,.0f} / {seconds[1]:,.0f} | {' / '.join(instructions)} "
        f"| {calls[0]:,.1f} / {calls[1]:,.1f} | {memory[0]:,.0f} / {memory[1]:,.0f} | {len(found)} |"
    )


def page(earlier: str, now: str, rows: Sequence[str]) -> str:
    """The page with the table."""
    return f"""# Groupwise compared with an earlier commit

`make bench-self BASE={earlier}` runs both commits on equal work, in turn, each in its own clone and environment, one
thread each. A ratio is the earlier commit's CPU seconds (user and system) per trained token over this commit's: the
median of the pairs, with minimum and maximum. In pairs of numbers, the first is the earlier commit's. Instructions are
retired ones in user mode, in millions per trained token; "-" where `perf` cannot count them. Calls are those of
functions from Python, per trained token.

| work | ratio of CPU seconds | CPU s per million tokens | instructions | calls | peak memory, MiB | pairs |
|---|---|---|---|---|---|---|
{chr(10).join(rows)}

Earlier: {earlier}. This commit: {now}. Processor: {processor()}. Load at the end of the runs: {os.getloadavg()[1]:.0f}
on {os.cpu_count()} processors; CPU seconds of a busy machine vary, counts do not.
"""


def processor() -> str:
    """The name of the processor."""
    cpuinfo = Path("/proc/cpuinfo")
    names = (
        [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        if cpuinfo.exists()
        else []
    )
    return names[0] if names else platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare this commit with an earlier one on equal work.")
    parser.add_argument("base", metavar="BASE", help="the earlier commit")
    parser.add_argument(
        "--regimes", nargs="+", choices=WORKS, default=list(WORKS), metavar="NAME", help=", ".join(WORKS)
    )
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(HOME)}")
    a = parser.parse_args()
    commits = [run(["git", "rev-parse", "--short=8", name]).stdout.strip() for name in (a.base, "HEAD")]
    ROOT.mkdir(parents=True, exist_ok=True)
    earlier, now = (Side(commit, ROOT / commit) for commit in commits)
    for side in (earlier, now):
        side.install()
    text = page(*commits, [row(name, compare(name, earlier, now, a.pairs)) for name in a.regimes])
    print(text)
    if a.write:
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
