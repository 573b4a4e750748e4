"""Units at the end of an answer, normalised to one name: a fixed list, and nouns of the problem's text."""

import re
from functools import lru_cache
from itertools import pairwise

from groupwise.verifiers.math.normalise_answer import at_top

_BASES = {
    "m": "meter metre", "g": "gram gramme", "s": "second", "W": "watt", "J": "joule", "N": "newton", "V": "volt",
    "A": "ampere amp", "Hz": "hertz", "Pa": "pascal", "L": "liter litre", "B": "byte", "mol": "mole", "cal": "calorie",
    "eV": "electronvolt", "Wh": "watt-hour",
}  # fmt: skip
_PREFIXES = {"": "", "k": "kilo", "M": "mega", "G": "giga", "c": "centi", "d": "deci", "m": "milli", "n": "nano"}
_OTHERS = {
    "dollars": "dollar dollars usd USD bucks", "euros": "euro euros eur EUR €", "yen": "yen ¥",
    "rupees": "rupee rupees ₹", "pounds sterling": "£", "cents": "cent cents ¢",
    "degrees": "degree degrees deg", "radians": "radian radians rad", "percent": "%",
    "in": "in inch inches", "ft": "ft foot feet", "yd": "yd yard yards", "mi": "mi mile miles",
    "kg": "Kg KG", "km": "Km KM", "cm": "CM", "lb": "lb lbs", "pounds": "pound pounds",
    "oz": "oz ounce ounces", "ton": "ton tons tonne tonnes",
    "L": "l", "mL": "ml", "cL": "cl", "dL": "dl", "gal": "gallon gallons gal", "qt": "quart quarts", "pt": "pint pints",
    "s": "sec secs", "min": "min mins minute minutes", "h": "h hr hrs hour hours", "days": "day days",
    "weeks": "week weeks", "months": "month months", "years": "year years yr yrs", "mi/h": "mph", "km/h": "kmh kph",
    "units": "unit units", "people": "person people", "K": "K kelvin kelvins",
    "am": "am a.m AM A.M", "pm": "pm p.m PM P.M",
    "degrees celsius": "celsius", "degrees fahrenheit": "fahrenheit",
}  # fmt: skip


def _known() -> dict[str, str]:
    """The normalised name of each spelling of a unit. Case matters: `mW` and `MW` differ."""
    known = {word: name for name, words in _OTHERS.items() for word in words.split()}
    for prefix, long in _PREFIXES.items():
        for symbol, words in _BASES.items():
            known.setdefault(prefix + symbol, prefix + symbol)
            known |= {f"{long}{word}{end}": prefix + symbol for word in words.split() for end in ("", "s")}
    return known


KNOWN = _known()


def words(text: str) -> frozenset[str]:
    """The set of words in a text, which white space separates."""
    return frozenset(text.split())


_NOUNS = words(
    "apple ball bag bead bean bird block boat book bottle bowl box boy bracelet brick bus button cake candy card car "
    "cat "
    "chair chicken child choice class clip coin combination cookie cow cup customer diagonal digit dog donut duck "
    "edge egg element employee face factor fish flower friend game girl goal grape guest horse house integer item jar "
    "kid lap leaf lemon lesson letter line lollipop man marble match member message mug muffin orange outcome "
    "page part pear pen pencil penny permutation piece pizza plate player point pot present problem question "
    "rabbit rectangle ring rose row seat sheep shell shirt shoe side slice solution stamp step sticker "
    "stone story student subset table task teacher term ticket tile time toy tree triangle trip vertex video visitor "
    "vote water milk juice paint flour sugar rice way widget window woman word worker "
)
"""Nouns for things that answers count, as in `5 apples`. None changes a number, as `dozen` or `square root` do."""
_PLURALS = {
    "children": "child",
    "men": "man",
    "women": "woman",
    "leaves": "leaf",
    "vertices": "vertex",
    "mice": "mouse",
}
CHANGES_A_NUMBER = words(
    "or and not no nor but is are isn aren if for either neither plus minus times to from less more fewer over under "
    "any "
    "all none except unless maybe perhaps than least most about approximately around nearly almost million billion "
    "trillion thousand hundred ten dozen score gross half halve quarter third fourth fifth sixth seventh eighth ninth "
    "tenth hundredth thousandth millionth double twice triple thrice pair couple fold one two three four five six "
    "seven "
    "eight nine pi mod modulo base choose factorial squared cubed square-root root power divided multiplied added lakh "
    "crore wait possibly actually between where when otherwise then so because since given as with without the an "
    "by on "
    "x y z n k i e wrong false incorrect never impossible invalid undefined negative positive opposite inverse "
    "reciprocal percent percentage ratio other another up down minute's non cannot can't rather instead until"
)
"""Words that change the number in front of them, such as `dozen`, and so are no units."""
_OPERATIONS = words("square cube prime root point times")
"""Words that are units in the plural, but in the singular change the value: `5 squares` has the value 5."""
_TAIL = re.compile(
    r"(?P<value>.*[\d)}\]!]|.*(?<![A-Za-z])\\(?:pi|infty)|.*(?<![A-Za-z\\])[a-z])(?P<space>\s*)"
    r"(?P<unit>(?:[A-Za-z€¢][A-Za-z'.]*(?: |-|(?=$|\^|/|%)))+(?:\^\{?[23]\}?)?(?:/[A-Za-z]+(?:\^\{?[23]\}?)?)?)"
)
_UNSPACED = words("cm mm km kg ft yd lb lbs oz mi mph kmh hr hrs ml mL kW kHz Hz in min pm am")
"""Units that can follow a number without a space; `3mg` may be a product."""
_MONEY = {"¤": "dollars", "€": "euros", "£": "pounds sterling", "¥": "yen", "₹": "rupees"}
_MARK = "".join(_MONEY)
_SUM = re.compile(r"(?<=[^-+*/^(\[{=\s])\s*[-+]")
_PRODUCT = re.compile(r"\\(?:cdot|times)(?![A-Za-z])|/")
_ANGLES = re.compile(r"\\(?:sin|cos|tan|sec|csc|cot)(?![A-Za-z])")
_ASIDE = re.compile(r" (?:in (?:total|all)|altogether|total|each|left|remaining)$")


@lru_cache(64)
def nouns_of(problem: str) -> frozenset[str]:
    """The words of a problem that can be the unit of a number."""
    return frozenset(map(_singular, re.findall(r"[A-Za-z]{3,}", problem[:20_000]))) - CHANGES_A_NUMBER


def split_unit(text: str, nouns: frozenset[str] = frozenset()) -> tuple[str, str]:
    """Split an answer into the answer without its unit, and the unit ("" if there is none).

    A unit is one that is known here, by its own writing (`mW` is not `MW`), or made of nouns: of common ones and of
    `nouns`. Any other word is a part of the answer.

    A per cent sign, a degree sign and a mark of money belong to one term: `3+4%` has no unit.

    >>> split_unit("12 square inches"), split_unit("¤5"), split_unit("50%"), split_unit("7 tenths"), split_unit("2x")
    (('12', 'in^2'), ('5', 'dollars'), ('50', '%'), ('7 tenths', ''), ('2x', ''))
    """
    if money := re.fullmatch(rf"([-+]?)([{_MARK}])([-+]?)\s*(.*[^¤])", text):
        sign, mark, other, rest = money.groups()
        if at_top(rest, _SUM):
            return text, ""
        value, unit = split_unit(rest.replace(" per ", " dollars per ", 1) if mark == "¤" else rest, nouns)
        whole = fitting(_MONEY[mark], unit.partition("/")[0])
        return (f"{sign or other}{value}", unit or _MONEY[mark]) if whole else (text, "")
    if text.endswith("%") and len(text) > 1:
        alone = not at_top(text, _SUM) and not at_top(text, _PRODUCT)
        return (text[:-1].strip(), "%") if alone else (text, "")
    if text[-1:] in _MONEY and len(text) > 1 and not at_top(text, _SUM):
        return text[:-1].strip(), _MONEY[text[-1]]
    if large := re.fullmatch(r"(\d[\d.]* (?:hundred|thousand|million|billion|trillion)) ([A-Za-z -]+)", text):
        name = _name(large[2], nouns)
        return (large[1], name) if name else (text, "")
    tail = _TAIL.fullmatch(text)
    if tail is None:
        return text, ""
    value, unit = tail["value"], tail["unit"].strip().rstrip(".")
    behind_bracket = value[-1] in "})" and len(unit) > 2
    if not tail["space"] and (value[-1].isalpha() or not (unit in _UNSPACED or behind_bracket)):
        return text, ""
    if unit.startswith("deg") and _ANGLES.search(value):
        return text, ""
    if len(unit) == 1 and unit not in "mgsNJWKVhlL":
        return text, ""
    unit = _ASIDE.sub("", f" {unit}").strip()
    name = _name(unit, nouns) if unit else ""
    if name == "degrees" and at_top(value, _SUM):
        return _sum_of_degrees(text)
    return (value, name) if name or not unit else (text, "")


def _sum_of_degrees(text: str) -> tuple[str, str]:
    """A sum whose terms all have a degree sign, without them; any other sum unchanged."""
    signs = at_top(text, _SUM)
    terms = [text[a:b].strip() for a, b in pairwise((0, *(sign.start() for sign in signs), len(text)))]
    if not all(term.endswith(" degrees") for term in terms):
        return text, ""
    return "".join(term.removesuffix(" degrees") for term in terms), "degrees"


def fitting(gold: str, answer: str) -> bool:
    """Whether two units can be the same: equal, or one is missing. Pounds may be weight or money."""
    return not gold or not answer or gold == answer or {gold, answer} in ({"pounds", "lb"}, {"pounds", _MONEY["£"]})


def _name(unit: str, nouns: frozenset[str]) -> str:
    """The normalised name of a unit; "" if one of its words is unknown."""
    top, _, bottom = unit.replace(" per ", "/").removeprefix("per ").partition("/")
    if bottom:
        both = _name(top, nouns), _name(bottom, nouns)
        return "/".join(both) if all(both) else ""
    for pattern, power in (
        (r"(?:square|sq\.?) (.+)|(.+) squared|(.+)\^\{?2\}?", "^2"),
        (r"(?:cubic|cu\.?) (.+)|(.+) cubed|(.+)\^\{?3\}?", "^3"),
    ):
        if raised := re.fullmatch(pattern, unit):
            inner = KNOWN.get(next(filter(None, raised.groups())), "")
            return inner and inner + power
    if unit in KNOWN:
        return KNOWN[unit]
    if re.fullmatch("degrees (?:C|F|[Cc]elsius|[Ff]ahrenheit)", unit):
        return "degrees celsius" if unit[8] in "Cc" else "degrees fahrenheit"
    head = unit.split(" of ")[0] if " of " in unit else unit
    parts = re.split("[ -]", unit.replace(" of ", " "))
    if len(parts) > 4 or not all(_is_noun(part, nouns) for part in parts):
        return ""
    return " ".join(KNOWN.get(part.lower(), "") or _singular(part) for part in re.split("[ -]", head))


def _is_noun(word: str, nouns: frozenset[str]) -> bool:
    plain = _singular(word)
    if plain in CHANGES_A_NUMBER or word.lower() in _OPERATIONS:
        return False
    return (
        word in KNOWN
        or (len(word) > 3 and word.lower() in KNOWN)
        or plain in _NOUNS
        or plain in nouns
        or plain in _PLAIN
    )


_PLAIN = words("different distinct possible whole total ordered real positive-integer")
"""Adjectives in units that do not change the number, as in `3 whole apples`."""


def _singular(word: str) -> str:
    lower = word.lower()
    if lower in _PLURALS:
        return _PLURALS[lower]
    if lower.endswith("ies") and len(lower) > 4:
        return lower[:-3] + "y"
    if re.search("(?:s|x|ch|sh)es$", lower):
        return lower[:-2]
    return lower[:-1] if lower.endswith("s") and not lower.endswith("ss") else lower
