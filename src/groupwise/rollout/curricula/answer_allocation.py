"""Distributes the answers of a batch over its prompts: each answer goes to the prompt with the largest gain."""

import math
from collections.abc import Callable, Iterable
from heapq import heapify, heapreplace


def give_greedily(
    sizes: list[int], prompts: Iterable[int], answers: int, gain: Callable[[int, int], float], most: float = math.inf
) -> int:
    """Give each answer to the prompt that gains most, by increasing `sizes`; returns how many answers are left.

    `gain(i, n)` is what prompt i gains from one more answer after n. It falls with n, so the total gain is the largest
    possible. No prompt gets more than `most` answers. Ties go to the first prompt.

    >>> sizes = [0, 0]
    >>> give_greedily(sizes, (0, 1), 3, lambda i, n: (2 - i) / (n + 1)), sizes
    (0, [2, 1])
    """

    def entry(i: int) -> tuple[float, int]:
        return -gain(i, sizes[i]) if sizes[i] < most else math.inf, i

    heap = [entry(i) for i in prompts]
    heapify(heap)
    for answer in range(answers):
        loss, i = heap[0]
        if loss == math.inf:
            return answers - answer
        sizes[i] += 1
        heapreplace(heap, entry(i))
    return 0
