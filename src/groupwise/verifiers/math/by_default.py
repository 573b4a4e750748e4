"""math-verify by its own defaults. Run in the sandbox, never imported."""

import logging


def accepted(answer: str, gold: str) -> bool:
    """Whether math-verify accepts the text of an answer."""
    from math_verify import parse, verify  # pyright: ignore[reportMissingImports]

    golds = parse(f"${gold}$", parsing_timeout=None)  # type: ignore[arg-type]  # the sandbox keeps the time
    answers = parse(answer, parsing_timeout=None)  # type: ignore[arg-type]
    return bool(verify(golds, answers, timeout_seconds=None))  # type: ignore[arg-type]


if __name__ == "by_default":  # what every call needs is loaded before its time begins to count
    logging.disable(logging.CRITICAL)  # advice about timeouts
    accepted(r"$\sqrt{8}$", r"2\sqrt{2}")
