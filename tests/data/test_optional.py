"""Tests of the optional members of verifiers and tasks."""

from collections.abc import Sequence
from typing import Any

from groupwise.data import (
    Outcome,
    Prompt,
    Sample,
    Verdict,
    all_problems,
    close_verifier,
    data_stats,
    keeps_time,
    notices_of,
    packages_of,
)
from groupwise.tasks import Each
from groupwise.verifiers import Exact
from groupwise.verifiers.several import CombinedVerifier, RunningMember


class Full:
    """A verifier with all members that a run reads."""

    keeps_time = True
    notices: Sequence[str] = ("sends answers to a host",)
    packages: Sequence[str] = ("sympy", "mpmath")
    closed = 0

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        return Verdict(Outcome.correct)

    def close(self) -> None:
        self.closed += 1


ONE, TWO = Prompt("1", (1,)), Prompt("2", (2,))


class Generated:
    """A task that generates its training problems."""

    held_out = (ONE,)

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Prompt:
        return TWO


class Listed(Generated):
    """A task that lists its training problems."""

    training = (TWO,)
    stats = ("a source",)


def facts(verifier: Any) -> tuple[bool, list[str], list[str]]:
    return keeps_time(verifier), list(notices_of(verifier)), list(packages_of(verifier))


def test_a_plain_verifier_has_the_defaults() -> None:
    assert facts(Exact()) == (False, [], [])
    close_verifier(Exact())


def test_the_members_of_a_verifier_are_read() -> None:
    full = Full()
    assert facts(full) == (True, ["sends answers to a host"], ["sympy", "mpmath"])
    close_verifier(full)
    assert full.closed == 1


def test_a_mixture_s_verifier_has_the_members_of_each() -> None:
    assert facts(Each((Exact(), Exact()))) == (False, [], [])
    assert facts(Each((Exact(), Full(), Full()))) == (True, ["sends answers to a host"], ["mpmath", "sympy"])


def test_several_verifiers_have_the_members_of_each_and_close_them() -> None:
    full = Full()
    both = CombinedVerifier([RunningMember("right", Exact(), 1.0), RunningMember("full", full, 1.0)], deadline=1.0)
    assert facts(both) == (True, ["sends answers to a host"], ["mpmath", "sympy"])
    close_verifier(both)
    assert full.closed == 1


def test_only_a_task_that_lists_its_problems_has_training_problems_and_statistics() -> None:
    generated, listed = Generated(), Listed()
    assert list(all_problems(generated)) == [ONE] and list(data_stats(generated)) == []
    assert list(all_problems(listed)) == [ONE, TWO] and list(data_stats(listed)) == ["a source"]
