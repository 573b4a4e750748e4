"""Predicts the size of an evaluation: a line of text for a large one, `Usage` for one that does not fit in memory."""

from groupwise.core import Usage, counted
from groupwise.planning.process_memory import GIB, TOKEN

ANSWER = 8192
"""Bytes of an answer besides its tokens: its request, its sample and its verdict, all of which are kept to the end."""
LONG = 1_000_000
"""An evaluation of at least this many tokens prints its expected size."""


def evaluation_plan(problems: int, answers: int, max_tokens: int, available: int) -> str:
    """The expected size of an evaluation as one line of text; empty for a small one.

    All answers count with `max_tokens` tokens. `Usage` if they need more than the `available` bytes of memory.

    >>> evaluation_plan(256, 33, 1024, 8 << 30)
    'plan: 256 problems, 8,448 answers and at most 8,650,752 tokens, up to 0.9 GiB for the answers'
    >>> evaluation_plan(8, 5, 48, 8 << 30)
    ''
    """
    total = problems * answers
    tokens, needed = total * max_tokens, total * (ANSWER + max_tokens * TOKEN)
    if needed > available:
        what = f"{counted(total, 'answer')} need up to {needed / GIB:.1f} GiB, and this machine has"
        each = f"{counted(answers, 'answer')} to each, at most {counted(max_tokens, 'token')} long"
        raise Usage(
            f"{what} {available / GIB:.1f} GiB",
            evidence=f"{counted(problems, 'problem')}, {each}",
            fix="lower --samples, --problems or --sampling.max_tokens",
        )
    if tokens < LONG:
        return ""
    size = f"{counted(total, 'answer')} and at most {tokens:,} tokens"
    return f"plan: {counted(problems, 'problem')}, {size}, up to {needed / GIB:.1f} GiB for the answers"
