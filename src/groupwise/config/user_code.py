"""Code that runs only if the command line allows it: the user's files (`--use`), and a model's Python files."""

import importlib
import inspect
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from groupwise.config.user_file_imports import imported_files, module_names
from groupwise.core import BadData, Usage, describe_error, is_new_line, or_near, spelled, visible
from groupwise.core.error_location import INSTALLED
from groupwise.engines.remote.engine_access import EngineAccess
from groupwise.runs.permission_options import words_of_permissions
from groupwise.tasks.judge_access import JudgeAccess

__all__ = ["Permissions"]

UNSAFE = """\
--unsafe-local-exec: code that the model writes runs without a sandbox, with your rights: it can read, change and delete
every file that you can. Only its time, memory and output are limited."""
TRUST = """\
--trust-remote-code: Python files in the model's directory are executed with your rights: they can read, change and
delete every file that you can."""
PREFIX = "use:"
"""Prefix of loaded files in `sys.modules`. No import statement can reach or shadow such a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """What the user permits one command to run, read and reach: files, remote code, judges and engines.

    `use` are Python files to execute. With `unsafe_local_exec` code that the model writes runs without a
    sandbox; with `trust_remote_code` Python files in a model's directory are executed. `keys` are names of
    environment variables that may be sent to an LLM judge, and `judges` the hosts that it may use. The others are
    those of `EngineAccess`: `engine_python` runs engines of vLLM, engines on `engine_hosts` get prompts and weights,
    those on `engine_nccl` may get weights by NCCL, unencrypted, `engine_secret` is a file with their secret, and
    `engine_exchange` the directory for weights. `agent_command` is the command of the program that is the agent.
    Raises `Usage` for a string in place of a list.
    """

    use: Sequence[str | Path] = ()
    unsafe_local_exec: bool = False
    trust_remote_code: bool = False
    keys: Sequence[str] = ()
    judges: Sequence[str] = ()
    engine_hosts: Sequence[str] = ()
    engine_nccl: Sequence[str] = ()
    engine_python: str | Path = ""
    engine_secret: str | Path = ""
    engine_exchange: str | Path = ""
    agent_command: str = ""

    def __post_init__(self) -> None:
        for name in ("use", "keys", "judges", "engine_hosts", "engine_nccl"):
            if isinstance(getattr(self, name), str | Path):  # the message leaves out the text: it may be a key itself
                raise Usage(f"{name} is one text; expected a list of texts", fix=f"write it in brackets: {name}=[...]")

    @property
    def engines(self) -> EngineAccess:
        """What engines in other processes may use."""
        python, secret, exchange = map(str, (self.engine_python, self.engine_secret, self.engine_exchange))
        return EngineAccess(
            python=python,
            hosts=tuple(self.engine_hosts),
            nccl_hosts=tuple(self.engine_nccl),
            secret_file=secret,
            exchange_directory=exchange,
        )


@dataclass(frozen=True, slots=True, eq=False)
class UserCode:
    """The user's code that a command may run: loaded files, functions of the calling program, and permissions.

    `modules` and `paths` are the files by stem. `hashes` has the SHA-256 of each, and of each file that it imports from
    its folder: `my_file`, `my_file/helper.py`. `accepted_changes` are accepted differences from the files of an earlier
    start. `functions_in_memory` are functions of the calling program by name.
    """

    modules: Mapping[str, ModuleType] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)
    paths: Mapping[str, str] = field(default_factory=dict)
    accepted_changes: tuple[str, ...] = ()
    unsafe_local_exec: bool = False
    trust_remote_code: bool = False
    judge_access: JudgeAccess = JudgeAccess()  # noqa: RUF009
    functions_in_memory: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    engine_access: EngineAccess = EngineAccess()  # noqa: RUF009
    agent_command: str = ""

    @property
    def permissions(self) -> dict[str, Any]:
        """The permissions beside the loaded files, by their names in `Permissions`."""
        return {
            "judges": self.judge_access.allowed_hosts,
            "keys": self.judge_access.key_variables,
            "engine_hosts": self.engine_access.hosts,
            "engine_nccl": self.engine_access.nccl_hosts,
            "engine_python": self.engine_access.python,
            "engine_secret": self.engine_access.secret_file,
            "engine_exchange": self.engine_access.exchange_directory,
            "agent_command": self.agent_command,
            "unsafe_local_exec": self.unsafe_local_exec,
            "trust_remote_code": self.trust_remote_code,
        }

    @property
    def functions(self) -> dict[str, Callable[..., Any]]:
        """The public functions and classes that the loaded files define, by names such as `my_file:grade`."""
        return {
            f"{stem}:{name}": value
            for stem, module in self.modules.items()
            for name, value in vars(module).items()
            if not name.startswith("_") and callable(value) and getattr(value, "__module__", "") == module.__name__
        }

    @property
    def options(self) -> str:
        """The command-line options that give these permissions again, with a leading space; empty without any."""
        words = [word for path in self.paths.values() for word in ("--use", path)]
        words += words_of_permissions(self.permissions)
        return "".join(f" {shlex.quote(word)}" for word in words)

    def digest(self, stem: str) -> str | None:
        """One SHA-256 of a loaded file and the files that it imports from its folder; None if it is not loaded."""
        own = {name: digest for name, digest in self.hashes.items() if name.partition("/")[0] == stem}
        return own.get(stem) if len(own) < 2 else sha256(repr(sorted(own.items())).encode()).hexdigest()

    def find(self, name: str) -> Any:
        """The object with a name such as `my_file:MyClip`. Raises `Usage` if the file is not loaded or lacks it."""
        stem, _, attribute = name.partition(":")
        if stem.endswith(".py"):
            fix = f"write {Path(stem).stem}:{attribute}, and add --use {stem} to the command"
            raise Usage(f"{name!r} has the name of a file: code is named by its module", fix=fix)
        if stem not in self.modules:
            near = get_close_matches(stem, self.modules, n=1, cutoff=0.7)
            fix = f"did you mean {near[0]}:{attribute}?\n" if near else ""
            fix += f"if you trust the file, add --use {stem}.py to the command"
            raise Usage(f"{name!r} is code in a file that is not loaded", fix=fix)
        if not hasattr(self.modules[stem], attribute):
            raise Usage(
                f"{stem}.py does not define {attribute!r}",
                fix=f"the loaded files define {', '.join(self.functions) or 'no functions'}",
            )
        return getattr(self.modules[stem], attribute)

    def function(self, file: str, name: str) -> Callable[..., Any]:
        """A grade function of a loaded file, or with an empty `file`, of the calling program. `Usage` without it."""
        if file:
            return self.find(f"{Path(file).stem}:{name}")
        if name not in self.functions_in_memory:
            raise Usage(
                f"{name} was a function in memory of the program that started this run",
                fix="pass the whole reward to the library, or name another verifier: --verifier NAME",
            )
        return self.functions_in_memory[name]


def function_hash(function: Callable[..., Any]) -> str:
    """The SHA-256 of the source of a function, or of an object's class. Empty if it has no source."""
    target = function if inspect.isroutine(function) else type(function)
    try:
        return sha256(inspect.getsource(target).encode()).hexdigest()
    except (OSError, TypeError):
        return ""


def load_use(
    allowed: Permissions,
    recorded: Mapping[str, str] | None = None,
    *,
    accept: bool = False,
    own: Collection[str | Path] = (),
) -> UserCode:
    """Execute the files of `use`. The path and SHA-256 of each are printed before it runs, but for those of `own`.

    A file may import others from its folder. `recorded` are the hashes in a run's run.json (`UserCode.hashes`): unless
    `accept`, an error is raised before any file runs if the set of files (`Usage`) or a hash (`BadData`) differs. `own`
    are files that the library wrote from functions of its caller.
    """
    access, engines = JudgeAccess(tuple(allowed.keys), tuple(allowed.judges)), allowed.engines
    sources: dict[str, tuple[Path, bytes]] = {}
    for path in map(Path, allowed.use):
        if path.suffix != ".py" or not path.is_file():
            fix = "name a Python file: --use my_file.py"
            raise Usage(f"{path} is not a Python file", fix=fix if path.exists() else or_near(path, fix))
        if path.stem in sources:
            raise Usage(f"two files of --use have the name {path.stem}", fix="rename one: recipes refer to this name")
        sources[path.stem] = path, path.read_bytes()
    imports = {stem: imported_files(path) for stem, (path, _) in sources.items()}
    for stem, files in imports.items():
        _check_names(sources[stem][0], files)
    hashes = {stem: sha256(source).hexdigest() for stem, (_, source) in sources.items()}
    for stem, files in imports.items():
        hashes |= {f"{stem}/{name}": sha256(file.read_bytes()).hexdigest() for name, file in files.items()}
    changes = () if recorded is None else _changes(recorded, hashes, accept)
    lines: list[str] = []
    for stem, (path, _) in sources.items():
        if path in map(Path, own):
            continue
        lines.append(visible(f"using {path.resolve()}  sha256 {hashes[stem]}"))
        lines += [visible(f"  it imports {name}  sha256 {hashes[f'{stem}/{name}']}") for name in imports[stem]]
    lines += [spelled(UNSAFE)] * allowed.unsafe_local_exec + [spelled(TRUST)] * allowed.trust_remote_code
    for line in filter(is_new_line, lines):
        print(line, flush=True)
    modules = {stem: _run(stem, path, source, imports[stem]) for stem, (path, source) in sources.items()}
    named = {stem: str(path) for stem, (path, _) in sources.items()}
    return UserCode(
        modules,
        hashes,
        named,
        changes,
        allowed.unsafe_local_exec,
        allowed.trust_remote_code,
        access,
        engine_access=engines,
        agent_command=allowed.agent_command,
    )


def _check_names(path: Path, imports: Mapping[str, Path]) -> None:
    """`Usage` if a file that is imported from the folder has the name of an installed module."""
    for name in dict.fromkeys(module.partition(".")[0] for module in module_names(imports)):
        spec = None if name in sys.stdlib_module_names else find_spec(name)
        if name in sys.stdlib_module_names or (spec is not None and (spec.origin or "").startswith(INSTALLED)):
            what = f"{path} imports {name} from its folder, but an installed module has the same name"
            raise Usage(what, evidence=f"{path.parent / name}", fix=f"rename {name} in this folder")


def _changes(recorded: Mapping[str, str], hashes: Mapping[str, str], accept: bool) -> tuple[str, ...]:
    """The changes of the user's files since the run's start, one line each. `BadData` unless the user accepts them.

    `Usage` if a file is not named: the files of `--use` must be named in any case.
    """
    missing = [f"--use {name}.py" for name in recorded if name not in hashes and "/" not in name]
    if missing:
        fix = f"add {' '.join(missing)} to the command"
        what = "this run was started with user code: its files must be named again"
        raise Usage(what, fix=fix)
    names = sorted(name for name in recorded.keys() | hashes.keys() if recorded.get(name) != hashes.get(name))
    for name in () if accept else names:
        if name not in recorded and "/" not in name:
            raise Usage(f"this run was started without {name}.py", fix=f"remove --use {name}.py from the command")
        file = name.partition("/")[2] or f"{name}.py"
        raise BadData(
            f"{file} is not the file that this run was started with",
            evidence=f"sha256 {hashes.get(name, 'none')}; run.json has {recorded.get(name, 'none')}",
            fix="restore the old file, or continue with the new one: add --changed to the command",
        )
    return tuple(f"use.{name}: {recorded.get(name, 'none')[:12]} -> {hashes.get(name, 'none')[:12]}" for name in names)


def _run(stem: str, path: Path, source: bytes, imports: dict[str, Path]) -> ModuleType:
    """Execute a user's file, whose content was hashed. It may import from its folder. `Usage` if it raises an error.

    Each load imports the folder's modules again: they may have changed, or have the names of another folder's.
    """
    module = ModuleType(PREFIX + stem)
    module.__file__ = str(path.resolve())
    sys.modules[module.__name__] = module  # dataclasses and typing look their module up here
    for name in module_names(imports):
        sys.modules.pop(name, None)
    try:
        with _importable(path.resolve().parent):
            exec(compile(source, module.__file__, "exec"), vars(module))
    except Exception as error:
        del sys.modules[module.__name__]
        cause = f"{path.name}:{error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else describe_error(error)
        raise Usage(f"{path} raises an error when it is loaded", evidence=cause, fix="correct the file") from error
    return module


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """A context in which the modules of a folder can be imported."""
    importlib.invalidate_caches()
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
