"""The verifier `Function`: a user's grade function as a value that a recipe can hold."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from groupwise.core import Usage, check_types
from groupwise.data import Verifier, VerifierSettings
from groupwise.verifiers.build_verifier import VerifierContext

__all__ = ["Function", "kinds_in"]


@dataclass(frozen=True, slots=True)
class Function(VerifierSettings):
    """A grade function (docs/verifiers.md): its name, and the Python file that defines it.

    The file runs only if the command line names it too: `--use FILE.py`. With an empty `file` the function is one of
    the calling program: `gw.resume(run, reward=...)` must pass it again.
    """

    name: str
    file: str = ""

    def __post_init__(self) -> None:
        check_types(self)
        if not self.name:
            raise ValueError("name is empty\ntake the name of a function")

    @property
    def user_name(self) -> str:
        """The name of the function among the loaded files: `my_file:grade`. Empty without a file."""
        return f"{Path(self.file).stem}:{self.name}" if self.file else ""

    def build(self, grading: VerifierContext) -> Verifier:
        """The verifier that calls the function. `Usage` if nothing loads the file."""
        if grading.load_function is None:
            fix = f"add --use {self.file} to the command"
            raise Usage(f"{self.user_name or self.name!r} is a user's function", fix=fix)
        return grading.load_function(self.file, self.name)


def kinds_in(kind: Any) -> Iterator[Any]:
    """A verifier's settings, and those of the verifiers in it, at any depth.

    >>> from groupwise.verifiers import Exact, NoisyVerdicts
    >>> [type(kind).__name__ for kind in kinds_in(NoisyVerdicts(verifier=Exact(), false_reject_rate=0.1))]
    ['NoisyVerdicts', 'Exact']
    """
    if isinstance(kind, VerifierSettings):
        yield kind
    if isinstance(kind, tuple):
        for item in kind:
            yield from kinds_in(item)
    elif is_dataclass(kind):
        for field in fields(kind):
            yield from kinds_in(getattr(kind, field.name))


def functions_in(kind: Any) -> list[Function]:
    """The user's functions among the verifiers in a verifier's settings."""
    return [inner for inner in kinds_in(kind) if isinstance(inner, Function)]
