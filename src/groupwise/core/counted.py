"""Numbers with their nouns, in messages."""

__all__ = ["counted"]


def counted(n: int, noun: str) -> str:
    """A number and its noun, with `s` in the plural.

    >>> counted(1, "row"), counted(2000, "row")
    ('1 row', '2,000 rows')
    """
    return f"{n:,} {noun}{'' if n == 1 else 's'}"
