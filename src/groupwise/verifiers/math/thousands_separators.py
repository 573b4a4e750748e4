"""Removes the separators of thousands: `1,234,567`, `1 234 567`, `1'234'567` and `1.234.567`."""

import re

INDIAN = "‚"
"""The mark for a comma of a list such as `10,20,100`, which may also be the Indian number 1020100."""

_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d]|,\d)")
_INDIAN = re.compile(r"(?<![\d.,])[1-9]\d?(?:,\d{2})+,\d{3}(?![\d]|,\d)")
_OTHERS = re.compile(
    r"(?<![\w.,'\\^_/}])(?<!\d )[1-9]\d{0,2}"
    r"(?:(?: \d{3})+(?![\w/]| ?[/\\] ?| \d)|(?:'\d{3})+(?![\w'])|(?:\.\d{3}){2,}(?![\d.]))"
)


def without_thousands(text: str) -> str:
    """The text without separators of thousands. Within brackets a comma separates elements.

    >>> [without_thousands(x) for x in ("1,234,567", "1 234", "1'234", "1.234.567", "1.234", "12,34,567", "(1,234)")]
    ['1234567', '1234', '1234', '1234567', '1.234', '12‚34‚567', '(1,234)']
    """

    def outside(found: "re.Match[str]", to: str) -> str:
        before = text[: found.start()]
        inside = sum(before.count(c) for c in "([") - sum(before.count(c) for c in ")]") + before.count(r"\{")
        return found[0] if inside - before.count(r"\}") > 0 else found[0].replace(",", to)

    text = _OTHERS.sub(lambda found: re.sub("[ '.]", "", found[0]), text)
    text = _THOUSANDS.sub(lambda found: outside(found, ""), text)
    return _INDIAN.sub(lambda found: outside(found, INDIAN), text)
