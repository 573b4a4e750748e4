"""Samples as text for a terminal: answers, and conversations turn by turn."""

from itertools import groupby

from groupwise.core import visible
from groupwise.data import ENVIRONMENT, TEMPLATE, Outcome, Sample, Verdict


def format_sample(sample: Sample) -> str:
    """One sample as text: a plain answer, or a conversation turn by turn with speaker names and how it ended.

    Speaker names start at the first column and the text is indented, so that no text can imitate a speaker.
    """
    if not sample.counts:
        return visible(sample.text, lines=True)
    lines: list[str] = []
    for speaker, text in turns_of(sample):
        lines += [f"{speaker}:", *(f"  {line}" for line in visible(text, lines=True).split("\n"))]
    turns = len(sample.turns)
    counts = "".join(f", {visible(name)} {count:g}" for name, count in sample.counts.items())
    finish = sample.finish.name if sample.finish is not None else "the environment"
    lines.append(f"ended by {finish}: {turns} turn{'s'[: turns != 1]}, {len(sample.tokens)} tokens{counts}")
    return "\n".join(lines + _verdict_line(sample.verdict))


def turns_of(sample: Sample) -> list[tuple[str, str]]:
    """(speaker, text) of each turn in order. Tokens that the chat template inserts between turns are left out.

    >>> sample = Sample(context=(), stream=(0,)).with_tokens((1, 2), (0, 0), (-1.0, -1.0)).insert((3,), ENVIRONMENT)
    >>> turns_of(sample.with_text("abc", (1, 2, 3)))
    [('model', 'ab'), ('environment', 'c')]
    """
    begins = (0, *sample.token_ends)
    turns = []
    for origin, group in groupby(
        range(len(sample.token_ends)), lambda i: sample.origin[i] if sample.origin[i] < 0 else 0
    ):
        positions = list(group)
        if origin != TEMPLATE:
            text = sample.text[begins[positions[0]] : sample.token_ends[positions[-1]]]
            turns.append(("environment" if origin == ENVIRONMENT else "model", text))
    return turns


def _verdict_line(verdict: Verdict | None) -> list[str]:
    """A line with the verdict that the environment returned, if any."""
    if verdict is None:
        return []
    reason = verdict.cause or verdict.feedback
    score = f", score {verdict.score:g}" if verdict.score is not None else ""
    outcome = "aborted" if verdict.outcome is Outcome.unverifiable else verdict.outcome.name
    return [f"{outcome}{score}{': ' + visible(reason) if reason else ''}"]
