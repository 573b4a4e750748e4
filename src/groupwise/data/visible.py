"""Text from outside, made harmless for a terminal."""

from unicodedata import category

__all__ = ["visible"]


def visible(text: str, *, lines: bool = False) -> str:
    r"""The text with every character escaped that a terminal obeys or does not draw; `lines` keeps line ends and tabs.

    Escaped are controls (C0, DEL, C1), marks of direction and of zero width, separators of lines, halves of pairs,
    private and unassigned characters. Letters, marks, signs and spaces of all scripts stay. A name, a cause or anything
    else that belongs on one line is written without `lines`. Linear in the text; applied twice it changes nothing more.

    >>> print(visible("a\x1b[2J\u202eb\n"), visible("日本 ñ 🙂"))
    a\x1b[2J\u202eb\n 日本 ñ 🙂
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or _plain(c, lines) else c.encode("unicode_escape").decode() for c in text)


def _plain(character: str, lines: bool) -> bool:
    """Whether an unprintable character, as Python has it, is a space, or a line end or tab that is kept."""
    return (lines and character in "\n\t") or category(character) == "Zs"
