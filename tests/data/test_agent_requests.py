"""The requests of an agent: the tree that they form, and their JSON."""

import json

import pytest

from groupwise.data import AgentMessage, AgentRequest, Sample, branch_points
from groupwise.data.rollout_json import from_json, to_json


def requests(*numbers: int, continues: int | None = None) -> list[AgentRequest]:
    """A conversation with these requests, the first of which continues the answer of another."""
    return [AgentRequest(n, (), 0, 0, continues=continues if i == 0 else numbers[i - 1]) for i, n in enumerate(numbers)]


@pytest.mark.parametrize(
    ("conversations", "points"),
    [
        ([requests(0, 1), requests(2)], [None, None]),  # a solver, then a checker
        ([requests(0, 3, 4), requests(1, 2)], [None, 0]),  # a sub-agent
        ([requests(0, 5), requests(1, 4), requests(2, 3)], [None, 0, 1]),  # a sub-agent of a sub-agent
        ([requests(0, 3), requests(1, 4), requests(2, 5)], [None, None, None]),  # side by side, at the same time
        ([requests(0, 1, 4), requests(2, 3, continues=0)], [None, 0]),  # a branch of the first answer
        ([requests(0, 2), requests(1, 3)], [None, None]),  # it goes on after the other conversation
    ],
)
def test_a_conversation_branches_from_the_request_that_waits_for_it(
    conversations: list[list[AgentRequest]], points: list[int | None]
) -> None:
    assert branch_points(conversations) == points


def test_the_requests_of_a_sample_are_json() -> None:
    call = ("add", '{"a": 1}')
    request = AgentRequest(3, (AgentMessage("tool", "<b>\ud83d", (call,)),), 2, 4, 9, (call,), continues=1)
    sample = Sample(context=(1,), stream=(0,), requests=(request,))
    assert from_json(Sample, json.loads(json.dumps(to_json(sample)))) == sample
    assert sample.after(0).requests == () == sample.fork(0, 1).requests, "their tokens have other positions there"
