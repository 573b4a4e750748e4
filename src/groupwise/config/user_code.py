"""Code that runs only if the command line allows it: the user's files (`--use`), and a model's Python files."""

import hashlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from groupwise.data import Usage, visible
from groupwise.tasks.judge_access import JudgeAccess

UNSAFE = """\
--unsafe-local-exec: code that the model writes runs without a sandbox, with your rights: it can read, change and delete
every file that you can. Only its time, memory and output are limited."""
TRUST = """\
--trust-remote-code: Python files in the model's directory are executed with your rights: they can read, change and
delete every file that you can."""
PREFIX = "use:"
"""Prefix of loaded files in `sys.modules`. No import statement can reach or shadow such a name."""
MEMORY = "memory"
"""The stem in the names of functions that a program passes to the library: `memory:reward`."""


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """Permissions of one command: files loaded with `--use` by stem, with their SHA-256; code without a sandbox; Python
    files of a model; hosts and keys that LLM judges may use. `in_memory` are functions of the calling program by name.
    """

    modules: Mapping[str, ModuleType] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)
    unsafe_local_exec: bool = False
    trust_remote_code: bool = False
    judges: JudgeAccess = JudgeAccess()  # noqa: RUF009
    in_memory: Mapping[str, Callable[..., Any]] = field(default_factory=dict)

    @property
    def functions(self) -> dict[str, Callable[..., Any]]:
        """The public callables that loaded files define, by names such as `my_file:grade`."""
        return {
            f"{stem}:{name}": value
            for stem, module in self.modules.items()
            for name, value in vars(module).items()
            if not name.startswith("_") and callable(value) and getattr(value, "__module__", "") == module.__name__
        }

    def find(self, name: str) -> Any:
        """The object with a name such as `my_file:MyClip`. Raises `Usage` if the file is not loaded or lacks it."""
        stem, _, attribute = name.partition(":")
        if stem == MEMORY:
            return self._find_in_memory(attribute)
        if stem not in self.modules:
            raise Usage(
                f"{name!r} is code in a file that is not loaded",
                fix=f"if you trust the file, add --use {stem}.py to the command",
            )
        if not hasattr(self.modules[stem], attribute):
            raise Usage(
                f"{stem}.py does not define {attribute!r}",
                fix=f"it defines {', '.join(self.functions) or 'no functions'}",
            )
        return getattr(self.modules[stem], attribute)

    def _find_in_memory(self, name: str) -> Callable[..., Any]:
        if name not in self.in_memory:
            raise Usage(
                f"{name} was a function in memory of the program that started this run",
                fix=f"use the library: gw.resume(run, reward={name}), or name another verifier: --verifier NAME",
            )
        return self.in_memory[name]


def function_hash(function: Callable[..., Any]) -> str:
    """The SHA-256 of a function's source; of an object, that of its class. Empty if it has no source."""
    target = function if inspect.isroutine(function) else type(function)
    try:
        return hashlib.sha256(inspect.getsource(target).encode()).hexdigest()
    except (OSError, TypeError):
        return ""


def load_use(
    paths: Sequence[str | Path],
    recorded: Mapping[str, str] | None = None,
    *,
    unsafe_local_exec: bool = False,
    trust_remote_code: bool = False,
    keys: Sequence[str] = (),
    judges: Sequence[str] = (),
) -> Use:
    """Execute the files. The path and SHA-256 of each are printed before it runs.

    `recorded` are the hashes in a run's run.json (`Use.hashes`): `Usage` is raised before any file runs if the set of
    files or a hash differs. `keys` are names of environment variables, `judges` are hosts.
    """
    access = JudgeAccess(tuple(keys), tuple(judges))
    sources: dict[str, tuple[Path, bytes]] = {}
    for path in map(Path, paths):
        if path.suffix != ".py" or not path.is_file():
            raise Usage(f"{path} is not a Python file", fix="name a Python file: --use my_file.py")
        if path.stem in sources:
            raise Usage(f"two files of --use have the name {path.stem}", fix="rename one: recipes refer to this name")
        sources[path.stem] = path, path.read_bytes()
    hashes = {stem: hashlib.sha256(source).hexdigest() for stem, (_, source) in sources.items()}
    if recorded is not None:
        _check_recorded(recorded, hashes)
    for stem, (path, _) in sources.items():
        print(visible(f"using {path.resolve()}  sha256 {hashes[stem]}"), flush=True)
    if unsafe_local_exec:
        print(UNSAFE, flush=True)
    if trust_remote_code:
        print(TRUST, flush=True)
    modules = {stem: _run(stem, path, source) for stem, (path, source) in sources.items()}
    return Use(modules, hashes, unsafe_local_exec, trust_remote_code, access)


def _check_recorded(recorded: Mapping[str, str], hashes: Mapping[str, str]) -> None:
    """Raise `Usage` unless the files are those that the run was started with."""
    missing = [f"--use {stem}.py" for stem in recorded if stem not in hashes]
    if missing:
        raise Usage("this run was started with user code", fix=f"add {' '.join(missing)} to the command")
    for stem, digest in hashes.items():
        if stem not in recorded:
            raise Usage(f"this run was started without {stem}.py", fix=f"remove --use {stem}.py from the command")
        if digest != recorded[stem]:
            raise Usage(
                f"{stem}.py is not the file that this run was started with",
                evidence=f"sha256 {digest}; run.json has {recorded[stem]}",
                fix="restore the old file, or start a new run with this one",
            )


def _run(stem: str, path: Path, source: bytes) -> ModuleType:
    """Execute the hashed bytes as a module. Raises `Usage` with the line of an error."""
    module = ModuleType(PREFIX + stem)
    module.__file__ = str(path.resolve())
    sys.modules[module.__name__] = module  # dataclasses and typing look their module up here
    try:
        exec(compile(source, module.__file__, "exec"), vars(module))
    except Exception as error:
        del sys.modules[module.__name__]
        line = getattr(error, "lineno", None) or _line(error)
        raise Usage(
            f"{path} raises an error when it is loaded",
            evidence=f"line {line}: {type(error).__name__}: {error}",
            fix="correct the file",
        ) from error
    return module


def _line(error: BaseException) -> int:
    """The last line of the user's file in the traceback."""
    trace, line = error.__traceback__, 0
    while trace:
        if trace.tb_frame.f_globals.get("__name__", "").startswith(PREFIX):
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
