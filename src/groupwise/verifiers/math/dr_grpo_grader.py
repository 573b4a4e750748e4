r"""Dr. GRPO's grader, with the faults of the original. Runs in the sandbox; the package never imports it.

The rules of the authors' `math_grader.py` (arXiv:2503.20783, github.com/sail-sg/understand-r1-zero), in their order:
equality in the normal form of MATH (Hendrycks et al., arXiv:2103.03874) without units; equality in that of PRM800K
(Lightman et al., arXiv:2305.20050), or a difference that sympy simplifies to 0; and, unless `fast`, math-verify. The
authors' time limit is one second, after which an answer is wrong; here the sandbox has the time limit.
"""

import logging
import re
from typing import Any

MATHQA_UNITS = (
    "east", "degree", "mph", "kmph", "ft", "m sqaure", " m east", "sq m", "deg", "mile", "q .", "monkey", "prime",
    "ratio", "profit of rs", "rd", "o", "gm", "p . m", "lb", "tile", "per", "dm", "lt", "gain", "ab", "way", "west",
    "a .", "b .", "c .", "d .", "e .", "f .", "g .", "h .", "t", "a", "h", "no change", "men", "soldier", "pie",
    "bc", "excess", "st", "inches", "noon", "percent", "by", "gal", "kmh", "c", "acre", "rise", "a . m", "th",
    "π r 2", "sq", "mark", "l", "toy", "coin", "sq . m", "gallon", "° f", "profit", "minw", "yr", "women", "feet",
    "am", "pm", "hr", "cu cm", "square", "v â € ™", "are", "rupee", "rounds", "cubic", "cc", "mtr", "s", "ohm",
    "number", "kmph", "day", "hour", "minute", "min", "second", "man", "woman", "sec", "cube", "mt", "sq inch",
    "mp", "∏ cm ³", "hectare", "more", "sec", "unit", "cu . m", "cm 2", "rs .", "rs", "kg", "g", "month", "km", "m",
    "cm", "mm", "apple", "liter", "loss", "yard", "pure", "year", "increase", "decrease", "d", "less", "Surface",
    "litre", "pi sq m", "s .", "metre", "meter", "inch",
)  # fmt: skip
"""Units as regular expressions: a point matches any character. `UNITS` has all of these, then each one with an s."""
UNITS = [re.compile(rf"(^|\W){unit}($|\W)") for unit in (*MATHQA_UNITS, *(f"{unit}s" for unit in MATHQA_UNITS))]
SPELLINGS = (
    ("tfrac", "frac"), ("dfrac", "frac"), ("\\neq", "\\ne"), ("\\leq", "\\le"), ("\\geq", "\\ge"), ("\\left", ""),
    ("\\right", ""),
)  # fmt: skip
WORDS = (
    ("\\%", "%"), ("\\$", "$"), ("$", ""), ("%", ""), (" or ", " , "), (" and ", " , "), ("million", "*10^6"),
    ("billion", "*10^9"), ("trillion", "*10^12"),
)  # fmt: skip
SCHOOL_UNITS = (
    "degree", "cm", "centimeter", "meter", "mile", "second", "minute", "hour", "day", "week", "month", "year", "foot",
    "feet", "inch", "yard",
)  # fmt: skip
SIGNS = (("√", "sqrt"), ("π", "pi"), ("∞", "inf"), ("∪", "U"), ("·", "*"), ("×", "*"))
BRACKETS = "()[]"

LONGEST, DEEPEST = 1000, 32
"""The most characters, and the most nested brackets, of an expression that sympy parses."""
PLAIN = re.compile(
    r"(?:[0-9A-Za-zΑ-Ωα-ωϑϕϖϱϵ+\-*/^!(), \t\n]|(?<=[0-9A-Za-zα-ω])_(?=[0-9A-Za-z])|\.(?![\s.]*[^\W\d]))*"
)
UNBOUNDED = re.compile(r"\^\{|\^\(|\^[0-9]+\^|\^[0-9][0-9]+|[0-9]{401}|[0-9]{4}[\s)]*!|!\s*[!)]+\s*!")
"""Pattern of powers and factorials that are too large to compute. The list of powers is the authors'."""
NAMES = (
    *("Symbol", "Function", "Number", "Integer", "Float", "Rational", "factorial", "factorial2"),
    *("sqrt", "frac", "pi", "oo", "zoo", "nan", "ln", "li", "re", "im", "ff", "rf", "csc"),
)
"""sympy's names in parsed texts: the parser's insertions, `sqrt`, `frac`, and those of up to two different letters."""


def graded(answer: str, golds: list[str], fast: bool) -> bool:
    """Whether the answer equals one of the gold answers."""
    return any(_grade(answer, gold, fast) for gold in golds)


def _grade(answer: str, gold: str, fast: bool) -> bool:
    if math_form(answer) == math_form(gold) or _same_in_prm_form(answer, gold):
        return True
    return not fast and _same_to_math_verify(answer, gold)


# The normal form of MATH


def math_form(answer: str) -> str:
    r"""The normal form of MATH's authors; the answer unchanged where their rules raise an exception.

    >>> math_form(r"x=\tfrac12"), math_form("3 km"), math_form("x+a"), math_form(r"\sqrt"), math_form("0.5")
    ('\\frac{1}{2}', '3', 'x+', '\\sqrt', '\\frac{1}{2}')
    """
    answer = _without_text(answer.strip()).strip()
    try:
        return _math_form(answer)
    except (IndexError, ValueError):  # a root or a fraction of nothing, two units
        return answer


def _math_form(s: str) -> str:
    s = s.replace("\n", "").replace("\\!", "").replace("\\\\", "\\")
    s = re.sub(r"\\begin\{array\}\{.*?\}", r"\\begin{pmatrix}", s)
    s = re.sub(r"\\end\{array\}", r"\\end{pmatrix}", s).replace("bmatrix", "pmatrix")
    s = _replaced(s, SPELLINGS)
    s = re.sub(r"\\text{.*?}$", "", s).strip() or s
    for unit in (*UNITS, *UNITS):  # also removes variables called a, c, d, g, h, l, m, o, s or t
        s = unit.sub(r"\1\2", s) or s
    s = s.replace("^{\\circ}", "").replace("^\\circ", "").replace("\\$", "")
    if "\\text{ " in s:
        s, _ = s.split("\\text{ ")
    s = s.replace("\\%", "").replace(" .", " 0.").replace("{.", "{0.")
    if not s:
        return s
    s = f"0{s}" if s[0] == "." else s
    name, *values = s.split("=")
    if len(values) == 1 and len(name) <= 2:
        (s,) = values
    first, *roots = s.split("\\sqrt")
    s = first + "".join(f"\\sqrt{root}" if root[0] == "{" else f"\\sqrt{{{root[0]}}}{root[1:]}" for root in roots)
    s = _fractions(s.replace(" ", ""))
    return _slash("\\frac{1}{2}" if s == "0.5" else s)


def _fractions(s: str) -> str:
    r"""`\frac12` with braces; the text unchanged if a fraction has one character and no brace."""
    text, *parts = s.split("\\frac")
    for part in parts:
        if part[0] == "{":
            text += f"\\frac{part}"
        elif len(part) < 2:
            return s
        else:
            below = part[1:] if part[1] == "{" else f"{{{part[1]}}}{part[2:]}"
            text += f"\\frac{{{part[0]}}}{below}"
    return text


def _slash(s: str) -> str:
    numbers = s.split("/")
    try:
        above, below = map(int, numbers)
    except ValueError:
        return s
    return f"\\frac{{{above}}}{{{below}}}" if s == f"{above}/{below}" else s


# The normal form of PRM800K, and sympy


def prm_form(answer: str) -> str:
    r"""The normal form of PRM800K's authors.

    >>> prm_form("1,234"), prm_form("2 1/2"), prm_form("3 meters"), prm_form(r"\text{Yes}"), prm_form("34.00000001")
    ('1234', '2+1/2', '3', 'yes', '34')
    """
    s = _replaced(_without_text(answer), WORDS)
    for unit in SCHOOL_UNITS:
        s = re.sub(rf"{unit}(es)?(s)? *(\^[0-9]+)?", "", s)
    s = re.sub(r"\^ *\\circ", "", s)
    if s and s[0] == "{" and s[-1] == "}":
        s = s[1:-1]
    s = re.sub(r",\\! *", "", s)
    if (number := _float(s)) is not None and _is_whole(number):
        s = str(round(number))
    if "\\" in s:
        s = _as_text(s)
    s = re.sub("- *", "-", s)
    s = re.sub("([0-9]) +([0-9])", r"\1+\2", s)  # 7 3/4 is 7+3/4
    s = s.replace(" ", "").replace("{", "").replace("}", "").lower()
    return str(int(float(s.replace(",", "")))) if _is_integer(s) else s


def _same_in_prm_form(answer: str, gold: str) -> bool:
    g, a = prm_form(gold), prm_form(answer)
    if g == a:
        return True
    golds, answers = _elements(g), _elements(a)
    if not a or len(golds) != len(answers) or (len(golds) > 1 and (g[0], g[-1]) != (a[0], a[-1])):
        return False
    return all(map(_same_element, golds, answers))


def _same_element(gold: str, answer: str) -> bool:
    """Two fractions must have the same text; a whole number only equals a whole number; sympy decides other cases."""
    if _is_fraction(gold) and _is_fraction(answer):
        return gold == answer
    return _is_integer(gold) == _is_integer(answer) and _simplifies_to_0(f"({gold})-({answer})")


def _simplifies_to_0(difference: str) -> bool:
    """Whether sympy simplifies a difference to 0; False for more than two different letters, unbounded computations.

    sympy's parser evaluates Python code that it makes from the text, so only plain arithmetic is parsed.
    """
    difference = difference.replace("**", "^")
    letters = {c for c in difference.replace("sqrt", "").replace("frac", "") if c.isalpha()}
    if len(letters) > 2 or not is_plain(difference):
        return False
    import sympy
    from sympy.parsing import sympy_parser

    how = (*sympy_parser.standard_transformations, sympy_parser.implicit_multiplication_application)
    names = {name: getattr(sympy, name) for name in NAMES} | {"__builtins__": {}}
    try:
        parsed = sympy_parser.parse_expr(difference.replace("^", "**"), transformations=how, global_dict=names)
        return bool(sympy.simplify(parsed) == 0)
    except Exception:
        return False


def is_plain(text: str) -> bool:
    r"""Whether a text is arithmetic of bounded size: only names, numbers and `+ - * / ^ ! ( ) , .`.

    Quotes, backslashes, attributes, dunders, and letters that Python normalises to other letters are not plain.

    >>> is_plain("(2*x_1)-(sqrt(y))"), is_plain("x.re"), is_plain("__x"), is_plain("ln('2')"), is_plain("9^9^9")
    (True, False, False, False, False)
    """
    depth = deepest = 0
    for c in text:
        depth += (c == "(") - (c == ")")
        deepest = max(deepest, depth)
    return len(text) <= LONGEST and deepest <= DEEPEST and bool(PLAIN.fullmatch(text)) and not UNBOUNDED.search(text)


def _elements(s: str) -> list[str]:
    """The members of a tuple or an interval; else the text as the only member."""
    s = _without_separators(s)
    if len(s) > 2 and s[0] in BRACKETS and s[-1] in BRACKETS and not set(BRACKETS) & set(s[1:-1]):
        return [member.strip() for member in s[1:-1].split(",")]
    return [s] if s else []


def _as_text(latex: str) -> str:
    from pylatexenc.latex2text import LatexNodes2Text  # pyright: ignore[reportMissingImports]

    fractions = _replaced(latex, (("\\tfrac", "\\frac"), ("\\dfrac", "\\frac"), ("\\frac", " \\frac")))
    try:
        return _replaced(LatexNodes2Text().latex_to_text(fractions), SIGNS).strip()
    except Exception:
        return latex


# math-verify


def _same_to_math_verify(answer: str, gold: str) -> bool:
    if any(len(s) > 128 and repeats(s) > 0.2 for s in (answer, gold)):
        return False
    from math_verify import verify  # pyright: ignore[reportMissingImports]

    try:
        return bool(verify(_parsed(gold), _parsed(answer), timeout_seconds=None))  # type: ignore[arg-type]
    except Exception:
        return False


def _parsed(text: str) -> Any:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse  # pyright: ignore[reportMissingImports]

    return parse(
        text if "$" in text else f"${text}$",
        extraction_config=(LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()),
        fallback_mode="no_fallback",
        extraction_mode="any_match",  # the authors pass first_match in a list, which math-verify treats as this
        parsing_timeout=None,  # type: ignore[arg-type]  # the sandbox has the time limit
    )


def repeats(text: str) -> float:
    """The share of a text's substrings that occur earlier in it, counted with its suffix automaton.

    >>> repeats("abcd"), repeats("aaaa")
    (0.0, 0.6)
    """
    after: list[dict[str, int]] = [{}]
    link, length, last, different = [-1], [0], 0, 0
    for letter in text:
        new, at = len(after), last
        after.append({})
        length.append(length[last] + 1)
        link.append(0)
        while at >= 0 and letter not in after[at]:
            after[at][letter] = new
            at = link[at]
        if at >= 0:
            to = after[at][letter]
            if length[to] != length[at] + 1:
                copy = len(after)
                after.append(dict(after[to]))
                length.append(length[at] + 1)
                link.append(link[to])
                link[to] = copy
                while at >= 0 and after[at].get(letter) == to:
                    after[at][letter] = copy
                    at = link[at]
                to = copy
            link[new] = to
        different += length[new] - length[link[new]]
        last = new
    return 1 - different / (len(text) * (len(text) + 1) / 2) if text else 0.0


# Text


def _without_text(s: str) -> str:
    r"""The text without a `\text{}` around all of it."""
    match = re.search(r"^\\text\{(.+?)\}$", s)
    return match[1] if match else s


def _replaced(s: str, pairs: tuple[tuple[str, str], ...]) -> str:
    for old, new in pairs:
        s = s.replace(old, new)
    return s


def _without_separators(s: str) -> str:
    """The text without the commas of 1,234,567, but with those between members."""
    before = ""
    while before != s:
        before, s = s, re.sub(r"(\d),(\d\d\d)($|\D)", r"\1\2\3", s)
    return s


def _float(s: str) -> float | None:
    try:
        return float(s)
    except ValueError:
        return None


def _is_whole(number: float) -> bool:
    return number - number == 0 and abs(number - round(number)) <= 1e-7  # False for infinity and NaN


def _is_integer(s: str) -> bool:
    number = _float(_without_separators(s))
    return number is not None and _is_whole(number)


def _is_fraction(s: str) -> bool:
    return re.search(r"^-?[0-9]+.?/0*[1-9][0-9]*.?$", s) is not None


def warm_up() -> None:
    """Loads the libraries before the first call, whose CPU time is limited."""
    logging.disable(logging.CRITICAL)  # warnings about the disabled timeouts
    graded(r"\frac{x}{1+x}", ["1"], fast=False)
