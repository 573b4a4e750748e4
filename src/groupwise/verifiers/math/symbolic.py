"""Comparisons that need sympy: no library that evaluates text gets an answer outside the sandbox."""

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any

from groupwise.data import MissingRequirement, Outcome, Usage, Verdict
from groupwise.data.verdicts import unverifiable
from groupwise.sandbox.sandbox import Execution, Limits, Program, Sandbox

MAKE = Callable[..., Sandbox]
"""`Sandbox`, or what makes one with the same keywords."""
MATH_VERIFY = ("math-verify", "latex2sympy2_extended", "sympy", "mpmath", "antlr4-python3-runtime")
"""math-verify and all that it imports."""
MEMORY = 2 << 30
"""Bytes that a call may address."""
WITHOUT = """\
or --verifier 'math(symbolic=False)', which needs neither a sandbox nor a package: it compares text, exact numbers,
units, lists and intervals, and calls what needs algebra wrong"""
REMEMBERED = 4096
"""Calls whose outcome is kept: a group writes the same answer many times."""


class Symbolic:
    """A function of a file of this room, called in the sandbox. Equal calls are made once, from any thread and loop.

    A call may use `deadline` seconds of CPU time, so a busy machine changes no verdict. The answer is *wrong* where its
    call uses them up or fails and the same call with the gold answer alone does neither within half of that time;
    otherwise the gold answer is at fault, and the answer is unverifiable. `Environment` without packages or sandbox.
    """

    def __init__(
        self,
        verifier: str,
        file: str,
        function: str,
        *,
        make: MAKE,
        deadline: float,
        workers: int,
        packages: Sequence[str],
    ) -> None:
        if deadline <= 0 or workers < 1:
            raise Usage(f"{verifier}(deadline={deadline:g}, workers={workers})", fix="deadline above 0, workers from 1")
        need_packages(verifier, packages)
        self.verifier, self.deadline, self.function = verifier, deadline, function
        self.module = Path(file).stem
        source = Path(__file__).with_name(file).read_text("utf-8")
        try:
            self._sandbox = make(
                limits=Limits(cpu=deadline, wall=max(60.0, 20 * deadline), memory=MEMORY),
                boxes=workers,
                packages=packages,
                preload={self.module: source},
            )
        except MissingRequirement as lack:
            raise self._refused(lack) from None
        self._known: OrderedDict[bytes, Future[Execution]] = OrderedDict()
        self._lock = Lock()

    async def __call__(self, answer: Sequence[Any], gold: Sequence[Any]) -> Any:
        """The function's value for the arguments `answer`; a Verdict where it gives none.

        `gold` are arguments with the same gold answer and without the model's.
        """
        ran = await self._ran(answer)
        if ran.end == "done":
            return ran.value
        if ran.end in ("lost", "wall"):
            return unverifiable(ran.error)
        alone = await self._ran(gold)
        if alone.end == "done" and alone.cpu <= self.deadline / 2:
            return Verdict(Outcome.wrong, feedback=f"too large to compare: {ran.error}")
        return unverifiable(f"the gold answer alone is too large to compare: {alone.error or 'too much CPU time'}")

    def close(self) -> None:
        """Ends the boxes."""
        self._sandbox.close()

    async def _ran(self, arguments: Sequence[Any]) -> Execution:
        key = sha256(json.dumps(arguments).encode()).digest()
        with self._lock:
            if key not in self._known:
                program = Program(f"from {self.module} import {self.function}", self.function, tuple(arguments))
                self._known[key] = self._sandbox.submit(program)
            future = self._known[key]
            self._known.move_to_end(key)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        try:
            ran = await asyncio.shield(asyncio.wrap_future(future))
        except MissingRequirement as lack:
            raise self._refused(lack) from None
        if ran.end in ("lost", "wall"):  # no property of the arguments: the next call asks again
            with self._lock:
                self._known.pop(key, None)
        return ran

    def _refused(self, lack: MissingRequirement) -> MissingRequirement:
        fix = f"{lack.fix}\n{WITHOUT}"
        what = f"the verifier {self.verifier} compares in the sandbox, and none starts on this machine"
        return MissingRequirement(what, evidence=lack.evidence, fix=fix)


def need_packages(verifier: str, packages: Sequence[str]) -> None:
    """`Environment` where the extra `math` is not installed."""
    for package in packages:
        if find_spec(_MODULES.get(package, package)) is None:
            raise MissingRequirement(
                f"the verifier {verifier} needs the package {package}",
                evidence="it is not installed",
                fix=f"pip install 'groupwise[math]'\n{WITHOUT}",
            )


_MODULES = {"math-verify": "math_verify", "antlr4-python3-runtime": "antlr4"}
