"""Tests of the watchdog that need no run."""

import importlib

import pytest

from groupwise.training.signal_watchdog import JUDGES

ROOMS = {
    "DrawSampler": "rollout.sampler",
    "CombinedVerifier": "verifiers.several",
    "EnvironmentThreads": "environments.user",
}


@pytest.mark.parametrize("name", JUDGES)
def test_the_callers_of_verifiers_have_these_names(name: str) -> None:
    """The watchdog finds them by their qualified names, so a renamed method would be missed."""
    kind, _, method = name.partition(".")
    function = getattr(getattr(importlib.import_module(f"groupwise.{ROOMS[kind]}"), kind), method)
    assert function.__code__.co_qualname == name
