"""Builds verifiers for tests, from TOML data as a recipe has them, and asks them."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from groupwise.config.recipe_toml import read_verifier
from groupwise.config.user_code import Permissions, load_use
from groupwise.data import Finish, Prompt, Sample, Task, Verdict, Verifier, VerifierSettings
from groupwise.models import encode_action
from groupwise.sandbox import Sandbox
from groupwise.verifiers import VerifierContext


def built(data: Any, task: Task | None = None, sandbox: Callable[..., Sandbox] = Sandbox, **how: Any) -> Verifier:
    """The verifier that a name, a table or a value describes, for a task. `how` are fields of `VerifierContext`."""
    kind = data if isinstance(data, VerifierSettings) else read_verifier(data)
    return VerifierContext(task, sandbox, **how).build(kind)


def verdict_of(verifier: Any, text: str, prompt: Prompt) -> Verdict:
    """The verdict on an answer's text."""

    async def judged() -> Verdict:
        return await verifier(prompt, Sample(context=(), stream=(0,), text=text))

    return asyncio.run(judged())


def ask(verifier: Any, text: str, gold: Any = 4) -> Verdict:
    """The verdict on an answer's text to a problem with this gold answer."""
    return verdict_of(verifier, text, Prompt("p", (), "p", {"answer": gold}))


def verdict_of_picture(picture: Any, problem: str, name: Any, finish: Finish = Finish.stop) -> Verdict:
    """The verdict of a verifier on a sample whose last state is a picture."""
    array = np.asarray(picture, np.float32)
    path = (encode_action(array, array, array),)
    sample = Sample(context=(1,), stream=(0,), tokens=(9,), origin=(0,), logp=(0.0,), actions=path, finish=finish)
    verifier: Any = built(name)
    return asyncio.run(verifier(Prompt("p", (1,), problem, {"answer": problem}), sample))


def graders(folder: Path, source: str) -> ModuleType:
    """A user's file with graders, loaded as `--use` loads it."""
    (file := folder / "graders.py").write_text(source)
    return load_use(Permissions(use=[file])).modules["graders"]
