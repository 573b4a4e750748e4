"""How a draw becomes a family."""

from dataclasses import dataclass

from groupwise.data import Draw, Family, Sampler


@dataclass(frozen=True, slots=True)
class Independent:
    """`draw.n` answers to the prompt, each on its own, as one group."""

    async def __call__(self, draw: Draw, sampler: Sampler) -> Family:
        answers = await sampler.sample(draw.prompt.context, draw.n)
        return Family(draw, tuple(await sampler.verify(answers)))
