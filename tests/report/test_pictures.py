"""Pictures in the report, in a browser: a group side by side, its trajectories, and prompts before and after."""

import json
from pathlib import Path
from typing import Any

import pytest

from groupwise.report.report import write_report
from groupwise.report.sample_pictures import EACH, PROMPTS
from tests.report.fixture_run import CANARIES, STEPS, write_pictures, write_prompt_pictures, write_run

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = write_run(tmp_path_factory.mktemp("plane") / "run", iterations=4, prompts=2, pool=3, canary=CANARIES[0])
    return write_report([write_pictures(run, plane=True)])


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = write_run(tmp_path_factory.mktemp("pictures") / "run", iterations=4, prompts=2, pool=3)
    return write_report([write_pictures(run, plane=False)])


SIDES = ((32, 32), (113, 120), (32, 128), (20, 4))
"""Heights and widths of the pictures of a prompt."""


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = write_run(tmp_path_factory.mktemp("asked") / "run", iterations=1, prompts=1, pool=1)
    return write_report([write_prompt_pictures(run, SIDES)])


DRAWN = "all => all.filter((i) => i.complete && i.naturalWidth === 8 && i.getBoundingClientRect().width > 20).length"


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 360)])
def test_the_pictures_of_a_group_are_side_by_side(visit: Any, pictures: Path, scheme: str, width: int) -> None:
    page = visit(pictures, color_scheme=scheme, viewport={"width": width, "height": 800})
    answers = page.locator(".answer .picture")
    page.locator("#rollouts").scroll_into_view_if_needed()
    assert answers.count() == page.locator(".answer").count() == answers.evaluate_all(DRAWN) == 8
    tops = answers.evaluate_all("all => all.map((i) => Math.round(i.closest('article').getBoundingClientRect().top))")
    assert tops.count(tops[0]) >= (5 if width == 1280 else 2)
    assert answers.first.get_attribute("alt").startswith("picture of answer 1, ")
    assert page.locator(".trajectories").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_the_pictures_of_a_prompt_are_above_its_text(visit: Any, asked: Path, scheme: str, width: int) -> None:
    page = visit(asked, color_scheme=scheme, viewport={"width": width, "height": 800})
    pictures = page.locator(".prompt .asked img")
    pictures.first.scroll_into_view_if_needed()
    boxes = pictures.evaluate_all("all => all.map((i) => i.getBoundingClientRect().toJSON())")
    sizes = pictures.evaluate_all("all => all.map((i) => [i.naturalHeight, i.naturalWidth])")
    assert sizes == list(map(list, SIDES))
    assert all(box["width"] >= 90 and box["left"] >= 0 and box["right"] <= width for box in boxes)
    assert (len({box["top"] for box in boxes}) == 1) == (width == 1280), "on a phone they wrap"
    assert pictures.nth(1).get_attribute("alt") == "picture 2 of the prompt"
    edge = "(i) => { const s = getComputedStyle(i); return [s.borderTopWidth, s.borderTopColor]; }"
    thickness, colour = pictures.first.evaluate(edge)
    ground = page.locator(".prompt").first.evaluate("(i) => getComputedStyle(i).backgroundColor")
    assert thickness == "1px" and colour != ground, "a dark picture has an edge on a dark page"
    assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 360)])
@pytest.mark.parametrize("kind", ["pictures", "plane"])
def test_prompts_before_and_after(visit: Any, request: Any, kind: str, scheme: str, width: int) -> None:
    path = request.getfixturevalue(kind)
    page = visit(path, color_scheme=scheme, viewport={"width": width, "height": 800})
    samples = {
        int(p.stem): [*map(json.loads, p.read_text().splitlines())] for p in (path.parent / "samples").glob("*.jsonl")
    }
    entries = page.locator("#before article")
    assert 1 <= entries.count() <= PROMPTS
    for entry in entries.all():
        prompt = entry.locator(".text").text_content()
        visited = [i for i in sorted(samples) if prompt in [row["prompt"] for row in samples[i]]]
        assert len(visited) > 1
        for side, iteration in zip(entry.locator(".side").all(), (visited[0], visited[-1]), strict=True):
            rows = [row for row in samples[iteration] if row["prompt"] == prompt]
            right = sum(row["outcome"] == "correct" for row in rows)
            assert side.locator(".note").inner_text() == f"iteration {iteration} {right} of {len(rows)} right"
            shown = min(len(rows), EACH)
            if kind == "plane":
                assert side.locator(".plane .path").count() == shown and side.locator("img").count() == 0
            else:
                side.scroll_into_view_if_needed()
                assert side.locator("img").evaluate_all(DRAWN) == side.locator("img").count() == shown
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.locator("nav a", has_text="Before and after").count() == 1


TIPS = "all => all.map((c) => [Number(c.getAttribute('cx')), Number(c.getAttribute('cy'))])"


def tips(page: Any) -> list[list[float]]:
    """The positions of the trajectories' ends, y upwards."""
    return [[x, -y] for x, y in page.locator(".trajectories circle").evaluate_all(TIPS)]


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 360)])
def test_the_keyboard_moves_the_trajectories(visit: Any, plane: Path, scheme: str, width: int) -> None:
    page = visit(plane, color_scheme=scheme, viewport={"width": width, "height": 800})
    caption = page.locator(".trajectories output")
    slider = page.locator(".trajectories input")
    assert caption.inner_text() == f"step {STEPS} of {STEPS}" and {x for x, _ in tips(page)} == {2.0}
    slider.focus()
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    assert caption.inner_text() == slider.get_attribute("aria-valuetext") == f"step 7 of {STEPS}"
    assert {x for x, _ in tips(page)} == {0.5}
    page.keyboard.press("Home")
    assert {x for x, _ in tips(page)} == {-3.0}
    page.keyboard.press("ArrowUp")
    assert {x for x, _ in tips(page)} == {-2.5}
    signs = page.locator(".trajectories .path").evaluate_all("all => all.map((g) => g.getAttribute('class'))")
    advantages = page.locator("#rollouts td[data-value]").evaluate_all("all => all.map((c) => Number(c.dataset.value))")
    assert signs == [f"path {'pos' if a > 0 else 'neg' if a < 0 else 'even'}" for a in advantages]
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.locator(".trajectories .plane").bounding_box()["width"] > 200


FRAMES = "() => { window.due = []; window.requestAnimationFrame = (f) => due.push(f); }"
FRAME = "(now) => { const frames = due; due = []; frames.forEach((f) => f(now)); }"
GRID = {-3 + 0.5 * k for k in range(STEPS + 1)}
"""The positions of the states on the axis; between them is motion."""


def at_frames(page: Any, *times: float) -> list[float]:
    """The place of the first trajectory's end after a frame of the animation at each time, in milliseconds."""
    return [page.evaluate(FRAME, time) or tips(page)[0][0] for time in times]


def test_the_trajectories_play_and_pause(visit: Any, plane: Path) -> None:
    page = visit(plane)
    page.evaluate(FRAMES)  # the test makes the frames, so that no clock decides
    button, caption = page.locator(".trajectories .play"), page.locator(".trajectories output")
    assert {x for x, _ in tips(page)} == {2.0} and page.evaluate("due.length") == 0, "nothing moves unasked"
    button.focus()
    page.keyboard.press("Enter")
    assert button.inner_text() == "Pause"
    seen = at_frames(page, 1000, 1100, 1200, 1700)
    assert seen == sorted(seen) and len({*seen}) == 4 and seen[0] == -3 and not {*seen} <= GRID
    page.keyboard.press("Enter")
    assert button.inner_text() == "Play" and at_frames(page, 2000, 2500) == [seen[-1]] * 2
    button.click()
    assert seen[-1] < at_frames(page, 3000, 3200)[-1] < 2
    assert at_frames(page, 9000) == [2.0] and button.inner_text() == "Play"
    assert caption.inner_text() == f"step {STEPS} of {STEPS}" and page.evaluate("due.length") == 0


def test_with_reduced_motion_the_states_follow_each_other_without_motion(visit: Any, plane: Path) -> None:
    page = visit(plane, reduced_motion="reduce")
    page.evaluate(FRAMES)
    page.locator(".trajectories .play").click()
    seen = {*at_frames(page, 1000, 1100, 1200, 1400, 1700, 2400, 2900)}
    assert seen <= GRID and len(seen) > 3


def test_a_click_on_a_trajectory_shows_its_answer(visit: Any, plane: Path) -> None:
    page = visit(plane)
    page.locator(".trajectories .path[data-i='5'] circle").click()
    assert page.locator(".answer.target").get_attribute("id") == "answer-5"
    page.keyboard.press("p")
    assert page.locator(".trajectories").count() == 1


def test_pages_without_pictures_have_no_section_of_them(visit: Any, tmp_path: Path) -> None:
    page = visit(write_report([write_run(tmp_path / "run", iterations=2)]))
    assert page.locator("#before, .trajectories, .plane, img").count() == 0


def test_the_branches_of_a_tree_are_no_answers(visit: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", iterations=2, prompts=1, size=4, pool=1)
    for path in (run / "samples").glob("*.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows[0] |= {"role": "branch", "outcome": "scored"}
        rows[1] |= {"outcome": "correct"}
        rows[2] |= {"outcome": "wrong"}
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = visit(write_report([run]))
    assert " of 3 right" in page.locator("#rollouts .prompt .note").inner_text()
    for path in (run / "samples").glob("*.jsonl"):
        rows = [json.loads(line) | {"role": "branch"} for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    note = visit(write_report([run])).locator("#rollouts .prompt .note").inner_text()
    assert "4 with the role branch, no answers" in note
