"""Render a model directory's chat template in a worker process with bounded time and memory."""

import atexit
from pathlib import Path
from typing import Any

from groupwise.core import BadData
from groupwise.models.line_worker import LineWorker

WORKER = Path(__file__).with_name("template_worker.py")
DEADLINE = 60.0
"""Seconds of one rendering, whose CPU time the worker limits; a loaded machine may need many more seconds for it."""


class TemplateRenderer(LineWorker):
    """The worker process that renders templates."""

    def __init__(self) -> None:
        super().__init__(WORKER, purpose="chat templates cannot be rendered", packages="jinja2", deadline=DEADLINE)

    def render(self, source: str, fields: dict[str, Any]) -> str:
        """The text of a Jinja template. BadData if it fails or exceeds the limits of time, memory or length."""
        reply = self.ask({"source": source, "fields": fields})
        if reply is None:
            raise _failed("it was killed: it needs more than a second of CPU time, or too much memory")
        if "error" in reply:
            raise _failed(reply["error"])
        return reply["text"]


def _failed(why: str) -> BadData:
    fix = "check the roles of the messages, or use --template no"
    return BadData(f"the chat template fails on this prompt: {why}", fix=fix)


_RENDERER = TemplateRenderer()
atexit.register(_RENDERER.close)
render = _RENDERER.render
