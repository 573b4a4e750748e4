"""The verifier `GlyphPatches`: the number, the colours and the positions of the patches of a picture."""

import itertools
import re
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from groupwise.core import check_types
from groupwise.data import Outcome, Prompt, Sample, Verdict, VerifierSettings, verdicts_have
from groupwise.tasks.glyphs import GLYPH_COLOURS, GLYPH_RELATIONS, GLYPH_SHAPE
from groupwise.verifiers.flow_states import state_of, verdict_of_parts

__all__ = ["GlyphPatches"]

ASKS = ("count", "colours", "position")
PROBLEM = re.compile(f"({'|'.join(GLYPH_COLOURS)}) ({'|'.join(GLYPH_RELATIONS)}) ({'|'.join(GLYPH_COLOURS)})")
COLOUR_OF = {channels: colour for colour, channels in GLYPH_COLOURS.items()} | {(0, 0, 0): ""}
Place = tuple[int, int]
"""Row and column of one of the 2x2 places."""


@verdicts_have(*ASKS)
@dataclass(frozen=True, slots=True)
class GlyphPatches(VerifierSettings):
    """Right if the picture shows the two patches that the gold answer names, in their relation, and nothing else.

    The parts are 1 or 0: `count`, there are two patches; `colours`, both colours occur and no other does; `position`, a
    patch of the first colour is in the relation to one of the second. With `graded_property` one of them alone decides.
    A picture with a white patch, or without any, is malformed.
    """

    gold_answer_format: ClassVar[str] = "a problem such as red left blue"

    graded_property: Literal["", "count", "colours", "position"] = ""

    def __post_init__(self) -> None:
        check_types(self)

    def fits(self, gold: Any) -> bool:
        """Whether a gold answer is a problem of the task."""
        return isinstance(gold, str) and PROBLEM.fullmatch(gold) is not None

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        picture = state_of(sample, GLYPH_SHAPE)
        if isinstance(picture, Verdict):
            return picture
        problem = PROBLEM.fullmatch(str(prompt.row["answer"]))
        if problem is None:
            return Verdict(Outcome.unverifiable, cause=f"the gold answer is not {self.gold_answer_format}")
        patches = read_patches(picture)
        if patches is None or not patches:
            return Verdict(Outcome.malformed)
        answer = ", ".join(f"{colour} at {row + 1} {column + 1}" for (row, column), colour in sorted(patches.items()))
        return verdict_of_parts(compared(patches, *problem.groups()), self.graded_property, answer)


def compared(patches: dict[Place, str], first: str, relation: str, second: str) -> dict[str, bool]:
    """Whether the patches have the number, the colours and the positions that a problem asks for."""
    down, across = GLYPH_RELATIONS[relation]
    places = {colour: [place for place, c in patches.items() if c == colour] for colour in (first, second)}
    steps = ((b[0] - a[0], b[1] - a[1]) for a, b in itertools.product(places[first], places[second]))
    return {
        "count": len(patches) == 2,
        "colours": set(patches.values()) == {first, second},
        "position": any(down * row + across * column > 0 for row, column in steps),
    }


def read_patches(picture: NDArray[np.floating]) -> dict[Place, str] | None:
    """The colours of the places that are not dark; None if one is white. A channel is light if its mean is above 0.

    >>> picture = -np.ones(GLYPH_SHAPE)
    >>> picture[0, :4, 4:] = 1
    >>> read_patches(picture)
    {(0, 1): 'red'}
    """
    channels, rows, columns = picture.shape
    light = picture.reshape(channels, 2, rows // 2, 2, columns // 2).mean((2, 4)) > 0
    colours = {place: COLOUR_OF.get(tuple(light[:, *place].astype(int).tolist())) for place in np.ndindex(2, 2)}
    return None if None in colours.values() else {place: colour for place, colour in colours.items() if colour}
