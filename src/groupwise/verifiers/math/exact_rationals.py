"""The exact values of numbers in the usual spellings, such as `1/2`, `0.5`, `3+4%` or `\\gcd(34,51)`."""

import math
import re
from fractions import Fraction

LONGEST = 400
"""The most characters of one decimal number, and the largest power of ten."""

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d*)?(?:\\(?:overline|bar|dot)\{\d+\})?(?:[eE][-+]?\d+(?!\w))?|\.\d+)"
    r"|(?P<sign>\\frac|\\cdot(?![A-Za-z])|\\times(?![A-Za-z])|\\[{}]|[-+/^(){}%,])"
    r"|\\?(?P<function>gcd|lcm|max|min)(?![A-Za-z]))"
)
_FUNCTIONS = {"gcd": math.gcd, "lcm": math.lcm, "max": max, "min": min}
_CLOSED = {"(": ")", "{": "}", r"\{": r"\}"}


def rational(text: str) -> Fraction | None:
    r"""The exact value of a text; None if it is not a number, or is too long or too large.

    >>> [str(rational(x)) for x in (r"1\frac{1}{2}", "-2 1/3", r"1.5\times10^3", r"0.\overline{3}", "2^{10}", "x")]
    ['3/2', '-7/3', '1500', '1/3', '1024', 'None']
    """
    if not text or len(text) > 2 * LONGEST:
        return None
    tokens: list[str] = []
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            return None
        tokens.append(token["number"] or token["sign"] or token["function"])
        at = token.end()
    try:
        parser = _Parser(tokens)
        value = parser.sum()
        return value if parser.at == len(tokens) else None
    except (_NoNumber, ZeroDivisionError, RecursionError):
        return None


class _NoNumber(Exception):
    """Internal exception: the text is not a number."""


class _Parser:
    """A recursive-descent parser that evaluates sums of products of signed powers of atoms."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens, self.at = tokens, 0

    def next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, *wanted: str) -> str:
        if (token := self.next()) in wanted:
            self.at += 1
            return token
        return ""

    def must(self, wanted: str) -> None:
        if not wanted or not self.take(wanted):
            raise _NoNumber

    def sum(self) -> Fraction:
        value = self.product()
        while sign := self.take("+", "-"):
            term = self.product()
            value = value + term if sign == "+" else value - term
        return bounded(value)

    def product(self) -> Fraction:
        value = self.signed()
        while sign := self.take(r"\cdot", r"\times", "/"):
            factor = self.signed()
            value = bounded(value / factor if sign == "/" else value * factor)
        return value

    def signed(self) -> Fraction:
        if self.take("-"):
            return -self.signed()
        return self.signed() if self.take("+") else self.power()

    def power(self) -> Fraction:
        whole = self.next()
        base = self.atom()
        if whole.isdecimal() and (part := self.fraction()) is not None:
            return base + part
        while self.take("%"):
            base /= 100
        if not self.take("^"):
            return base
        exponent = self.braced() if self.next() == "{" else self.signed()
        if exponent.denominator != 1:
            raise _NoNumber
        if base != 0 and abs(base) == 1:
            return base ** (int(exponent) % 2)
        if abs(exponent) * max(1, len(str(base))) > 4 * LONGEST:
            raise _NoNumber
        return bounded(base ** int(exponent))

    def fraction(self) -> Fraction | None:
        """The proper fraction of a mixed number such as `1\\frac{1}{2}` or `1 1/2`, behind the whole number."""
        start = self.at
        if self.next() == r"\frac":
            part = self.atom()
        elif re.match(r"\d", self.next()) and self.tokens[self.at + 1 : self.at + 2] == ["/"]:
            above = self.atom()
            self.must("/")
            part = above / self.atom()
        else:
            return None
        if not 0 < part < 1:
            self.at = start
            raise _NoNumber
        return part

    def atom(self) -> Fraction:
        token = self.next()
        self.at += 1
        if token == r"\frac":
            return bounded(self.braced() / self.braced())
        if token == "(":
            value = self.sum()
            self.must(")")
            return value
        if token == "{":
            self.at -= 1
            return self.braced()
        return self.function(token) if token in _FUNCTIONS else number(token)

    def function(self, name: str) -> Fraction:
        """The value of a function of two or more numbers; gcd and lcm are those of integers."""
        close = _CLOSED.get(self.next(), "")
        self.at += 1
        values = [self.sum()]
        while self.take(","):
            values.append(self.sum())
        self.must(close)
        if len(values) < 2 or (name in ("gcd", "lcm") and any(value.denominator != 1 for value in values)):
            raise _NoNumber
        whole = name in ("gcd", "lcm")
        return bounded(Fraction(_FUNCTIONS[name](*(int(value) if whole else value for value in values))))

    def braced(self) -> Fraction:
        self.must("{")
        value = self.sum()
        self.must("}")
        return value


def number(token: str) -> Fraction:
    """The value of a decimal number, also of one with repeating digits."""
    if not token or not (token[0].isdecimal() or token[0] == ".") or len(token) > LONGEST or not token.isascii():
        raise _NoNumber
    repeating = re.fullmatch(r"(\d+)(?:\.(\d*))?\\\w+\{(\d+)\}", token)
    if repeating:
        if "." not in token:
            raise _NoNumber
        whole, fixed, cycle = repeating.groups()
        scale = 10 ** len(fixed or "")
        start = Fraction(int(whole + (fixed or "")), scale)
        return start + Fraction(int(cycle), scale * (10 ** len(cycle) - 1))
    mantissa, _, power = token.lower().partition("e")
    if power and abs(int(power)) > LONGEST:
        raise _NoNumber
    return Fraction(mantissa.removesuffix(".")) * Fraction(10) ** int(power or 0)


def bounded(value: Fraction) -> Fraction:
    if max(abs(value.numerator), value.denominator).bit_length() > 4 * LONGEST:
        raise _NoNumber
    return value
