"""Predicts the size of an evaluation: a line of text for a large one, `Usage` for one that does not fit in memory."""

from groupwise.core import Usage
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
        raise Usage(
            f"{total:,} answers need up to {needed / GIB:.1f} GiB, and this machine has {available / GIB:.1f} GiB",
            evidence=f"{problems:,} problems, {answers:,} answers to each, at most {max_tokens:,} tokens long",
            fix="lower --samples, --problems or --sampling.max_tokens",
        )
    if tokens < LONG:
        return ""
    size = f"{total:,} answers and at most {tokens:,} tokens"
    return f"plan: {problems:,} problems, {size}, up to {needed / GIB:.1f} GiB for the answers"
