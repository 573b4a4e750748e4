"""The form in which the verifier `text` compares two texts: SQuAD's, without the loss of signs that carry a value."""

import re
import string
import unicodedata

MARKS = 30
"""The most combining marks on one character: Unicode's limit for text in any language (UAX #15, stream-safe text)."""

_ARTICLES = re.compile(r"\b(?<![-+*/^<>=])(?:a|an|the)\b(?![-+*/^<>=])", re.IGNORECASE)
_DASH = re.compile(r"[\u2010-\u2015\u2212](?=[^\w\s]?[0-9])")
_RAISED = re.compile(r"(?<=[0-9])(?=[\u00b2\u00b3\u00b9\u2070-\u207b])")
_FRACTION = re.compile(r"(?<=[0-9])(?=[\u00bc-\u00be\u2150-\u215e])")

_LEFT = r"(?:(?<=[0-9])|(?<=\b[^\W\d_])|(?<=[0-9][^\W\d_]))"
_RIGHT = r"(?=[0-9]|[^\W\d_](?![^\W\d_]))"
_PUNCTUATION = re.compile(
    r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))"  # thousands: dropped
    rf"|{_LEFT}[ ]?([*/^+]|[<>=]{{1,2}})[ ]?{_RIGHT}"  # an operator between numbers or single letters
    r"|(?<=[0-9])[ ]?(-)[ ]?(?=[0-9])|(?<=\b[^\W\d_])[ ]?(-)[ ]?(?=[^\W\d_]\b)"  # minus: "B-52" and "3-D" are words
    rf"|(?<=[0-9])([{re.escape(string.punctuation)}])(?=[0-9])"  # in a number, a date, a ratio
    r"|(?<!\w)([-.])(?=[^\w\s]?[0-9])"  # a sign, or the point of ".5"
    r"|(?<=[^\W_])([+^])|(?<=[+])([+])|(?<=\b[^\W\d_])(\#)(?!\w)"  # C++, A+, x^n, C#
    rf"|[{re.escape(string.punctuation)}]"  # all other: dropped
)


def plain_text(text: str, *, case: bool = False, punctuation: bool = False, articles: bool = False) -> str:
    """The normal form of SQuAD (Rajpurkar et al., arXiv:1606.05250) after Unicode's NFKC, for words.

    `case`, `punctuation` and `articles` make each of them count. Punctuation that changes a value stays: between two
    digits (but no comma of thousands), as the sign or the point of a number, as an operator between numbers or single
    letters, and `+`, `^` or `#` that ends a word. Empty for a text without a visible character. Linear time.

    >>> plain_text("  The  Eiffel-Tower. "), plain_text("-1.5"), plain_text("1,500 x + y"), plain_text("10³ in C++!")
    ('eiffeltower', '-1.5', '1500 x+y', '10^3 in c++')
    """
    text = _FRACTION.sub(" ", _RAISED.sub("^", text))
    text = unicodedata.normalize("NFKC", _few_marks(text)).replace("\u2044", "/")
    text = " ".join((text if case else text.casefold()).split())
    if not punctuation:
        text = _PUNCTUATION.sub(lambda match: match[match.lastindex] if match.lastindex else "", _DASH.sub("-", text))
    without_articles = text if articles else _ARTICLES.sub(" ", text)
    text = " ".join(without_articles.split()) or " ".join(text.split())  # the answer "A" is no article
    return "" if is_blank(text) else text


def is_blank(text: str) -> bool:
    """Whether a text has no visible character: only separators, control and format characters, and marks.

    >>> is_blank(" \u200b\ufeff\u0301"), is_blank("0")
    (True, False)
    """
    return all(unicodedata.category(c)[0] in "ZCM" for c in text)


def _few_marks(text: str) -> str:
    """The text with at most `MARKS` combining marks in a row. NFKC sorts them in quadratic time.

    >>> len(_few_marks("e" + "\u0301" * 100))
    31
    """
    if text.isascii():
        return text
    characters, marks = [], 0
    for c in text:
        marks = marks + 1 if unicodedata.combining(c) else 0
        if marks <= MARKS:
            characters.append(c)
    return "".join(characters)
