"""Pictures of samples on the report page, and prompts whose samples of two iterations stand side by side."""

import math
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from groupwise.models.flow.latent_pictures import Pixels, png, read_png, reduced
from groupwise.report.read_run import as_float, is_answer, lines
from groupwise.runs.run_layout import PICTURES

SIDE = 192  # the largest side of a picture, in pixels; larger ones are reduced
MOST_POINTS = 65  # of a trajectory: the states of the most denoising steps
PROMPTS, EACH = 6, 16  # most prompts side by side, and most samples of each on a side


def read_sheet(samples: Path) -> Pixels | None:
    """The pixels of an iteration's pictures, beside its file of samples; None if they are missing or damaged."""
    try:
        return read_png(samples.with_suffix(PICTURES).read_bytes())
    except (OSError, ValueError):
        return None


def picture(row: Mapping[str, Any], sheet: Pixels | None) -> dict[str, Any]:
    """A sample's picture as the URI of a PNG file, and its points in the plane; {} without them."""
    return _points(row.get("points")) | _cut(row.get("picture"), sheet)


def _cut(box: Any, sheet: Pixels | None) -> dict[str, str]:
    """The picture in a box of the sheet, in its own resolution up to `SIDE`."""
    if sheet is None or not isinstance(box, dict):
        return {}
    try:
        left, top, width, height, scale = map(int, (*box["box"], box["scale"]))
        pixels = sheet[top : top + height : scale, left : left + width : scale]
    except (TypeError, KeyError, ValueError):
        return {}
    if not pixels.size or min(left, top, scale - 1) < 0:
        return {}
    return {"picture": f"data:image/png;base64,{b64encode(png(reduced(pixels, SIDE))).decode()}"}


def _points(points: Any) -> dict[str, list[list[float]]]:
    """The states of a trajectory in the plane, if all are pairs of finite numbers."""
    if not isinstance(points, list) or not 0 < len(points) <= MOST_POINTS:
        return {}
    pairs = [[as_float(x) for x in point] if isinstance(point, list) else [] for point in points]
    return {"points": pairs} if all(len(p) == 2 and all(map(math.isfinite, p)) for p in pairs) else {}


def before_and_after(samples: Mapping[int, Path], *, budget: int, size: Any) -> list[dict[str, Any]]:
    """Prompts with pictures of their first and their last samples: those with the most iterations between them.

    `samples` are the run's sample files by iteration. At most `PROMPTS` prompts are chosen, by position and never by
    content, as far as their sizes, `size(entry)`, fit into `budget` bytes.
    """
    if not any(path.with_suffix(PICTURES).is_file() for path in samples.values()):
        return []
    visits: dict[str, list[int]] = {}
    for iteration, path in samples.items():
        for prompt in dict.fromkeys(str(row.get("prompt_id")) for row in lines(path) if is_answer(row)):
            visits.setdefault(prompt, []).append(iteration)
    spans = {prompt: (found[0], found[-1]) for prompt, found in visits.items() if found[0] < found[-1]}
    chosen = sorted(spans, key=lambda prompt: spans[prompt][0] - spans[prompt][1])[:PROMPTS]
    rows = {i: _rows(samples[i], chosen) for i in sorted({i for prompt in chosen for i in spans[prompt]})}
    entries = []
    for prompt in chosen:
        sides = [_side(i, rows[i].get(prompt, [])) for i in spans[prompt]]
        entry = {"prompt": rows[spans[prompt][0]][prompt][0]["prompt"], "sides": sides}
        budget -= size(entry)
        if budget >= 0 and all(side["samples"] for side in sides):
            entries.append(entry)
    return entries


def _rows(path: Path, prompts: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """The answers to these prompts in an iteration, by prompt, each with its picture."""
    sheet = read_sheet(path)
    found: dict[str, list[dict[str, Any]]] = {}
    for row in lines(path):
        if is_answer(row) and (prompt := str(row.get("prompt_id"))) in prompts:
            facts = {"prompt": str(row.get("prompt", prompt))[:200], "outcome": str(row.get("outcome"))[:20]}
            numbers = {
                name: None if math.isnan(x := as_float(row.get(name))) else x for name in ("advantage", "reward")
            }
            found.setdefault(prompt, []).append({**facts, **numbers, **picture(row, sheet)})
    return found


def _side(iteration: int, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The answers to a prompt in one iteration: counts of all of them, and the first `EACH` with a picture."""
    kept = ("outcome", "advantage", "points" if any("points" in row for row in rows) else "picture")
    drawn = [{name: row[name] for name in kept} for row in rows if kept[-1] in row]
    rewards = [row["reward"] for row in rows if row["reward"] is not None]
    return {
        "iteration": iteration,
        "of": len(rows),
        "right": sum(row["outcome"] == "correct" for row in rows),
        "judged": any(row["outcome"] in ("correct", "wrong", "malformed") for row in rows),
        "reward": sum(rewards) / len(rewards) if rewards else None,
        "samples": drawn[:EACH],
    }
