"""The requests of an agent within a sample: messages, tokens and tool calls, and the tree that an episode's form."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["AgentMessage", "AgentRequest", "branch_points"]


@dataclass(frozen=True, slots=True)
class AgentMessage:
    """A message of an agent's request. `calls` are its tool calls: the name, and the arguments as a JSON object."""

    role: str
    text: str
    calls: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """A request of an agent, and its answer: the tokens from `start` to `end` of the sample.

    `number` counts the requests of the episode, from 0. `continues` is the number of the request whose conversation it
    continues, with the new `messages`; None opens a conversation. `prompt_tokens` is the number of tokens before the
    answer. `calls` are the tool calls in the answer, as those of a message.

    >>> AgentRequest(2, (AgentMessage("tool", "35"),), 9, 14, prompt_tokens=20, continues=1).end
    14
    """

    number: int
    messages: tuple[AgentMessage, ...]
    start: int
    end: int
    prompt_tokens: int = 0
    calls: tuple[tuple[str, str], ...] = ()
    continues: int | None = None


def branch_points(conversations: Sequence[Sequence[AgentRequest]]) -> list[int | None]:
    """For each conversation of an episode, the number of the request that it branches from; None for none.

    A conversation branches from the request whose answer it continues beside another conversation. One that begins and
    ends between two requests of another conversation, such as a sub-agent's, branches from the first of the two.

    >>> main = [AgentRequest(i, (), 0, 0) for i in (0, 3)]
    >>> branch_points([main, [AgentRequest(1, (), 0, 0), AgentRequest(2, (), 0, 0)], [AgentRequest(4, (), 0, 0)]])
    [None, 0, None]
    """
    pairs = [(a.number, b.number) for requests in conversations for a, b in pairwise(requests)]
    points = []
    for first, *others in conversations:
        last = others[-1] if others else first
        around = [a for a, b in pairs if a < first.number and last.number < b]
        points.append(max(around, default=None) if first.continues is None else first.continues)
    return points
