"""The functions that `regex` and `json_schema` run in worker processes. Loaded by path, never imported."""

import contextlib
import json
import re
from dataclasses import dataclass, field
from typing import Any

WRONG, CORRECT, MALFORMED, UNVERIFIABLE = 0, 1, 2, 3
SHALLOW = 8
"""If a check recurses without end on an answer cut at this depth, the schema is at fault and not the answer."""
_FENCE = re.compile(r"^[ \t]*```(json)?[ \t\r]*$", re.MULTILINE | re.IGNORECASE)


@dataclass
class Verdict:
    outcome: int
    score: float | None = None
    subscores: dict[str, float] = field(default_factory=dict)
    feedback: str = ""
    cause: str = ""
    answer: str | None = None


def regex(pattern: str, text: str, whole: bool, gold: str | None) -> Verdict:
    """Whether the pattern matches; with a gold answer, whether the last match of its group equals that answer."""
    compiled = re.compile(pattern)
    if whole:
        match = compiled.fullmatch(text.strip())
    elif gold is None:
        match = compiled.search(text)
    else:
        *_, match = (None, *compiled.finditer(text))
    if gold is None:
        return Verdict(CORRECT if match else WRONG)
    if match is None or match[1] is None:
        return Verdict(MALFORMED, feedback="the pattern does not match")
    answer = match[1].strip()
    return Verdict(CORRECT if answer == gold else WRONG, answer=answer[:200])


def json_schema(schema: Any, text: str) -> Verdict:
    """Whether the JSON in a text conforms to a schema. The schema cannot refer to other documents."""
    from jsonschema.validators import validator_for  # pyright: ignore[reportMissingImports, reportMissingModuleSource]
    from referencing import Registry  # pyright: ignore[reportMissingImports]

    try:
        value = json.loads(_last_block(text), parse_constant=_refuse, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        return Verdict(MALFORMED, feedback=f"no JSON: {str(error)[:200]}")
    validator = validator_for(schema)(schema, registry=Registry())  # an empty registry loads no other document
    try:
        fault = next(iter(validator.iter_errors(value)), None)
    except RecursionError:
        try:
            next(iter(validator.iter_errors(_cut(value, SHALLOW))), None)
        except RecursionError:
            return Verdict(UNVERIFIABLE, cause="the schema refers to itself without end")
        return Verdict(WRONG, feedback="nested too deeply to check")
    return Verdict(CORRECT) if fault is None else Verdict(WRONG, feedback=f"{fault.json_path}: {fault.message}"[:300])


def _cut(value: Any, depth: int) -> Any:
    """The value with null in place of all values nested deeper than `depth`."""
    if isinstance(value, dict):
        return {name: _cut(inner, depth - 1) for name, inner in value.items()} if depth else None
    if isinstance(value, list):
        return [_cut(inner, depth - 1) for inner in value] if depth else None
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object from its (name, value) pairs. ValueError for a repeated name, which parsers read differently."""
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a JSON object has the same name twice")
    return value


def _last_block(text: str) -> str:
    """The content of the last closed ```json block, else the whole text. Takes linear time."""
    block, start = text, None
    for fence in _FENCE.finditer(text):
        if fence[1] and start is None:
            start = fence.end()
        elif not fence[1] and start is not None:
            block, start = text[start : fence.start()], None
    return block


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON: write a finite number, or null")


if __name__ == "formats_worker":  # load the libraries before the first call, whose CPU time is limited
    with contextlib.suppress(ImportError):
        json_schema({}, "0")
