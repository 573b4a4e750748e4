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
