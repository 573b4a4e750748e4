"""Units at the end of an answer, under one name each."""

import re

_KNOWN = {
    "dollars": "dollar dollars usd bucks", "euros": "euro euros eur €", "pounds sterling": "£", "cents": "cent cents ¢",
    "degrees": "degree degrees deg", "radians": "radian radians rad", "percent": "%",
    "mm": "mm millimeter millimeters millimetre millimetres", "cm": "cm centimeter centimeters centimetre centimetres",
    "m": "m meter meters metre metres", "km": "km kilometer kilometers kilometre kilometres",
    "in": "in inch inches", "ft": "ft foot feet", "yd": "yd yard yards", "mi": "mi mile miles",
    "mg": "mg milligram milligrams", "g": "g gram grams", "kg": "kg kilogram kilograms", "lb": "lb lbs pound pounds",
    "oz": "oz ounce ounces", "ml": "ml mL milliliter milliliters", "l": "l L liter liters litre litres",
    "ms": "ms millisecond milliseconds", "s": "s sec secs second seconds", "min": "min mins minute minutes",
    "h": "h hr hrs hour hours", "days": "day days", "weeks": "week weeks", "months": "month months",
    "years": "year years yr yrs", "mi/h": "mph", "units": "unit units", "people": "person people", "Hz": "Hz hertz",
    "N": "N newton newtons", "J": "J joule joules", "W": "W watt watts", "K": "K kelvin", "km/h": "kmh kph",
}  # fmt: skip
KNOWN = {word: name for name, words in _KNOWN.items() for word in words.split()}


def words(text: str) -> frozenset[str]:
    """The words of a text as a set."""
    return frozenset(text.split())


_NO_UNIT = words(
    "or and not no nor but is are isn't if for either neither plus minus times to from less more over under any all "
    "none except unless maybe than least most about approximately around million billion trillion thousand hundred "
    "dozen half quarter third double twice pi mod wait possibly actually between where when otherwise then so because "
    "since given as with without the a an of by in on x y z n k i e"
) - {"in", "by", "of", "per", "a"}
_TAIL = re.compile(
    r"(?P<value>.*[\d)}\]!]|.*(?<![A-Za-z])\\(?:pi|infty)|.*(?<![A-Za-z\\])[a-z])(?P<space>\s*)"
    r"(?P<unit>(?:[A-Za-z€¢][A-Za-z'.]*(?: |-|(?=$|\^|/|%)))+(?:\^\{?[23]\}?)?(?:/[A-Za-z]+(?:\^\{?[23]\}?)?)?)",
)


def split_unit(text: str) -> tuple[str, str]:
    """An answer without its unit, and the unit; the text itself and "" where there is none.

    Known units by one name; unknown words in the singular. Words that say something (`or`, `million`) are no unit.

    >>> split_unit("12 square inches"), split_unit("¤5"), split_unit("50%"), split_unit("3 or 4"), split_unit("2x")
    (('12', 'in^2'), ('5', 'dollars'), ('50', '%'), ('3 or 4', ''), ('2x', ''))
    """
    if money := re.fullmatch(r"([-+]?)([¤€£])([-+]?)\s*(.*[^¤])", text):
        sign, mark, other, rest = money.groups()
        value, unit = split_unit(rest)
        named = {"¤": "dollars", "€": "euros", "£": "pounds sterling"}[mark]
        return (f"{sign or other}{value}", named) if unit in ("", named) else (text, "")
    if text.endswith("%") and len(text) > 1:
        return text[:-1].strip(), "%"
    if text.endswith("¤"):
        return text[:-1].strip(), "dollars"
    found = _TAIL.fullmatch(text)
    if found is None:
        return text, ""
    value, unit = found["value"], found["unit"].strip().rstrip(".")
    parts = re.findall(r"[A-Za-z']+", unit)
    if not found["space"] and (unit not in KNOWN or len(unit) == 1 or value[-1].isalpha()):
        return text, ""
    if any(word.lower() in _NO_UNIT for word in parts) or (len(unit) == 1 and unit not in "mgsNJWKhlL"):
        return text, ""
    return value, _name(unit)


def _name(unit: str) -> str:
    if unit in KNOWN:
        return KNOWN[unit]
    top, _, bottom = unit.partition("/")
    if bottom:
        return f"{_name(top)}/{_name(bottom)}"
    if per := re.fullmatch(r"(.+?) per (.+)", unit):
        return f"{_name(per[1])}/{_name(per[2])}"
    power = {"square ": "^2", "sq ": "^2", "cubic ": "^3", "cu ": "^3"}
    for word, raised in power.items():
        if unit.startswith(word):
            return _name(unit.removeprefix(word)) + raised
    if raised := re.fullmatch(r"(.+?)\^\{?([23])\}?", unit):
        return f"{_name(raised[1])}^{raised[2]}"
    lower = unit.lower()
    return KNOWN.get(lower, lower.removesuffix("s"))
