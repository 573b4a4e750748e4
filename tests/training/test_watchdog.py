"""Tests of the watchdog that need no run."""

import importlib
import inspect

import pytest

from groupwise.training.signal_watchdog import AGENT, JUDGES

ROOMS = {
    "SinglePromptSampler": "rollout.sampler",
    "CombinedVerifier": "verifiers.combined",
    "EnvironmentThreads": "environments.user_environment",
    "AgentCoroutine": "rollout.agents.agent_asyncio_tasks",
}


@pytest.mark.parametrize("name", [*JUDGES, AGENT])
def test_the_callers_of_a_users_code_have_these_names(name: str) -> None:
    """The watchdog finds them by their qualified names, so a renamed method would be missed."""
    kind, _, method = name.partition(".")
    function = getattr(getattr(importlib.import_module(f"groupwise.{ROOMS[kind]}"), kind), method)
    assert inspect.unwrap(function).__code__.co_qualname == name
