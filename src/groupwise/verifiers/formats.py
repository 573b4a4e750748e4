"""Verifiers of an answer's format: tags, a pattern, a JSON schema. The last two run in worker processes."""

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from groupwise.core import BadData, MissingRequirement, Usage, check_types, is_nested_deeper, read_regular
from groupwise.data import Outcome, Prompt, Sample, Verdict, Verifier, VerifierSettings, verdicts_have
from groupwise.data.verdicts import unverifiable
from groupwise.verifiers.function_pool import CpuTimeExceeded, FunctionPool, WorkerSpec, check_workers
from groupwise.verifiers.normalise_text import is_blank

__all__ = ["JsonSchema", "Regex", "TagFormat"]

MOST_SCHEMA, DEEPEST = 1 << 20, 256
"""The most bytes of a file with a JSON schema, and the most levels of a schema."""
MEMORY = 1 << 30
"""The memory limit of a worker process, in bytes of address space."""


@verdicts_have(feedback=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class TagFormat(VerifierSettings):
    """Right if the text has these tags in this order, each once with content, and only white space outside of them.

    Content has a visible character: white space, marks, control and format characters (U+200B) alone are none.
    `first_tag_in_prompt`: the prompt ends with the first opening tag, as in the template r1.
    """

    tags: tuple[str, ...] = ("think", "answer")
    first_tag_in_prompt: bool = False

    def __post_init__(self) -> None:
        check_types(self)
        if not self.tags or not all(re.fullmatch(r"\w+", str(tag)) for tag in self.tags):
            raise ValueError(f"tags is {list(self.tags)}\nwrite names, such as think and answer")

    @property
    def marks(self) -> list[str]:
        """The opening and closing tags, in the order in which the text must have them."""
        return [mark for tag in self.tags for mark in (f"<{tag}>", f"</{tag}>")]

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        fault = self.fault((self.marks[0] if self.first_tag_in_prompt else "") + sample.text)
        return Verdict(Outcome(not fault), feedback=fault)

    def fault(self, text: str) -> str:
        """The first error in a text's format; empty if there is none.

        >>> verifier = TagFormat()
        >>> verifier.fault("<think>2+2</think> <answer>4</answer>"), verifier.fault("<answer>4</answer>")
        ('', '<think> occurs 0 times')
        """
        marks = self.marks
        for mark in marks:
            if (count := text.count(mark)) != 1:
                return f"{mark} occurs {count} times"
        starts = [text.index(mark) for mark in marks]
        if starts != sorted(starts):
            return "the tags are in another order"
        ends = [start + len(mark) for start, mark in zip(starts, marks, strict=True)]
        between = [text[a:b] for a, b in zip([0, *ends], [*starts, len(text)], strict=True)]
        if outside := next((s.strip() for s in between[::2] if s.strip()), ""):
            return f"{outside[:40]!r} is outside the tags"
        empty = next((mark for mark, s in zip(marks[::2], between[1::2], strict=True) if is_blank(s)), "")
        return f"{empty} is empty" if empty else ""


@verdicts_have(feedback=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class Regex(VerifierSettings):
    """Right if a pattern (Python's `re`) matches; if the pattern has a group, its match must equal the gold answer.

    With `match_whole_text` the pattern must match the whole text. Without `pattern` the gold answer is the pattern. A
    group's last match is compared, up to white space around it; without a match the answer is malformed. If the search
    takes more than `deadline` seconds of CPU time, the answer is wrong.
    """

    gold_answer_format: ClassVar[str] = "a pattern; with the field pattern: text or a number"
    pattern: str = ""
    match_whole_text: bool = False
    deadline: float = 1.0
    workers: int = 2

    def __post_init__(self) -> None:
        check_types(self)
        check_workers(self.deadline, self.workers)
        try:
            groups = re.compile(self.pattern).groups
        except re.error as error:
            raise ValueError(f"pattern {self.pattern!r} is not valid: {error}\ncorrect the pattern") from None
        if groups > 1:
            raise ValueError(
                f"pattern {self.pattern!r} has {groups} groups: at most one can be compared\n"
                "use one group, and write the others as (?:...)"
            )

    @property
    def group(self) -> bool:
        """Whether the pattern has a group, whose match is compared with the gold answer."""
        return re.compile(self.pattern).groups == 1

    def build(self, grading: Any) -> Verifier:
        """The verifier with its worker processes."""
        return RegexVerifier(self)

    def fits(self, gold: Any) -> bool:
        """Whether the gold answer is a pattern; with the field `pattern`: text or a number, if that has a group."""
        if isinstance(gold, bool) or not isinstance(gold, str | int | float):
            return self.pattern != "" and not self.group
        try:
            return bool(self.pattern) or bool(re.compile(str(gold)))
        except re.error:
            return False


@verdicts_have(feedback=True)
class RegexVerifier(Verifier):
    """The verifier of `Regex`."""

    has_own_deadline = True

    def __init__(self, kind: Regex) -> None:
        self.kind = kind
        self._pool = worker_pool("regex", kind.deadline, kind.workers)
        self.close = self._pool.close

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        kind, gold = self.kind, prompt.row.get("answer")
        if not kind.fits(gold):
            return unverifiable(f"the gold answer {str(gold)[:80]!r} is not {kind.gold_answer_format}")
        pattern, group = kind.pattern or str(gold), str(gold).strip() if kind.group else None
        calls = [(pattern, text, kind.match_whole_text, group) for text in (sample.text, "")]
        return await bounded(self._pool, *calls)


@verdicts_have(feedback=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class JsonSchema(VerifierSettings):
    """Right if the answer is JSON that conforms to a JSON schema; malformed if it is not JSON.

    The answer is the last ```json block, or else the whole text. `schema` is a file's path, or the schema itself as
    JSON; without it the gold answer is the schema. No other document is loaded: a reference to one is unverifiable, and
    so is a schema that refers to itself without end. If the validation takes more than `deadline` seconds of CPU time,
    the answer is wrong.
    """

    gold_answer_format: ClassVar[str] = "a JSON schema"
    schema: str = ""
    deadline: float = 1.0
    workers: int = 2

    def __post_init__(self) -> None:
        check_types(self)
        check_workers(self.deadline, self.workers)

    def build(self, grading: Any) -> Verifier:
        """The verifier with its worker processes. `MissingRequirement` without the package jsonschema."""
        if find_spec("jsonschema") is None:
            fix = "pip install 'groupwise[json]'"
            raise MissingRequirement(
                "the verifier JsonSchema needs the package jsonschema", evidence="it is not installed", fix=fix
            )
        return JsonSchemaVerifier(self)

    def fits(self, gold: Any) -> bool:
        """Whether the gold answer is a valid schema; always true if the field `schema` is set."""
        return self.schema != "" or not schema_fault(gold)


@verdicts_have(feedback=True)
class JsonSchemaVerifier(Verifier):
    """The verifier of `JsonSchema`."""

    has_own_deadline = True
    packages = ("jsonschema",)

    def __init__(self, kind: JsonSchema) -> None:
        self.schema = _read_schema(kind.schema) if kind.schema else None
        if self.schema is not None and (fault := schema_fault(self.schema)):
            raise Usage(f"{kind.schema[:80]} is not a JSON schema", evidence=fault, fix="correct the schema")
        self._pool = worker_pool("json_schema", kind.deadline, kind.workers)
        self.close = self._pool.close

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        schema = self.schema if self.schema is not None else prompt.row.get("answer")
        return await bounded(self._pool, (schema, sample.text), (schema, "null"))


def _read_schema(schema: str) -> Any:
    is_text = schema.lstrip().startswith("{")
    try:
        return json.loads(schema if is_text else read_regular(schema, MOST_SCHEMA, fix="give the path of a schema"))
    except (ValueError, RecursionError) as error:
        raise BadData(
            f"{schema[:80]} cannot be read as JSON", evidence=str(error), fix="give the path of a schema"
        ) from None


def schema_fault(schema: Any) -> str:
    """The error in a JSON schema; empty if it is valid."""
    from jsonschema import SchemaError  # pyright: ignore[reportMissingImports, reportMissingModuleSource]
    from jsonschema.validators import validator_for  # pyright: ignore[reportMissingImports, reportMissingModuleSource]

    if not isinstance(schema, dict):
        return f"{str(schema)[:80]!r} is no object"
    if is_nested_deeper(schema, DEEPEST):
        return f"it is nested more than {DEEPEST} levels deep"
    try:
        validator_for(schema).check_schema(schema)
    except SchemaError as error:
        return error.message[:200]
    return ""


async def bounded(pool: FunctionPool, arguments: Sequence[Any], baseline: Sequence[Any]) -> Verdict:
    """Call the worker's function and return its verdict: wrong if the model's answer makes it exceed its CPU time.

    `baseline` are the arguments without the model's answer. If that call exceeds its time too, the gold answer or the
    recipe is at fault: unverifiable.
    """
    try:
        return await asyncio.wrap_future(pool.submit(*arguments))
    except CpuTimeExceeded as timeout:
        try:
            await asyncio.wrap_future(pool.submit(*baseline))
        except CpuTimeExceeded:
            return unverifiable(f"the check is too slow even without the answer: {timeout}")
        return Verdict(Outcome.wrong, feedback=f"too slow to judge: {timeout}")


def worker_pool(function: str, deadline: float, workers: int) -> FunctionPool:
    """A pool of worker processes that call a function of `formats_worker.py`, with limits on CPU time and memory."""
    file = str(Path(__file__).with_name("formats_worker.py"))
    spec = WorkerSpec(file, function, cpu=deadline, memory=MEMORY, bare=True)
    return FunctionPool(spec, deadline=max(60.0, 20 * deadline), workers=workers, misses=0)
