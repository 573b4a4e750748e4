"""Grades with the library math-verify and its defaults. Runs in the sandbox, never imported."""

import logging


def accepted(answer: str, gold: str) -> bool:
    """Whether math-verify accepts the text of an answer."""
    from math_verify import parse, verify  # pyright: ignore[reportMissingImports]

    golds = parse(f"${gold}$", parsing_timeout=None)  # type: ignore[arg-type]  # the sandbox has the time limit
    answers = parse(answer, parsing_timeout=None)  # type: ignore[arg-type]
    return bool(verify(golds, answers, timeout_seconds=None))  # type: ignore[arg-type]


def warm_up() -> None:
    """Loads the libraries before the first call, whose CPU time is limited."""
    logging.disable(logging.CRITICAL)  # warnings about the disabled timeouts
    accepted(r"$\sqrt{8}$", r"2\sqrt{2}")
