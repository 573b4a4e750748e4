"""Compares answers in the sandbox: libraries that evaluate text get a model's answer only there."""

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

from groupwise.core import MissingRequirement
from groupwise.data import Outcome, Verdict
from groupwise.data.verdicts import unverifiable
from groupwise.sandbox.sandbox import ExecutionInput, ExecutionLimits, ExecutionResult, Sandbox

MAKE = Callable[..., Sandbox]
"""Type of the function that creates the sandbox: the class `Sandbox`, or one with the same keyword arguments."""
MATH_VERIFY = ("math-verify", "latex2sympy2_extended", "sympy", "mpmath", "antlr4-python3-runtime")
"""math-verify and the packages that it imports."""
MEMORY = 2 << 30
"""The memory limit of a comparison, in bytes of address space."""
WITHOUT = """\
or --verifier math --verifier.use_algebra false, which needs neither a sandbox nor a package: it compares text, exact
numbers, units, lists and intervals, and judges answers that need algebra as wrong"""
CACHE_SIZE = 4096
"""The most cached comparisons: a group often contains the same answer many times."""


class SandboxedAlgebra:
    """Calls a comparison function of this package in the sandbox, with a cache. Usable from any thread and event loop.

    `modules` are files of this room, each after those that it imports; the last one has the function and `warm_up`.

    A call may use `deadline` seconds of CPU time, so a busy machine changes no verdict. If a call fails or uses them
    up, the same call is made with the gold answer only. If that succeeds within half of the time, the answer is
    *wrong*; otherwise the gold answer is at fault, and the answer is unverifiable. `MissingRequirement` without the
    packages or a sandbox.
    """

    def __init__(
        self,
        verifier: str,
        modules: Sequence[str],
        function: str,
        *,
        make: MAKE,
        deadline: float,
        workers: int,
        packages: Sequence[str],
    ) -> None:
        need_packages(verifier, packages)
        self.verifier, self.deadline, self.function = verifier, deadline, function
        self.module = f"{__package__}.{modules[-1]}"
        sources = {
            f"{__package__}.{name}": Path(__file__).with_name(f"{name}.py").read_text("utf-8") for name in modules
        }
        try:
            self._sandbox = make(
                limits=ExecutionLimits(
                    cpu_seconds=deadline, wall_seconds=max(60.0, 20 * deadline), memory_bytes=MEMORY
                ),
                boxes=workers,
                packages=packages,
                preload=sources | {"warm_up": f"from {self.module} import warm_up\nwarm_up()"},
            )
        except MissingRequirement as error:
            raise self._with_alternative(error) from None
        self._calls: OrderedDict[bytes, Future[ExecutionResult]] = OrderedDict()
        self._lock = Lock()

    async def __call__(self, arguments: Sequence[Any], baseline: Sequence[Any]) -> Any:
        """Run the comparison function; its value, or a verdict if it fails or exceeds a limit.

        `baseline` are arguments with the same gold answer and without the model's answer.
        """
        execution = await self._execute(arguments)
        if execution.end_reason == "done":
            return execution.return_value
        if execution.no_result or execution.end_reason == "wall":
            return unverifiable(execution.error)
        gold = await self._execute(baseline)
        if gold.end_reason == "done" and gold.cpu_seconds <= self.deadline / 2:
            return Verdict(Outcome.wrong, feedback=f"too large to compare: {execution.error}")
        return unverifiable(f"the gold answer alone is too large to compare: {gold.error or 'too much CPU time'}")

    def close(self) -> None:
        """Ends the sandbox processes."""
        self._sandbox.close()

    async def _execute(self, arguments: Sequence[Any]) -> ExecutionResult:
        """The execution of a call, from the cache or new."""
        key = sha256(json.dumps(arguments).encode()).digest()
        with self._lock:
            if key not in self._calls:
                program = ExecutionInput(f"from {self.module} import {self.function}", self.function, tuple(arguments))
                self._calls[key] = self._sandbox.submit(program)
            future = self._calls[key]
            self._calls.move_to_end(key)
            if len(self._calls) > CACHE_SIZE:
                self._calls.popitem(last=False)
        try:
            execution = await asyncio.shield(asyncio.wrap_future(future))
        except MissingRequirement as error:
            raise self._with_alternative(error) from None
        if execution.no_result or execution.end_reason == "wall":  # not caused by the arguments, so it is not cached
            with self._lock:
                self._calls.pop(key, None)
        return execution

    def _with_alternative(self, error: MissingRequirement) -> MissingRequirement:
        """The sandbox's error, whose fix also names a verifier that needs no sandbox."""
        fix = f"{error.fix}\n{WITHOUT}"
        what = f"the verifier {self.verifier} compares in the sandbox, and none starts on this machine"
        return MissingRequirement(what, evidence=error.evidence, fix=fix)


def need_packages(verifier: str, packages: Sequence[str]) -> None:
    """`MissingRequirement` if a package of the extra `math` is not installed."""
    for package in packages:
        if find_spec(_MODULES.get(package, package)) is None:
            raise MissingRequirement(
                f"the verifier {verifier} needs the package {package}",
                evidence="it is not installed",
                fix=f"pip install 'groupwise[math]'\n{WITHOUT}",
            )


_MODULES = {"math-verify": "math_verify", "antlr4-python3-runtime": "antlr4"}
