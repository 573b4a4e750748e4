"""Builds verifiers for tests, from TOML data as a recipe has them."""

from collections.abc import Callable
from typing import Any

from groupwise.config.recipe_toml import read_verifier
from groupwise.data import Task, Verifier, VerifierKind
from groupwise.sandbox import Sandbox
from groupwise.verifiers import Grading


def built(data: Any, task: Task | None = None, sandbox: Callable[..., Sandbox] = Sandbox, **how: Any) -> Verifier:
    """The verifier that a name, a table or a value describes, for a task. `how` are other fields of `Grading`."""
    kind = data if isinstance(data, VerifierKind) else read_verifier(data)
    return Grading(task, sandbox, **how).build(kind)
