"""Writes digits, fractions, letters and signs of other scripts in ASCII and LaTeX."""

import re
import unicodedata

_SIGNS = {
    "−": "-", "–": "-", "—": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "∕": "/", "⁄": "/",
    "π": r"\pi ", "∞": r"\infty ", "°": r"^\circ ", "º": r"^\circ ", "˚": r"^\circ ", "≤": r"\le ", "≥": r"\ge ",
    "≦": r"\le ", "≧": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ",
    "∅": r"\emptyset ", "∖": r"\setminus ", "±": r"\pm ", "≈": r"\approx ", "′": "'", "″": "''", "’": "'",
    "∧": r"\wedge ", "∨": r"\vee ", "…": "...", "。": ".", "٫": ".", "٬": ",", "٪": "%", "‚": ",", "¦": "|",
}  # fmt: skip
_SPACES = dict.fromkeys("\u00a0\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B))), " ")
_UNSEEN = dict.fromkeys("\u00ad\u200b\u200c\u200d\u200e\u200f\u061c\u2060\ufeff", "")
GREEK = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon", "ζ": "zeta", "η": "eta", "θ": "theta",
    "ι": "iota", "κ": "kappa", "λ": "lambda", "μ": "mu", "ν": "nu", "ξ": "xi", "ρ": "rho", "σ": "sigma", "τ": "tau",
    "υ": "upsilon", "φ": "phi", "χ": "chi", "ψ": "psi", "ω": "omega", "Γ": "Gamma", "Δ": "Delta", "Θ": "Theta",
    "Λ": "Lambda", "Ξ": "Xi", "Π": "Pi", "Σ": "Sigma", "Φ": "Phi", "Ψ": "Psi", "Ω": "Omega",
}  # fmt: skip
_TABLE = str.maketrans(_SIGNS | _SPACES | _UNSEEN | {letter: rf"\{name} " for letter, name in GREEK.items()})
_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ"
_LOWERED = "₀₁₂₃₄₅₆₇₈₉"
_SMALL = re.compile(f"([{_RAISED}]+)|([{_LOWERED}]+)")
_PLAIN = str.maketrans(_RAISED + _LOWERED, "0123456789-+n0123456789")
_OTHER = re.compile(r"[^\x00-\x7f]")


def in_latex(text: str) -> str:
    r"""The text with the digits, fractions and signs of other scripts in ASCII and LaTeX.

    >>> in_latex("４２％"), in_latex("٤٫٢"), in_latex("1⅜"), in_latex("x² ≤ 2⁄3")
    ('42%', '4.2', '1\\frac{3}{8}', 'x^{2} \\le  2/3')
    """
    return text if text.isascii() else _OTHER.sub(_one, _SMALL.sub(_level, text).translate(_TABLE))


def _one(character: "re.Match[str]") -> str:
    """One character: a digit of any script, a fraction, or the full width of an ASCII character; others unchanged."""
    digit = unicodedata.decimal(character[0], None)
    if digit is not None:
        return str(digit)
    kind, *codes = unicodedata.decomposition(character[0]).split() or [""]
    if kind == "<fraction>" and codes[-1] != "2044":  # `⅟` has no denominator
        above, below = "".join(chr(int(code, 16)) for code in codes).split("⁄")
        return rf"\frac{{{above}}}{{{below}}}"
    return unicodedata.normalize("NFKC", character[0]) if kind == "<wide>" else character[0]


def _level(script: "re.Match[str]") -> str:
    return ("^" if script[1] else "_") + "{" + script[0].translate(_PLAIN) + "}"
