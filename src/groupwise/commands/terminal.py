"""Answers and conversations for a terminal."""

from itertools import groupby

from groupwise.data import ENVIRONMENT, TEMPLATE, Outcome, Sample, Verdict, visible


def told_sample(sample: Sample) -> str:
    """An answer as it is; a conversation turn by turn, each under the name of who said it, and how it ended.

    Names begin their line and what was said does not, so that nobody can speak in another's name.
    """
    if not sample.counts:
        return visible(sample.text, lines=True)
    lines: list[str] = []
    for who, said in spoken(sample):
        lines += [f"{who}:", *(f"  {line}" for line in visible(said, lines=True).split("\n"))]
    turns = len(sample.turns)
    counts = "".join(f", {visible(name)} {count:g}" for name, count in sample.counts.items())
    finish = sample.finish.name if sample.finish is not None else "the environment"
    lines.append(f"ended by {finish}: {turns} turn{'s'[: turns != 1]}, {len(sample.tokens)} tokens{counts}")
    return "\n".join(lines + _verdict(sample.verdict))


def spoken(sample: Sample) -> list[tuple[str, str]]:
    """Who said what, in order; what a chat template writes between turns was said by nobody and is left out.

    >>> talk = Sample(context=(), stream=(0,)).with_tokens((1, 2), (0, 0), (-1.0, -1.0)).insert((3,), ENVIRONMENT)
    >>> spoken(talk.read("abc", (1, 2, 3)))
    [('model', 'ab'), ('environment', 'c')]
    """
    begins = (0, *sample.ends)
    said = []
    for who, places in groupby(range(len(sample.ends)), lambda i: sample.origin[i] if sample.origin[i] < 0 else 0):
        first, *rest = places
        if who != TEMPLATE:
            text = sample.text[begins[first] : sample.ends[rest[-1] if rest else first]]
            said.append(("environment" if who == ENVIRONMENT else "model", text))
    return said


def _verdict(verdict: Verdict | None) -> list[str]:
    """What the environment ruled, if it was its to rule."""
    if verdict is None:
        return []
    why = verdict.cause or verdict.feedback
    score = f", score {verdict.score:g}" if verdict.score is not None else ""
    what = "broken off" if verdict.outcome is Outcome.unverifiable else verdict.outcome.name
    return [f"{what}{score}{': ' + visible(why) if why else ''}"]
