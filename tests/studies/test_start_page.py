"""The start page of the studies: its table of claims, and their forest plot."""

import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from studies.forest import LEFT, LINE, NUMBER, RIGHT, SIZE, VERDICTS, WIDTH, Row, forest
from studies.pages import RESULTS, filled, read_exact
from studies.running import find_study
from studies.start_page import Claim, claims, picture, verdicts
from studies.study import Estimate
from tools.start_page import FOREST, LENGTHS, PAGE

from groupwise.certificates.studies import read_results
from studies import __main__ as command
from studies import signal_kept, study

HOME = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"
ZERO = (LEFT + RIGHT) / 2
ROWS = [
    Row("a claim", -0.1, 0.2, 0.5, "undecided", "0.2 (-0.1 to 0.5)"),
    Row("that falls", -4.0, -3.0, -2.0, "opposite"),
    Row("that rises", 1.0, 2.0, 4.0, "shown"),
    Row("that is small", -0.01, 0.0, 0.01, "absent", marks="*"),
    Row("that rises, too", 1.0, 1.0, 1.0, "shown"),
]


@pytest.fixture(scope="module")
def stored() -> list[Claim]:
    """The claims with the stored results."""
    return claims(read_results(HOME / RESULTS), read_exact(HOME))


def elements(svg: str, tag: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg).iter(f"{SVG}{tag}"))


def test_rows_of_a_verdict_are_together_with_its_word_and_shape() -> None:
    svg = forest(ROWS, "Five claims")
    texts = [e.text for e in elements(svg, "text")]
    assert [text for text in texts if text in VERDICTS] == ["shown", "shown", "opposite", "absent", "undecided"]
    names = [text for text in texts if text and text.startswith(("a claim", "that "))]
    assert names == ["that rises", "that rises, too", "that falls", "that is small *", "a claim"]
    circles, squares = elements(svg, "circle"), elements(svg, "rect")[1:]
    hollow = ["stroke" in (e.get("style") or "") for e in circles]
    assert hollow == [False] * 4 + [True] * 2, "a filled circle is shown, a hollow one undecided"
    assert [e.get("transform") is not None for e in squares] == [True, True, False, False]
    assert len({VERDICTS[verdict] for verdict in VERDICTS}) == 4
    assert texts[-1] is not None and texts[-1].startswith("* a run of this claim")
    assert not any("*" in (text or "") for text in (e.text for e in elements(forest(ROWS[:3], ""), "text")))


def test_an_interval_lies_on_the_scale_of_its_row() -> None:
    half = (RIGHT - LEFT) / 2

    def drawn(*ends: float) -> list[float]:
        svg = forest([Row("x", *ends, "shown")], "")
        interval = next(e for e in elements(svg, "line") if e.get("y1") == e.get("y2") and "2.4" in e.get("style", ""))
        return [float(interval.get(x, "")) for x in ("x1", "x2")] + [float(elements(svg, "circle")[1].get("cx", ""))]

    assert drawn(1.0, 2.0, 4.0) == [ZERO + half / 4, RIGHT, ZERO + half / 2]
    assert drawn(-0.02, -0.01, 0.01) == [LEFT, ZERO + half / 2, ZERO - half / 2]
    assert drawn(float("-inf"), 3.0, float("inf")) == [LEFT, RIGHT, RIGHT], "one seed: no bound"
    assert drawn(0.0, 0.0, 0.0) == [ZERO] * 3


def test_letters_have_11_pixels_where_a_page_shows_the_plot() -> None:
    svg = forest(ROWS, "")
    assert f'font-size="{SIZE}"' in svg and svg.count("font-size") == 1 and SIZE * 750 / WIDTH >= 11


def test_a_claim_is_drawn_on_the_side_of_its_verdict(stored: list[Claim]) -> None:
    assert len(stored) == len({claim.text for claim in stored}) > 16
    for claim in stored:
        row = claim.row
        assert row.low <= row.middle <= row.high
        assert (claim.verdict != "shown" or row.low > 0) and (claim.verdict != "opposite" or row.high < 0), claim.text
    assert {claim.effect.study.name for claim in stored} == set(command.NAMES)


def test_the_table_is_sorted_by_verdict_with_ten_words_a_line(stored: list[Claim]) -> None:
    block, page = verdicts(stored), (HOME / PAGE).read_text("utf-8")
    assert block in page and filled(page, {"verdicts": block}) == page, "python -m tools.start_page"
    head, lines = block.split("\n\n|")[0], [line for line in block.splitlines() if line.startswith("|")][2:]
    rows = [line.strip("| ").split(" | ") for line in lines]
    words = [row[0] for row in rows]
    assert words == sorted(words, key=list(VERDICTS).index) and len(words) == len(stored)
    for verdict, claim, *_ in rows:
        assert len(f"{verdict} {re.sub(r'[(].*?[)]', '', claim)}".split()) <= 10, claim
    for verdict in VERDICTS:
        assert words.count(verdict) == sum(map(int, re.findall(rf"(\d+) {verdict}", head))), verdict
    learning = [claim for claim in stored if claim.kind == "learning"]
    assert head.startswith(f"## {len(learning)} claims about learning: ")
    shown = [claim for claim in learning if claim.verdict == "shown"]
    by_holm, by_hochberg = (sum(claim.kept[i] for claim in shown) for i in (0, 1))
    assert (
        f"of the {len(shown)} shown, Holm's keeps {by_holm} and Benjamini and Hochberg's {by_hochberg}" in block
        and 0 < by_holm < by_hochberg
    )


def test_methods_at_one_rate_are_undecided_and_say_so(stored: list[Claim]) -> None:
    shared = [claim for claim in stored if claim.is_open]
    assert {claim.verdict for claim in shared} == {"undecided"} and all("†" in claim.row.marks for claim in shared)
    assert all(claim.effect.study.tuned for claim in shared) and "one rate" in verdicts(shared[:1])
    assert any(claim.verdict != "undecided" for claim in stored)


def test_only_claims_about_learning_are_in_the_plot(stored: list[Claim]) -> None:
    svg = picture(stored)
    texts = [(e.text or "").rstrip(" †*") for e in elements(svg, "text")]
    assert {claim.text for claim in stored if claim.text in texts} == {
        claim.text for claim in stored if claim.kind == "learning"
    }


def test_the_stored_plot_is_that_of_the_stored_results(stored: list[Claim]) -> None:
    assert (HOME / FOREST).read_text("utf-8") == picture(stored), "python -m tools.start_page"


BOXES = "all => all.map((e) => { const b = e.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; })"
COLOURS = "all => all.map((e) => getComputedStyle(e).fill)"


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_text_of_the_stored_plot_covers_another_and_all_have_contrast(browser, scheme: str) -> None:
    page = browser.new_page(color_scheme=scheme, viewport={"width": WIDTH + 40, "height": 1000})
    page.set_content(f'<body style="margin:0">{(HOME / FOREST).read_text("utf-8")}</body>')
    boxes, colours = page.locator("text").evaluate_all(BOXES), page.locator("text").evaluate_all(COLOURS)
    lines: dict[int, list[list[float]]] = {}
    for box in boxes:
        assert box[0] >= 0 and box[2] <= WIDTH
        assert box[3] - box[1] <= LINE
        lines.setdefault(round(box[1]), []).append(box)
    for line in lines.values():
        ordered = sorted(line)
        assert all(left[2] < right[0] for left, right in pairwise(ordered)), ordered
    for left, top, right, _ in boxes[5:]:
        in_foot = top > page.locator("line").last.bounding_box()["y"] + LINE / 3
        assert in_foot or right < LEFT or left >= NUMBER - 1, "a text lies in the plot"
    paper = luminance(page.locator("rect").first.evaluate("(e) => getComputedStyle(e).fill"))
    for colour in set(colours):
        bright, dim = sorted((luminance(colour), paper), reverse=True)
        assert (bright + 0.05) / (dim + 0.05) >= 4.5, colour
    page.close()


def luminance(colour: str) -> float:
    """The relative luminance of `rgb(r, g, b)`, by WCAG 2."""
    parts = [int(x) / 255 for x in re.findall(r"\d+", colour)[:3]]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return sum(weight * x for weight, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


SIGNAL = (HOME / signal_kept.PAGE).with_suffix(".svg")
FIGURES = [find_study(name).svg(HOME) for name in command.NAMES] + [HOME / FOREST, HOME / LENGTHS, SIGNAL]


@pytest.mark.parametrize("svg", FIGURES, ids=lambda path: path.stem)
def test_the_letters_of_a_figure_have_11_pixels_in_the_column_of_a_page(svg: Path) -> None:
    """Except for exponents. The column of the site has 750 pixels at least; a figure in points is larger by 96 / 72."""
    text = svg.read_text("utf-8")
    width, unit = re.findall(r'<svg [^>]*?\bwidth="([\d.]+)(pt)?"', text)[0]
    pixel = 96 / 72 if unit else 1
    sizes = re.findall(r'<(?:text|svg) [^>]*?font(?:-size)?(?:: |=")([\d.]+)', text)
    assert sizes and min(map(float, sizes)) * min(pixel, 750 / float(width)) >= 10.99


def test_older_code_marks_the_claims_whose_own_runs_are_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """One part of a study may be measured again before the others. An estimate that knows no runs has the study's."""
    results = read_results(HOME / RESULTS)
    monkeypatch.setattr(study, "is_stale", lambda run: run.trial.task == "hinted_sums")
    marked = {claim.text for claim in claims(results, read_exact(HOME)) if claim.is_stale}
    assert marked == {"training lowers pass@64: hinted_sums"}
    old, new = (Estimate((1.0, 2.0), stale=stale) for stale in (True, False))
    assert old.minus(new).stale and new.minus(old).stale and new.minus(new).stale is False
    assert old.minus(Estimate((1.0, 2.0))).stale is None
