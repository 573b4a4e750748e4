"""Equality of two expressions by their values at many sample points. Runs in the sandbox, never imported.

The verifier `math` sends only plain expressions and equations: it compares lists, intervals, units and exact numbers
itself. A strict parser makes a tree of each or rejects it; it never drops or guesses a symbol. Two trees are equal if
their values agree at every sample point, to 60 digits more than the numbers in them can express.
"""

import re
from collections.abc import Iterator
from fractions import Fraction
from operator import add, mul, sub, truediv
from random import Random
from typing import Any

from mpmath import mp  # pyright: ignore[reportMissingImports]


def equal(pairs: list[list[str]]) -> list[bool]:
    """For each pair of a gold answer and an answer, whether the two are equal."""
    return [same(gold, answer) for gold, answer in pairs]


def same(gold: str, answer: str) -> bool:
    r"""Whether two expressions, or two equations, are equal. False also if the parser rejects one of them.

    >>> same(r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt2}{2}"), same("x+X", "2x"), same("2x+3y=6", "y=2-\\frac{2}{3}x")
    (True, False, True)
    """
    if gold.count("=") != answer.count("=") or gold.count("=") > 1:
        return False
    try:
        g, a = (tuple(_Reader(side).whole() for side in text.split("=")) for text in (gold, answer))
        return _agree(g[0], a[0]) if len(g) == 1 else _agree(("-", *g), ("-", *a), proportional=True)
    except (_Unknown, RecursionError):
        return False


# Parsing


class _Unknown(Exception):
    """The text contains an unknown symbol or is ambiguous."""


Tree = tuple[Any, ...]
"""An operation and its operands, such as `("+", ("name", "x"), ("number", Fraction(1)))`."""

_FUNCTIONS = {
    "sin": mp.sin, "cos": mp.cos, "tan": mp.tan, "sec": mp.sec, "csc": mp.csc, "cot": mp.cot,
    "arcsin": mp.asin, "arccos": mp.acos, "arctan": mp.atan, "sinh": mp.sinh, "cosh": mp.cosh, "tanh": mp.tanh,
    "arcsinh": mp.asinh, "ln": mp.log, "exp": mp.exp,
}  # fmt: skip
_CALLED = frozenset((*_FUNCTIONS, "log", "lg"))
_TRIGONOMETRIC = frozenset(("sin", "cos", "tan", "sec", "csc", "cot"))
_WORDS = sorted((*_CALLED, "sqrt", "degrees"), key=len, reverse=True)
_GREEK = frozenset((
    "alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta", "vartheta", "iota", "kappa",
    "lambda", "mu", "nu", "xi", "rho", "sigma", "tau", "upsilon", "phi", "varphi", "chi", "psi", "omega", "Gamma",
    "Delta", "Theta", "Lambda", "Xi", "Pi", "Sigma", "Upsilon", "Phi", "Psi", "Omega", "ell", "hbar",
))  # fmt: skip
_APPLIED = frozenset(("f", "g", "h", "F", "G", "H", "P", "Q", "T", r"\phi", r"\varphi", r"\psi", r"\Phi", r"\Gamma"))
"""Names that are functions if a bracket follows: `f(x)` is not a product."""
_TOKEN = re.compile(
    r"(?P<space> ?)(?:(?P<number>\d+(?:\.\d+)?|\.\d+)"
    r"|(?P<name>\\(?:hat|bar|vec|tilde|dot|ddot|overline|widehat|mathcal|mathbb) ?(?:\{[A-Za-z]\}|[A-Za-z]))"
    rf"|(?P<word>(?<![A-Za-z\\])(?:{'|'.join(_WORDS)})(?![A-Za-z]))"
    r"|(?P<command>\\[A-Za-z]+)|(?P<letter>[A-Za-z])|(?P<sign>[-+/^_!(){}|'\[\],]))"
)
_KNOWN = re.compile(rf"\\[A-Za-z]+|(?<![A-Za-z])(?:{'|'.join(_WORDS)})(?![A-Za-z])")
_PROSE = re.compile(r"[A-Za-z]{5}|[A-Za-z](?:sin|cos|tan|log|exp|sqrt)")
_BARS = {r"\lvert": "|", r"\rvert": "|", r"\vert": "|", r"\dbinom": r"\binom", r"\tbinom": r"\binom"}


class _Reader:
    """A recursive-descent parser for an allow-list of LaTeX. Other symbols and ambiguous text raise `_Unknown`."""

    def __init__(self, text: str) -> None:
        if _PROSE.search(_KNOWN.sub(" ", text)):
            raise _Unknown
        self.tokens: list[str] = []
        self.kinds: list[str] = []
        self.spaced: list[bool] = []
        self.at, self.bars, self.angles = 0, 0, 0
        position, text = 0, text.strip()
        while position < len(text):
            token = _TOKEN.match(text, position)
            if token is None or token.lastgroup is None:
                raise _Unknown
            word, kind = token[token.lastgroup], token.lastgroup
            self.tokens.append("\\" + word if kind == "word" else _BARS.get(word, word))
            self.kinds.append("command" if kind == "word" else kind)
            self.spaced.append(bool(token["space"]))
            position = token.end()

    def next(self, ahead: int = 0) -> str:
        return self.tokens[self.at + ahead] if self.at + ahead < len(self.tokens) else ""

    def take(self, *wanted: str) -> str:
        token = self.next()
        if not token or token not in wanted:
            return ""
        self.at += 1
        return token

    def must(self, wanted: str) -> None:
        if not self.take(wanted):
            raise _Unknown

    def whole(self) -> Tree:
        tree = self.sum()
        if self.at < len(self.tokens):
            raise _Unknown
        return tree

    def sum(self) -> Tree:
        sign = self.take("+", "-")
        tree = self.product()
        tree = ("-", ("number", Fraction(0)), tree) if sign == "-" else tree
        while sign := self.take("+", "-"):
            tree = (sign, tree, self.product())
        return tree

    def product(self) -> Tree:
        tree = self.factors()
        while sign := self.take(r"\cdot", r"\times", "/"):
            negative = bool(self.take("-"))
            if sign == "/":
                below = self.power()
                if self.is_factor() and not (self.spaced[self.at] and below[0] == "number"):
                    raise _Unknown  # `1/2x`
                tree = ("/", tree, below)
                while self.is_factor():
                    tree = ("*", tree, self.power())
            else:
                tree = ("*", tree, self.factors())
            tree = ("-", ("number", Fraction(0)), tree) if negative else tree
        return tree

    def factors(self) -> Tree:
        r"""Factors without operators between them; numbers come first, and `2\frac{1}{3}` is a mixed number."""
        start = self.at
        tree = self.power()
        if self.at == start + 1 and self.kinds[start] == "number" and self.next() == r"\frac":
            part = self.power()
            value = _rational(part)
            if value is None:
                return self.more(("*", tree, part))
            if not 0 < value < 1 or tree[1].denominator != 1 or self.is_factor():
                raise _Unknown
            return ("+", tree, part)
        return self.more(tree)

    def more(self, tree: Tree) -> Tree:
        last = tree
        while self.is_factor():
            if self.next() == "(" and last[0] == "^" and last[1][0] == "name":
                power = _rational(last[2])
                if last[1][1] in _APPLIED or power is None or power < 0:
                    raise _Unknown  # `f^{-1}(x)`
            last = self.power()
            tree = ("*", tree, last)
        return tree

    def is_factor(self) -> bool:
        """Whether another factor follows without an operator. Raises for a number: `3 4` and `x3` are ambiguous."""
        token = self.next()
        if (
            not token
            or token in (r"\cdot", r"\times", r"\degrees", r"\rfloor", r"\rceil")
            or (token == "|" and self.bars)
        ):
            return False
        kind = self.kinds[self.at]
        if kind == "number" and self.tokens[self.at - 1] != "!":
            raise _Unknown
        return kind != "sign" or token in ("(", "{", "|")

    def power(self) -> Tree:
        tree, raised = self.atom(), False
        while True:
            if self.take("!"):
                if raised or self.next() == "!":
                    raise _Unknown
                tree = ("!", tree)
            elif self.take("^"):
                if raised:
                    raise _Unknown
                tree, raised = ("^", tree, self.exponent()), True
            elif self.angles and self.take(r"\degrees"):
                tree = ("*", tree, ("/", ("pi",), ("number", Fraction(180))))
            else:
                return tree

    def exponent(self) -> Tree:
        if self.next() in ("{", "("):
            return self.atom()
        if self.take("-"):
            return ("-", ("number", Fraction(0)), self.atom())
        if self.next() == "1" and self.next(1) == "/":
            raise _Unknown  # `x^1/2`
        return self.atom()

    def atom(self) -> Tree:
        token = self.next()
        if not token:
            raise _Unknown
        kind = self.kinds[self.at]
        self.at += 1
        if kind == "number":
            if self.next() == "_":
                raise _Unknown
            return ("number", Fraction(token))
        if kind in ("letter", "name") or token[1:] in _GREEK:
            return self.name(token)
        if token in ("(", "{"):
            bars, self.bars = self.bars, 0
            tree = self.sum()
            self.must(")" if token == "(" else "}")
            self.bars = bars
            return tree
        if token == "|":
            self.bars += 1
            tree = self.sum()
            self.must("|")
            self.bars -= 1
            return ("abs", tree)
        if token == r"\pi":
            return ("pi",)
        if token == r"\frac":
            return self.fraction()
        if token == r"\binom":
            return ("binom", self.argument(), self.argument())
        if token == r"\sqrt":
            degree: Tree = ("number", Fraction(2))
            if self.take("["):
                degree = self.sum()
                self.must("]")
            return ("^", self.atom(), ("/", ("number", Fraction(1)), degree))
        if token in (r"\lfloor", r"\lceil"):
            tree = self.sum()
            self.must(token.replace(r"\l", r"\r"))
            return (token[2:], tree)
        if token[1:] in _CALLED:
            return self.call(token[1:])
        raise _Unknown

    def argument(self) -> Tree:
        if self.next() == "(":
            raise _Unknown
        return self.atom()

    def fraction(self) -> Tree:
        start = self.at
        above = self.argument()
        middle = self.at
        below = self.argument()
        ends = [[t for t in self.tokens[a:b] if t not in "{}"] for a, b in ((start, middle), (middle, self.at))]
        if ends[0][0] == "d" == ends[1][0] and len(ends[1]) > 1 and ends[1][1] not in "+-^_/":
            raise _Unknown  # a derivative
        return ("/", above, below)

    def name(self, token: str) -> Tree:
        name = re.sub("[ {}]", "", token)
        if self.take("_"):
            if self.next() == "{":
                start = self.at
                while self.next() != "}":
                    if not self.next() or (self.next() == "{" and self.at > start):
                        raise _Unknown
                    self.at += 1
                subscript = "".join(self.tokens[start + 1 : self.at])
            else:
                subscript = self.next()
                if len(subscript) != 1 and subscript[1:] not in _GREEK:
                    raise _Unknown  # `x_12`
            self.at += 1
            name = f"{name}_{subscript}"
        while self.take("'"):
            name += "'"
        if name in ("e", "i"):
            return (name,)
        if self.next() == "(":
            if token in _APPLIED or name.endswith("'"):
                return self.applied(name)
            end = next((k for k in range(self.at, len(self.tokens)) if self.tokens[k] == ")"), self.at)
            if not {"+", "-"}.intersection(self.tokens[self.at : end]):
                raise _Unknown  # `y(t)`
        return ("name", name)

    def applied(self, name: str) -> Tree:
        self.must("(")
        bars, self.bars = self.bars, 0
        parts = [self.sum()]
        while self.take(","):
            parts.append(self.sum())
        self.must(")")
        self.bars = bars
        return ("apply", name, *parts)

    def call(self, function: str) -> Tree:
        base: Tree = {"lg": ("number", Fraction(10)), "log": ("name", _BASE)}.get(function, ("e",))
        exponent: Tree | None = None
        if function == "log" and self.take("_"):
            if len(self.next()) != 1:
                raise _Unknown
            base = self.atom()
        if self.take("^"):
            exponent = self.exponent()
        self.angles += function in _TRIGONOMETRIC
        inner = self.operand()
        self.angles -= function in _TRIGONOMETRIC
        if exponent is not None and (power := _rational(exponent)) is not None and power < 0:
            if power != -1 or function not in ("sin", "cos", "tan", "sinh"):
                raise _Unknown
            function, exponent = f"arc{function}", None
        if function in ("log", "lg"):
            tree: Tree = ("/", ("call", "ln", inner), ("call", "ln", base))
        else:
            tree = ("call", function, inner)
        return tree if exponent is None else ("^", tree, exponent)

    def operand(self) -> Tree:
        """The operand of a function: a bracket, or the factors up to the next operator, function or bracket."""
        if self.next() in ("(", "{", "|"):
            return self.atom()
        tree = self.power()
        while self.is_factor() and self.next()[1:] not in _CALLED:
            if self.next() in ("(", "|") or (self.spaced[self.at] and self.kinds[self.at - 1] != "command"):
                raise _Unknown  # `\sin x(x+1)`
            tree = ("*", tree, self.power())
        if self.next() in ("/", r"\cdot", r"\times") and self.next(1)[1:] not in _CALLED:
            raise _Unknown  # `\sin x/2`
        return tree


def _rational(tree: Tree) -> Fraction | None:
    """The value of a tree of small rational numbers."""
    if tree[0] == "number":
        return tree[1] if max(abs(tree[1].numerator), tree[1].denominator) < 10**9 else None
    if tree[0] not in ("+", "-", "*", "/"):
        return None
    left, right = _rational(tree[1]), _rational(tree[2])
    if left is None or right is None or (tree[0] == "/" and right == 0):
        return None
    return {"+": add, "-": sub, "*": mul, "/": truediv}[tree[0]](left, right)


# Comparing

_BASE = "the base of log"
DIGITS = 60
"""Digits to which two values must agree, in addition to those that the numbers in the expressions can express."""
MOST_DIGITS = 3000
"""The highest precision in digits."""
SCALES = ("0.4", "1.5", "3", "0.1", "7", "0.7", "20", "2", "100", "0.3", "5", "1000")
"""Sizes of the sample points; further points are larger and smaller than every number in the expressions."""
ENOUGH = 4
"""The fewest points at which two expressions with names must be compared."""


def _agree(gold: Tree, answer: Tree, proportional: bool = False) -> bool:
    r"""Whether two trees have equal values, or with `proportional` a constant ratio, at every sample point.

    Names are real. If only one of the two values is real (or defined) at a point, the trees differ. If neither is,
    such as `\sqrt{x}` below 0, a difference counts only if the text contains `i`.
    """
    names = sorted(_names(gold) | _names(answer))
    if (proportional and not (_names(gold) and _names(answer))) or len(names) > 12:
        return False
    complex_too = proportional or not names or _has(gold, "i") or _has(answer, "i")
    kinks = _has_kink(gold) or _has_kink(answer)
    first: tuple[Any, ...] = ()
    compared = farthest = 0
    for far, point in _points(names, kinks, (gold, answer)):
        values = _values((gold, answer), point)
        if values is None:
            continue
        g, a, tolerance, _ = values
        if g is None or a is None:
            if g is not a:
                return False
            continue
        with mp.workdps(MOST_DIGITS):
            if proportional:
                if abs(g) <= tolerance or abs(a) <= tolerance:
                    return False
                first = first or values
                g, tolerance = g * first[1] / first[0], max(tolerance, first[2] * max(1, abs(a)))
            real = [abs(mp.im(value)) <= tolerance for value in (g, a)]
            if (not complex_too and real[0] != real[1]) or (abs(g - a) > tolerance and (complex_too or real[0])):
                return False
            agree = abs(g - a) <= tolerance
        compared, farthest = compared + agree, farthest + (agree and far)
    return compared >= (ENOUGH if names else 1) and (not names or not kinks or farthest >= ENOUGH)


def _points(names: list[str], kinks: bool, trees: tuple[Tree, Tree]) -> Iterator[tuple[bool, dict[str, Fraction]]]:
    """Sample points, each with a flag: whether it is larger than all numbers in the trees, beyond any kink."""
    if not names:
        yield False, {}
        return
    values = _values(trees, dict.fromkeys(names, Fraction(1, 3)))
    beyond = 10 ** int(min(values[3] + 2, 110) if values else 110)
    near = [(False, scale, 0) for scale in (Fraction(1, beyond), *map(Fraction, SCALES)) * (5 if kinks else 1)]
    far = [(True, Fraction(beyond), sign) for sign in (1, -1, 0, 0, 0, 0)]
    random = Random(0)
    for is_far, scale, sign in near + far:
        point = {name: Fraction(random.randrange(1, 1 << 60), 1 << 59) * scale for name in names}
        signs = {name: sign or random.choice((1, -1)) for name in names} | {_BASE: 1}
        yield is_far, {name: x * signs[name] for name, x in point.items()}


def _values(trees: tuple[Tree, Tree], point: dict[str, Fraction]) -> tuple[Any, Any, Any, float] | None:
    """Both values (None if undefined), the tolerance, and the sizes; None if a value is too large.

    The sizes of all numbers, powers and function values in the trees set the precision, so that a term such as
    `10^{-70}` or `e^{-100}` makes a difference.
    """
    try:
        with mp.workdps(30):
            size = sum(_Evaluation(point).size_of(tree) for tree in trees)
        digits = DIGITS + 30 + 4 * size
        if not digits < MOST_DIGITS:
            return None
        with mp.workdps(int(digits)):
            evaluation = _Evaluation(point)
            g, a = (evaluation.outcome(tree) for tree in trees)
            largest = max(abs(value) for value in (g, a, 1) if value is not None)
            return g, a, largest * mp.mpf(10) ** -(DIGITS + 2 * size), size
    except _TooLarge:
        return None


class _Evaluation:
    """Evaluates trees at a point, with the current precision; equal subtrees are computed once."""

    def __init__(self, point: dict[str, Fraction]) -> None:
        self.point = {name: mp.mpf(x.numerator) / x.denominator for name, x in point.items()}
        self.size = 0.0
        self.cache: dict[Tree, Any] = {}

    def size_of(self, tree: Tree) -> float:
        self.outcome(tree)
        return self.size

    def outcome(self, tree: Tree) -> Any:
        """The value; None if it is undefined."""
        try:
            value = self.value(tree)
            return value if mp.isfinite(value) else None
        except (ValueError, ZeroDivisionError, OverflowError, mp.NoConvergence):
            return None

    def value(self, tree: Tree) -> Any:
        if tree not in self.cache:
            self.cache[tree] = self.compute(tree)
        return self.cache[tree]

    def compute(self, tree: Tree) -> Any:
        kind, *parts = tree
        if kind == "number":
            self.size += sum(float(mp.log10(part)) for part in parts[0].as_integer_ratio() if part > 1)
            return mp.mpf(parts[0].numerator) / parts[0].denominator
        if kind == "name":
            return self.point[parts[0]]
        if kind in ("e", "pi", "i"):
            return mp.mpc(0, 1) if kind == "i" else +getattr(mp, kind)
        name = parts.pop(0) if kind in ("call", "apply") else ""
        values = [self.value(part) for part in parts]
        x, y = values[0], values[-1]
        if kind in _SIMPLE:
            return _SIMPLE[kind](x, y)
        if kind == "abs":
            return abs(x)
        if kind == "apply" or (kind in ("floor", "ceil") and _names(tree)):
            return _opaque(name or kind, values)
        if any(mp.mag(value) > 400 for value in values if value):
            raise _TooLarge
        if kind in ("floor", "ceil"):
            if abs(x - mp.nint(mp.re(x))) < mp.mpf(10) ** -20 and _rational(parts[0]) is None:
                raise _TooLarge
            return getattr(mp, kind)(x)
        if kind == "^":
            value = _power(x, y, _rational(parts[1]))
        elif kind == "call":
            if name in ("exp", "sinh", "cosh", "tanh"):
                self.size += _bounded(abs(x) / 2)
            value = _FUNCTIONS[name](x)
            self.size += _log10(x)
        else:
            if max(abs(x), abs(y)) > (1000 if mp.isint(x) and mp.isint(y) else 20):
                raise _TooLarge
            value = mp.factorial(x) if kind == "!" else mp.binomial(x, y)
        self.size += _log10(value)
        return value


_SIMPLE = {"+": add, "-": sub, "*": mul, "/": truediv}


def _power(base: Any, exponent: Any, rational: Fraction | None) -> Any:
    """The principal value, except that odd roots of negative numbers are real."""
    if rational is not None and rational.denominator == 1:
        exponent = int(rational)
    if base:
        _bounded(abs(exponent * mp.log(abs(base))))
    if (
        rational is not None
        and rational.denominator % 2
        and rational.denominator > 1
        and mp.im(base) == 0 > mp.re(base)
    ):
        return (-1) ** (rational.numerator % 2) * mp.power(-mp.re(base), exponent)
    return mp.power(base, exponent)


class _TooLarge(Exception):
    """A value is too large to compute."""


def _bounded(size: Any) -> float:
    if size > 10 * MOST_DIGITS:
        raise _TooLarge
    return float(size)


def _log10(value: Any) -> float:
    """The approximate number of digits before or behind the decimal point."""
    return abs(mp.mag(value)) * 0.302 if value else 0.0


def _opaque(name: str, values: list[Any]) -> Any:
    """A pseudo-random value that depends on a function's name and arguments: `f(x)` has no known value."""
    near = [int(mp.nint(part * mp.mpf(10) ** 20 + mp.pi)) for value in values for part in (mp.re(value), mp.im(value))]
    return mp.mpf(Random(f"{name} {near}").randrange(1, 1 << 60)) / (1 << 59)


def _names(tree: Tree) -> set[str]:
    if tree[0] == "name":
        return {tree[1]}
    names = {"f"} if tree[0] == "apply" else set[str]()
    return names.union(*(_names(part) for part in tree[1:] if isinstance(part, tuple)))


def _has(tree: Tree, kind: str) -> bool:
    return tree[0] == kind or any(_has(part, kind) for part in tree[1:] if isinstance(part, tuple))


def _has_kink(tree: Tree) -> bool:
    """Whether the formula may change at some point, as with `|x-9|` or `\\sqrt{(x-9)^2}`."""
    if tree[0] == "^" and tree[1][0] != "number" and _has(tree[1], "^"):
        power = _rational(tree[2])
        if power is None or power.denominator > 1:
            return True
    if tree[0] == "abs" or (tree[0] == "call" and tree[1].startswith("arc")):
        return True
    return any(_has_kink(part) for part in tree[1:] if isinstance(part, tuple))


if __name__ == "algebra":  # mpmath computes its constants once, before the first call
    equal([["x+1", "1+x"], [r"\sin 1+\ln 2+e^{2}", r"\sqrt{8}+\pi"], ["x=1", "2x=2"]])
