"""Recipes whose texts name a program, a pipe or a host that must not be touched, and what this process touches.

    python -m tests.laws.canaries

In an empty directory, into which it writes: `test_canaries.py` starts it there. It checks each recipe in turn, and
trains one iteration of those without errors. It prints each forbidden event, as JSON. Its directory has an executable
file, a pipe and rows, whose names are the values of the recipes' texts.
"""

import json
import os
import sys
import tempfile
import types
import typing
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

NAME, PIPE, ROWS = "thecanary.invalid", "./thecanary.pipe", "thecanary.jsonl"
"""An executable file whose name is also that of a host, a pipe, and a file with rows."""
URL, ADDRESS = f"http://{NAME}:1/v1", f"{NAME}:1#sha256={'0' * 64}"
MARK = "thecanary"
READS = (
    "model",
    "task",
    "extra_tasks",
    "held_out",
    "warm_start",
    "method.models",
    "verifier JsonSchema.schema",
    "verifier RewardModel.path",
    "verifier ProcessRewardModel.path",
)
"""The fields that may name a file to read. docs/threats.md lists them."""
WRITTEN = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.link", "os.truncate", "os.chmod",
           "tempfile.mkstemp", "tempfile.mkdtemp", "shutil.rmtree", "shutil.copyfile", "shutil.move")  # fmt: skip
STARTS = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "pty.spawn")
CALLS = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.sendmsg")
WATCHED = (*WRITTEN, *STARTS, *CALLS, "os.listdir", "os.scandir", "ctypes.dlopen", "import")


class Watch:
    """Refuses and records what a recipe may not do, while one of its fields names the canaries."""

    def __init__(self) -> None:
        self.field = ""
        self.found: dict[tuple[str, str], str] = {}

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.field and event in WATCHED and (why := self.fault(event, arguments)):
            self.found.setdefault((self.field, event), f"{why}: {arguments!r:.300}")
            raise PermissionError(f"{event}: {why}")

    def fault(self, event: str, arguments: tuple[Any, ...]) -> str:
        """Why a recipe may not do this; empty if it may."""
        marked = MARK in " ".join(map(repr, arguments))
        if event in STARTS:
            program = str(arguments[0])
            return "a canary" if marked else "" if Path(program).name in PROGRAMS else "another program"
        if event in CALLS:
            local = self.field == "engine.addresses" and isinstance(arguments[1], str)  # a socket of this machine
            return "" if local or is_here(arguments) else "another host"
        if event == "open" and not writes(arguments):
            return "a canary" if marked and not self.reads(arguments[0]) else ""
        if event in WRITTEN:
            return "" if isinstance(arguments[0], int) or is_own(str(arguments[0])) else "a file elsewhere"
        return "a canary" if marked else ""

    def reads(self, path: object) -> bool:
        """Whether the field may read this file. A pipe may not be opened in any case."""
        return (self.field.startswith(READS) and Path(str(path)).is_file()) or is_own(str(path))


PROGRAMS = (Path(sys.executable).name, "python", "python3", "bwrap")


def is_here(arguments: tuple[Any, ...]) -> bool:
    """Whether a socket's call goes to this machine."""
    hosts = [str(part[0] if isinstance(part, tuple) and part else part) for part in arguments]
    return MARK not in " ".join(hosts) and any(host in ("127.0.0.1", "localhost", "::1") for host in hosts)


def writes(arguments: tuple[Any, ...]) -> bool:
    """Whether a file is opened to be written. Flags have no mode if the call was `os.open`."""
    _, mode, flags = arguments
    return bool(set(str(mode or "")) & set("wax+")) or bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def is_own(path: str) -> bool:
    """Whether a path is below the run, the temporary directory or the user's cache, all of which are here."""
    whole = os.path.abspath(path)
    marked = MARK in os.path.relpath(whole, "runs") and not whole.startswith(os.path.abspath("cache"))
    return whole in ("/dev/null", "/dev/shm") or (whole.startswith(os.getcwd()) and not marked)


# Recipes


def variants(hint: Any, text: str, seen: set[Any], *, parts: bool = True) -> Iterator[Any]:
    """The values in TOML of a field of this type whose texts are `text`. Without `parts`, it has none.

    A class that was `seen` is left out.
    """
    from groupwise.config.registry import fitting_names
    from groupwise.core import part_named, part_names

    origin, arms = typing.get_origin(hint), typing.get_args(hint)
    if hint is str or hint is Any:
        yield text
    elif origin in (typing.Union, types.UnionType):
        for arm in arms:
            yield from variants(arm, text, seen, parts=parts)
    elif origin is tuple and len(arms) == 2 and arms[1] is ... and typing.get_origin(arms[0]) is tuple:
        named = typing.get_args(arms[0])
        yield from ({MARK: inner} for inner in variants(named[1], text, seen, parts=parts))
    elif origin is tuple:
        yield from ([inner] * (1 if ... in arms else len(arms)) for inner in variants(arms[0], text, seen, parts=parts))
    elif is_dataclass(hint):
        yield from tables(hint, text, seen, parts=parts)
    elif parts and getattr(hint, "__name__", "") in part_names():
        for name in fitting_names(hint):
            if isinstance(part := part_named(name), type):
                yield from ({"kind": name, **table} for table in tables(part, text, seen))


def tables(kind: Any, text: str, seen: set[Any], *, parts: bool = True) -> Iterator[dict[str, Any]]:
    """Tables of a dataclass: one with all its texts, and one for each part in it."""
    from groupwise.config.parse_toml_values import default, hints_of

    if kind in seen:
        return
    seen.add(kind)
    hints = hints_of(kind)
    required = {f.name: least(hints[f.name]) for f in fields(kind) if f.init and default(f) is MISSING}
    plain, nested = {}, []
    for f in fields(kind):
        for value in variants(hints[f.name], text, seen, parts=parts):
            if text in (value, *(value if isinstance(value, list) else ())):
                plain[f.name] = value
            else:
                nested.append({f.name: value})
    yield from ({**required, **table} for table in ([plain] if plain else []) + nested)


def least(hint: Any) -> Any:
    """A value for a field without a default."""
    from groupwise.config.registry import fitting_names
    from groupwise.core import part_named, part_names

    if getattr(hint, "__name__", "") in part_names():
        return next(n for n in fitting_names(hint) if not isinstance(part_named(n), type) or can_be_made(part_named(n)))
    simple = {str: "a", int: 1, float: 0.5, bool: True}
    return simple.get(hint, ["a"])


def can_be_made(part: Any) -> bool:
    from groupwise.config.parse_toml_values import default

    return all(default(f) is not MISSING for f in fields(part))


def recipes(seen: set[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each field with the recipes that put a canary there, as changes of a small one."""
    from groupwise.config.parse_toml_values import hints_of
    from groupwise.config.recipe import Recipe
    from groupwise.methods import Method

    texts = (NAME, PIPE, URL, ADDRESS, ROWS, f"{NAME}:f")
    for f in fields(Recipe):
        for text in texts:
            known: set[Any] = set()
            plain = f.name not in ("method", "engine")
            for value in variants(hints_of(Recipe)[f.name], text, known, parts=False) if plain else ():
                yield f.name, {f.name: value}
    for text in (NAME, PIPE):
        known = set()
        for f in fields(Method):
            if text == PIPE and f.name != "models":  # no other field may open the file either
                continue
            for value in variants(hints_of(Method)[f.name], text, known):
                yield f"method.{f.name}", {"method": {"base": "grpo", "group_size": 2, f.name: value}}
        seen |= known
    for text in texts:
        known = set()
        for value in variants(hints_of(Recipe)["engine"], text, known):
            for name in value.keys() - {"kind"}:
                only = {"replicas": 0, "addresses": [text]} if name == "addresses" else {name: value[name]}
                yield f"engine.{name}", {"engine": {"kind": value["kind"], **only}}
        seen |= known
    yield from tasks(texts, seen)
    yield from verifiers(texts, seen)


def tasks(texts: tuple[str, ...], seen: set[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each field that names a task, with each text for short, and each task with each of its fields that has a text."""
    from groupwise.config.parse_toml_values import hints_of
    from groupwise.config.registry import fitting_names
    from groupwise.core import part_named
    from groupwise.data import TaskSettings
    from groupwise.tasks.published_sets import PRESETS

    required = {"PublishedSet": {"name": "gsm8k"}, "ReasoningGym": {"name": "maze"}, "DataRows": {"source": "a.jsonl"}}
    required["Demonstrations"] = required["DataRows"]
    for text in texts:
        tables = [text, f"datasets:{text}"]
        for name in fitting_names(TaskSettings):
            seen.add(kind := part_named(name))
            own = [f.name for f in fields(kind) if hints_of(kind)[f.name] is str]
            tables += [{"kind": name, **required[name], field: text} for field in own]
        for table in tables:
            yield "task", {"task": table}
            yield "held_out", {"held_out": table}
            yield "extra_tasks", {"extra_tasks": [{"task": table}]}
    for name in PRESETS:
        sets = ({"kind": "PublishedSet", "name": name, "source": text} for text in (NAME, PIPE))
        yield from (("task", {"task": table}) for table in sets)


NEEDED: dict[str, dict[str, Any]] = {
    "Combined": {"members": [{"name": "a", "verifier": "exact"}, {"name": "b", "verifier": "exact"}]},
    "Function": {"name": "f", "file": "a.py"},
    "HackableScore": {"verifier": "exact"},
    "Judge": {"url": "http://127.0.0.1:1/v1", "model": "m"},
    "NoisyVerdicts": {"verifier": "exact"},
    "ProcessRewardModel": {"path": "a"},
    "RewardModel": {"path": "a"},
}
"""The fields of verifiers that have no default."""


def verifiers(texts: tuple[str, ...], seen: set[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each verifier with each of its fields that has a text, at any depth."""
    from groupwise.config.parse_toml_values import hints_of
    from groupwise.config.registry import fitting_names
    from groupwise.core import part_named
    from groupwise.data import VerifierSettings

    for text in texts:
        yield "verifier", {"verifier": text}
        for name in fitting_names(VerifierSettings):
            seen.add(kind := part_named(name))
            needed = {"kind": name, **NEEDED.get(name, {})}
            for f in fields(kind):
                hint = hints_of(kind)[f.name]
                known: set[Any] = set()
                values = [text] if hint is VerifierSettings else list(variants(hint, text, known, parts=False))
                seen |= known
                yield from ((f"verifier {name}.{f.name}", {"verifier": {**needed, f.name: value}}) for value in values)
        member = {"name": "a", "verifier": "exact"}
        for changed in (
            {"name": text},
            {"verifier": text},
            {"verifier": {"kind": "Function", "name": "f", "file": text}},
        ):
            table = {"kind": "Combined", "members": [{**member, **changed}, {**member, "name": "b"}]}
            yield "verifier Combined.members", {"verifier": table}


def main() -> None:
    """Check and train each recipe, and print what it did that it may not do."""
    import tomli_w

    import groupwise as gw
    from groupwise.config.registry import parts
    from groupwise.core import GroupwiseError, part_names
    from groupwise.tasks import calculator
    from tests.checks import check

    few = calculator._held_out()[:8]
    calculator._held_out = lambda: few  # each recipe builds the task: 512 prompts would be most of the work

    Path(NAME).write_text("#!/bin/sh\ntouch ran\n")
    Path(NAME).chmod(0o755)
    os.mkfifo(PIPE)
    Path(ROWS).write_text('{"prompt": "1+1=", "answer": 2}\n{"prompt": "1+2=", "answer": 3}\n')
    small = {"method": {"base": "grpo", "group_size": 2}, "prompts": 2, "iterations": 1, "sampling": {"max_tokens": 4},
             "evaluate": {"problems": 1}, "save": {"every": 0}}  # fmt: skip
    watch, seen, checked, trained = Watch(), set[Any](), 0, 0
    with open(os.devnull, "w") as nowhere:
        said, sys.stdout, sys.stderr = (sys.stdout, sys.stderr), nowhere, nowhere
        check(tomli_w.dumps(small))
        gw.train(tomli_w.dumps(small), name="first")  # what is imported and cached is not the recipes' doing
        sys.addaudithook(watch)
        for watch.field, changes in recipes(seen):
            recipe = tomli_w.dumps({**small, **changes})
            checked += 1
            if not check(recipe) and not watch.field.startswith("verifier Judge"):  # which would wait for a server
                trained += 1
                with suppress(GroupwiseError):
                    gw.train(recipe, name="run")
        watch.field = ""
        sys.stdout, sys.stderr = said
    classes = [part for part in parts().values() if isinstance(part, type) and is_dataclass(part)]
    components = {name for names in part_names().values() for name in names}
    unseen = [part.__name__ for part in classes if part.__name__ in components and part not in seen]
    found = [(*key, why) for key, why in watch.found.items()]
    print(json.dumps({"found": found, "checked": checked, "trained": trained, "unseen": unseen,
                      "ran": Path("ran").exists()}))  # fmt: skip


if __name__ == "__main__":
    if Path(".git").exists():  # its files were committed twice
        sys.exit("start it in an empty directory, as tests/laws/test_canaries.py does")
    tempfile.tempdir = os.path.join(os.getcwd(), "temporary")
    os.mkdir(tempfile.tempdir)
    main()
