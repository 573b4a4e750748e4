"""The pictures of an iteration's samples, for its files in samples/: one PNG sheet, a row per rollout."""

from collections.abc import Sequence
from typing import Any

from groupwise.data import Rollout
from groupwise.models.flow.denoising_actions import Pixels
from groupwise.models.flow.latent_pictures import PictureSheet, picture_of, png, points_of, reduced
from groupwise.models.vision.picture_pixels import pixels_of_picture

LARGE = 128
"""The most pixels of a side of a picture on a sheet: an iteration may have a thousand pictures of 512 x 512 pixels."""


def sample_pictures(rollouts: Sequence[Rollout]) -> tuple[bytes, list[dict[str, Any]]]:
    """A PNG sheet of all pictures, and for each sample the fields of its line: where its picture is, and its points.

    Points are the states of a trajectory in the plane. The pictures of a prompt follow those of its samples on the
    sheet; each of its samples says where. Pictures with a side of more than `LARGE` pixels are reduced. Samples are in
    the order of `sample_lines`. Without a picture, the sheet is empty, and so are the fields.
    """
    groups = [[picture_of(sample.actions) for sample in rollout.samples] for rollout in rollouts]
    prompts = [list(map(pixels_of_picture, rollout.draw.prompt.pictures)) for rollout in rollouts]
    sheet = PictureSheet.of([list(map(on_sheet, [*group, *prompt])) for group, prompt in zip(groups, prompts)])
    if sheet is None:
        return b"", [{} for group in groups for _ in group]
    boxes = iter(
        [None if box is None else {"box": list(box), "scale": sheet.enlargement_factor} for box in sheet.picture_boxes]
    )
    lines: list[dict[str, Any]] = []
    for rollout, prompt in zip(rollouts, prompts):
        own = [next(boxes) for _ in rollout.samples]
        asked = [next(boxes) for _ in prompt]
        for box, sample in zip(own, rollout.samples):
            line = {"picture": box, "points": points_of(sample.actions), "prompt_pictures": asked or None}
            lines.append({name: value for name, value in line.items() if value is not None})
    return png(sheet.pixels), lines


def on_sheet(picture: Pixels | None) -> Pixels | None:
    """A picture in the size that it has on a sheet."""
    return None if picture is None else reduced(picture, LARGE)
