"""The verifier `Figures`: the number, the colour and the shape of the figures in a picture of any size."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Bool
from numpy.typing import NDArray

from groupwise.core import InvalidValue, check_types
from groupwise.data import Outcome, Prompt, Sample, Verdict, VerifierSettings, verdicts_have
from groupwise.models.flow.latent_pictures import picture_of, reduced
from groupwise.tasks.glyphs import GLYPH_COLOURS
from groupwise.verifiers.flow_states import state_of, verdict_of_parts

__all__ = ["Figures"]

FIGURE_SHAPES = ("square", "bar", "disc", "cross")
PROBLEM = re.compile(f"([1-9]) ({'|'.join(GLYPH_COLOURS)}) ({'|'.join(FIGURE_SHAPES)})")
COLOURS = {channels: colour for colour, channels in GLYPH_COLOURS.items()} | {(1, 1, 1): "white"}
ASKS = ("count", "colour", "shape")
SIDE = 64
"""Larger pictures are reduced to this side, in pixels, before they are read."""
FULL, ROUND, THIN = 0.88, 0.66, 0.3
"""The least share of its bounding box that a square or bar fills, a disc, and a cross."""
EVEN, LONG = 1.34, 2.0
"""The largest quotient of the sides of a square, disc or cross, and the least one of a bar."""


@dataclass(frozen=True, slots=True, eq=False)
class PictureFigure:
    """A connected region of one colour. `pixel_mask` marks its pixels in its bounding box."""

    colour: str
    pixel_mask: Bool[np.ndarray, "rows columns"]

    @property
    def shape(self) -> str:
        """The shape of the region, from the share of its bounding box that it fills; `other` if it is none of four."""
        filled, quotient = self.pixel_mask.mean(), max(self.pixel_mask.shape) / min(self.pixel_mask.shape)
        if filled >= FULL and quotient >= LONG:
            return "bar"
        if quotient > EVEN or filled < THIN:
            return "other"
        if filled >= FULL:
            return "square"
        corners = self.pixel_mask[:: max(len(self.pixel_mask) - 1, 1), :: max(self.pixel_mask.shape[1] - 1, 1)]
        middle = (
            self.pixel_mask[len(self.pixel_mask) // 2].all() and self.pixel_mask[:, self.pixel_mask.shape[1] // 2].all()
        )
        if corners.any() or not middle:
            return "other"
        return "disc" if filled >= ROUND else "cross"


@verdicts_have(*ASKS)
@dataclass(frozen=True, slots=True)
class Figures(VerifierSettings):
    """Right if the picture shows the figures that the gold answer names, such as `2 red square`, and no others.

    A channel of a pixel is light or dark; pixels with no light channel are the ground. A figure is a region of one
    colour, connected by edges, of at least the share `min_area_fraction` of the picture. The parts are 1 or 0: `count`,
    the number of figures is right; `colour`, all have the colour; `shape`, all are squares, bars, discs or crosses, as
    named, with sides along those of the picture. With `graded_property` one of them alone decides. A picture without
    figures is malformed.
    """

    gold_answer_format: ClassVar[str] = "a number, a colour and a shape such as 2 red square"
    graded_property: Literal["", "count", "colour", "shape"] = ""
    min_area_fraction: float = 0.02

    def __post_init__(self) -> None:
        check_types(self)
        if not 0 <= self.min_area_fraction < 1:
            raise InvalidValue(
                f"min_area_fraction is {self.min_area_fraction}", fix="give a share of the picture, such as 0.02"
            )

    def fits(self, gold: Any) -> bool:
        """Whether a gold answer names figures."""
        return isinstance(gold, str) and PROBLEM.fullmatch(gold) is not None

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        state = state_of(sample, None)
        if isinstance(state, Verdict):
            return state
        problem = PROBLEM.fullmatch(str(prompt.row["answer"]))
        if problem is None:
            return Verdict(Outcome.unverifiable, cause=f"the gold answer is not {self.gold_answer_format}")
        if state.ndim != 3 or (pixels := picture_of(sample.actions)) is None:
            return Verdict(Outcome.unverifiable, cause=f"a state of shape {state.shape}, which is no picture")
        regions = list(figures(reduced(pixels, SIDE) > 127, self.min_area_fraction))
        if not regions:
            return Verdict(Outcome.malformed)
        number, colour, shape = problem.groups()
        parts = {
            "count": len(regions) == int(number),
            "colour": all(figure.colour == colour for figure in regions),
            "shape": all(figure.shape == shape for figure in regions),
        }
        names = ", ".join(sorted(f"{figure.colour} {figure.shape}" for figure in regions))
        return verdict_of_parts(parts, self.graded_property, names)


def figures(light: NDArray[np.bool_], least: float) -> Iterator[PictureFigure]:
    """The figures of a picture, from the light channels of its pixels [rows, columns, 3].

    >>> light = np.zeros((8, 8, 3), bool)
    >>> light[1:4, 1:4, 0] = light[6, 2:7, 2] = True
    >>> [(figure.colour, figure.shape) for figure in figures(light, 0.02)]
    [('red', 'square'), ('blue', 'bar')]
    """
    for channels, colour in COLOURS.items():
        left = {(int(row), int(column)) for row, column in np.argwhere((light == np.array(channels, bool)).all(2))}
        while left:
            region = np.array(sorted(connected(min(left), left)))
            left -= set(map(tuple, region.tolist()))
            if len(region) >= max(least * light[..., 0].size, 1):
                mask = np.zeros(np.ptp(region, 0) + 1, bool)
                mask[tuple((region - region.min(0)).T)] = True
                yield PictureFigure(colour, mask)


def connected(start: tuple[int, int], pixels: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """The pixels that are connected with one of them by edges."""
    region, fresh = {start}, [start]
    while fresh:
        row, column = fresh.pop()
        for side in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
            if side in pixels and side not in region:
                region.add(side)
                fresh.append(side)
    return region
