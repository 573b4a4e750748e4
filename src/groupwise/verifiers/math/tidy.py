"""Normalises the LaTeX and plain-text spellings of mathematical answers."""

import re

_UNICODE = {
    "−": "-", "–": "-", "—": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "∕": "/", "π": r"\pi ",
    "∞": r"\infty ", "°": r"^\circ ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "∩": r"\cap ",
    "∈": r"\in ", "∅": r"\emptyset ", "±": r"\pm ", "≈": r"\approx ", "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}",
    "¾": r"\frac{3}{4}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "º": r"^\circ ", "˚": r"^\circ ",
    "′": "'", "″": "''", "∧": r"\wedge ", "∨": r"\vee ", "…": "...", "：": ":", "（": "(", "）": ")",
    "\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u200b": "", "’": "'", "，": ",", "。": ".",
}  # fmt: skip
GREEK = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon", "ζ": "zeta", "η": "eta", "θ": "theta",
    "ι": "iota", "κ": "kappa", "λ": "lambda", "μ": "mu", "ν": "nu", "ξ": "xi", "ρ": "rho", "σ": "sigma", "τ": "tau",
    "υ": "upsilon", "φ": "phi", "χ": "chi", "ψ": "psi", "ω": "omega", "Γ": "Gamma", "Δ": "Delta", "Θ": "Theta",
    "Λ": "Lambda", "Ξ": "Xi", "Π": "Pi", "Σ": "Sigma", "Φ": "Phi", "Ψ": "Psi", "Ω": "Omega",
}  # fmt: skip
_UNICODE_TABLE = str.maketrans(_UNICODE | {letter: rf"\{name} " for letter, name in GREEK.items()})
_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ"
_LOWERED = "₀₁₂₃₄₅₆₇₈₉"
_SMALL = re.compile(f"([{_RAISED}]+)|([{_LOWERED}]+)")
_PLAIN = str.maketrans(_RAISED + _LOWERED, "0123456789-+n0123456789")

_WORDING = r"text|textbf|textit|textrm|texttt|mathrm|mathbf|mathit|mathsf|mbox|hbox|operatorname|bold|boldsymbol"
_REWRITES = [
    (r"\\(?:dfrac|tfrac|cfrac)(?![A-Za-z])", r"\\frac"),
    (r"\\(?:left|right|bigl|bigr|Bigl|Bigr|big|Big|bigg|Bigg|displaystyle|textstyle|limits)(?![A-Za-z])\.?", ""),
    (r"\\leq(?:slant)?(?![A-Za-z])|<=", r"\\le "),
    (r"\\geq(?:slant)?(?![A-Za-z])|>=", r"\\ge "),
    (r"\\neq(?![A-Za-z])|!=", r"\\ne "),
    (r"\\lt(?![A-Za-z])", "<"),
    (r"\\gt(?![A-Za-z])", ">"),
    (r"\\(?:varnothing|empty)(?![A-Za-z])", r"\\emptyset "),
    (r"\\(?:textcolor|colorbox)\s*\{[^{}]*\}|\\color\s*\{[^{}]*\}|\\(?:underline|therefore)(?![A-Za-z])", ""),
    (r"\\mathbb\s*(?:\{\s*R\s*\}|R)|\\R(?![A-Za-z])|ℝ", r"\\reals "),
    (r"\\div(?![A-Za-z])", "/"),
    (r"\\(?:degree|textdegree)(?![A-Za-z])|\^\s*\{?\s*\\circ\s*\}?", " degrees "),
    (r"\\%|\\?\bpercent\b|\bper cent\b", "%"),
    (r"(?<![A-Za-z\\])sqrt\s*\(([^()]*)\)|√\s*\(([^()]*)\)|√\s*(\d+|[a-z])", r"\\sqrt{\1\2\3}"),
    (r"(?<![A-Za-z\\])(?:infinity|Infinity|inf)(?![A-Za-z])", r"\\infty "),
    (r"(?<![A-Za-z\\])pi(?![A-Za-z])", r"\\pi "),
    (r"\*\*", "^"),
    (r"\*", r"\\cdot "),
    (r"(?<=\d)(?:\\[,!;: ]|\{,\}|\{\\,\}|,\\!)\s*(?=\d{3}(?!\d))", ""),
    (r"(?<!\\)\\[!]", ""),
    (r"(?<!\\)\\[,;: ]|~|\\q?quad(?![A-Za-z])|\\(?:hspace|phantom)\{[^{}]*\}", " "),
    (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
    (r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{"),
    (r"\\frac\s*(\{[^{}]*\})\s*(\d|[a-z])", r"\\frac\1{\2}"),
    (r"\\sqrt\s*(\d|[a-z])(?![A-Za-z])", r"\\sqrt{\1}"),
    (r"([\^_])\s*\{(\w)\}(?!\d)", r"\1\2"),  # not `x^{1}0`, which is no `x^{10}`
]
_COMPILED = [(re.compile(pattern), to) for pattern, to in _REWRITES]
_TEXT = re.compile(rf"\\(?:{_WORDING})\s*\{{([^{{}}]*)\}}")
_PAIRS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("__", "__"), ("`", "`"), ("*", "*"))
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d]|,\d)")


def tidy(text: str) -> str:
    """The normal spelling of an answer: no delimiters, fonts or spacing commands; `¤` for a dollar sign of money.

    >>> tidy(r"$\\dfrac{1}{2}$."), tidy(r"\\$1{,}234.50"), tidy(r"\\left( 1,\\, 2 \\right)"), tidy("**34**")
    ('\\\\frac{1}{2}', '¤1234.50', '(1,2)', '34')
    """
    text = bare(_SMALL.sub(_level_script, text).translate(_UNICODE_TABLE))
    text = re.sub(r"\\\$|\$(?=\s*[-\d.])|(?<=\d)\s*\$$", "¤", text).replace("$", " ")
    while (worded := _TEXT.sub(r" \1 ", text)) != text:
        text = worded
    for pattern, to in _COMPILED:
        text = pattern.sub(to, text)
    text = _thousands(bare(text))
    text = re.sub(r"\s+", " ", text).strip()
    return re.sub(r"(?<![A-Za-z0-9_.%])\s|\s(?![A-Za-z0-9\\¤.])|(?<=[0-9%}])\s(?=\\)", "", text)


def _level_script(script: "re.Match[str]") -> str:
    return ("^" if script[1] else "_") + "{" + script[0].translate(_PLAIN) + "}"


def bare(text: str) -> str:
    """The text without surrounding dollar signs, emphasis, boxes, and without a final full stop."""
    before = None
    while text != before:
        before = text
        text = text.strip().lstrip(":").lstrip()
        if text.endswith((".", ",", ";", ":")) and not text.endswith((r"\,", r"\;", r"\:", "..")):
            text = text[:-1]
        if text.endswith("\\") and not text.endswith("\\\\"):  # a spacing command whose blank was stripped
            text = text[:-1]
        if text.count("**") == 1:  # emphasis that begins before the answer, or ends behind it
            text = text.removeprefix("**").removesuffix("**")
        for left, right in _PAIRS:
            inside = text[len(left) : -len(right)]
            alone = left not in inside.replace(r"\$", "")  # a dollar that means money
            if text.startswith(left) and text.endswith(right) and len(text) > 2 * len(left) and alone:
                text = inside
        for wrapper in (r"\boxed{", r"\fbox{", r"\text{", r"\textbf{", r"\mathrm{", r"\mathbf{", r"\mbox{", "{"):
            if text.startswith(wrapper) and closing(text, len(wrapper) - 1) == len(text) - 1:
                text = text[len(wrapper) : -1]
    return text


def closing(text: str, at: int) -> int | None:
    """The position of the brace that closes the one at `at`; None if it is not closed.

    >>> closing("{a{b}}c", 0), closing("{a", 0)
    (5, None)
    """
    depth, escaped = 0, False
    for i in range(at, len(text)):
        c = text[i]
        if escaped:
            escaped = False
        elif c == "\\":
            escaped = True
        elif c == "{":
            depth += 1
        elif c == "}":
            depth -= 1
            if depth == 0:
                return i
    return None


def split_top(text: str, separator: "re.Pattern[str]") -> list[str]:
    """Split a text at the separators that are outside of all brackets and braces.

    >>> split_top("(1,2),3", re.compile(","))
    ['(1,2)', '3']
    """
    parts, start = [], 0
    for found in separator.finditer(text):
        if found.start() >= start and _level(text[start : found.start()]) == 0:
            parts.append(text[start : found.start()])
            start = found.end()
    return [*parts, text[start:]]


def _level(text: str) -> int:
    """The number of brackets of any kind that a text leaves open. Half-open intervals mix round and square ones."""
    return sum(text.count(c) for c in "([{") - sum(text.count(c) for c in ")]}")


def _thousands(text: str) -> str:
    """The text without the commas of `1,234,567`, except within brackets, where commas are separators."""

    def plain(found: "re.Match[str]") -> str:
        before = text[: found.start()]
        inside = sum(before.count(c) for c in "([") - sum(before.count(c) for c in ")]") + before.count(r"\{")
        return found[0] if inside - before.count(r"\}") > 0 else found[0].replace(",", "")

    return _THOUSANDS.sub(plain, text)
