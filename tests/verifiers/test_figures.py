"""The verifier of figures: their number, colour and shape in pictures of two sizes, and its four verdicts."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.core import BadData, Usage
from groupwise.data import Finish, Outcome, Verdict
from groupwise.tasks import GLYPH_COLOURS, named_task
from tests.verifiers.built import built, verdict_of_picture

SHAPES = {
    "square": np.ones((9, 9)),
    "bar": np.ones((3, 9)),
    "disc": np.hypot(*np.mgrid[-4:5, -4:5]) < 4.6,
    "cross": (abs(np.mgrid[-4:5, -4:5]) < 2).any(0),
    "other": np.tril(np.ones((9, 9))),
}


def painted(*figures: tuple[str, str], scale: int = 1) -> np.ndarray:
    """A dark picture of 32 x 32 pixels, or `scale` times as large, with up to four figures."""
    picture = -np.ones((3, 32, 32), np.float32)
    for (colour, shape), (row, column) in zip(figures, ((2, 2), (2, 18), (18, 2), (18, 18)), strict=False):
        mask = SHAPES[shape].astype(bool)
        place = picture[:, row : row + mask.shape[0], column : column + mask.shape[1]]
        channels = (1, 1, 1) if colour == "white" else GLYPH_COLOURS[colour]
        place[:, mask] = (2 * np.array(channels) - 1)[:, None]
    return picture.repeat(scale, 1).repeat(scale, 2)


def verdict(picture: Any, problem: str = "2 red square", name: Any = "figures", **how: Any) -> Verdict:
    return verdict_of_picture(picture, problem, name, **how)


@pytest.mark.parametrize("scale", [1, 5])
@pytest.mark.parametrize("shape", SHAPES)
def test_each_shape_is_read_at_each_size(shape: str, scale: int) -> None:
    found = verdict(painted(("cyan", shape), ("red", "square"), scale=scale))
    assert found.answer == ", ".join(sorted([f"cyan {shape}", "red square"]))
    turned = painted(("cyan", shape), scale=scale).transpose(0, 2, 1)
    assert verdict(turned).answer == f"cyan {shape}"


@pytest.mark.parametrize(
    ("figures", "count", "colour", "shape"),
    [
        ([("red", "square")] * 2, 1, 1, 1),
        ([("red", "square")], 0, 1, 1),
        ([("red", "square")] * 3, 0, 1, 1),
        ([("red", "square"), ("blue", "square")], 1, 0, 1),
        ([("red", "square"), ("red", "disc")], 1, 1, 0),
        ([("red", "square")] * 2 + [("white", "other")], 0, 0, 0),
    ],
)
def test_parts_of_a_verdict(figures: list[tuple[str, str]], count: float, colour: float, shape: float) -> None:
    parts = {"count": count, "colour": colour, "shape": shape}
    found = verdict(painted(*figures))
    assert found.subscores == parts and found.outcome is Outcome(int(min(parts.values())))
    for name, holds in parts.items():
        assert verdict(painted(*figures), name={"kind": "figures", "graded_property": name}).outcome is Outcome(
            int(holds)
        )


def test_pictures_without_a_verdict_on_their_figures() -> None:
    right = painted(("red", "square"), ("red", "square"))
    assert verdict(right).outcome is Outcome.correct
    assert verdict(painted()).outcome is Outcome.malformed
    assert verdict(right, finish=Finish.length).outcome is Outcome.malformed
    for broken in (right[0], np.where(right > 0, np.nan, right)):
        assert verdict(broken).outcome is Outcome.unverifiable
    assert "the gold answer is not a number, a colour" in verdict(right, "two squares").cause
    speck = painted(("red", "square"), ("red", "square"))
    speck[2, 30, 30] = 1
    assert verdict(speck).outcome is Outcome.correct
    assert verdict(speck, name={"kind": "figures", "min_area_fraction": 0}).outcome is Outcome.wrong


@given(
    st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=9), st.sampled_from(["red", "cyan"])
)
def test_the_number_of_separate_squares_is_their_count(places: set[tuple[int, int]], colour: str) -> None:
    """Squares of 2 x 2 pixels on a grid of 4; a corner that touches would join none, and no two touch here."""
    picture = -np.ones((3, 32, 32), np.float32)
    for row, column in places:
        picture[:, 4 * row : 4 * row + 2, 4 * column : 4 * column + 2] = (2 * np.array(GLYPH_COLOURS[colour]) - 1)[
            :, None, None
        ]
    found = verdict(picture, f"{len(places)} {colour} square", {"kind": "figures", "min_area_fraction": 0.001})
    assert found.outcome is Outcome.correct


def test_regions_that_touch_at_a_corner_are_two() -> None:
    picture = -np.ones((3, 8, 8), np.float32)
    picture[0, :4, :4] = picture[0, 4:, 4:] = 1
    assert verdict(picture).outcome is Outcome.correct


def test_other_gold_answers_and_settings_are_refused(tmp_path: Any) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "x", "answer": "2 red square"}\n{"prompt": "y", "answer": "red"}\n')
    task = named_task(str(rows)).build(lambda text: (65,))
    with pytest.raises(BadData, match="a number, a colour and a shape such as 2 red square"):
        built("figures", task)
    for settings, why in (
        ({"graded_property": "size"}, "is not one of"),
        ({"min_area_fraction": 2}, "give a share of the picture"),
    ):
        with pytest.raises(Usage, match=why):
            built({"kind": "figures", **settings}, task)
