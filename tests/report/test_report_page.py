"""Tests of the report in a browser: plots, text, and that no text of a model can run as a script."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tools.readme_picture import DOCS, HEIGHT, WIDTH, photograph

from groupwise.report.report import write_report
from tests.report.fixture_run import CANARIES, write_comparison, write_lines, write_run

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "run", iterations=20)


@pytest.fixture(scope="module")
def report(run) -> Path:
    return write_report([run])


BLANK = """() => [...document.querySelectorAll('canvas')].filter((c) =>
    !c.width || !c.height ||
    !c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some((x, i) => i % 4 === 3 && x)).length"""


def test_the_changes_to_the_method_are_listed(visit, run, tmp_path):
    changes = json.loads((run / "run.json").read_text())["method"]["changed"]
    page = visit(write_report([run], tmp_path / "a.html"))
    assert page.locator(".method .changed li").all_inner_texts() == changes and len(changes) == 2
    assert "changed from gspo" in page.locator(".method").inner_text()
    others, notes = [], ("as published, without changes", None, None)
    for changed in ([], None, "odd"):
        others.append(write_run(tmp_path / f"run {changed}", iterations=2))
        about = json.loads((others[-1] / "run.json").read_text())
        about["method"].pop("changed") if changed is None else about["method"].update(changed=changed)
        (others[-1] / "run.json").write_text(json.dumps(about))
    texts = visit(write_report(others, tmp_path / "b.html")).locator(".method").all_inner_texts()
    for text, note in zip(texts, notes, strict=True):
        assert "changed" not in text if note is None else note in text


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 360)])
def test_every_canvas_is_drawn_and_the_page_fits(visit, report, scheme, width):
    page = visit(report, color_scheme=scheme, viewport={"width": width, "height": 800})
    assert page.locator("canvas").count() >= 20
    assert page.evaluate(BLANK) == 0
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    tables = page.locator("figure.chart details, .map details").count()
    assert tables == page.locator("canvas").count()  # a table behind every canvas


def test_displayed_numbers_are_those_of_the_run(visit, run, report):
    page = visit(report)
    rows = [
        json.loads(line) for name in ("metrics", "timings") for line in (run / f"{name}.jsonl").read_text().splitlines()
    ]
    outs = page.eval_on_selector_all(
        "output[data-series]", "all => all.map((o) => [o.dataset.series, o.dataset.value, o.textContent])"
    )
    assert len(outs) > 30
    for name, value, text in outs:
        last = [r[name] for r in rows if name in r][-1]
        assert value == "" and text == "–" if last is None else float(value) == last, name
        assert last is None or float(text.replace(",", "")) == pytest.approx(last, rel=5.1e-4, abs=1e-12), name
    names = {name for name, _, _ in outs}
    assert {k for r in rows for k in r} - names == {"iteration", "step", "eval/low_greedy", "eval/high_greedy"}
    chart = page.locator("figure.chart", has=page.locator("b", has_text="Reward").first).first
    chart.locator("summary").click()
    chart.locator("tbody tr").first.wait_for()  # the table is made after the click, once it is open
    cells = chart.locator("tbody tr").all_inner_texts()
    assert [tuple(map(float, c.split())) for c in cells] == [
        (r["iteration"], r["reward"]) for r in rows if "reward" in r
    ]


def test_a_metric_that_keeps_its_value_has_a_line_and_no_chart(visit, tmp_path):
    run = write_run(tmp_path / "still", iterations=5)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        row["strange/constant"] = 7.5
        row["strange/moving"] = float(row["iteration"] > 3)
        row["eval/accuracy_greedy"] = row["eval/accuracy"] = 1.0
        row["entropy"] = 0.25 + 1e-8 * row["iteration"]  # what single precision makes of a constant
    write_lines(run / "metrics.jsonl", rows)
    page = visit(write_report([run]))
    charts = page.locator("#curves figure.chart b").all_inner_texts()
    assert "strange/moving" in charts and not {"strange/constant", "Entropy"} & set(charts)
    assert "Held-out accuracy" in charts, "a leading chart stays"
    values = "all => Object.fromEntries(all.map((o) => [o.dataset.series, Number(o.dataset.value)]))"
    lines = page.locator("#curves .constants output").evaluate_all(values)
    assert (
        lines["strange/constant"] == 7.5 and lines["entropy"] == rows[-1]["entropy"] and "strange/moving" not in lines
    )
    both = visit(write_report([run, write_run(tmp_path / "moves", iterations=5)], tmp_path / "both.html"))
    assert "Entropy" in both.locator("#curves figure.chart b").all_inner_texts(), "it moves in one of the runs"


def test_no_label_of_an_axis_is_repeated(visit, report):
    page = visit(report)
    ticks = [[0.9998, 0.99985, 0.9999], [0.16112, 0.161121, None], [0, 0.1, 0.1 + 0.2], [1000, 20000], [1.5, 1.5]]
    labels = page.evaluate("(all) => all.map(tickLabels)", ticks)
    assert labels[:2] == [["0.9998", "0.99985", "0.9999"], ["0.16112", "0.161121", ""]]
    assert labels[2:] == [["0", "0.1", "0.3"], ["1,000", "20,000"], ["1.5", "1.5"]]


def test_the_cursor_reads_all_curves_at_one_iteration(visit, run, report):
    page = visit(report)
    rows = {r["iteration"]: r for r in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())}
    page.locator("figure.chart", has_text="Entropy").first.locator(".u-over").hover()  # in its middle
    assert page.locator("#here").inner_text() == "iteration 10"
    for name in ("entropy", "reward", "loss", "kl"):
        assert float(page.locator(f'output[data-series="{name}"]').get_attribute("data-value")) == rows[10][name]


def test_the_group_and_its_tokens_are_shown_as_stored(visit, run, report):
    page = visit(report)
    page.locator(".pickers button", has_text="20").first.click()
    rows = [json.loads(line) for line in (run / "samples" / "000020.jsonl").read_text().splitlines()]
    group = [r for r in rows if r["draw"] == rows[0]["draw"]]
    bodies = page.locator(".answer .body")
    assert bodies.all_text_contents() == [r["text"] for r in group]
    for field in ("advantage", "ratio", "logp", "gap"):
        page.locator(f'[data-field="{field}"]').click()
        counts = bodies.evaluate_all("all => all.map((b) => b.querySelectorAll('.t').length)")
        assert counts == [r["length"] for r in group]
    cells = page.locator("#rollouts td[data-value]").evaluate_all("all => all.map((c) => Number(c.dataset.value))")
    assert cells == [r["advantage"] for r in group]


SIDES = r"""() => {
    const side = (t) => (t.className.match(/ ([pn])\d/) ?? [0, '0'])[1], seen = [];
    for (let i = 0; i < 80; i++) {
        for (const a of document.querySelectorAll('.answer'))
            seen.push([a.classList[1], [...new Set([...a.querySelectorAll('.t')].map(side))].join()]);
        document.dispatchEvent(new KeyboardEvent('keydown', { key: 'p' }));
    }
    return seen;
}"""
"""The outcome and the signs of the colours of each answer in 80 groups."""


def test_colour_follows_the_sign_of_the_advantage(visit, run, report):
    sides_of = {tuple(pair) for pair in visit(report).evaluate(SIDES)}
    assert ("correct", "p") in sides_of and ("wrong", "n") in sides_of
    assert not {("correct", "n"), ("wrong", "p")} & sides_of


def test_keys_walk_groups_and_iterations(visit, report):
    page = visit(report)
    where = (
        "() => { const d = document.getElementById('rollouts').dataset; return [Number(d.iteration), Number(d.at)]; }"
    )
    start = page.evaluate(where)
    page.keyboard.press("k")
    back = page.evaluate(where)
    assert back[0] < start[0]
    page.keyboard.press("j")
    assert page.evaluate(where) == start
    page.keyboard.press("n")
    assert page.evaluate(where) == [start[0], start[1] + 1]
    page.keyboard.press("p")
    assert page.evaluate(where) == start


def test_a_click_on_a_curve_jumps_to_the_rollouts(visit, report):
    page = visit(report)
    over = page.locator("figure.chart", has_text="Entropy").first.locator(".u-over")
    box = over.bounding_box()
    over.click(position={"x": box["width"] * 0.04, "y": 20})
    assert int(page.locator("#rollouts").get_attribute("data-iteration")) <= 2
    top = "document.getElementById('rollouts').getBoundingClientRect().top"
    for _ in range(100):  # the policy forbids the eval by which playwright would wait for a function
        if abs(page.evaluate(top)) < 200:
            break
        page.wait_for_timeout(50)
    assert abs(page.evaluate(top)) < 200


def test_hover_and_arrow_keys_read_a_token(visit, report):
    page = visit(report)
    page.locator(".answer .t").first.hover()
    assert page.locator("#tip").inner_text().startswith("token 1 of ")
    assert "log-prob" in page.locator("#tip").inner_text()
    page.locator(".answer .body").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.locator("#tip").inner_text().startswith("token 2 of ")


CHAIN = "() => [...document.querySelectorAll('.chain:not([hidden]) dl > *')].map((x) => x.innerText.trim())"


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 360)])
def test_a_click_on_a_token_opens_its_chain(visit, run, report, scheme, width):
    page = visit(report, color_scheme=scheme, viewport={"width": width, "height": 800})
    group = groups_of(run)[int(page.locator("#rollouts").get_attribute("data-iteration"))][0]
    answer = page.locator(".answer").first
    answer.locator("[data-i='2']").click()
    names, texts = (page.evaluate(CHAIN)[i::2] for i in (0, 1))
    links = dict(zip(names, texts))
    assert names == [
        "outcome",
        "reward",
        "advantage",
        "ratio",
        "clip",
        "weight",
        "share",
        *(["factor"] if "factor" in names else []),
        "gradient",
    ]
    arrays, line = group
    number = {name: float(array[2]) for name, array in arrays.items()}
    assert links["outcome"].startswith(line["outcome"]) and float(links["reward"].split()[0]) == line["reward"]
    for name in ("ratio", "share"):
        assert float(links[name].split()[0]) == pytest.approx(number[name], rel=1e-3), name
    gradient = float(links["gradient"].split()[0].replace("−", "-"))
    assert gradient == pytest.approx(number["gradient"], rel=1e-3, abs=1e-9)
    assert links["clip"].startswith(
        {-1: "at the lower bound", 0: "not clipped", 1: "at the upper bound"}[int(number["clip"])]
    )
    if "factor" in links and number["clip"] == 0:
        assert float(links["factor"].split()[0]) == pytest.approx(number["ratio"], rel=1e-3)
    assert (
        f"--iteration {page.locator('#rollouts').get_attribute('data-iteration')} --sample {line['line']} --token 3"
        in answer.locator(".chain code").inner_text()
    )
    assert page.evaluate("document.documentElement.scrollWidth") == width


def groups_of(run: Path) -> dict[int, list[Any]]:
    """By iteration: the arrays of the first sample of each group, and its line with its number."""
    found: dict[int, list[Any]] = {}
    for path in sorted((run / "samples").glob("*.jsonl")):
        arrays, seen = load_file(path.with_suffix(".safetensors")), set()
        starts = np.concatenate([[0], np.cumsum(arrays["lengths"])])
        for i, line in enumerate(map(json.loads, path.read_text().splitlines())):
            if line["draw"] not in seen:
                seen.add(line["draw"])
                own = {name: x[starts[i] : starts[i + 1]] for name, x in arrays.items() if len(x) == starts[-1]}
                found.setdefault(int(path.stem), []).append((own, line | {"line": i + 1}))
    return found


def test_the_keyboard_opens_moves_and_closes_a_chain(visit, report):
    page = visit(report)
    title = page.locator(".chain:not([hidden]) h4")
    page.locator(".answer .body").first.focus()
    page.keyboard.press("ArrowRight")
    assert title.count() == 0
    page.keyboard.press("Enter")
    assert title.inner_text().startswith("Token 1 of ") and page.locator(".t.open").count() == 1
    page.keyboard.press("ArrowRight")
    assert title.inner_text().startswith("Token 2 of ") and page.locator(".t.open").get_attribute("data-i") == "1"
    page.keyboard.press("Escape")
    assert title.count() == 0 and page.locator(".t.open").count() == 0


def test_a_run_without_shares_says_so(visit, tmp_path):
    run = write_run(tmp_path / "run", iterations=2)
    for path in (run / "samples").glob("*.safetensors"):
        arrays = load_file(path)
        save_file({name: x for name, x in arrays.items() if name not in ("share", "gradient", "clip")}, path)
    page = visit(write_report([run]))
    page.locator(".answer:not(.unverifiable) .t").first.click()
    assert "this run stored no share and no gradient" in page.locator(".chain:not([hidden])").inner_text()


def test_tokens_of_an_environment_are_marked(visit, tmp_path):
    run = write_run(tmp_path / "run", iterations=2)
    for path in (run / "samples").glob("*.safetensors"):
        arrays = load_file(path)
        origin = np.zeros(int(arrays["lengths"].sum()), np.int32)
        origin[2:5], origin[5] = -1, -2
        save_file({**arrays, "origin": origin}, path)
    page = visit(write_report([run]))
    page.evaluate("() => document.getElementById('rollouts').scrollIntoView()")
    assert page.locator(".answer").first.locator(".t.theirs").count() == 4
    assert page.locator(".t.theirs").count() == 4
    for i, source in ((1, None), (2, "from the environment"), (5, "from the template")):
        page.locator(f".answer >> nth=0 >> [data-i='{i}']").hover()
        text = page.locator("#tip").inner_text()
        assert source in text if source else "environment" not in text


def test_canaries_stay_text(visit, tmp_path):
    canary = "".join(CANARIES)
    page = visit(write_report([write_run(tmp_path / "run", iterations=6, canary=canary, extra=2)]))
    for _ in range(8):
        page.keyboard.press("p")
        page.keyboard.press("c")
    page.evaluate("for (const box of document.querySelectorAll('details')) box.open = true")
    page.locator(".map tbody tr").first.wait_for()
    page.locator(".answer .t").first.hover()
    page.locator(".answer .t").last.click()
    assert page.locator("img, iframe, object, embed, a[href^=javascript]").count() == 0
    text = page.evaluate("document.body.innerText + document.title")
    assert "<img src=x onerror=" in text and "⟨U+202E⟩gnp.exe" in text and "⟨U+001B⟩[31m" in text
    assert not {"\u202e", "\u2066", "\x1b", "\x07", "\u2028"} & set(text)
    assert page.evaluate("document.querySelectorAll('script').length") == 11


def test_the_policy_blocks_injected_scripts(browser, report):
    """The browser refuses an injected script, handler or markup."""
    page = browser.new_page()
    page.goto(report.as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    page.evaluate("""() => {
        const s = document.createElement('script');
        try { s.textContent = 'window.__pwn = 1'; } catch { s.append('window.__pwn = 1'); }
        document.body.append(s);
        try { document.body.insertAdjacentHTML('beforeend', '<img src=x onerror="window.__pwn = 2">'); } catch {}
        try { document.body.setAttribute('onclick', 'window.__pwn = 3'); document.body.click(); } catch {}
    }""")
    page.wait_for_timeout(200)
    assert page.evaluate("window.__pwn") is None and page.locator("img").count() == 0
    page.close()


@pytest.mark.t(38)
def test_a_loss_that_is_zero_by_construction_has_a_note(visit, run, report, tmp_path):
    note = "figure.chart:has(output[data-series=loss]) .byrule"
    assert visit(report).locator(note).count() == 0
    on_policy = tmp_path / "run"
    on_policy.mkdir()
    write_lines(
        on_policy / "metrics.jsonl",
        [{"iteration": i, "loss": 0.0, "loss_zero_by_construction": True} for i in range(1, 4)],
    )
    page = visit(write_report([on_policy]))
    assert "0 by construction" in page.locator(note).inner_text()
    assert page.locator("output[data-series=loss]").inner_text() == "0"


def test_two_runs_overlay(visit, report, run, tmp_path):
    other = write_run(tmp_path / "other", name="slower", iterations=12, seed=1, lr=1e-4)
    page = visit(write_report([run, other], tmp_path / "both.html"))
    assert page.evaluate(BLANK) == 0
    assert page.locator("#names .name").all_inner_texts() == ["calculator-gspo", "slower"]
    runs = page.locator('output[data-series="reward"]').evaluate_all(
        "all => all.map((o) => [o.dataset.run, Number(o.dataset.value)])"
    )
    last = [json.loads((p / "metrics.jsonl").read_text().splitlines()[-1])["reward"] for p in (run, other)]
    assert runs == [["calculator-gspo", last[0]], ["slower", last[1]]]
    assert "optimizer.lr" in page.locator("#recipe table").inner_text()
    page.locator("#rollouts select").select_option("slower")
    assert int(page.locator("#rollouts").get_attribute("data-iteration")) <= 12


def test_without_scripts_the_summary_remains(visit, run, report):
    page = visit(report, scripts=False)
    rows = page.locator("#summary tbody tr").all_inner_texts()
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    values = {cells[0]: cells[1:] for cells in (r.split("\t") for r in rows)}
    assert float(values["reward"][1]) == pytest.approx(last["reward"], rel=1e-5)
    assert "held-out greedy accuracy" in page.locator(".headline").inner_text()
    assert page.locator("#summary table").is_visible() and page.locator("noscript p").is_visible()


def test_warnings_show_evidence_and_open_their_iteration(visit, tmp_path):
    run = write_run(tmp_path / "run", iterations=20)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows[7]["grad_norm"] = 500.0
    write_lines(run / "metrics.jsonl", rows)
    page = visit(write_report([run]))
    line = page.locator("#warnings li", has_text="gradient norm spiked")
    assert "500 at 7" in line.inner_text()
    line.locator("a").click()
    assert abs(int(page.locator("#rollouts").get_attribute("data-iteration")) - 7) <= 1
    assert "10 of 10 rules checked" in page.locator("#checked").inner_text()


def test_the_theme_button_switches_the_theme(visit, report):
    page = visit(report, color_scheme="light")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.locator("#theme").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark" and page.evaluate(ground) != light
    assert page.evaluate(BLANK) == 0


def test_csv_cells_are_no_formulas(visit, report):
    cells = {
        "=1+1": "'=1+1", "@x": "'@x", "+1": "'+1", "-1": "-1", "-1.5e-7": "-1.5e-7", "-1+cmd": "'-1+cmd",
        'a"b': '"a""b"', "a,b": '"a,b"', "\tx": "'\tx", None: "", 0.5: "0.5",
    }  # fmt: skip
    assert visit(report).evaluate("(all) => all.map((v) => cell(v))", list(cells)) == list(cells.values())


def test_csv_has_every_metric(visit, run, report):
    page = visit(report)
    with page.expect_download() as download:
        page.locator("#tools button", has_text="CSV").click()
    head, *lines = Path(download.value.path()).read_text().splitlines()
    rows = {r["iteration"]: r for r in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())}
    column = head.split(",").index("reward")
    assert {int(x[0]): float(x[column]) for x in (line.split(",") for line in lines) if x[column]} == {
        i: r["reward"] for i, r in rows.items() if "reward" in r
    }


METHODS = ["this run", "grpo", CANARIES[0]]


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> tuple[Path, list[dict[str, Any]]]:
    """A page with a comparison of methods on iteration 4, and its samples."""
    run = write_run(tmp_path_factory.mktemp("compared") / "run", iterations=6, size=4)
    samples = write_comparison(run, 4, METHODS, canary=CANARIES[1])
    return write_report([run]), samples


def shown(page: Any) -> list[list[str]]:
    """The rows of the table that compares methods on the group, each with its numbers as stored."""
    cells = "(r) => [...r.querySelectorAll('td span')].map((x) => x.dataset.value ?? x.textContent)"
    return page.locator("#compared tbody").first.locator("tr").evaluate_all(f"all => all.map({cells})")


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 360)])
def test_methods_stand_side_by_side_for_a_group(visit, compared, scheme, width):
    path, samples = compared
    page = visit(path, color_scheme=scheme, viewport={"width": width, "height": 800})
    page.locator(".pickers button", has_text="4").first.click()
    section = page.locator("#compared")
    assert section.locator("thead th").all_text_contents()[:5] == ["answer", "outcome", *METHODS]
    for name in ("reward", "advantage", "weight", "clipped_fraction", "gradient_sum"):
        section.locator(f'[data-number="{name}"]').focus()
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.dataset.number") == name
        cosines, *rows = shown(page)
        assert len(rows) == 4 and len(cosines) == 3
        for row, sample in zip(rows, samples):
            for text, numbers in zip(row, sample["methods"].values()):
                if numbers is None:
                    assert text == "dropped"
                elif numbers[name] is None:
                    assert text == ""
                else:
                    assert float(text) == float(f"{numbers[name]:.6g}")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert CANARIES[1] in section.inner_text()
    page.keyboard.press("n")
    assert float(shown(page)[1][0]) == float(f"{samples[4]['methods']['this run']['gradient_sum']:.6g}")


def test_a_group_without_a_comparison_says_how_to_make_one(visit, compared, report):
    page = visit(compared[0])
    section = page.locator("#compared")
    assert "groupwise whatif RUN --iteration 6 " in section.inner_text()
    section.locator("button", has_text="4").click()
    assert page.locator("#rollouts").get_attribute("data-iteration") == "4" and len(shown(page)) == 5
    assert visit(report).locator("#compared button").count() == 0


def test_a_damaged_comparison_is_named_and_the_page_stays(visit, tmp_path):
    run = write_run(tmp_path / "run", iterations=3)
    write_comparison(run, 2, ["this run", "grpo"])
    (run / "whatif" / "000003.json").write_text('{"methods": {}}')
    (run / "whatif" / "000001.json").write_bytes(b"\xff")
    text = visit(write_report([run])).locator("#compared").inner_text()
    assert "whatif/000003.json could not be read" in text and "whatif/000001.json could not be read" in text


def test_the_picture_of_the_readme_is_one_group_with_an_open_chain(browser, report, tmp_path):
    light, dark = photograph(browser, report, tmp_path)
    assert (light.name, dark.name) == ("rollouts-light.png", "rollouts-dark.png")
    sizes = {struct.unpack(">II", path.read_bytes()[16:24]) for path in (light, dark, *DOCS.glob("rollouts-*.png"))}
    assert sizes == {(WIDTH * 3 // 2, HEIGHT * 3 // 2)} and light.read_bytes() != dark.read_bytes()
