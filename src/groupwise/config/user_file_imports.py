"""Finds the files that a user's Python file imports from its own folder."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path


def imported_files(path: Path) -> dict[str, Path]:
    """The files, in its folder or below, that a Python file imports directly or through each other, by relative path.

    A file that is not valid Python imports nothing. Imports by a computed name are not found.
    """
    folder, files, pending = path.parent, dict[str, Path](), [path]
    while pending:
        for found in _imports(pending.pop(), folder):
            name = found.relative_to(folder).as_posix()
            if name not in files and found != path:
                files[name] = found
                pending.append(found)
    return dict(sorted(files.items()))


def module_names(files: Mapping[str, Path]) -> list[str]:
    """The module names under which these files are imported.

    >>> module_names({"helper.py": Path("helper.py"), "rules/__init__.py": Path("rules/__init__.py")})
    ['helper', 'rules']
    """
    return [name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in files]


def _imports(file: Path, folder: Path) -> Iterator[Path]:
    """The files in the folder that one file imports by name."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(folder, alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = folder if node.level == 0 else file.parents[node.level - 1]
            if base.is_relative_to(folder):
                module = [node.module] if node.module else []
                yield from _files(base, *module)
                for alias in node.names:
                    yield from _files(base, ".".join([*module, alias.name]))


def _files(base: Path, name: str = "") -> Iterator[Path]:
    """The source file of a module, and of each package around it, as far as they are in this folder."""
    at = base
    for part in name.split(".") if name else ():
        at /= part
        yield from (file for file in (at.with_name(f"{at.name}.py"), at / "__init__.py") if file.is_file())
