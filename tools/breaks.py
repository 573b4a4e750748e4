"""Apply each break of tests/breaks.toml to a copy of the tree, and run the test that has to fail.

    python -m tools.breaks                       # all of them
    python -m tools.breaks --only 'ratios|k3'    # those whose file, text or test matches
    python -m tools.breaks --jobs 4

A break replaces `old`, which occurs once in `file`, with `new`. It is caught if pytest ran `test` and the test failed.
Exit code 1 if a break is not caught, or if its test could not be run.
"""

import argparse
import os
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

HOME = Path(__file__).parents[1]
TABLE = HOME / "tests" / "breaks.toml"
RESULTS = {0: "NOT CAUGHT: the test passed", 1: "caught", 5: "NOT RUN: no such test, or it is skipped here"}
"""The result of a break by the exit code of pytest."""
LATER = count(1)
"""Seconds that are added to the time of a broken file: no two versions of a file share compiled code."""


@dataclass(frozen=True, slots=True)
class Break:
    """One change to one file of the repository, and the test that has to fail."""

    file: str
    """Relative to the repository's root."""
    what: str
    test: str
    """`objective/test_ratios::test_name`, relative to tests/, with `[case]` for one case of it."""
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.file}: {self.what} -> {self.test}"

    @property
    def node(self) -> str:
        """The test's id in pytest."""
        file, _, name = self.test.partition("::")
        return f"tests/{file}.py::{name}"


def read(table: Path = TABLE) -> list[Break]:
    """The breaks of a table, in its order: a table for each file, with `what = [test, old, new]`."""
    content = tomllib.loads(table.read_text())
    return [Break(file, what, *row) for file, rows in content.items() for what, row in rows.items()]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.breaks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", metavar="REGEX", help="breaks whose file, text or test match")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes, each with a copy (default: 1)")
    arguments = parser.parse_args(words)
    breaks = [b for b in read() if re.search(arguments.only, str(b))]
    with tempfile.TemporaryDirectory(prefix="breaks-") as folder:
        jobs = [job(Path(folder) / str(i), breaks[i :: arguments.jobs]) for i in range(arguments.jobs)]
        missed = sum(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in jobs)
    print(f"{len(breaks) - missed} of {len(breaks)} caught")
    return int(bool(missed))


def job(folder: Path, breaks: Sequence[Break]) -> int:
    """Try the breaks on a copy of the tree, in a new process. Its exit code is the number that was not caught."""
    if pid := os.fork():
        return pid
    shutil.copytree(HOME, folder, ignore=left_out, symlinks=True)
    os.chdir(folder)
    os.environ |= {"PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": ""}
    sys.dont_write_bytecode = False  # each module of the copy is compiled once
    sys.path[:0] = [str(folder), str(folder / "src")]
    trials = Trials(breaks)
    options = ("-q", "-x", "-s", "-p", "no:cacheprovider", "-m", "", "--hypothesis-profile", "unshrunk")
    code = pytest.main([*options, "tests"], plugins=[trials])
    os._exit(trials.missed if trials.done else int(code))


class Trials:
    """A plugin of pytest that runs one test per break, each in a fork of a pytest that has loaded its plugins."""

    def __init__(self, breaks: Sequence[Break]) -> None:
        self.breaks, self.missed, self.done, self.ran = breaks, 0, False, False

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> int | None:
        """In a fork: select the test and let pytest run it. In the parent: print each result."""
        for b in self.breaks:
            original = apply(b, Path.cwd())
            if not (pid := os.fork()):
                null = os.open(os.devnull, os.O_RDWR)
                for stream in (0, 1, 2):
                    os.dup2(null, stream)
                config.args[:] = [b.node]
                return None
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            original.restore()
            result = RESULTS.get(code, f"NOT RUN: pytest ended with {code}")
            self.missed += result != "caught"
            print(f"{result:10} {b}", flush=True)
        self.done = True
        return 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.ran |= not report.skipped and report.when == "call"

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """A skipped test did not pass: its package or program is missing."""
        if exitstatus == 0 and not self.ran:
            session.exitstatus = 5


def left_out(folder: str, names: Sequence[str]) -> set[str]:
    """Names that a copy does not need: hidden ones, and what commands write in the repository's root."""
    written = ("runs", "build", "dist") if Path(folder) == HOME else ()
    return {name for name in names if name.startswith(".") or name in written}


@dataclass(frozen=True, slots=True)
class Original:
    """A file before its break."""

    path: Path
    text: str
    times: tuple[int, int]

    def restore(self) -> None:
        self.path.write_text(self.text)
        os.utime(self.path, ns=self.times)


def apply(b: Break, root: Path) -> Original:
    """Apply a break to a tree. ValueError if `old` does not occur exactly once."""
    path = root / b.file
    text, before = path.read_text(), path.stat()
    if text.count(b.old) != 1:
        raise ValueError(f"{b}: {b.old!r} occurs {text.count(b.old)} times in {b.file}, not once")
    path.write_text(text.replace(b.old, b.new))
    os.utime(path, (before.st_atime, int(before.st_mtime) + next(LATER)))
    return Original(path, text, (before.st_atime_ns, before.st_mtime_ns))


if __name__ == "__main__":
    sys.exit(main())
