"""The pictures of an iteration's samples, for its files in samples/: one PNG sheet, a row per rollout."""

from collections.abc import Sequence
from typing import Any

from groupwise.data import Rollout
from groupwise.models.flow.actions import Pixels
from groupwise.models.flow.pictures import Sheet, picture_of, png, points_of

LARGE = 128
"""The most rows of a picture on a sheet: an iteration of a pipeline may have a thousand pictures of 512 rows."""


def sample_pictures(rollouts: Sequence[Rollout]) -> tuple[bytes, list[dict[str, Any]]]:
    """A PNG sheet of all pictures, and for each sample the fields of its line: where its picture is, and its points.

    Points are the states of a trajectory in the plane. Pictures of more than `LARGE` rows are reduced. Samples are in
    the order of `sample_lines`. Without a picture, the sheet is empty, and so are the fields.
    """
    sheet = Sheet.of([[reduced(picture_of(sample.path)) for sample in rollout.samples] for rollout in rollouts])
    if sheet is None:
        return b"", [{} for rollout in rollouts for _ in rollout.samples]
    paths = [sample.path for rollout in rollouts for sample in rollout.samples]
    boxes: list[dict[str, Any]] = [
        {} if box is None else {"picture": {"box": list(box), "scale": sheet.scale}} for box in sheet.boxes
    ]
    points = [{} if (found := points_of(path)) is None else {"points": found} for path in paths]
    return png(sheet.pixels), [box | line for box, line in zip(boxes, points, strict=True)]


def reduced(picture: Pixels | None) -> Pixels | None:
    """A large picture with means over squares of pixels in place of pixels."""
    if picture is None or (factor := -(-len(picture) // LARGE)) == 1:
        return picture
    rows, columns = (side // factor for side in picture.shape[:2])
    squares = picture[: rows * factor, : columns * factor].reshape(rows, factor, columns, factor, 3)
    return squares.mean((1, 3)).round().astype(picture.dtype)
