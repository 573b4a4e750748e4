"""A strict parser of LaTeX expressions to trees. Runs in the sandbox.

It never drops or guesses a symbol: unknown symbols and ambiguous text raise `UnknownSymbol`.
"""

import re
from fractions import Fraction

from groupwise.verifiers.math.expression_trees import BASE, FUNCTIONS, Tree, UnknownSymbol, has, names_of, rational


def parse(text: str) -> Tree:
    """The tree of an expression; `UnknownSymbol` if the text contains anything else."""
    return _Reader(text).whole()


_CALLED = frozenset((*FUNCTIONS, "log", "lg"))
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
    r"|(?P<name>\\(?:hat|tilde|dot|ddot|widehat|mathcal|mathbb) ?(?:\{[A-Za-z]\}|[A-Za-z])|\\vec\{\\?[A-Za-z]+\}"
    r"|\\(?:bar|overline) ?(?:\{[A-Za-hj-z]\}|[A-Za-hj-z]))"
    rf"|(?P<word>(?<![A-Za-z\\])(?:{'|'.join(_WORDS)})(?![A-Za-z]))"
    r"|(?P<command>\\[A-Za-z]+)|(?P<letter>[A-Za-z])|(?P<sign>[-+/^_!(){}|'\[\],]))"
)
_KNOWN = re.compile(rf"\\[A-Za-z]+|(?<![A-Za-z])(?:{'|'.join(_WORDS)})(?![A-Za-z])")
_PROSE = re.compile(r"[A-Za-z]{5}|[A-Za-z](?:sin|cos|tan|log|exp|sqrt)")
_BARS = {r"\lvert": "|", r"\rvert": "|", r"\vert": "|", r"\dbinom": r"\binom", r"\tbinom": r"\binom"}


_PRODUCTS = {r"\cdot": "·", r"\times": "×"}
_REAL = frozenset("abcdmnpqrstuvxy")
"""Letters that are real numbers under the bar of a conjugate."""


class _Reader:
    """A recursive-descent parser for an allow-list of LaTeX. Other symbols and ambiguous text raise `UnknownSymbol`."""

    def __init__(self, text: str) -> None:
        if _PROSE.search(_KNOWN.sub(" ", text)):
            raise UnknownSymbol
        self.tokens: list[str] = []
        self.kinds: list[str] = []
        self.spaced: list[bool] = []
        self.at, self.bars, self.angles = 0, 0, 0
        position, text = 0, text.strip()
        while position < len(text):
            token = _TOKEN.match(text, position)
            if token is None or token.lastgroup is None:
                raise UnknownSymbol
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
            raise UnknownSymbol

    def whole(self) -> Tree:
        tree = self.sum()
        if self.at < len(self.tokens):
            raise UnknownSymbol
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
                    raise UnknownSymbol  # `1/2x`
                tree = ("/", tree, below)
                while self.is_factor():
                    tree = ("*", tree, self.power())
            else:
                tree = (_PRODUCTS[sign], tree, self.factors())
            tree = ("-", ("number", Fraction(0)), tree) if negative else tree
        return tree

    def factors(self) -> Tree:
        r"""Parse factors without operators between them; numbers come first, and `2\frac{1}{3}` is a mixed number."""
        start = self.at
        tree = self.power()
        if self.at == start + 1 and self.kinds[start] == "number" and self.next() == r"\frac":
            part = self.power()
            value = rational(part)
            if value is None:
                return self.more(("*", tree, part))
            if not 0 < value < 1 or tree[1].denominator != 1 or self.is_factor():
                raise UnknownSymbol
            return ("+", tree, part)
        return self.more(tree)

    def more(self, tree: Tree) -> Tree:
        last = tree
        while self.is_factor():
            if self.next() == "(" and last[0] == "^" and last[1][0] == "name":
                power = rational(last[2])
                if last[1][1] in _APPLIED or power is None or power < 0:
                    raise UnknownSymbol  # `f^{-1}(x)`
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
            raise UnknownSymbol
        return kind != "sign" or token in ("(", "{", "|")

    def power(self) -> Tree:
        tree, raised = self.atom(), False
        while True:
            if self.take("!"):
                if raised or self.next() == "!":
                    raise UnknownSymbol
                tree = ("!", tree)
            elif self.take("^"):
                if raised:
                    raise UnknownSymbol
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
            raise UnknownSymbol  # `x^1/2`
        return self.atom()

    def atom(self) -> Tree:
        token = self.next()
        if not token:
            raise UnknownSymbol
        kind = self.kinds[self.at]
        self.at += 1
        if kind == "number":
            if self.next() == "_":
                raise UnknownSymbol
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
        if token in (r"\bar", r"\overline") and self.next() == "{":
            return self.conjugate()
        if token[1:] in _CALLED:
            return self.call(token[1:])
        raise UnknownSymbol

    def conjugate(self) -> Tree:
        """The conjugate of a complex number. A bar over anything else, such as a segment, is unknown."""
        tree = self.atom()
        if not has(tree, "i") or names_of(tree) - _REAL:
            raise UnknownSymbol
        return ("conjugate", tree)

    def argument(self) -> Tree:
        if self.next() == "(":
            raise UnknownSymbol
        return self.atom()

    def fraction(self) -> Tree:
        start = self.at
        above = self.argument()
        middle = self.at
        below = self.argument()
        ends = [[t for t in self.tokens[a:b] if t not in "{}"] for a, b in ((start, middle), (middle, self.at))]
        if ends[0][0] == "d" == ends[1][0] and len(ends[1]) > 1 and ends[1][1] not in "+-^_/":
            raise UnknownSymbol  # a derivative
        return ("/", above, below)

    def name(self, token: str) -> Tree:
        name = re.sub("[ {}]", "", token)
        if self.take("_"):
            if self.next() == "{":
                start = self.at
                while self.next() != "}":
                    if not self.next() or (self.next() == "{" and self.at > start):
                        raise UnknownSymbol
                    self.at += 1
                subscript = "".join(self.tokens[start + 1 : self.at])
            else:
                subscript = self.next()
                if len(subscript) != 1 and subscript[1:] not in _GREEK:
                    raise UnknownSymbol  # `x_12`
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
                raise UnknownSymbol  # `y(t)`
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
        base: Tree = {"lg": ("number", Fraction(10)), "log": ("name", BASE)}.get(function, ("e",))
        exponent: Tree | None = None
        if function == "log" and self.take("_"):
            if len(self.next()) != 1:
                raise UnknownSymbol
            base = self.atom()
        if self.take("^"):
            exponent = self.exponent()
        self.angles += function in _TRIGONOMETRIC
        inner = self.operand()
        self.angles -= function in _TRIGONOMETRIC
        if exponent is not None and (power := rational(exponent)) is not None and power < 0:
            if power != -1 or function not in ("sin", "cos", "tan", "sinh"):
                raise UnknownSymbol
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
                raise UnknownSymbol  # `\sin x(x+1)`
            tree = ("*", tree, self.power())
        if self.next() in ("/", r"\cdot", r"\times") and self.next(1)[1:] not in _CALLED:
            raise UnknownSymbol  # `\sin x/2`
        return tree
