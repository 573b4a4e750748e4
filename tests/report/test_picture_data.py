"""The data of pictures in the report: bounded, and robust against damaged files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from groupwise.models.flow.latent_pictures import reduced
from groupwise.report.report import BYTES, write_report
from groupwise.report.sample_pictures import SIDE, before_and_after, picture
from groupwise.report.sample_selection import as_json, files, scan
from groupwise.runs.run_layout import RunLayout
from tests.report.fixture_run import write_pictures, write_run


def test_large_pictures_are_reduced_and_the_page_stays_small(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", iterations=3, prompts=2, size=4, pool=2)
    write_pictures(run, plane=False, side=300)
    page = write_report([run])
    assert page.stat().st_size <= BYTES and page.read_text().count("data:image/png;base64,") > 8
    pixels = np.arange(3 * 400 * 600, dtype=np.uint32).astype(np.uint8).reshape(400, 600, 3)
    assert max(reduced(pixels, SIDE).shape) <= SIDE and reduced(pixels, 600) is pixels
    assert reduced(np.full((1, 4000, 3), 7, np.uint8), SIDE).tolist() == [[[7] * 3] * 190]
    entries = before_and_after(files(RunLayout(run)), budget=0, size=lambda entry: len(as_json(entry)))
    assert entries == []


@pytest.mark.parametrize(
    "points", [[], [[0.0]], [[0.0, 1.0, 2.0]], [["0", None]], [[float("nan"), 0.0]], "text", [[0.0, 0.0]] * 66, [3]]
)
def test_damaged_points_are_left_out(points: Any) -> None:
    assert picture({"points": points}, None) == {}
    assert picture({"points": [[1, 2.5]]}, None) == {"points": [[1.0, 2.5]]}


def test_only_answers_count_before_and_after_and_in_the_map_of_prompts(tmp_path: Path) -> None:
    """The branches of a tree have verdicts of their own, and are no answers."""
    run = write_run(tmp_path / "run", iterations=3, prompts=2, size=4, pool=2)
    write_pictures(run, plane=True, side=8)
    whole = before_and_after(files(RunLayout(run)), budget=10**6, size=lambda entry: len(as_json(entry)))
    tally = scan(RunLayout(run))[1]
    for path in files(RunLayout(run)).values():
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        branches = [row | {"role": "branch", "group": f"{row['group']}-branch", "outcome": "correct"} for row in rows]
        path.write_text("".join(json.dumps(row) + "\n" for row in (*rows, *branches)))
    assert before_and_after(files(RunLayout(run)), budget=10**6, size=lambda entry: len(as_json(entry))) == whole
    assert scan(RunLayout(run))[1] == tally
