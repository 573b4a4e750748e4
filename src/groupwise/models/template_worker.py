"""Renders chat templates in a process that can be killed. Run by path, never imported.

Each line of standard input is a request, each line of standard output its reply. A template may loop, recurse and
multiply as it likes: the kernel ends the process once a rendering has used its processor time, and refuses memory.
"""

import json
import resource
import signal
import sys
from contextlib import suppress
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

SECONDS, MEMORY, CHARACTERS = 1.0, 1 << 30, 1 << 22
"""Processor time and address space of a rendering, and the longest text that it may write."""


class Generation(Extension):
    """`{% generation %}` marks an assistant's turn for training on conversations; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def refuse(message: str) -> None:
    raise TemplateError(message)


def as_json(x: Any, *, ensure_ascii: bool = False, **how: Any) -> str:
    return json.dumps(x, ensure_ascii=ensure_ascii, **how)


@lru_cache(8)
def compiled(source: str) -> Template:
    """A template as transformers sets it up, but for the clock (`strftime_now`)."""
    world = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    world.filters["tojson"] = as_json
    world.globals["raise_exception"] = refuse
    return world.from_string(source)


def reply(request: dict[str, Any]) -> dict[str, str]:
    try:
        text = compiled(request["source"]).render(request["fields"])
    except Exception as error:  # a template may raise anything, also what Python raises
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    if len(text) > CHARACTERS:
        return {"error": f"it writes {len(text)} characters, more than {CHARACTERS}"}
    return {"text": text}


def serve() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    with suppress(ValueError, OSError):  # not every system has this limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print(flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # its signal ends the process
        answer = json.dumps(reply(request))
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(answer, flush=True)


if __name__ == "__main__":
    serve()
