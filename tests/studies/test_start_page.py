"""The start page of the studies: its table of claims, and their forest plot."""

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from studies.claim import state
from studies.claims import CLAIMS, fresh_results
from studies.claims import PAGE as CLAIMS_PAGE
from studies.forest import ARROW, LEFT, LINE, NUMBER, REACH, RIGHT, SIZE, VERDICTS, WIDTH, Row, forest
from studies.pages import RESULTS, filled, read_exact
from studies.running import find_study
from studies.start_page import OF_CLAIMS, Claim, claims, heading, picture, verdicts
from studies.study import Estimate
from tools.start_page import FOREST, LENGTHS, PAGE

from groupwise.certificates.studies import read_results
from studies import __main__ as command
from studies import signal_kept, study

HOME = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"
ZERO = (LEFT + RIGHT) / 2
STUDIES = [find_study(name) for name in command.NAMES]
ROWS = [
    Row("a claim", (-0.1, 0.2, 0.5), "undecided", "0.2 (-0.1 to 0.5)"),
    Row("that falls", (-4.0, -3.0, -2.0), "opposite"),
    Row("that rises", (1.0, 2.0, 4.0), "shown"),
    Row("that is small", (-0.01, 0.0, 0.01), "absent", marks="*"),
    Row("that rises, too", (1.0, 1.0, 1.0), "shown"),
]


@pytest.fixture(scope="module")
def stored() -> list[Claim]:
    """The claims with the stored results."""
    return claims(read_results(HOME / RESULTS), read_exact(HOME), fresh_results(HOME))


def elements(svg: str, tag: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg).iter(f"{SVG}{tag}"))


def test_rows_of_a_verdict_are_together_with_its_word_and_shape() -> None:
    svg = forest(ROWS, "Five claims")
    texts = [e.text for e in elements(svg, "text")]
    assert [text for text in texts if text in VERDICTS] == ["shown", "shown", "opposite", "absent", "undecided"]
    names = [text for text in texts if text and text.startswith(("a claim", "that "))]
    assert names == ["that rises", "that rises, too", "that falls", "that is small *", "a claim"]
    circles, squares = elements(svg, "circle"), elements(svg, "rect")[2:]
    hollow = ["stroke" in (e.get("style") or "") for e in circles]
    assert hollow == [False] * 4 + [True] * 2, "a filled circle is shown, a hollow one undecided"
    assert [e.get("transform") is not None for e in squares] == [True, True, False, False]
    assert len({VERDICTS[verdict] for verdict in VERDICTS}) == 4
    assert texts[-1] is not None and texts[-1].startswith("* a run of this claim")
    assert not any("*" in (text or "") for text in (e.text for e in elements(forest(ROWS[:3], ""), "text")))


def test_intervals_lie_on_one_scale_and_end_in_an_arrow_beyond_the_plot() -> None:
    unit = (RIGHT - LEFT) / 2 / REACH

    def drawn(*ends: float) -> tuple[list[float], list[float]]:
        """The ends of the line with the mark in its middle, and the tips of arrows."""
        svg = forest([Row("x", ends, "shown")], "")  # type: ignore[arg-type]
        interval = next(e for e in elements(svg, "line") if e.get("y1") == e.get("y2") and "2.4" in e.get("style", ""))
        mark = float(elements(svg, "circle")[1].get("cx", ""))
        tips = [float(e.get("d", "").split()[0].removeprefix("M")) for e in elements(svg, "path")]
        return [float(interval.get(x, "")) for x in ("x1", "x2")] + [mark], tips

    assert drawn(1.0, 2.0, 4.0) == (pytest.approx([ZERO + unit, ZERO + 4 * unit, ZERO + 2 * unit], abs=0.1), [])
    assert drawn(-2.0, -1.0, 1.0) == (pytest.approx([ZERO - 2 * unit, ZERO + unit, ZERO - unit], abs=0.1), [])
    ends, tips = drawn(-1.0, 3.0, 50.0)
    assert ends[1] == pytest.approx(RIGHT - ARROW, abs=0.1) and ends[2] == pytest.approx(ZERO + 3 * unit, abs=0.1)
    assert tips == [RIGHT]
    ends, tips = drawn(float("-inf"), 30.0, float("inf"))
    assert tips == [LEFT, RIGHT] and ends[1] - 12 < ends[2] < ends[1], "one seed: no bound; the mark is inside"
    (_, band, *_), zero = elements(forest(ROWS, ""), "rect"), unit
    assert float(band.get("x", "")) == pytest.approx(ZERO - zero, abs=0.1)
    assert float(band.get("width", "")) == pytest.approx(2 * unit, abs=0.1)
    assert "the smallest difference that counts" in "".join(e.text or "" for e in elements(forest(ROWS, ""), "text"))


def test_a_claim_without_runs_has_no_interval(stored: list[Claim]) -> None:
    svg = forest([Row("x", None, "undecided", "no run yet")], "")
    assert len(elements(svg, "circle")) == 1 and not elements(svg, "path") and "no run yet" in svg
    assert all((claim.row.interval is None) is (claim.number == "no run yet") for claim in stored)


def test_letters_have_11_pixels_where_a_page_shows_the_plot() -> None:
    svg = forest(ROWS, "")
    assert f'font-size="{SIZE}"' in svg and svg.count("font-size") == 1 and SIZE * 750 / WIDTH >= 11


def test_a_claim_is_drawn_on_the_side_of_its_verdict(stored: list[Claim]) -> None:
    assert len(stored) == len({claim.text for claim in stored}) > 16
    for claim in stored:
        if claim.row.interval is None:
            continue
        low, middle, high = claim.row.interval
        assert low <= middle <= high
        assert claim.verdict != "shown" or (low > 0 and middle >= 1), claim.text
        assert claim.verdict != "opposite" or (high < 0 and middle <= -1), claim.text
        assert claim.verdict != "absent" or -1 < low < high < 1, claim.text
    assert {claim.page for claim in stored} == {f.page for f in STUDIES} | {CLAIMS_PAGE.as_posix()}


OTHER_BOUNDS = ("tailed-noisy", "tailed-noisy-paper")
"""Claims without a row: the tuning seeds choose other bounds in their regime."""


def test_the_claims_before_their_runs_have_a_row_each_with_the_verdict_of_their_page(stored: list[Claim]) -> None:
    own = {claim.text: claim for claim in stored if claim.page == CLAIMS_PAGE.as_posix()}
    stated = [claim for claim in CLAIMS.values() if not claim.has_one_rate and claim.name not in OTHER_BOUNDS]
    assert len(own) == len(stated) == len(CLAIMS) - 1 - len(OTHER_BOUNDS) and OF_CLAIMS.keys() == {
        claim.name for claim in stated
    }
    results, block = fresh_results(HOME), verdicts(stored)
    for claim in stated:
        row = own[OF_CLAIMS[claim.name][0]]
        assert state(claim, results).startswith((f"*{row.verdict}*", "*not admitted*"))
        assert row.because in state(claim, results) and f"[{row.text}](claims.md)" in block
    eight = own[OF_CLAIMS["engine-8-bits"][0]]
    assert replace(eight, verdict="absent", because="").notes == ["as the paper claims"]
    assert replace(eight, verdict="opposite", because="").notes == []


def test_what_lacks_runs_is_counted_below_the_heading(stored: list[Claim]) -> None:
    learning = [claim for claim in stored if claim.kind == "learning"]
    lacking = [claim for claim in learning if claim.is_open or claim.because == "not enough runs"]
    assert f"\n{len(lacking)} of the undecided have not enough runs.\n" in heading(stored) and len(lacking) > 1
    assert {claim.verdict for claim in lacking} == {"undecided"}
    one = [*lacking[:1], *(claim for claim in learning if claim not in lacking)]
    assert "\n1 of the undecided has not enough runs." in heading(one)


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
    assert {claim.page for claim in shared} <= {f.page for f in STUDIES if f.tuned} and "one rate" in verdicts(
        shared[:1]
    )
    assert any(claim.verdict != "undecided" for claim in stored)


def test_only_claims_about_learning_are_in_the_plot(stored: list[Claim]) -> None:
    svg = picture(stored)
    texts = [(e.text or "").rstrip(" †*") for e in elements(svg, "text")]
    assert {claim.text for claim in stored if claim.text in texts} == {
        claim.text for claim in stored if claim.kind == "learning"
    }


def test_the_stored_plot_is_that_of_the_stored_results(stored: list[Claim]) -> None:
    assert (HOME / FOREST).read_text("utf-8") == picture(stored), "python -m tools.start_page"


@pytest.mark.parametrize("page", ["README.md", str(PAGE)])
def test_a_page_with_the_plot_says_what_its_unit_is(page: str) -> None:
    _, plot, text = (HOME / page).read_text("utf-8").partition("verdicts.svg)")
    assert plot and re.search(r"[Uu]nit(:| is) the smallest difference that counts", text)


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
        in_foot = top > page.locator("rect").nth(1).evaluate("(e) => e.getBoundingClientRect().bottom") - LINE / 3
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
FIGURES = [one.svg(HOME) for one in STUDIES] + [HOME / FOREST, HOME / LENGTHS, SIGNAL]


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
    marked = {claim.text for claim in claims(results, read_exact(HOME), {}) if claim.is_stale}
    assert marked == {"training lowers pass@64: hinted_sums"}
    old, new = (Estimate((1.0, 2.0), stale=stale) for stale in (True, False))
    assert old.minus(new).stale and new.minus(old).stale and new.minus(new).stale is False
    assert old.minus(Estimate((1.0, 2.0))).stale is None
