"""The verifier `Combined`: a weighted combination of named verifiers."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from groupwise.core import check_types, describe_error
from groupwise.core.errors import ends_run
from groupwise.data import (
    Outcome,
    Prompt,
    Sample,
    Verdict,
    VerdictContents,
    Verifier,
    VerifierSettings,
    contents_of,
    joined_contents,
)
from groupwise.data.verdicts import unverifiable
from groupwise.verifiers.build_verifier import VerifierContext

__all__ = ["Combined", "CombinedMember"]


@dataclass(frozen=True, slots=True)
class CombinedMember:
    """A named verifier in the combination, and the weight of its score."""

    name: str
    verifier: VerifierSettings
    weight: float = 1.0

    def __post_init__(self) -> None:
        check_types(self)
        if not (self.name.isidentifier() and 0 < self.weight < inf):
            raise ValueError(
                f"the member {self.name!r} has the weight {self.weight}\n"
                "give each member a name of letters, digits and underscores, and a weight above 0"
            )


@dataclass(frozen=True, slots=True)
class Combined(VerifierSettings):
    """Several verifiers as one: the outcome of the first member, and the weighted mean of all scores.

    An answer that one member cannot judge is unverifiable.

    >>> from groupwise.verifiers import Exact, LastNumber
    >>> members = (CombinedMember("right", LastNumber()), CombinedMember("bare", Exact(), 0.25))
    >>> both = Combined(members).build(VerifierContext())
    >>> sample = Sample(context=(), stream=(0,), text="so 4")
    >>> verdict = asyncio.run(both(Prompt("p", (), "2+2=", {"answer": 4}), sample))
    >>> verdict.outcome.name, verdict.score, dict(verdict.subscores)
    ('correct', 0.8, {'right': 1.0, 'bare': 0.0})
    """

    members: tuple[CombinedMember, ...]

    def __post_init__(self) -> None:
        check_types(self)
        names = [member.name for member in self.members]
        if len(names) < 2 or len(set(names)) < len(names):
            raise ValueError(f"the members are {', '.join(names) or 'none'}\nname two verifiers or more, each once")

    def build(self, grading: VerifierContext) -> Verifier:
        """The verifier that asks all members."""
        running = [BuiltMember(m.name, grading.build(m.verifier), m.weight) for m in self.members]
        return CombinedVerifier(running, grading.default_deadline)


@dataclass(frozen=True, slots=True)
class BuiltMember:
    """A member whose verifier is built."""

    name: str
    verifier: Verifier
    weight: float


def contents_of_member(member: BuiltMember) -> VerdictContents | None:
    """The subscores that a member gives: its score by its name, and its own subscores behind the name."""
    contents = contents_of(member.verifier)
    if contents is None:
        return None
    return replace(
        contents, subscore_names=(member.name, *(f"{member.name}/{name}" for name in contents.subscore_names))
    )


class CombinedVerifier(Verifier):
    """The verifier of `Combined`. `deadline`, in seconds, applies to members without a deadline."""

    has_own_deadline = True

    def __init__(self, members: Sequence[BuiltMember], deadline: float) -> None:
        self.members, self.deadline = tuple(members), deadline
        self.contents = joined_contents(contents_of_member(m) for m in members)
        self.notices = [notice for m in members for notice in m.verifier.notices]
        self.packages = sorted({name for m in members for name in m.verifier.packages})

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        return (await self.grade_group(prompt, [sample]))[0]

    def by_group(self, prompt: Prompt, /) -> bool:
        """Whether one of the verifiers grades all samples of a group in one call."""
        return any(m.verifier.by_group(prompt) for m in self.members)

    async def grade_group(self, prompt: Prompt, samples: Sequence[Sample], /) -> list[Verdict]:
        """The verdicts on a group of samples: each combines the verdicts of several verifiers on one sample."""
        columns = await asyncio.gather(*(self._verdicts(m.verifier, prompt, samples) for m in self.members))
        return [self._combined(verdicts) for verdicts in zip(*columns, strict=True)]

    def gate(self, prompts: Sequence[Prompt], /) -> None:
        """Let each verifier check the problems before the run. `BadData` for problems that it cannot use."""
        for member in self.members:
            member.verifier.gate(prompts)

    def _combined(self, verdicts: Sequence[Verdict]) -> Verdict:
        """The verdict on one sample, from the verdicts of all members."""
        for member, verdict in zip(self.members, verdicts, strict=True):
            if verdict.outcome is Outcome.unverifiable:
                return unverifiable(f"{member.name}: {verdict.cause}")
        parts: dict[str, float] = {}
        steps = {f"{m.name}/{name}": x for m, v in zip(self.members, verdicts) for name, x in v.step_scores.items()}
        for member, verdict in zip(self.members, verdicts, strict=True):
            parts[member.name] = verdict.value
            parts |= {f"{member.name}/{name}": x for name, x in verdict.subscores.items()}
        weights = sum(m.weight for m in self.members)
        score = sum(m.weight * v.value for m, v in zip(self.members, verdicts, strict=True)) / weights
        messages = [f"{m.name}: {v.feedback}" for m, v in zip(self.members, verdicts, strict=True) if v.feedback]
        return replace(verdicts[0], score=score, subscores=parts, step_scores=steps, feedback="; ".join(messages))

    async def _verdicts(self, verifier: Verifier, prompt: Prompt, samples: Sequence[Sample]) -> Sequence[Verdict]:
        """A member's verdicts on the samples of a group."""
        if verifier.by_group(prompt):
            return await verifier.grade_group(prompt, samples)
        return await asyncio.gather(*(self._verdict(verifier, prompt, sample) for sample in samples))

    async def _verdict(self, verifier: Verifier, prompt: Prompt, sample: Sample) -> Verdict:
        seconds = None if verifier.has_own_deadline else self.deadline
        try:
            async with asyncio.timeout(seconds):  # in the same task, so the watchdog can end a call that blocks
                return await verifier(prompt, sample)
        except TimeoutError:
            return unverifiable(f"no verdict within {self.deadline:g} s")
        except Exception as error:
            if ends_run(error):
                raise
            return unverifiable(describe_error(error))

    def close(self) -> None:
        """Ends the worker processes of all members."""
        for member in self.members:
            member.verifier.close()
