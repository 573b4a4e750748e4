"""The words of the command line, and the arguments of the library, that give a run its permissions again."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["argument_of_permissions", "words_of_permissions"]

OPTIONS: Mapping[str, str] = {
    "judges": "--judge",
    "keys": "--key",
    "engine_hosts": "--engine-host",
    "engine_nccl": "--engine-nccl",
    "engine_python": "--engine-python",
    "engine_secret": "--engine-secret",
    "engine_exchange": "--engine-exchange",
    "agent_command": "--agent-command",
    "unsafe_local_exec": "--unsafe-local-exec",
    "trust_remote_code": "--trust-remote-code",
}
"""The option of each permission, by its name in the library and in run.json. Files of `--use` have their own rules."""


def words_of_permissions(permissions: Mapping[str, Any]) -> list[str]:
    """The words of a command that gives these permissions: a list is repeated, and empty ones are left out.

    >>> words_of_permissions({"judges": ("a", "b"), "engine_python": "", "unsafe_local_exec": True})
    ['--judge', 'a', '--judge', 'b', '--unsafe-local-exec']
    """
    words: list[str] = []
    for name, option in OPTIONS.items():
        match permissions.get(name):
            case str(text) if text:
                words += [option, text]
            case list() | tuple() as texts:
                words += [word for text in texts for word in (option, str(text))]
            case True | {}:
                words += [option] if permissions[name] else []
    return words


def argument_of_permissions(use: Sequence[str], permissions: Mapping[str, Any]) -> list[str]:
    """The argument of a call of the library that gives these permissions, and those to `use` files; empty without any.

    >>> argument_of_permissions(["my.py"], {"judges": ("a",), "engine_python": "", "unsafe_local_exec": True})
    ['permissions=gw.Permissions(use=["my.py"], judges=["a"], unsafe_local_exec=True)']
    """
    values = {name: value for name, value in {"use": use, **{n: permissions.get(n) for n in OPTIONS}}.items() if value}
    shown = {
        name: list(x) if isinstance(x, tuple) else True if isinstance(x, dict) else x for name, x in values.items()
    }
    written = ", ".join(f"{name}={'True' if x is True else json.dumps(x)}" for name, x in shown.items())
    return [f"permissions=gw.Permissions({written})"] if written else []
