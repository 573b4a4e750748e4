"""How many requests each engine of a fleet has on average."""

from collections.abc import Callable, Sequence
from time import monotonic


class OccupancyMeter:
    """The mean number of requests in each of `count` engines, over the time in which any engine has one.

    >>> seconds = iter([0.0, 2.0, 4.0, 9.0, 13.0])
    >>> rows = OccupancyMeter(2, lambda: next(seconds))
    >>> rows.change(0, 3), rows.change(0, -2), rows.change(0, -1), rows.change(1, 1)
    (None, None, None, None)
    >>> rows.take()
    [1.0, 0.5]
    """

    def __init__(self, count: int, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._requests, self._since = [0] * count, 0.0
        self._reset()

    def change(self, index: int, by: int) -> None:
        """Add `by` to the number of requests that an engine has from now on."""
        self._add(self._clock())
        self._requests[index] += by

    def take(self) -> Sequence[float]:
        """The means since the last call."""
        if any(self._requests):
            self._add(self._clock())
        means = [area / self._seconds if self._seconds else 0.0 for area in self._areas]
        self._reset()
        return means

    def _reset(self) -> None:
        self._areas, self._seconds = [0.0] * len(self._requests), 0.0

    def _add(self, now: float) -> None:
        if any(self._requests):
            self._seconds += now - self._since
            for index, requests in enumerate(self._requests):
                self._areas[index] += requests * (now - self._since)
        self._since = now
