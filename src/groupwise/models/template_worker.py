"""Worker process that renders chat templates and can be killed. Run by path, never imported.

Each line of standard input is a JSON request; each line of standard output is its reply. A template may loop, recurse
or build huge strings. The kernel limits the memory of the process and ends it when a rendering exceeds its CPU time.
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
"""Limits of one rendering: CPU seconds, bytes of address space, and characters of output."""


class GenerationBlockExtension(Extension):
    """Accept `{% generation %}` blocks, which mark an assistant's turn for training; they do not change the text."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def refuse(message: str) -> None:
    raise TemplateError(message)


def as_json(x: Any, *, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(x, ensure_ascii=ensure_ascii, **options)


@lru_cache(8)
def compiled(source: str) -> Template:
    """Compile a chat template as transformers does, but without access to the clock (`strftime_now`)."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlockExtension, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = as_json
    environment.globals["raise_exception"] = refuse
    return environment.from_string(source)


def reply(request: dict[str, Any]) -> dict[str, str]:
    try:
        text = compiled(request["source"]).render(request["fields"])
    except Exception as error:  # a template may raise any exception, Python's own included
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    if len(text) > CHARACTERS:
        return {"error": f"its text has {len(text)} characters, more than {CHARACTERS}"}
    return {"text": text}


def serve() -> None:
    for signum in (signal.SIGINT, signal.SIGHUP):  # the parent process handles Ctrl-C and a terminal that closes
        signal.signal(signum, signal.SIG_IGN)
    with suppress(ValueError, OSError):  # some systems lack this limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print(flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # its signal ends the process
        line = json.dumps(reply(request))
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(line, flush=True)


if __name__ == "__main__":
    serve()
