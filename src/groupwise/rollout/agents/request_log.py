"""The requests of an agent in the replay log: after a kill they show whether the agent repeats them."""

import json
from dataclasses import dataclass, field

from groupwise.data import EnvironmentReplyLog, Ids

__all__ = ["RequestLog"]


@dataclass(slots=True, eq=False)
class RequestLog:
    """The requests of one run of an agent, by the random streams of their answers, which depend on their content.

    `earlier` are those of a start that ended with a kill. `log` is None where nothing is logged, as in `check`.
    """

    log: EnvironmentReplyLog | None = None
    key: str = ""
    earlier: frozenset[str] = field(init=False)
    streams: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        earlier: list[str] = []
        while self.log is not None and (key := self._key(len(earlier))) in self.log:
            earlier.append(str(self.log[key]))
        self.earlier = frozenset(earlier)

    def write(self, stream: Ids) -> None:
        """Log a request before it is answered."""
        text = json.dumps(stream)
        if self.log is not None:
            self.log.write(self._key(len(self.streams)), text)
        self.streams.append(text)

    @property
    def is_repeated(self) -> bool:
        """Whether all requests of the earlier start were sent again. True if there was none."""
        return self.earlier <= {*self.streams}

    def _key(self, number: int) -> str:
        return f"request {number} of {self.key}"
