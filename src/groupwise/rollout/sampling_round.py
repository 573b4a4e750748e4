"""`SamplingRound`: lets the sampling strategies of prompts that are sampled at the same time exchange values."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["SamplingRound"]


@dataclass(slots=True, eq=False)
class PromptValueExchange:
    """The values of one exchange, by prompt. `completed_event` is set when no further value can come."""

    values_by_draw: dict[int, Any] = field(default_factory=dict)
    completed_event: asyncio.Event = field(default_factory=asyncio.Event)


class SamplingRound:
    """One sampling round: its prompts, and the values that their strategies exchange.

    The k-th call of `share` by a draw belongs to the k-th exchange of the round. An exchange waits for all draws but
    those whose strategy has ended.

    >>> async def example():
    ...     a_round = SamplingRound([4, 7])
    ...     return await asyncio.gather(a_round.share(7, "b"), a_round.share(4, "a"))
    >>> asyncio.run(example())
    [{4: 'a', 7: 'b'}, {4: 'a', 7: 'b'}]
    """

    def __init__(self, draws: Iterable[int]) -> None:
        self._draws = tuple(draws)
        self._ended: set[int] = set()
        self._calls: Counter[int] = Counter()
        self._exchanges: list[PromptValueExchange] = []

    async def share(self, draw: int, value: Any) -> dict[int, Any]:
        """Contribute a value, wait for the other prompts' values, and return all, in the order of the prompts."""
        index, self._calls[draw] = self._calls[draw], self._calls[draw] + 1
        if index == len(self._exchanges):
            self._exchanges.append(PromptValueExchange())
        exchange = self._exchanges[index]
        exchange.values_by_draw[draw] = value
        self._complete()
        await exchange.completed_event.wait()
        return {d: exchange.values_by_draw[d] for d in self._draws if d in exchange.values_by_draw}

    def end(self, draw: int) -> None:
        """Record that a prompt's strategy has ended, so that no exchange waits for it."""
        self._ended.add(draw)
        self._complete()

    def _complete(self) -> None:
        for exchange in self._exchanges:
            if exchange.values_by_draw.keys() | self._ended >= set(self._draws):
                exchange.completed_event.set()
