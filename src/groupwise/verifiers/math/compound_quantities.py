"""Reads quantities of several units, such as `2 h 30 min`, `45 degrees 30'` or `5 ft 6 in`."""

import re
from dataclasses import dataclass
from fractions import Fraction

from groupwise.verifiers.math.units import KNOWN

_SCALES = (
    {"s": 1, "min": 60, "h": 3600, "days": 86_400, "weeks": 604_800},
    {"''": 1, "'": 60, "degrees": 3600},
    {"in": 1, "ft": 12, "yd": 36, "mi": 63_360},
    {"mm": 1, "cm": 10, "m": 1000, "km": 1_000_000},
    {"oz": 1, "lb": 16, "pounds": 16},
    {"g": 1, "kg": 1000},
    {"mL": 1, "L": 1000},
    {"cents": 1, "dollars": 100},
)
"""Units that are written together, each with its size in the smallest one."""
_PART = re.compile(r"(?P<number>\d+(?:\.\d+)?) ?(?P<unit>[A-Za-z]+|'{1,2})\.?(?:,? and |, ?| |(?<=')|$|(?=\d))")


@dataclass(frozen=True, slots=True)
class CompoundQuantity:
    """A quantity of two or more units: its size in the smallest unit of its scale."""

    size_in_smallest_unit: Fraction
    scale_index: int
    written_units: tuple[str, ...]

    def is_number(self, number: Fraction, unit: str) -> bool:
        """Whether a number of a unit is this quantity; without a unit, of one of the units that it is written in."""
        sizes = _SCALES[self.scale_index]
        return any(
            number * sizes[name] == self.size_in_smallest_unit
            for name in ([unit] if unit else self.written_units)
            if name in sizes
        )


def quantity(text: str) -> CompoundQuantity | None:
    """A quantity of several units, the largest first, each number but the first less than one of the unit before.

    >>> quantity("2 h 30 min"), quantity("30 min 2 h"), quantity("2 h 70 min")
    (CompoundQuantity(size_in_smallest_unit=Fraction(9000, 1), unit_scale_index=0, written_units=('h', 'min')), None,
    None)
    """
    parts: list[tuple[Fraction, str]] = []
    at = 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None or len(parts) == 4:
            return None
        parts.append((Fraction(part["number"]), KNOWN.get(part["unit"], part["unit"])))
        at = part.end()
    units = tuple(unit for _, unit in parts)
    scale = next((i for i, sizes in enumerate(_SCALES) if sizes.keys() >= set(units)), None)
    if len(parts) < 2 or scale is None:
        return None
    sizes = [_SCALES[scale][unit] for unit in units]
    for (number, _), above, size in zip(parts[1:], sizes, sizes[1:], strict=False):
        if size >= above or number * size >= above:
            return None
    if any(number.denominator > 1 for number, _ in parts[:-1]):
        return None
    return CompoundQuantity(
        sum((number * size for (number, _), size in zip(parts, sizes, strict=True)), Fraction(0)), scale, units
    )
