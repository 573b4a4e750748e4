"""The language of messages: the command line's, or Python's within a call of the library."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["spelled", "spelling"]

Rule = Callable[[str], str]
_RULE: ContextVar[Rule] = ContextVar("rule", default=str)


def spelled(text: str) -> str:
    """A message in the language of the current call; as it is written, in that of the command line, outside one."""
    return _RULE.get()(text)


@contextmanager
def spelling(rule: Rule) -> Iterator[None]:
    """A context in which `spelled` applies a rule, and then that of the context around it.

    Threads have it if they run in a copy of this context.

    >>> with spelling(str.upper):
    ...     spelled("use --template chat")
    'USE --TEMPLATE CHAT'
    """
    outer = _RULE.get()
    token = _RULE.set(lambda text: outer(rule(text)))
    try:
        yield
    finally:
        _RULE.reset(token)
