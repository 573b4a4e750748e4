"""`groupwise methods`: the published methods. Their files are parsed, not imported, so it needs no torch."""

import ast
from importlib.util import find_spec
from pathlib import Path

from groupwise.data.rooms import names_of

ROOM = "groupwise.methods"


def list_methods() -> str:
    """The published methods, one line each, by arXiv number."""
    rows = sorted((constants["arxiv"], name, constants["paper"]) for name, constants in references().items())
    return "\n".join(f"{name:<13} arXiv:{arxiv:<11} {paper}" for arxiv, name, paper in rows)


def references() -> dict[str, dict[str, str]]:
    """The bibliographic entry (`REFERENCE`: paper, arXiv number) of each published method, by the method's name."""
    spec = find_spec(ROOM)
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent
    names = [name for name, module in names_of(ROOM).items() if module == f"{ROOM}.{name}" and name != "published"]
    return {name: _reference(folder / f"{name}.py") for name in names}


def _reference(path: Path) -> dict[str, str]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.Assign([ast.Name("REFERENCE")], ast.Call(keywords=keywords)):
                return {k.arg: str(k.value.value) for k in keywords if k.arg and isinstance(k.value, ast.Constant)}
    raise LookupError(f"{path} has no REFERENCE")
