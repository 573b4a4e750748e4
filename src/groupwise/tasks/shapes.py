"""The task `shapes`: count the shapes of one colour in a picture of 32 x 32 pixels, for the packaged model `shapes`.

A picture has up to twelve squares, discs and crosses of three colours on a dark, noisy ground. The text of a problem is
a colour, and its answer the number of shapes that have it, 0 to 4. Each problem has a number, from which it is drawn;
no list of pictures exists.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from groupwise.data import Ids, Prompt
from groupwise.models import RandomPurpose, keyed_random, picture_of_pixels
from groupwise.tasks.generated_task import GeneratedTaskSettings, LazySequence

__all__ = ["SHAPE_COLOURS", "Shapes", "draw_shapes"]

SHAPE_COLOURS = {"red": (230, 60, 50), "green": (60, 200, 80), "blue": (70, 110, 240)}
SIDE, CELL, PLACES = 32, 8, 16
"""Pixels of a side, pixels of the side of a cell, and cells: each shape has one for itself."""
GROUND = 6
"""The noise of the ground is a byte over this number."""
MOST_SHAPES = 4
"""The most shapes of a colour."""
TRAINING, HELD_OUT = 16_384, 256

Pixels = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Shapes(GeneratedTaskSettings):
    """16,384 problems to train on, and 256 held-out ones. `row["answer"]` is the number of shapes.

    >>> colour, counts, pixels = draw_shapes(0)
    >>> colour, counts, pixels.shape
    ('green', {'red': 2, 'green': 3, 'blue': 1}, (32, 32, 3))
    """

    def problems(self) -> tuple[Sequence[int], Sequence[int]]:
        return LazySequence(TRAINING, lambda index: HELD_OUT + index), range(HELD_OUT)

    def prompt(self, problem: int, encode: Callable[..., Ids], /) -> Prompt:
        colour, counts, pixels = draw_shapes(problem)
        picture = picture_of_pixels(pixels)
        ids = encode(colour, pictures=(picture,))
        return Prompt(f"shapes/{problem}", ids, colour, {"answer": counts[colour]}, pictures=(picture,))


def draw_shapes(problem: int) -> tuple[str, dict[str, int], Pixels]:
    """The colour that a problem asks for, the number of shapes of each colour, and the picture [32, 32, 3]."""
    random = keyed_random((0, RandomPurpose.TASK), problem)
    pixels = np.frombuffer(random.randbytes(SIDE * SIDE * 3), np.uint8).reshape(SIDE, SIDE, 3) // GROUND
    counts = {name: random.randrange(MOST_SHAPES + 1) for name in SHAPE_COLOURS}
    places = random.sample(range(PLACES), sum(counts.values()))
    for name in (name for name, count in counts.items() for _ in range(count)):
        row, column = divmod(places.pop(), SIDE // CELL)
        mask = SHAPES[random.randrange(len(SHAPES))](random.choice((5, 6, 7)))
        top, left = (CELL * at + random.randrange(CELL - len(mask) + 1) for at in (row, column))
        light = random.uniform(0.8, 1.0)
        colour = np.array([round(light * level) for level in SHAPE_COLOURS[name]], np.uint8)
        pixels[top : top + len(mask), left : left + len(mask)][mask] = colour
    return random.choice(tuple(SHAPE_COLOURS)), counts, pixels


def square(size: int) -> NDArray[np.bool_]:
    return np.ones((size, size), bool)


def disc(size: int) -> NDArray[np.bool_]:
    at = np.arange(size) - (size - 1) / 2
    return at[:, None] ** 2 + at**2 <= (size / 2) ** 2


def cross(size: int) -> NDArray[np.bool_]:
    bar = np.abs(np.arange(size) - (size - 1) / 2) <= 1
    return bar[:, None] | bar


SHAPES = (square, disc, cross)
