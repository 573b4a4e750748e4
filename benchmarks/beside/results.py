"""The raw measurements in one JSON file: a section a subject, each with where and when it was measured."""

import json
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.beside.files import HOME

RESULTS = HOME / "benchmarks" / "results.json"

Results = dict[str, dict[str, Any]]


def read(path: Path = RESULTS) -> Results:
    """All sections; none where nothing was measured yet."""
    return json.loads(path.read_text()) if path.is_file() else {}


def keep(name: str, data: Any, path: Path = RESULTS) -> None:
    """Put a section in the place of its former self; the others stay as they are."""
    sections = {**read(path), name: {**stamp(), "data": data}}
    ordered = {key: sections[key] for key in sorted(sections)}
    path.write_text(json.dumps(rounded(ordered), indent=1) + "\n")


def stamp() -> dict[str, Any]:
    """Which commit, whether anything but figures, pages and pictures has changed since, when, and on what."""
    commit = git("rev-parse", "--short=10", "HEAD") or "unknown"
    still = (f":!{x}" for x in (RESULTS.relative_to(HOME), "*.md", "*.svg"))
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", *still)
    return {
        "commit": commit + "-dirty" * bool(changed),
        "date": time.strftime("%Y-%m-%d"),
        "cpu": cpu(),
        "cores": os.cpu_count(),
    }


def git(*words: str) -> str:
    asked = ["git", "-C", str(HOME), *words]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


def cpu() -> str:
    """The processor as it calls itself, with what tells its age where it hides behind a family name."""
    lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    facts = {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
    more = [f"{name} {facts[name]}" for name in ("cpu family", "model", "cache size") if name in facts]
    return f"{facts.get('model name', 'unknown')} ({', '.join(more)})"


def rounded(x: Any) -> Any:
    """Numbers to seven digits, so that the file is legible.

    >>> rounded({"a": [0.123456789, 12, "b"]})
    {'a': [0.1234568, 12, 'b']}
    """
    if isinstance(x, float):
        return float(f"{x:.7g}")
    if isinstance(x, Mapping):
        return {key: rounded(value) for key, value in x.items()}
    return [rounded(value) for value in x] if isinstance(x, list | tuple) else x
