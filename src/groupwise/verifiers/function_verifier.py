"""Verifiers from a user's grade function: for one answer, for a group of answers, or in bulk."""

import asyncio
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle
from math import inf
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from groupwise.core import Usage, WorkerLost, describe_error
from groupwise.data import Finish, Outcome, Prompt, Sample, Verdict, Verifier
from groupwise.data.verdicts import as_verdict, unverifiable
from groupwise.verifiers.bulk_verifier import TOLERANCE, BulkVerifier, check_tolerance, refuse_different
from groupwise.verifiers.function_pool import FunctionNotLoaded, FunctionPool, MissingGradeError, WorkerSpec
from groupwise.verifiers.grade_function_arguments import GradeFunctionParameters, Item, MissingColumn

__all__ = ["grade_function"]

MADE_UP = ("a made-up answer", "12", "a longer answer, made up too, in\ntwo lines")
"""Made-up answers, to try a grade function before the run."""
LATE = "no verdict within"
"""Text that the cause of a verdict contains if the call missed its deadline."""
SAME = "all answers to a prompt get the same reward, and nothing is learned"


def made_up_texts() -> list[Sample]:
    """Made-up answers of a language model."""
    return [Sample(context=(), stream=(0,), text=text, finish=Finish.stop) for text in MADE_UP]


def grade_function(
    function: Callable[..., Any],
    *,
    deadline: float = 10.0,
    workers: int = 2,
    in_process: bool = False,
    made_up: Callable[[], Sequence[Sample]] = made_up_texts,
) -> Verifier:
    """Make a verifier from a user's function. Each grade that it returns is a bool, a number or a `Verdict`.

    The function asks for its arguments by name: `prompt`, `answer`, `gold`, `row`, `messages`, `finish`, `tokens`,
    columns of the data row, and for a flow model `final_state` and `trajectory`, which are arrays. A function of
    `answers` or `final_states` grades a group, one of `prompts` too grades in bulk; both return a list
    (docs/verifiers.md). A number is a score: the answer is neither correct nor wrong, unless the recipe has a
    `correct_threshold`. An exception, a number that is not finite, any other value, and a call that takes more than
    `deadline` seconds are unverifiable, with a cause. A plain function runs in worker processes, which are killed at
    the deadline and replaced, so define it at the top level of a file. An `async` function runs in the event loop and
    must not block (docs/runs.md); only its trial call runs in a worker process. With `in_process` any callable will do;
    a plain one runs in a thread, without deadline. `made_up` gives answers to try the function on, which for a function
    of states have states. `WorkerLost` if a file does not load in a minute, or if eight deadlines in a row are missed.
    """
    parameters, name = GradeFunctionParameters.of(function), getattr(function, "__qualname__", "<no name>")
    call = _call_in_process(function, deadline) if in_process else _call_of(function, name, deadline, workers)
    tolerance = check_tolerance(getattr(function, "tolerance", TOLERANCE))
    texts = made_up if parameters.reads_states else made_up_texts
    verifier = FunctionVerifier(call, parameters, name, texts, tolerance)
    if parameters.graded_unit != "bulk":
        return verifier
    limits = {limit: getattr(function, limit) for limit in ("most", "wait") if hasattr(function, limit)}
    return BulkVerifier(verifier, **limits)


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _call_in_process(function: Callable[..., Any], deadline: float) -> "GradeFunctionCall":
    return AsyncCall(function, deadline) if _is_async(function) else InProcessCall(function)


def _call_of(function: Callable[..., Any], name: str, deadline: float, workers: int) -> "GradeFunctionCall":
    file = inspect.getsourcefile(function) if inspect.isfunction(function) else None
    if "<" in name or file is None or not Path(file).is_file():
        if _is_async(function):
            return AsyncCall(function, deadline)
        fix = "define it with def at the top level of a file, as def grade(prompt, answer, gold)"
        what = f"the grade function {name} cannot run in a separate process: it is not at the top level of a file"
        raise Usage(what, evidence=repr(function)[:200], fix=fix)
    spec = WorkerSpec(os.path.abspath(file), name, local_imports=True)
    if _is_async(function):
        return AsyncCall(function, deadline, spec)
    return WorkerProcessCall(FunctionPool(spec, deadline, workers))


@runtime_checkable
class GradeFunctionCall(Protocol):
    """How to call a grade function. `count` is None for a single grade, else the length of the list that it returns.

    `trial` waits for the verdicts of one call, and raises `MissingGradeError` if it gives none.
    """

    async def __call__(
        self, arguments: Sequence[Any], named: Mapping[str, Any], count: int | None
    ) -> list[Verdict]: ...

    def trial(self, arguments: Sequence[Any], named: Mapping[str, Any], count: int | None) -> list[Verdict]: ...

    def close(self) -> None: ...


class WorkerProcessCall:
    """Calls a plain function in worker processes."""

    def __init__(self, pool: FunctionPool) -> None:
        self.pool, self.trial, self.close = pool, pool.trial, pool.close

    async def __call__(self, arguments: Sequence[Any], named: Mapping[str, Any], count: int | None) -> list[Verdict]:
        if count is None:
            return [await asyncio.wrap_future(self.pool.submit(*arguments, **named))]
        return await asyncio.wrap_future(self.pool.submit_many(arguments, named, count))


class AsyncCall:
    """Calls an `async` function in the event loop, with a deadline in seconds.

    Its clients may belong to the event loop of the first call, so a trial call runs in a worker process. Without a
    `spec` for the worker there is none.
    """

    def __init__(self, function: Callable[..., Any], deadline: float, spec: WorkerSpec | None = None) -> None:
        self.function, self.deadline, self._spec = function, deadline, spec

    async def __call__(self, arguments: Sequence[Any], named: Mapping[str, Any], count: int | None) -> list[Verdict]:
        try:
            async with asyncio.timeout(self.deadline):  # in the same task, so the watchdog can end a call that blocks
                grades = await self.function(*arguments, **named)
        except TimeoutError:
            return [unverifiable(f"no verdict within {self.deadline:g} s")] * (count or 1)
        except Exception as error:
            return [unverifiable(describe_error(error))] * (count or 1)
        return verdicts_of(grades, count)

    def trial(self, arguments: Sequence[Any], named: Mapping[str, Any], count: int | None) -> list[Verdict]:
        """Try one call in a worker process; returns its verdicts, or [] without a file that the worker can load."""
        if self._spec is None:
            return []
        pool = FunctionPool(self._spec, self.deadline, workers=1)
        try:
            return pool.trial(arguments, named, count)
        except (FunctionNotLoaded, WorkerLost):  # this process has loaded the file: perhaps a model that fits only once
            return []
        finally:
            pool.close()

    def close(self) -> None:
        """Does nothing, since no worker process runs between calls."""


class InProcessCall(AsyncCall):
    """Calls a plain function of the calling program, in one thread of this process. No call can be interrupted."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._plain, self._thread = function, ThreadPoolExecutor(1, thread_name_prefix="reward")
        super().__init__(self._in_thread, inf)

    async def _in_thread(self, *arguments: Any, **named: Any) -> Any:
        call = partial(self._plain, *arguments, **named)
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def trial(self, arguments: Sequence[Any], named: Mapping[str, Any], count: int | None) -> list[Verdict]:
        try:
            verdicts = verdicts_of(self._plain(*arguments, **named), count)
        except Exception as error:
            raise MissingGradeError(describe_error(error)) from None
        if invalid := next((v.cause for v in verdicts if v.outcome is Outcome.unverifiable and v.cause), ""):
            raise MissingGradeError(invalid)
        return verdicts

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def verdicts_of(grades: Any, count: int | None) -> list[Verdict]:
    """Convert what a grade function returned (one grade, or a list of `count` grades) to verdicts."""
    if count is None:
        return [as_verdict(grades)]
    if callable(getattr(grades, "tolist", None)):  # an array of NumPy or torch
        grades = grades.tolist()
    if not isinstance(grades, list | tuple) or len(grades) != count:
        length = f" of {len(grades)}" if isinstance(grades, list | tuple) else ""
        expected = f"expected a list of {count} grades, one per answer"
        return [unverifiable(f"it returned {type(grades).__name__}{length}: {expected}")] * count
    return [as_verdict(grade) for grade in grades]


class FunctionVerifier(Verifier):
    """A verifier from a grade function. Usable from any thread and any event loop."""

    has_own_deadline = True

    def __init__(
        self,
        call: GradeFunctionCall,
        parameters: GradeFunctionParameters,
        name: str,
        made_up: Callable[[], Sequence[Sample]] = made_up_texts,
        tolerance: float = TOLERANCE,
    ) -> None:
        self.call, self.parameters, self.name, self._made_up = call, parameters, name, made_up
        self.tolerance = tolerance
        self.notices = () if parameters.reads_answer else (f"note: the reward {name} takes no answer: {SAME}",)

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        return (await self.grade([(prompt, sample)]))[0]

    def by_group(self, prompt: Prompt, /) -> bool:
        """Whether the function grades all samples of a group in one call."""
        return self.parameters.graded_unit == "group"

    async def grade_group(self, prompt: Prompt, samples: Sequence[Sample], /) -> list[Verdict]:
        """The verdicts on the samples of a group, in their order."""
        return await self.grade([(prompt, sample) for sample in samples])

    async def grade(self, items: Sequence[Item]) -> list[Verdict]:
        """Call the user's grade function once for these answers; return one verdict per answer."""
        try:
            arguments, named = self.parameters.arguments(items)
        except MissingColumn as error:
            return [unverifiable(str(error))] * len(items)
        return await self.call(arguments, named, len(items) if self.parameters.many else None)

    def gate(self, prompts: Sequence[Prompt], /) -> None:
        """Try the function on made-up answers. `Usage` if it fails, or if bulk grades depend on the other answers.

        An `async` function of the calling program is not called.
        """
        items = list(zip(cycle(prompts), self._made_up()))
        if not items:
            return
        alone = self._trial(items if self.parameters.graded_unit == "group" else items[:1])
        if self.parameters.graded_unit == "bulk" and alone:
            alone += [verdict for item in items[1:] for verdict in self._trial([item])]
            together = self._trial(items)
            try:
                refuse_different(self.name, items, alone, together, self.tolerance)
            except Usage:
                self.close()
                raise

    def close(self) -> None:
        """End the worker processes."""
        self.call.close()

    def _trial(self, items: Sequence[Item]) -> list[Verdict]:
        try:
            arguments, named = self.parameters.arguments(items)
            return self.call.trial(arguments, named, len(items) if self.parameters.many else None)
        except (MissingColumn, MissingGradeError) as error:
            self.close()
            what = f"the grade function {self.name} gives no grade for a made-up answer"
            answer, fix = repr(items[0][1].text), "correct the function: an answer may be any text"
            if items[0][1].actions:
                answer, fix = "a state of zeros", "correct the function: a state may be any array of its shape"
            evidence = f"{error}\nthe answer was {answer}"
            if isinstance(error, MissingColumn):
                fix = "name a column of the row, or give the parameter a default value"
            if LATE in str(error):
                fix = "import modules at the top of its file, or give it more time: --machine.verdict_deadline 60"
            raise Usage(what, evidence=evidence, fix=fix) from None
