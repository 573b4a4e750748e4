"""Agents that are programs: each run is a process, in any language, whose words only the command line gives."""

import asyncio
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.core import Usage
from groupwise.data.verdicts import as_verdict, unverifiable
from groupwise.sandbox.die_with_parent import bound_command
from groupwise.sandbox.worker_pool import last_lines

__all__ = ["AgentProgram"]

LONGEST_ROW = 64 << 10
"""The most characters of a row in a variable, whose limit is 128 KiB on Linux. A longer row is in a file."""
BECOME = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"
"""Replaces the process, which the kernel ends with the run, by the agent's program."""


@dataclass(frozen=True, slots=True)
class AgentProgram:
    """An agent that is a program: the words of its command.

    It gets `OPENAI_BASE_URL`, `OPENAI_API_KEY` and `GROUPWISE_ROW` (the row as JSON, or the path of a file with it). If
    the last line of its output is an object of JSON with a `reward`, that is its reward.
    """

    words: Sequence[str]

    @classmethod
    def of(cls, command: str) -> "AgentProgram":
        """The program of a command as a shell's user writes it. No shell reads it. `Usage` if it cannot be started."""
        try:
            words = shlex.split(command)
        except ValueError as error:
            fix = "close all quotes: --agent-command 'node my-agent.js'"
            raise Usage(f"--agent-command {command!r} is no command", evidence=str(error), fix=fix) from None
        if not words or shutil.which(words[0]) is None:
            fix = "name a program that this shell finds: --agent-command 'node my-agent.js'"
            raise Usage(f"there is no program {words[0] if words else command!r} for --agent-command", fix=fix)
        return cls(tuple(words))

    async def run(self, row: Mapping[str, Any], url: str, key: str, name: str, folder: Path | None) -> Any:
        """Run the program once, and return its reward; None without one, a verdict with the cause if it fails.

        Its standard output and error are kept in `folder`, if there is one, as `name.out` and `name.err`. At its end,
        or if this call is cancelled, its whole process group is killed.
        """
        with tempfile.TemporaryDirectory(prefix="groupwise-agent-") as temporary:
            text = json.dumps(dict(row), default=str)
            if len(text) > LONGEST_ROW:
                file = Path(temporary) / "row.json"
                file.write_text(text, encoding="utf-8")
                text = str(file)
            kept = folder or Path(temporary)
            kept.mkdir(exist_ok=True)
            with open(kept / f"{name}.out", "w+b") as out, open(kept / f"{name}.err", "w+b") as err:
                command = bound_command(sys.executable, os.getpid(), ["-c", BECOME, *self.words])
                process = await asyncio.create_subprocess_exec(
                    *command, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=err,
                    env=environment(text, url, key), start_new_session=True,
                )  # fmt: skip
                try:
                    code = await process.wait()
                finally:
                    with suppress(ProcessLookupError, PermissionError):  # macOS raises the latter for a zombie
                        os.killpg(process.pid, signal.SIGKILL)
                    await asyncio.shield(process.wait())
                if code:
                    last = next(iter(last_lines(err)[-1:]), "")
                    return unverifiable(f"the agent: its program ended with exit code {code}: {last}"[:500])
                return reward_in(last_lines(out))


def environment(row: str, url: str, key: str) -> dict[str, str]:
    """The variables of an agent's process: those of this process, the endpoint, and the row."""
    own = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": key, "GROUPWISE_ROW": row}
    for name in ("NO_PROXY", "no_proxy"):  # no proxy is between the program and the endpoint
        own[name] = ",".join(filter(None, (os.environ.get(name, ""), "127.0.0.1")))
    return {**os.environ, **own}


def reward_in(lines: Sequence[str]) -> Any:
    """The reward in the last line of a program's output, as a verdict; None if that line is no object with a `reward`.

    >>> reward_in(["done", '{"reward": 0.5}']).score, reward_in(['{"reward": 0.5}', "bye"]) is None
    (0.5, True)
    """
    try:
        value = json.loads(next((line for line in reversed(lines) if line.strip()), ""))
    except (ValueError, RecursionError):
        return None
    return as_verdict(value["reward"]) if isinstance(value, dict) and "reward" in value else None
