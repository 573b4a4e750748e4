"""The engine of a run that generates nothing."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from groupwise.core import Usage
from groupwise.data import ContextKey, Engine, Generation, GenerationRequest, Ids, Picture

__all__ = []


class NoEngine(Engine):
    """Keeps the version of the weights, and nothing else. A request for tokens is a `Usage`."""

    def __init__(self) -> None:
        self._version = -1

    @property
    def version(self) -> int:
        return self._version

    async def sample(self, request: GenerationRequest) -> Generation:
        raise nothing_generates()

    async def score(
        self, context: Ids, tokens: Ids, *, temperature: float = 1.0, pictures: Sequence[Picture] = ()
    ) -> tuple[float, ...]:
        raise nothing_generates()

    async def load(self, version: int, weights: Mapping[str, Tensor]) -> None:
        self._version = version

    def prefill(self, contexts: Sequence[ContextKey]) -> None:
        pass


def nothing_generates() -> Usage:
    """The error for a request in a run without an engine."""
    what = "this run has no engine: its method trains stored answers, and no verifier grades generated ones"
    return Usage(what, fix="add a verifier, such as --reward last_number, to evaluate generated answers")
