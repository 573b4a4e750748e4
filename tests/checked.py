"""The import hook of the tests: it checks every annotation of the package on each call, array shapes included.

`jaxtyping.install_import_hook` does the same at more than twice the price: it binds the signature of every call, and
checks the arguments a second time together with the result. Here a function without array annotations costs one
beartype wrapper, and one with them a shape context more. An int is welcome where a float is.
"""

import ast
import dataclasses
import inspect
import sys
import zlib
from collections.abc import Callable
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import torch
from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray, jaxtyped

PACKAGE = "groupwise"
NAME = "__checked__"
"""The name that the decorator has in every module of the package."""
CACHE = f".checked-{zlib.crc32(Path(__file__).read_bytes()):08x}.pyc"
"""Compiled modules with decorators lie beside the plain ones; another version of this file compiles them again."""

enforced = True
CALLS, EVERY = 4, 64
"""Within one test, the array annotations of a function are checked in its first calls, and then in every 64th."""
tests_begun = 0
typed = beartype(conf=BeartypeConf(is_pep484_tower=True))
shapes = jaxtyped("context")


def check(it: Any) -> Any:
    """A function, or the `__init__` of a dataclass, that raises where a value does not fit its annotation."""
    if not inspect.isclass(it):
        return checked(it)
    if dataclasses.is_dataclass(it) and "__init__" in vars(it) and not hasattr(it.__init__, "__wrapped__"):
        it.__init__ = checked(it.__init__)
    return it


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """One name of a dimension is one size among the arguments and the result of a call."""
    inner = typed(function)
    if not any(has_array(annotation) for annotation in inspect.get_annotations(function).values()):
        return inner

    test, calls = 0, 0

    @wraps(inner)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal test, calls
        __tracebackhide__ = True
        if not enforced or torch.compiler.is_compiling():  # the compiler cannot trace the context of shapes
            return function(*args, **kwargs)
        if test != tests_begun:
            test, calls = tests_begun, 0
        calls += 1
        if calls > CALLS and calls % EVERY:
            return function(*args, **kwargs)
        with shapes:
            return inner(*args, **kwargs)

    return call


def has_array(annotation: Any) -> bool:
    """Whether an annotation holds a jaxtyping array. True for text, which may."""
    if inspect.isclass(annotation) and issubclass(annotation, AbstractArray):
        return True
    parts = annotation if isinstance(annotation, list) else get_args(annotation)  # a list: parameters of a Callable
    return isinstance(annotation, str) or any(has_array(part) for part in parts)


class Decorated(ast.NodeTransformer):
    """Every function with the check as its innermost decorator, every class with it as its outermost.

    Not the functions of autograd, whose first argument is `ctx`: torch's compiler traces them.
    """

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if [argument.arg for argument in node.args.args[:1]] != ["ctx"]:
            node.decorator_list.append(ast.copy_location(ast.Name(NAME, ast.Load()), node))
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.decorator_list.insert(0, ast.copy_location(ast.Name(NAME, ast.Load()), node))
        return self.generic_visit(node)


class Loader(SourceFileLoader):
    """Compiles modules with the decorators, and caches them beside the plain ones."""

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> Any:  # pyright: ignore
        tree = Decorated().visit(ast.parse(data, path))
        return compile(tree, path, "exec", dont_inherit=True, optimize=_optimize)

    def exec_module(self, module: ModuleType) -> None:
        setattr(module, NAME, check)
        super().exec_module(module)

    def get_data(self, path: str) -> bytes:
        return super().get_data(cached(path))

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        super().set_data(cached(path), data, _mode=_mode)  # pyright: ignore


def cached(path: str) -> str:
    return path.removesuffix(".pyc") + CACHE if path.endswith(".pyc") else path


class Finder(MetaPathFinder):
    """Finds the modules of the package, and only them, for `Loader`."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] != PACKAGE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = Loader(spec.loader.name, spec.loader.path)
        return spec


def install() -> None:
    """Check all modules of the package that are imported from now on."""
    sys.meta_path.insert(0, Finder())


def begin_test() -> None:
    """Check the first calls of every function again: what a test checks does not depend on the tests before it."""
    global tests_begun
    tests_begun += 1


def relax() -> None:
    """Check no arrays in this process from now on. For forks that repeat a run whose arrays were checked."""
    global enforced
    enforced = False
