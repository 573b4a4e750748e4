"""Escaping of untrusted text before it is printed to a terminal."""

from unicodedata import category

__all__ = ["visible"]


def visible(text: str, *, lines: bool = False) -> str:
    r"""The text with control and invisible characters escaped; `lines=True` keeps newlines and tabs.

    It escapes control characters (C0, DEL, C1), direction and zero-width marks, line separators, lone surrogates, and
    private-use and unassigned characters. Letters, marks, symbols and spaces of all scripts are unchanged. Use it
    without `lines` for a name, a cause, or other text that must stay on one line. Linear in the length; idempotent.

    >>> print(visible("a\x1b[2J\u202eb\n"), visible("日本 ñ 🙂"))
    a\x1b[2J\u202eb\n 日本 ñ 🙂
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or _plain(c, lines) else c.encode("unicode_escape").decode() for c in text)


def _plain(character: str, lines: bool) -> bool:
    """Whether an unprintable character may stay: a space, or with `lines` a newline or tab."""
    return (lines and character in "\n\t") or category(character) == "Zs"
