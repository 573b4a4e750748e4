"""Code that runs only because the same command line says so: files that a recipe names, a model's own."""

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from groupwise.data import Usage, visible
from groupwise.tasks.judge_access import JudgeAccess

UNSAFE = """\
--unsafe-local-exec: code that the model writes runs without a sandbox, as you: it can read, change and delete whatever
you can. Only its time, memory and output are bounded."""
TRUST = """\
--trust-remote-code: Python files of the model's own directory are executed, as you: they can read, change and delete
whatever you can."""
PREFIX = "use:"
"""Used files live in `sys.modules` under a name that no import statement can reach or shadow."""


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """What a command line allows: used files by stem, each with the SHA-256 of what ran; code without a sandbox; code
    that a model brings along; what the judges of a recipe may reach.
    """

    modules: Mapping[str, ModuleType] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)
    unsafe_local_exec: bool = False
    trust_remote_code: bool = False
    judges: JudgeAccess = JudgeAccess()  # noqa: RUF009

    @property
    def functions(self) -> dict[str, Callable[..., Any]]:
        """Every public callable that a used file itself defines, as `my_file:grade`."""
        return {
            f"{stem}:{name}": thing
            for stem, module in self.modules.items()
            for name, thing in vars(module).items()
            if not name.startswith("_") and callable(thing) and getattr(thing, "__module__", "") == module.__name__
        }

    def find(self, name: str) -> Any:
        """What `my_file:MyClip` names. Raises `Usage` where its file is not in use, or holds nothing of that name."""
        stem, _, thing = name.partition(":")
        if stem not in self.modules:
            raise Usage(f"{name!r} is code in a file", fix=f"if you trust it, add --use {stem}.py to the command")
        if not hasattr(self.modules[stem], thing):
            raise Usage(
                f"{stem}.py has nothing called {thing!r}", fix=f"it has {', '.join(self.functions) or 'no functions'}"
            )
        return getattr(self.modules[stem], thing)


def load_use(
    paths: Sequence[str | Path],
    recorded: Mapping[str, str] | None = None,
    *,
    unsafe_local_exec: bool = False,
    trust_remote_code: bool = False,
    keys: Sequence[str] = (),
    judges: Sequence[str] = (),
) -> Use:
    """Run the files, and print the path and SHA-256 of each before it runs.

    `recorded` is what a run remembers (`Use.hashes`): another set of files, or a changed one, is refused with `Usage`
    before any of them runs. `keys` are names of environment variables, `judges` hosts.
    """
    access = JudgeAccess(tuple(keys), tuple(judges))
    sources: dict[str, tuple[Path, bytes]] = {}
    for path in map(Path, paths):
        if path.suffix != ".py" or not path.is_file():
            raise Usage(f"{path} cannot be used", fix="name a Python file: --use my_file.py")
        if path.stem in sources:
            raise Usage(
                f"two used files are called {path.stem}", fix="rename one: recipes tell them apart by this name"
            )
        sources[path.stem] = path, path.read_bytes()
    hashes = {stem: hashlib.sha256(source).hexdigest() for stem, (_, source) in sources.items()}
    if recorded is not None:
        _same(recorded, hashes)
    for stem, (path, _) in sources.items():
        print(visible(f"using {path.resolve()}  sha256 {hashes[stem]}"), flush=True)
    if unsafe_local_exec:
        print(UNSAFE, flush=True)
    if trust_remote_code:
        print(TRUST, flush=True)
    modules = {stem: _run(stem, path, source) for stem, (path, source) in sources.items()}
    return Use(modules, hashes, unsafe_local_exec, trust_remote_code, access)


def _same(recorded: Mapping[str, str], hashes: Mapping[str, str]) -> None:
    missing = [f"--use {stem}.py" for stem in recorded if stem not in hashes]
    if missing:
        raise Usage("this run was started with code of its own", fix=f"add {' '.join(missing)} to the command")
    for stem, seen in hashes.items():
        if stem not in recorded:
            raise Usage(f"this run was started without {stem}.py", fix=f"leave out --use {stem}.py")
        if seen != recorded[stem]:
            raise Usage(
                f"{stem}.py is not the file that this run was started with",
                evidence=f"sha256 {seen}; the run remembers {recorded[stem]}",
                fix="bring the old file back, or start a new run with this one",
            )


def _run(stem: str, path: Path, source: bytes) -> ModuleType:
    """The bytes that were hashed, run as a module."""
    module = ModuleType(PREFIX + stem)
    module.__file__ = str(path.resolve())
    sys.modules[module.__name__] = module  # dataclasses and typing look their module up here
    try:
        exec(compile(source, module.__file__, "exec"), vars(module))
    except Exception as error:
        del sys.modules[module.__name__]
        line = getattr(error, "lineno", None) or _line(error)
        raise Usage(
            f"{path} fails when it is loaded",
            evidence=f"line {line}: {type(error).__name__}: {error}",
            fix="mend the file",
        ) from error
    return module


def _line(error: BaseException) -> int:
    """The last line of the used file itself on the way to the error."""
    trace, line = error.__traceback__, 0
    while trace:
        if trace.tb_frame.f_globals.get("__name__", "").startswith(PREFIX):
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
