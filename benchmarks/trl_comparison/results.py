"""Raw measurements in one JSON file: one section per subject, each with machine, date and commit."""

import json
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.trl_comparison.paths import HOME

RESULTS = HOME / "benchmarks" / "results.json"

Results = dict[str, dict[str, Any]]


def read(path: Path = RESULTS) -> Results:
    """All sections; empty if there is no file."""
    return json.loads(path.read_text()) if path.is_file() else {}


def store(name: str, data: Any, path: Path = RESULTS) -> None:
    """Replace one section of the file."""
    sections = {**read(path), name: {**stamp(), "data": data}}
    ordered = {key: sections[key] for key in sorted(sections)}
    path.write_text(json.dumps(rounded(ordered), indent=1) + "\n")


def stamp() -> dict[str, Any]:
    """Commit, date and machine; `-dirty` if files other than figures, pages and pictures have changed."""
    commit = git("rev-parse", "--short=10", "HEAD") or "unknown"
    ignored = (f":!{x}" for x in (RESULTS.relative_to(HOME), "*.md", "*.svg"))
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", *ignored)
    return {
        "commit": commit + "-dirty" * bool(changed),
        "date": time.strftime("%Y-%m-%d"),
        "cpu": cpu(),
        "cores": os.cpu_count(),
    }


def git(*words: str) -> str:
    command = ["git", "-C", str(HOME), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def cpu() -> str:
    """The processor's name, with family, model and cache size, since virtual machines often hide the model name."""
    lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    fields = {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
    details = [f"{name} {fields[name]}" for name in ("cpu family", "model", "cache size") if name in fields]
    return f"{fields.get('model name', 'unknown')} ({', '.join(details)})"


def rounded(x: Any) -> Any:
    """Round numbers to seven digits, to keep the file readable.

    >>> rounded({"a": [0.123456789, 12, "b"]})
    {'a': [0.1234568, 12, 'b']}
    """
    if isinstance(x, float):
        return float(f"{x:.7g}")
    if isinstance(x, Mapping):
        return {key: rounded(value) for key, value in x.items()}
    return [rounded(value) for value in x] if isinstance(x, list | tuple) else x
