"""What `regex` and `json_schema` run in a process that can be killed. Run by path, never imported."""

import contextlib
import json
import re
from dataclasses import dataclass, field
from typing import Any

WRONG, CORRECT, MALFORMED = 0, 1, 2
_FENCE = re.compile(r"^[ \t]*```(json)?[ \t\r]*$", re.MULTILINE | re.IGNORECASE)


@dataclass
class Verdict:
    outcome: int
    score: float | None = None
    parts: dict[str, float] = field(default_factory=dict)
    feedback: str = ""
    cause: str = ""
    answer: str | None = None


def regex(pattern: str, text: str, whole: bool, gold: str | None) -> Verdict:
    """Whether the pattern is there; with a gold answer, whether its group's last match is that."""
    compiled = re.compile(pattern)
    if whole:
        found = compiled.fullmatch(text.strip())
    elif gold is None:
        found = compiled.search(text)
    else:
        *_, found = (None, *compiled.finditer(text))
    if gold is None:
        return Verdict(CORRECT if found else WRONG)
    if found is None or found[1] is None:
        return Verdict(MALFORMED, feedback="the pattern does not match")
    said = found[1].strip()
    return Verdict(CORRECT if said == gold else WRONG, answer=said[:200])


def json_schema(schema: Any, text: str) -> Verdict:
    """Whether the JSON of a text conforms to a schema that stands for itself."""
    from jsonschema.validators import validator_for  # pyright: ignore[reportMissingImports, reportMissingModuleSource]
    from referencing import Registry  # pyright: ignore[reportMissingImports]

    try:
        value = json.loads(_last_block(text), parse_constant=_refuse, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        return Verdict(MALFORMED, feedback=f"no JSON: {str(error)[:200]}")
    validator = validator_for(schema)(schema, registry=Registry())  # an empty registry loads nothing from anywhere
    try:
        fault = next(iter(validator.iter_errors(value)), None)
    except RecursionError:
        return Verdict(WRONG, feedback="nested too deeply to check")
    return Verdict(CORRECT) if fault is None else Verdict(WRONG, feedback=f"{fault.json_path}: {fault.message}"[:300])


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; ValueError if it has a name twice, since readers of JSON differ in which of the values they take."""
    read = dict(pairs)
    if len(read) < len(pairs):
        raise ValueError("an object has a name twice")
    return read


def _last_block(text: str) -> str:
    """What the last closed ```json block holds; the whole text where there is none. Each line is read once."""
    block, opened = text, None
    for fence in _FENCE.finditer(text):
        if fence[1] and opened is None:
            opened = fence.end()
        elif not fence[1] and opened is not None:
            block, opened = text[opened : fence.start()], None
    return block


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


if __name__ == "formats_worker":  # what every call needs is loaded before its time begins to count
    with contextlib.suppress(ImportError):
        json_schema({}, "0")
