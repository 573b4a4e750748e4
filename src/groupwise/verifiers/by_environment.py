"""The verifier of a recipe without one, for conversations whose environment gives the verdict."""

from dataclasses import dataclass

from groupwise.data import Finish, Outcome, Prompt, Sample, Verdict, VerifierSettings
from groupwise.data.verdicts import unverifiable

__all__ = ["EnvironmentVerdictVerifier"]


@dataclass(frozen=True, slots=True)
class EnvironmentVerdictVerifier(VerifierSettings):
    """The verifier of a recipe whose environment gives the verdict: grades only conversations that ended without one.

    Malformed if the limit of turns or tokens cut it. Unverifiable if the environment ended it with None.

    >>> import asyncio
    >>> sample = Sample(context=(5,), stream=(0,), finish=Finish.length)
    >>> asyncio.run(EnvironmentVerdictVerifier()(Prompt("p", (1,), "?"), sample)).outcome.name
    'malformed'
    """

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        if sample.finish is Finish.length:
            return Verdict(Outcome.malformed, feedback="the conversation was cut before the environment gave a verdict")
        return unverifiable(
            "the environment ended with None, or the agent returned no reward: return one, or add a verifier"
        )
