"""One's own problems: a JSONL file, one object a row, with a prompt and an answer."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from hashlib import sha256
from pathlib import Path
from typing import Any

from groupwise.data import BadData, Ids, Prompt, Usage

SHOWN = 5


@dataclass(frozen=True, slots=True)
class Problems:
    """The rows of a file, split by the hash of each prompt: a row stays on its side however the file grows.

    Of two rows or more at least one is held out and at least one is trained on. A single row is trained on.
    `given["answer"]` is the answer as the file has it: text, a number, or any other JSON value but null.
    """

    training: tuple[Prompt, ...]
    held_out: tuple[Prompt, ...]

    def __len__(self) -> int:
        return len(self.training)

    def __getitem__(self, index: int) -> Prompt:
        return self.training[index]

    @classmethod
    def read(
        cls,
        path: str | Path,
        encode: Callable[[str], Ids],
        *,
        prompt: str = "prompt",
        answer: str = "answer",
        held_out: float = 0.1,
    ) -> "Problems":
        """The file's problems. `BadData` names every row that cannot be used; rows count from 1."""
        if not 0 < held_out < 1:
            raise Usage(f"held_out is {held_out}", fix="give a share between 0 and 1, such as 0.1")
        path = Path(path)
        faults: list[tuple[int, str]] = []
        prompts: list[Prompt] = []
        first_row: dict[str, int] = {}
        for row, line in _lines(path):
            try:
                text, gold = _fields(line, prompt, answer)
                if (earlier := first_row.setdefault(text.strip(), row)) != row:
                    raise _Fault(f"the prompt of row {earlier} again")
                prompts.append(Prompt(f"{path.stem}/{row}", _ids(encode, text), text, {"answer": gold}))
            except _Fault as fault:
                faults.append((row, str(fault)))
        if faults:
            seen = [f"row {row}: {why}" for row, why in faults[:SHOWN]]
            seen += [f"and {len(faults) - SHOWN} more"] * (len(faults) > SHOWN)
            what = f"{path}: {len(faults)} of {len(faults) + len(prompts)} rows cannot be used"
            raise BadData(what, evidence="\n".join(seen), fix=f"mend or remove these rows; {_EXAMPLE}")
        if not prompts:
            raise BadData(f"{path} holds no problem", evidence="0 rows", fix=_EXAMPLE)
        return cls(*_split(prompts, held_out))


_EXAMPLE = 'write one JSON object a row, such as {"prompt": "7*5=", "answer": 35}'


class _Fault(Exception):
    """Why one row cannot be used."""


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        others = sorted(p.name for p in path.parent.glob("*.jsonl"))
        near = f"beside it: {', '.join(others[:SHOWN])}" if others else f"no .jsonl file is in {path.parent}"
        raise BadData(f"there is no file {path}", evidence=near, fix="give the path of a JSONL file") from None
    except OSError as error:
        raise BadData(f"{path} cannot be read", evidence=str(error), fix="give the path of a JSONL file") from None
    # Only "\n" ends a row: str.splitlines would also cut at characters that are legal inside a JSON string.
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return enumerate(lines[:-1] if lines[-1] == b"" else lines, start=1)


def _fields(line: bytes, prompt: str, answer: str) -> tuple[str, Any]:
    """The prompt's text and the answer of one row."""
    if not line.strip():
        raise _Fault("empty")
    try:
        row = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise _Fault(f"not JSON ({error})") from None
    if not isinstance(row, dict):
        raise _Fault(f"{_KIND[type(row)]}, not an object with fields")
    text, gold = _field(row, "prompt", prompt, answer), _field(row, "answer", answer, prompt)
    if not isinstance(text, str):
        raise _Fault(f"field {prompt!r} is {_KIND[type(text)]}: a prompt is text")
    for name, value in ((prompt, text), (answer, gold)):
        if value is None or value in ([], {}) or (isinstance(value, str) and not value.strip()):
            raise _Fault(f"field {name!r} is empty")
    return text, gold


_KIND = {dict: "an object", list: "a list", str: "text", int: "a number", float: "a number", bool: "true or false"}
_KIND |= {type(None): "null"}


_USUAL = {
    "prompt": ("question", "problem", "query", "instruction", "input"),
    "answer": ("target", "solution", "label", "gold", "expected", "output"),
}
"""What other data sets call the two fields."""


def _field(row: dict[str, Any], role: str, name: str, other: str) -> Any:
    if name in row:
        return row[name]
    usual = next((k for k in _USUAL[role] if k in row), None)
    near = max(row.keys() - {other}, key=lambda k: (SequenceMatcher(None, k, name).ratio(), k), default=None)
    hint = f": say --columns.{role} {usual or near}" if usual or near else ""
    raise _Fault(f"no field {name!r}; it has {', '.join(row) or 'none'}{hint}")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _ids(encode: Callable[[str], Ids], text: str) -> Ids:
    try:
        text.encode()
        ids = encode(text)
    except Exception as error:  # a tokenizer of one's own may raise anything
        raise _Fault(f"the tokenizer cannot read this prompt ({getattr(error, 'what', error)})") from error
    if not ids:
        raise _Fault("the prompt has no tokens")
    return ids


def _split(prompts: list[Prompt], share: float) -> tuple[tuple[Prompt, ...], tuple[Prompt, ...]]:
    place = {p.id: int.from_bytes(sha256(p.text.strip().encode()).digest()[:8]) / 2**64 for p in prompts}
    order = sorted(place.values())
    # The bounds move only where one side would be empty.
    bound = share if len(order) == 1 else min(max(share, order[1]), order[-1])
    held = [len(order) > 1 and place[p.id] < bound for p in prompts]
    return tuple(p for p, h in zip(prompts, held) if not h), tuple(p for p, h in zip(prompts, held) if h)
