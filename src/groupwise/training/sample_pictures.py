"""The pictures of an iteration's samples, for its files in samples/: one PNG sheet, a row per rollout."""

from collections.abc import Sequence
from typing import Any

from groupwise.data import Rollout
from groupwise.models.flow.denoising_actions import Pixels
from groupwise.models.flow.latent_pictures import PictureSheet, picture_of, png, points_of, reduced

LARGE = 128
"""The most pixels of a side of a picture on a sheet: an iteration may have a thousand pictures of 512 x 512 pixels."""


def sample_pictures(rollouts: Sequence[Rollout]) -> tuple[bytes, list[dict[str, Any]]]:
    """A PNG sheet of all pictures, and for each sample the fields of its line: where its picture is, and its points.

    Points are the states of a trajectory in the plane. Pictures with a side of more than `LARGE` pixels are reduced.
    Samples are in the order of `sample_lines`. Without a picture, the sheet is empty, and so are the fields.
    """
    sheet = PictureSheet.of(
        [[on_sheet(picture_of(sample.actions)) for sample in rollout.samples] for rollout in rollouts]
    )
    if sheet is None:
        return b"", [{} for rollout in rollouts for _ in rollout.samples]
    paths = [sample.actions for rollout in rollouts for sample in rollout.samples]
    boxes: list[dict[str, Any]] = [
        {} if box is None else {"picture": {"box": list(box), "scale": sheet.enlargement_factor}}
        for box in sheet.picture_boxes
    ]
    points = [{} if (found := points_of(path)) is None else {"points": found} for path in paths]
    return png(sheet.pixels), [box | line for box, line in zip(boxes, points, strict=True)]


def on_sheet(picture: Pixels | None) -> Pixels | None:
    """A picture in the size that it has on a sheet."""
    return None if picture is None else reduced(picture, LARGE)
