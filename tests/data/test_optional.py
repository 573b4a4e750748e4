"""Tests of the optional members of verifiers and tasks."""

from collections.abc import Sequence
from typing import Any

from groupwise.data import Outcome, Prompt, Sample, Verdict, Verifier, all_problems, data_stats
from groupwise.tasks import MixtureVerifier
from groupwise.verifiers import Exact
from groupwise.verifiers.combined import BuiltMember, CombinedVerifier


class Full(Verifier):
    """A verifier with all members that a run reads."""

    has_own_deadline = True
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
    source_stats = ("a source",)


def facts(verifier: Any) -> tuple[bool, list[str], list[str]]:
    return verifier.has_own_deadline, list(verifier.notices), list(verifier.packages)


def test_a_plain_verifier_has_the_defaults() -> None:
    assert facts(Exact()) == (False, [], [])
    Exact().close()


def test_the_members_of_a_verifier_are_read() -> None:
    full = Full()
    assert facts(full) == (True, ["sends answers to a host"], ["sympy", "mpmath"])
    full.close()
    assert full.closed == 1


def test_a_mixture_s_verifier_has_the_members_of_each() -> None:
    assert facts(MixtureVerifier((Exact(), Exact()))) == (False, [], [])
    assert facts(MixtureVerifier((Exact(), Full(), Full()))) == (True, ["sends answers to a host"], ["mpmath", "sympy"])


def test_several_verifiers_have_the_members_of_each_and_close_them() -> None:
    full = Full()
    both = CombinedVerifier([BuiltMember("right", Exact(), 1.0), BuiltMember("full", full, 1.0)], deadline=1.0)
    assert facts(both) == (True, ["sends answers to a host"], ["mpmath", "sympy"])
    both.close()
    assert full.closed == 1


def test_only_a_task_that_lists_its_problems_has_training_problems_and_statistics() -> None:
    generated, listed = Generated(), Listed()
    assert list(all_problems(generated)) == [ONE] and list(data_stats(generated)) == []
    assert list(all_problems(listed)) == [ONE, TWO] and list(data_stats(listed)) == ["a source"]
