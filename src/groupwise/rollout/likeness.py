"""Similarity of two sequences: edit distance, longest common subsequence, and matching suffixes."""

from collections.abc import Sequence
from typing import Any


def edit_distance(a: Sequence[Any], b: Sequence[Any]) -> int:
    """The fewest insertions, deletions and replacements that turn one into the other: the Levenshtein distance.

    >>> edit_distance([1, 2, 3, 4, 5], [1, 9, 3, 4, 5]), edit_distance("kitten", "sitting")
    (1, 3)
    """
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]


def rouge_l(a: Sequence[Any], b: Sequence[Any]) -> float:
    """F1 of the longest common subsequence; 0 for two empty sequences.

    >>> rouge_l([1, 2, 3, 4, 5], [2, 3, 4, 6, 7])
    0.6
    """
    row = [0] * (len(b) + 1)
    for x in a:
        diagonal = 0
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], diagonal + 1 if x == y else max(row[j], row[j - 1])
    return 2 * row[-1] / max(len(a) + len(b), 1)


def suffix_match(a: Sequence[Any], b: Sequence[Any]) -> float:
    """The length of the longest suffix of one sequence that occurs in the other, divided by their equal length.

    >>> suffix_match([1, 2, 3, 4, 5], [9, 4, 5, 8, 7])
    0.4
    """
    return max(_longest_end(a, b), _longest_end(b, a)) / max(len(a), 1)


def _longest_end(a: Sequence[Any], b: Sequence[Any]) -> int:
    """The length of the longest suffix of `a` that occurs anywhere in `b`."""
    best = 0
    for last in range(len(b)):
        n = 0
        while n < min(len(a), last + 1) and a[len(a) - 1 - n] == b[last - n]:
            n += 1
        best = max(best, n)
    return best
