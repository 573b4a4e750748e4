"""Episodes of agents for the report page: the requests of each sample, and the tree that they form."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from groupwise.data import THREAD, AgentRequest, branch_points
from groupwise.data.rollout_json import from_json

MOST_CHARACTERS = 2000
"""The most characters of a message, and of the arguments of a tool call, on the page."""
MOST_MESSAGES = 64
"""The most new messages of a request on the page, and the most tool calls of an answer."""


@dataclass(frozen=True, slots=True)
class SamplePlaceInEpisode:
    """The place of a sample in an episode: the index of the episode's answer in its draw, and its requests."""

    answer_index: int
    agent_requests: Sequence[AgentRequest]


def stored_episode(row: Mapping[str, Any], index: int) -> SamplePlaceInEpisode | None:
    """The episode of a row of samples/, the `index`-th of its draw; None for one without an agent's requests.

    Rows with damaged requests have none.
    """
    try:
        requests = tuple(from_json(AgentRequest, request) for request in row["requests"])
        if not requests or not all(map(_is_whole, requests)):
            return None
        return SamplePlaceInEpisode(int(row["parent"]) if row.get("role") == THREAD else index, requests)
    except (KeyError, TypeError, ValueError):
        return None


def in_episodes(samples: Sequence[tuple[dict[str, Any], SamplePlaceInEpisode | None]]) -> list[dict[str, Any]]:
    """The samples of a group for the page, those of an episode together, with their requests.

    `branches_from` is the number of the request beneath which a conversation is shown (`branch_points`), or None.
    """
    conversations: dict[int, list[tuple[dict[str, Any], SamplePlaceInEpisode]]] = {}
    for sample, episode in samples:
        if episode is not None:
            sample |= {"episode": episode.answer_index, "requests": list(map(_request, episode.agent_requests))}
            conversations.setdefault(episode.answer_index, []).append((sample, episode))
    for members in conversations.values():
        points = branch_points([episode.agent_requests for _, episode in members])
        for (sample, _), point in zip(members, points, strict=True):
            sample["branches_from"] = point
    return sorted((sample for sample, _ in samples), key=lambda sample: sample.get("episode", -1))


def _is_whole(request: AgentRequest) -> bool:
    numbers = (request.number, request.start, request.end, request.prompt_tokens, request.continues or 0)
    whole = all(isinstance(x, int) and x >= 0 for x in numbers)
    return whole and (request.continues is None or request.continues < request.number)


def _request(request: AgentRequest) -> dict[str, Any]:
    messages = request.messages[:MOST_MESSAGES]
    return {
        "number": request.number,
        "messages": [{"role": str(m.role)[:40], **_excerpt(m.text), "calls": _calls(m.calls)} for m in messages],
        "messages_of": len(request.messages),
        "start": request.start,
        "end": request.end,
        "prompt_tokens": request.prompt_tokens,
        "calls": _calls(request.calls),
    }


def _calls(calls: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    return [{"name": str(name)[:80], **_excerpt(arguments)} for name, arguments in list(calls)[:MOST_MESSAGES]]


def _excerpt(value: Any) -> dict[str, Any]:
    """The beginning of a text, and the number of characters that it leaves out."""
    text = str(value)  # also in a file whose types are damaged
    return {"text": text[:MOST_CHARACTERS], "left_out": max(len(text) - MOST_CHARACTERS, 0)}
