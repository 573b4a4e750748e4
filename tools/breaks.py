"""Apply each break of tests/breaks.toml to a copy of the tree, and run the test that has to fail.

    python -m tools.breaks                       # all of them
    python -m tools.breaks --only 'ratios|k3'    # those whose line matches
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

HOME = Path(__file__).parents[1]
TABLE = HOME / "tests" / "breaks.toml"
RESULTS = {0: "NOT CAUGHT: the test passed", 1: "caught", 5: "NOT RUN: no such test"}
"""What an exit code of pytest says of a break."""


@dataclass(frozen=True, slots=True)
class Break:
    """One change to one file of the repository, and the test that has to fail."""

    group: str
    what: str
    file: str
    """Relative to the repository's root."""
    old: str
    new: str
    test: str
    """`objective/test_ratios::test_name`, relative to tests/, with `[case]` for one case of it."""

    def __str__(self) -> str:
        return f"{self.group}: {self.what} ({self.file}) -> {self.test}"

    @property
    def node(self) -> str:
        """The test's id in pytest."""
        file, _, name = self.test.partition("::")
        return f"tests/{file}.py::{name}"


def read(table: Path = TABLE) -> list[Break]:
    """The breaks of a table, in its order: `[[group]]` with the other fields of `Break`."""
    content = tomllib.loads(table.read_text())
    return [Break(group=group, **row) for group, rows in content.items() for row in rows]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.breaks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", metavar="REGEX", help="breaks whose group, text, file or test match")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes, each with a copy (default: 1)")
    arguments = parser.parse_args(words)
    breaks = [b for b in read() if re.search(arguments.only, str(b))]
    bad = 0
    files = sorted({b.node.partition("::")[0] for b in breaks})
    with (
        tempfile.TemporaryDirectory(prefix="breaks-") as folder,
        get_context("fork").Pool(arguments.jobs, initializer=copy, initargs=(folder, files)) as pool,
    ):
        for b, result in zip(breaks, pool.imap(tried, breaks)):
            bad += result != "caught"
            print(f"{result:10} {b}", flush=True)
    print(f"{len(breaks) - bad} of {len(breaks)} caught")
    return int(bool(bad))


def copy(folder: str, files: Sequence[str]) -> None:
    """Begin a worker: import torch, go to a copy of the tree, and compile what the test files import."""
    import torch  # noqa: F401  (forks have it at once; plugins of pytest must be imported by pytest)

    place = Path(tempfile.mkdtemp(dir=folder)) / "tree"
    shutil.copytree(HOME, place, ignore=left_out, symlinks=True)
    os.chdir(place)
    os.environ["PYTHONPATH"] = str(place / "src")
    sys.path[:0] = [str(place), str(place / "src")]
    for name in [name for name in sys.modules if name.partition(".")[0] in ("groupwise", "tests")]:
        del sys.modules[name]
    sys.dont_write_bytecode = False
    pytest_in_a_fork("--collect-only", *files)
    sys.dont_write_bytecode = True  # a broken file may have the size and the second of the one before


def left_out(folder: str, names: Sequence[str]) -> set[str]:
    """Names that a copy does not need: hidden ones, caches, and what commands write in the repository's root."""
    written = ("runs", "build", "dist") if Path(folder) == HOME else ()
    return {name for name in names if name.startswith(".") or name == "__pycache__" or name in written}


def tried(b: Break) -> str:
    """Whether the test of a break fails."""
    with applied(b, Path.cwd()):
        code = pytest_in_a_fork(b.node)
    return RESULTS.get(code, f"NOT RUN: pytest ended with {code}")


def pytest_in_a_fork(*words: str) -> int:
    """The exit code of pytest, whose output is dropped."""
    child = os.fork()
    if child == 0:
        try:
            null = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(null, stream)
            import pytest

            os._exit(int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-m", "", *words])))
        finally:
            os._exit(70)  # pytest raised
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextmanager
def applied(b: Break, root: Path) -> Iterator[None]:
    """The tree with the break. ValueError if `old` does not occur exactly once."""
    path = root / b.file
    text, before = path.read_text(), path.stat()
    if text.count(b.old) != 1:
        raise ValueError(f"{b}: {b.old!r} occurs {text.count(b.old)} times in {b.file}, not once")
    path.write_text(text.replace(b.old, b.new))
    try:
        yield
    finally:
        path.write_text(text)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


if __name__ == "__main__":
    sys.exit(main())
