"""The values of numbers in English words."""

import re
from fractions import Fraction

_SMALL = {
    "zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
    "ten": 10, "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16,
    "seventeen": 17, "eighteen": 18, "nineteen": 19, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50,
    "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90,
}  # fmt: skip
_LARGE = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_DIGITS = re.compile(r"(\d{1,12}(?:\.\d{1,12})?) (hundred|thousand|million|billion|trillion)")


def spelled(text: str) -> Fraction | None:
    """The value of a number in words; None for any other text.

    >>> [str(spelled(x)) for x in ("seventeen", "Twenty-one", "five hundred", "2.5 million", "two or three", "ten ten")]
    ['17', '21', '500', '2500000', 'None', 'None']
    """
    text = text.lower()
    if len(text) > 100:
        return None
    if digits := _DIGITS.fullmatch(text):
        return Fraction(digits[1]) * ({"hundred": 100} | _LARGE)[digits[2]]
    total, group, last = 0, 0, 10**15
    for word in re.split("[ -]", text.replace(" and ", " ")):
        if word in _SMALL and (
            group == 0 or group % 100 == 0 or (group % 10 == 0 < _SMALL[word] < 10 and group % 100 > 10)
        ):
            group += _SMALL[word]
        elif word == "hundred" and 0 < group < 10:
            group *= 100
        elif word in _LARGE and group and _LARGE[word] < last:
            last = _LARGE[word]
            total, group = total + group * last, 0
        else:
            return None
    return Fraction(total + group)


_BASES = {name: value for name, value in _SMALL.items() if 2 <= value <= 16}
_IN_BASE = re.compile(
    rf"\(?(?P<digits>[0-9A-F]+(?: [0-9A-F]+)*)\)?(?: ?_\{{? ?\(?(?:base ?)?|,? ?(?:in |\()?base )"
    rf"(?P<base>[0-9]{{1,2}}|{'|'.join(sorted(_BASES, key=len, reverse=True))})\)? ?\}}?"
)


def in_base(text: str) -> str:
    """The usual writing of digits in a base; empty for any other text.

    >>> in_base("(101)_2"), in_base("101_{ two }"), in_base("1F (base 16)"), in_base("101"), in_base("x_2")
    ('101_2', '101_2', '1F_16', '', '')
    """
    digits = _IN_BASE.fullmatch(text)
    if digits is None:
        return ""
    base = digits["base"]
    return f"{digits['digits'].replace(' ', '')}_{_BASES.get(base, base)}"
