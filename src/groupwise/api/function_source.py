"""Copies a user's function as text for worker processes, if it uses only builtins and names of installed modules."""

import builtins
import inspect
import site
import symtable
import sys
import sysconfig
import textwrap
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any


def file_source(function: Callable[..., Any]) -> str | None:
    """The text of a Python file that defines the function; None if the function must stay in the calling process.

    The file has the function, and imports of the installed modules and their objects that it names. A lambda, a method,
    a decorated function, a closure, and a function that names anything else outside itself (a variable, a class or a
    function of the program) have no such file.

    >>> import textwrap as tw
    >>> file_source(lambda row, answer: 1.0) is None
    True
    """
    if not isinstance(function, FunctionType) or function.__closure__ or "<" in function.__qualname__:
        return None
    if "." in function.__qualname__ or hasattr(function, "__wrapped__"):
        return None
    try:
        source = textwrap.dedent(inspect.getsource(function))
        names = outer_names(source, function.__name__)
    except (OSError, SyntaxError, TypeError):
        return None
    if names is None:
        return None
    imports = [_import_of(name, function.__globals__) for name in sorted(names) if not hasattr(builtins, name)]
    if None in imports:
        return None
    head = "".join(f"{line}\n" for line in imports)
    return f"{head}\n\n{source}" if head else source


def outer_names(source: str, name: str) -> set[str] | None:
    """The global and enclosing names that a function uses; None if its source is not a single plain `def`.

    >>> sorted(outer_names("def f(x: int, n=LIMIT):\\n    return [math.sqrt(i) for i in x]", "f"))
    ['LIMIT', 'int', 'math']
    """
    if not source.startswith((f"def {name}(", f"async def {name}(")):
        return None
    table = symtable.symtable(source, "<function>", "exec")
    return {n for n in _global_names(table) if n != name}


def _global_names(table: symtable.SymbolTable) -> set[str]:
    if isinstance(table, symtable.Function):  # `is_global` takes a function called `top` for the module
        names = set(table.get_globals())
    else:
        names = {s.get_name() for s in table.get_symbols() if s.is_global() and (s.is_referenced() or s.is_assigned())}
    for inner in table.get_children():
        names |= _global_names(inner)
    return names


def _import_of(name: str, module: dict[str, Any]) -> str | None:
    """The statement that imports a global name; None if it is neither an installed module nor an object of one."""
    if name not in module:
        return None
    value = module[name]
    if isinstance(value, ModuleType):
        return f"import {value.__name__} as {name}" if _is_installed(value.__name__) else None
    origin, own_name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if not isinstance(origin, str) or not _is_installed(origin):
        return None
    if getattr(sys.modules.get(origin), own_name, None) is not value:
        return None
    return f"from {origin} import {own_name} as {name}"


def _is_installed(module: str) -> bool:
    """Whether a module is in the standard library or in a folder of installed packages."""
    if module.partition(".")[0] in sys.stdlib_module_names:
        return module != "__main__"
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
    return file.startswith(tuple(f"{folder}/" for folder in folders))
