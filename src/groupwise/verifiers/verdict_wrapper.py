"""The base of verifiers that change the verdicts of another one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from groupwise.data import (
    Prompt,
    Sample,
    Verdict,
    VerdictContents,
    Verifier,
    VerifierSettings,
    contents_of,
    joined_contents,
)
from groupwise.verifiers.build_verifier import VerifierContext


@dataclass(frozen=True, slots=True)
class VerdictWrapper(VerifierSettings):
    """The settings of a verifier that changes the verdicts of `verifier`.

    `added_subscores` are the names of the subscores that it adds to the verdicts.
    """

    added_subscores: ClassVar[tuple[str, ...]] = ()
    verifier: VerifierSettings

    def build(self, grading: VerifierContext) -> Verifier:
        """The wrapped verifier with changed verdicts."""
        return VerdictWrapperVerifier(self, grading.build(self.verifier))

    def change(self, prompt: Prompt, sample: Sample, verdict: Verdict) -> Verdict:
        """The verdict that replaces the wrapped verifier's verdict."""
        raise NotImplementedError


class VerdictWrapperVerifier(Verifier):
    """A verifier with the deadline, checks, notices and workers of the verifier that it wraps."""

    def __init__(self, kind: VerdictWrapper, verifier: Verifier) -> None:
        self.change, self.verifier = kind.change, verifier
        self.contents = joined_contents([contents_of(verifier), VerdictContents(kind.added_subscores)])
        self.has_own_deadline, self.notices, self.packages = (
            verifier.has_own_deadline,
            verifier.notices,
            verifier.packages,
        )

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        return self.change(prompt, sample, await self.verifier(prompt, sample))

    def by_group(self, prompt: Prompt, /) -> bool:
        """Whether the wrapped verifier grades all samples of a group together."""
        return self.verifier.by_group(prompt)

    async def grade_group(self, prompt: Prompt, samples: Sequence[Sample], /) -> list[Verdict]:
        """The changed verdicts on the samples of a group, in their order."""
        verdicts = await self.verifier.grade_group(prompt, samples)
        return [self.change(prompt, sample, verdict) for sample, verdict in zip(samples, verdicts, strict=True)]

    def gate(self, prompts: Sequence[Prompt], /) -> None:
        """Let the wrapped verifier check the problems before the run."""
        self.verifier.gate(prompts)

    def close(self) -> None:
        """End the wrapped verifier's workers."""
        self.verifier.close()
