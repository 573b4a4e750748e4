"""Extracts the code from a model's answer: its last Python block."""

import re

_OPENS = re.compile(r"^[ \t]*```[ \t]*(?:python3?|py)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
_CLOSES = re.compile(r"^[ \t]*```[ \t]*\r?$", re.MULTILINE)


def code_of(answer: str) -> str | None:
    """The content of an answer's last ```python block; None if there is none, or it is empty or not closed.

    >>> code_of("first:\\n```python\\na = 1\\n```\\nno, rather\\n```python\\na = 2\\n```\\n")
    'a = 2\\n'
    """
    *_, last = (None, *_OPENS.finditer(answer))
    if last is None or (end := _CLOSES.search(answer, last.end() + 1)) is None:
        return None
    code = answer[last.end() + 1 : end.start()]
    return code if code.strip() else None
