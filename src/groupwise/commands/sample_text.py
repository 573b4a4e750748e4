"""Samples as text for a terminal: answers, conversations turn by turn, and episodes of agents request by request."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from groupwise.core import counted, visible
from groupwise.data import ENVIRONMENT, TEMPLATE, AgentMessage, AgentRequest, Outcome, Sample, Verdict, branch_points


def format_sample(sample: Sample) -> str:
    """One sample as text: a plain answer, or a conversation turn by turn with speaker names and how it ended.

    Speaker names start at the first column and the text is indented, so that no text can imitate a speaker.
    """
    if not sample.counts:
        return visible(sample.text, lines=True)
    lines = [line for speaker, text in turns_of(sample) for line in _spoken(speaker, text)]
    turns = len(sample.turns)
    lines.append(
        f"ended by {_finish(sample)}: {counted(turns, 'turn')}, {counted(len(sample.tokens), 'token')}{_counts(sample)}"
    )
    return "\n".join(lines + _verdict_line(sample.verdict))


def format_episode(samples: Sequence[Sample]) -> str:
    """The samples of an agent's episode as text, its answer first: all requests in order, and how the answer ended.

    Conversations are numbered as they open. A text cannot imitate a speaker, as in `format_sample`.
    """
    opened = sorted(samples, key=lambda sample: sample.requests[0].number)
    points = branch_points([sample.requests for sample in opened])
    lines: list[str] = []
    for request, i in sorted(((r, i) for i, s in enumerate(opened) for r in s.requests), key=lambda x: x[0].number):
        first = request is opened[i].requests[0]
        branch = f", from request {point + 1}" if first and (point := points[i]) is not None else ""
        lines.append(f"request {request.number + 1}, conversation {i + 1}{branch}")
        lines += [line for message in request.messages for line in _spoken(message.role, _content(message))]
        lines += _spoken("model", _answer(opened[i], request))
    requests, tokens = sum(len(s.requests) for s in samples), sum(len(s.tokens) for s in samples)
    shape = f"{counted(requests, 'request')}, {counted(len(samples), 'conversation')}, {counted(tokens, 'token')}"
    lines.append(f"answer: conversation {opened.index(samples[0]) + 1}, ended by {_finish(samples[0])}: {shape}")
    return "\n".join(lines + _verdict_line(samples[0].verdict))


def episodes_of(samples: Sequence[Sample]) -> list[tuple[Sample, ...]]:
    """The samples of each episode, its answer first; a sample without an agent's requests is alone."""
    threads: dict[int, list[Sample]] = {}
    for sample in samples:
        if sample.requests and sample.parent is not None:
            threads.setdefault(sample.parent, []).append(sample)
    answers = [(i, s) for i, s in enumerate(samples) if not (s.requests and s.parent is not None)]
    return [(answer, *threads.get(i, ())) for i, answer in answers]


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


def _spoken(speaker: str, text: str) -> Iterable[str]:
    """A turn: the speaker's name, and the indented lines of the text."""
    return [f"{visible(speaker)}:", *(f"  {line}" for line in visible(text, lines=True).split("\n"))]


def _content(message: AgentMessage) -> str:
    """The text of a message, with a line for each tool call."""
    return "\n".join([message.text] * bool(message.text) + [f"{name}({inputs})" for name, inputs in message.calls])


def _answer(sample: Sample, request: AgentRequest) -> str:
    """The text of a request's answer."""
    begins = (0, *sample.token_ends)
    return sample.text[begins[request.start] : begins[request.end]]


def _finish(sample: Sample) -> str:
    return sample.finish.name if sample.finish is not None else "the environment"


def _counts(sample: Sample) -> str:
    return "".join(f", {visible(name)} {count:g}" for name, count in sample.counts.items())


def _verdict_line(verdict: Verdict | None) -> list[str]:
    """A line with the verdict that the environment returned, if any."""
    if verdict is None:
        return []
    reason = verdict.cause or verdict.feedback
    score = f", score {verdict.score:g}" if verdict.score is not None else ""
    outcome = "aborted" if verdict.outcome is Outcome.unverifiable else verdict.outcome.name
    return [f"{outcome}{score}{': ' + visible(reason) if reason else ''}"]
