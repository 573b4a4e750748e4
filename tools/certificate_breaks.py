"""Break the code of methods by rule, one place at a time, and run the certificates of the methods that use it.

    python -m tools.certificate_breaks --list      # the breaks, without running anything
    python -m tools.certificate_breaks --every 10  # each tenth
    python -m tools.certificate_breaks --only 'surrogates'

The rules are those of `rule_breaks.py`. A break is noticed if a proof fails of one of the first methods that use the
place, or the transcription of another one. Each break has a fork of a pytest that has collected the proofs; it
exchanges the code of the functions that the break changes. Exit code 1 if one is not noticed.
"""

import argparse
import ast
import gc
import importlib
import os
import re
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType

import pytest

TESTS = Path(__file__).parents[1] / "tests"
ROOMS = ("data", "golden", "laws", "learner", "methods", "rewards", "rollout", "tasks", "toys")
"""The folders that have proofs."""
SECONDS = 120
"""A break that takes longer counts as noticed: it made a loop endless."""
WHOLE = 3
"""The number of methods whose proofs all run; of the others that use the code, only the transcription runs."""
NOT_RUN = 4
PATH = "tests/golden/test_methods.py::test_whole_path"


def main(words: Sequence[str] | None = None) -> int:
    first = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m tools.certificate_breaks", description=first)
    parser.add_argument("--only", default="", metavar="REGEX", help="breaks whose module, place, rule or method match")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each Nth of them (default: 1)")
    parser.add_argument("--list", action="store_true", help="print the breaks and end")
    arguments = parser.parse_args(words)
    trials = Trials(arguments.only, arguments.every, arguments.list)
    options = ("-q", "-s", "-p", "no:cacheprovider", "-m", "", "--hypothesis-profile", "unshrunk")
    code = pytest.main([*options, *(str(TESTS / room) for room in ROOMS)], plugins=[trials])
    return int(bool(trials.missed)) if trials.done else int(code)


class Trials:
    """A plugin of pytest that runs, instead of the collected tests, the proofs of each break in a fork."""

    def __init__(self, only: str, every: int, listed: bool) -> None:
        self.only, self.every, self.listed = only, every, listed
        self.missed, self.done, self.failed = 0, False, False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        from tools.rule_breaks import all_breaks

        items = {item.nodeid: item for item in session.items}
        chosen = [b for b in all_breaks() if re.search(self.only, str(b))][:: self.every]
        for b in chosen:
            if self.listed:
                print(b)
                continue
            noticed = self.noticed(session, b, items)
            self.missed += not noticed
            print("noticed    " if noticed else "NOT NOTICED", b, flush=True)
        print(f"{len(chosen) - self.missed} of {len(chosen)} noticed" if not self.listed else f"{len(chosen)} breaks")
        self.done = True
        return True

    def noticed(self, session: pytest.Session, b, items: dict[str, pytest.Item]) -> bool:
        """Whether a proof fails in a fork where the functions have the code of the break."""
        pid = os.fork()
        if pid:
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if code not in (0, 1, -signal.SIGALRM):
                raise RuntimeError(f"{b}: its process ended with {code}, before a proof ran")
            return code != 0
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        signal.alarm(SECONDS)
        code, proofs = NOT_RUN, list(proofs_for(b.methods, items))
        try:
            if exchange(b.module, b.source):
                code = self.run(proofs) if built_again(b.module) else 1
        finally:
            os._exit(code)

    def run(self, items: Iterable[pytest.Item]) -> int:
        """1 if one of the tests failed, else 0."""
        for item in items:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            if self.failed:
                return 1
        return 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed


def proofs_for(users: Sequence[str], items: dict[str, pytest.Item]) -> Iterator[pytest.Item]:
    """The tests for a break: transcriptions first, which notice most, then the other proofs of some methods."""
    from groupwise.certificates.proofs import proofs_of
    from groupwise.config.registry import methods

    named = list(dict.fromkeys(proof for name in users[:WHOLE] for proof in proofs_of(methods()[name])))
    paths = [proof for proof in named if proof.startswith(PATH)]
    others = [f"{PATH}[{name}]" for name in users[WHOLE:]]
    for proof in (*paths, *others, *named):
        if proof in items or proof not in others:
            yield from (items[node] for node in items if node == proof or node.startswith(f"{proof}["))


def exchange(module: str, source: str) -> bool:
    """Give the functions of a module the code that they have in another source; False if no function differs."""
    file = str(sys.modules[module].__file__)
    old = codes(compile(Path(file).read_text(encoding="utf-8"), file, "exec"))
    new = codes(compile(source, file, "exec"))
    changed = {name for name in old if old[name] != new[name]}
    gc.unfreeze()  # the tests freeze what they have imported
    live = [x for x in gc.get_objects() if type(x) is FunctionType and x.__code__.co_filename == file]
    for function in live:
        name = function.__code__.co_qualname
        if name in changed:
            function.__code__ = new[name]
    defaults = exchange_defaults(module, source, live)
    return defaults or any(function.__code__.co_qualname in changed for function in live)


def codes(code: CodeType) -> dict[str, CodeType]:
    """The code of each function by its qualified name."""
    inner = [x for x in code.co_consts if isinstance(x, CodeType)]
    return {x.co_qualname: x for x in inner} | {name: x for y in inner for name, x in codes(y).items()}


def exchange_defaults(module: str, source: str, live: Sequence[FunctionType]) -> bool:
    """Give a method's function the numbers of another source as defaults; whether one differs."""
    if "groupwise.methods." not in module:
        return False
    fresh: dict[str, dict[str, object]] = {}
    for function in (x for x in ast.parse(source).body if isinstance(x, ast.FunctionDef)):
        pairs = zip(function.args.kwonlyargs, function.args.kw_defaults)
        fresh[function.name] = {x.arg: ast.literal_eval(d) for x, d in pairs if isinstance(d, ast.Constant)}
    differs = False
    for function in live:
        before, after = function.__kwdefaults__ or {}, fresh.get(function.__name__, {})
        differs |= any(before[name] != number for name, number in after.items() if name in before)
        before.update({name: number for name, number in after.items() if name in before})
    return differs


def built_again(module: str) -> bool:
    """Build the methods that the transcriptions hold again, after a change of a method's file; False if one cannot."""
    if "groupwise.methods." not in module:
        return True
    tests = vars(sys.modules["tests.golden.test_methods"])
    try:
        for family in tests["FAMILIES"]:
            importlib.reload(family)
            tests["PAPERS"].update(family.PAPERS)
            tests["VARIANTS"].update(family.VARIANTS)
    except Exception:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
