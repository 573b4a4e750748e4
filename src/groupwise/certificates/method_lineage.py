"""The tree of methods: each below the parent method that it changes, with the fields that it changes."""

from collections.abc import Iterator, Sequence

from groupwise.certificates.certificate import Certificate
from groupwise.methods.families import FAMILIES, SIZES


def roots(certificates: Sequence[Certificate]) -> list[Certificate]:
    """The methods without a parent among these methods."""
    names = {c.name for c in certificates}
    return in_order([c for c in certificates if c.parent not in names])


def children(parent: Certificate, certificates: Sequence[Certificate]) -> list[Certificate]:
    """The methods whose parent is this method."""
    return in_order([c for c in certificates if c.parent == parent.name])


def in_order(certificates: Sequence[Certificate]) -> list[Certificate]:
    """Sort methods by family, then by year and name."""
    return sorted(certificates, key=lambda c: (family_index(c), c.year, c.name))


def family_index(c: Certificate) -> int:
    """The index of a method's family in the order of the pages."""
    return FAMILIES.index(c.family) if c.family in FAMILIES else len(FAMILIES)


def walk(certificates: Sequence[Certificate]) -> Iterator[tuple[int, Certificate]]:
    """Every method with its depth in the tree, parents first."""
    stack = [(0, c) for c in reversed(roots(certificates))]
    while stack:
        depth, c = stack.pop()
        yield depth, c
        stack += [(depth + 1, child) for child in reversed(children(c, certificates))]


def changed(c: Certificate) -> list[str]:
    """The fields that a method changes in its parent, each as the last of at most two names, such as `surrogate`."""
    paths = dict.fromkeys(line.partition(":")[0].split(".")[:2][-1] for line in c.changes)
    return [field for field in paths if field not in SIZES] or list(paths)
