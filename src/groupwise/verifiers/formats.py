"""Verifiers of an answer's shape: tags, a pattern, a JSON schema. The last two run where they can be killed."""

import asyncio
import json
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from groupwise.data import BadData, MissingRequirement, Outcome, Prompt, Sample, Usage, Verdict
from groupwise.data.verdicts import unverifiable
from groupwise.verifiers.functions import FunctionPool, OwnTime, WorkerSpec

MEMORY = 1 << 30
"""Bytes that a worker may address."""


class Format:
    """Right if the text is these tags in this order, each once and not empty, with white space alone between them.

    With `opened` the prompt has written the first opening tag already, as the template r1 does.
    """

    def __init__(self, *, tags: Sequence[str] = ("think", "answer"), opened: bool = False) -> None:
        if isinstance(tags, str) or not tags or not all(re.fullmatch(r"\w+", str(tag)) for tag in tags):
            raise Usage(f"format(tags={tags!r})", fix="names in a list, as in tags=['think', 'answer']")
        self.marks = [mark for tag in tags for mark in (f"<{tag}>", f"</{tag}>")]
        self.opened = opened

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        fault = self.fault((self.marks[0] if self.opened else "") + sample.text)
        return Verdict(Outcome(not fault), feedback=fault)

    def fault(self, text: str) -> str:
        """What is wrong with a text's shape; empty where nothing is.

        >>> shape = Format()
        >>> shape.fault("<think>2+2</think> <answer>4</answer>"), shape.fault("<answer>4</answer>")
        ('', '<think> stands 0 times')
        """
        for mark in self.marks:
            if (count := text.count(mark)) != 1:
                return f"{mark} stands {count} times"
        places = [text.index(mark) for mark in self.marks]
        if places != sorted(places):
            return "the tags are not in their order"
        ends = [place + len(mark) for place, mark in zip(places, self.marks, strict=True)]
        between = [text[a:b] for a, b in zip([0, *ends], [*places, len(text)], strict=True)]
        if outside := next((s.strip() for s in between[::2] if s.strip()), ""):
            return f"{outside[:40]!r} stands outside the tags"
        empty = next((mark for mark, s in zip(self.marks[::2], between[1::2], strict=True) if not s.strip()), "")
        return f"{empty} is empty" if empty else ""


class Regex:
    """Right if a pattern (Python's `re`) is found in the text; with `whole`, if it is all of the text.

    Without `pattern` the gold answer is the pattern. A pattern with a group finds the answer instead: the group's last
    match must be the gold answer, up to white space around it, and without a match the answer is malformed. An answer
    on which the search takes more than `deadline` seconds of its process's own time is wrong.
    """

    keeps_time = True

    def __init__(self, *, pattern: str = "", whole: bool = False, deadline: float = 1.0, workers: int = 2) -> None:
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            raise Usage(f"regex(pattern={pattern!r})", evidence=str(error), fix="mend the pattern") from None
        if compiled.groups > 1:
            raise Usage(f"regex(pattern={pattern!r}) has {compiled.groups} groups", fix="one: write others as (?:...)")
        self.pattern, self.whole, self.group = pattern, whole, compiled.groups == 1
        self.expects = "text or a number" if pattern else "a pattern"
        self._pool = worker_pool("regex", "regex", deadline, workers)
        self.close = self._pool.close

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        if not self.fits(gold := prompt.given.get("answer")):
            return unverifiable(f"the gold answer {str(gold)[:80]!r} is not {self.expects}")
        pattern, value = self.pattern or str(gold), str(gold).strip() if self.group else None
        return await bounded(self._pool, (pattern, sample.text, self.whole, value), (pattern, "", self.whole, value))

    def fits(self, gold: Any) -> bool:
        """Whether this is a pattern, or, where the recipe has one, what its group may be compared with."""
        if isinstance(gold, bool) or not isinstance(gold, str | int | float):
            return self.pattern != "" and not self.group
        try:
            return bool(self.pattern) or bool(re.compile(str(gold)))
        except re.error:
            return False


class JsonSchema:
    """Right if the answer is JSON that conforms to a JSON schema; malformed where it is no JSON.

    The answer is the last ```json block, or the whole text where there is none. `schema` is a file's path or an object;
    without it the gold answer is the schema. No other document is loaded: a reference to one is unverifiable. An answer
    whose check takes more than `deadline` seconds of its process's own time is wrong.
    """

    keeps_time = True
    expects = "a JSON schema"
    packages = ("jsonschema",)

    def __init__(self, *, schema: Any = None, deadline: float = 1.0, workers: int = 2) -> None:
        if find_spec("jsonschema") is None:
            fix = "pip install 'groupwise[json]'"
            raise MissingRequirement(
                "the verifier json_schema needs the package jsonschema", evidence="it is not installed", fix=fix
            )
        self.schema = _read_schema(schema) if isinstance(schema, str) else schema
        if self.schema is not None and (fault := schema_fault(self.schema)):
            raise Usage("json_schema: this is no JSON schema", evidence=fault, fix="mend it")
        self._pool = worker_pool("json_schema", "json_schema", deadline, workers)
        self.close = self._pool.close

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        schema = self.schema if self.schema is not None else prompt.given.get("answer")
        return await bounded(self._pool, (schema, sample.text), (schema, "null"))

    def fits(self, gold: Any) -> bool:
        """Whether the gold answer is a schema, where it has to be one."""
        return self.schema is not None or not schema_fault(gold)


def _read_schema(path: str) -> Any:
    try:
        return json.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadData(f"{path} cannot be read as JSON", evidence=str(error), fix="give the path of a schema") from None


def schema_fault(schema: Any) -> str:
    """Why this is no JSON schema; empty where it is one."""
    from jsonschema import SchemaError  # pyright: ignore[reportMissingImports, reportMissingModuleSource]
    from jsonschema.validators import validator_for  # pyright: ignore[reportMissingImports, reportMissingModuleSource]

    if not isinstance(schema, dict):
        return f"{str(schema)[:80]!r} is no object"
    try:
        validator_for(schema).check_schema(schema)
    except SchemaError as error:
        return error.message[:200]
    return ""


async def bounded(pool: FunctionPool, answer: Sequence[Any], alone: Sequence[Any]) -> Verdict:
    """The verdict on an answer. One that uses up the time of its call is wrong, unless the call `alone` does, too."""
    try:
        return await asyncio.wrap_future(pool.ask(*answer))
    except OwnTime as stall:
        try:
            await asyncio.wrap_future(pool.ask(*alone))
        except OwnTime:
            return unverifiable(f"also without the answer: {stall}")
        return Verdict(Outcome.wrong, feedback=f"too slow to judge: {stall}")


def worker_pool(verifier: str, function: str, deadline: float, workers: int) -> FunctionPool:
    """Processes that run a function of `shape_worker`, ended by their own clocks."""
    if deadline <= 0 or workers < 1:
        raise Usage(f"{verifier}(deadline={deadline:g}, workers={workers})", fix="deadline above 0, workers from 1")
    file = str(Path(__file__).with_name("formats_worker.py"))
    order = WorkerSpec(file, function, cpu=deadline, memory=MEMORY, bare=True)
    return FunctionPool(order, deadline=max(60.0, 20 * deadline), workers=workers, in_a_row=0)
