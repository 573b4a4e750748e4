"""Episodes of agents in the report: one tree for each, with all of its requests, and nothing of it as markup."""

import json

import pytest

from groupwise.report.episodes import MOST_CHARACTERS
from groupwise.report.report import write_report
from groupwise.report.sample_selection import choose, scan
from groupwise.runs.run_layout import RunLayout
from tests.report.fixture_run import CANARIES, write_episodes, write_lines, write_run


def page_groups(run):
    layout = RunLayout(run)
    chosen, _ = choose(layout, scan(layout)[0], most=8, budget=100_000)
    return chosen


def test_the_samples_of_an_episode_are_together_with_their_requests(tmp_path):
    run = write_run(tmp_path / "run", iterations=2)
    write_episodes(run)
    samples = page_groups(run)[-1]["samples"]
    assert [(s["episode"], s["role"], s["branches_from"]) for s in samples] == [
        (0, "answer", None), (0, "thread", 0), (0, "thread", 0), (1, "answer", None), (1, "thread", None),
    ]  # fmt: skip
    assert [[r["number"] for r in s["requests"]] for s in samples] == [[0, 3, 5], [1, 2], [4], [2], [0, 1]]
    (first, *_) = samples[0]["requests"]
    assert first["messages"][0]["text"] == "message 0" and first["calls"][0]["text"] == '{"x": 0}'
    assert (first["start"], first["end"], first["prompt_tokens"]) == (0, 4, 10)
    assert "requests" not in page_groups(run)[0]["samples"][0]


@pytest.mark.parametrize(
    "damage",
    [7, [7], [{}], [{"number": 1}],
     [{"number": 0, "messages": [], "start": 0, "end": 1, "continues": 0}],
     [{"number": 0, "messages": [], "start": -1, "end": 1}], [{"number": 0, "messages": [{}], "start": 0, "end": 1}]],
)  # fmt: skip
def test_damaged_requests_leave_a_plain_answer(tmp_path, damage):
    run = write_run(tmp_path / "run", iterations=1)
    path = max((run / "samples").glob("*.jsonl"))
    rows = write_episodes(run)
    write_lines(path, [rows[0] | {"requests": damage}, *rows[1:]])
    sample = page_groups(run)[-1]["samples"][0]
    assert "requests" not in sample and sample["text"] == rows[0]["text"]


def test_long_messages_are_cut_and_counted(tmp_path):
    run = write_run(tmp_path / "run", iterations=1)
    write_episodes(run, canary="x" * 3000)
    message = page_groups(run)[-1]["samples"][0]["requests"][0]["messages"][0]
    assert len(message["text"]) == MOST_CHARACTERS and message["left_out"] == len("message 0") + 3000 - MOST_CHARACTERS


@pytest.mark.browser
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 360)])
def test_an_episode_is_one_tree(visit, tmp_path, scheme, width):
    run = write_run(tmp_path / "run", iterations=2)
    write_episodes(run)
    page = visit(write_report([run]), color_scheme=scheme, viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") == width
    trees = page.locator(".answer .tree")
    assert trees.count() == 2 == page.locator(".answer").count()
    assert page.locator(".answer header span:first-child").all_inner_texts() == ["Episode 1", "Episode 2"]
    first = trees.first
    assert "6 requests · 3 conversations · 1 tool call · 24 tokens written" in first.inner_text()
    notes = first.locator(".request > .note").all_inner_texts()
    assert [note.split(" · ")[0] for note in notes] == [f"request {n}" for n in (1, 2, 3, 5, 4, 6)]
    assert notes[0] == "request 1 · read 10 tokens · wrote 4 tokens"
    beneath = first.locator(".compared > ol > .request >> nth=0").locator(".conversation")
    assert [line.split("\n")[:2] for line in beneath.locator("h4").all_inner_texts()] == [
        ["#2", "thread"],
        ["#3", "thread"],
    ]
    assert (
        trees.last.locator(".compared").count() == 1 and trees.last.locator(".conversation .conversation").count() == 0
    )
    message, policy = first.locator(".compared > ol > .request").nth(1).locator("> .message").all()
    assert message.inner_text().split("\n") == ["tool", "message 3"]
    assert [span.get_attribute("data-i") for span in policy.locator(".t").all()] == ["6", "7", "8", "9"]


@pytest.mark.browser
def test_keys_stay_within_the_answer_of_a_request(visit, tmp_path):
    run = write_run(tmp_path / "run", iterations=1)
    write_episodes(run)
    page = visit(write_report([run]))
    body = page.locator(".compared > ol > .request >> nth=1").locator("> .policy .body")
    body.focus()
    for key, at in (("ArrowRight", "6"), ("ArrowRight", "7"), ("ArrowLeft", "6"), ("ArrowLeft", "6")):
        page.keyboard.press(key)
        assert body.locator(".at").get_attribute("data-i") == at
    for _ in range(9):
        page.keyboard.press("ArrowRight")
    assert body.locator(".at").get_attribute("data-i") == "9"
    page.keyboard.press("Enter")
    assert page.locator(".chain:not([hidden]) h4").inner_text().startswith("Token 10 of ")


@pytest.mark.browser
def test_a_row_of_the_group_s_table_points_at_its_conversation(visit, tmp_path):
    run = write_run(tmp_path / "run", iterations=1)
    write_episodes(run)
    page = visit(write_report([run]))
    rows = page.locator("tr.pick")
    assert [text.split("\t")[0] for text in rows.all_inner_texts()] == [
        "#1",
        "#2 thread",
        "#3 thread",
        "#4",
        "#5 thread",
    ]
    rows.nth(1).click()
    target = page.locator(".target")
    assert target.count() == 1 and "message 1" in target.inner_text() and "message 0" not in target.inner_text()


@pytest.mark.browser
def test_hostile_messages_stay_text(visit, tmp_path):
    run = write_run(tmp_path / "run", iterations=1)
    write_episodes(run, canary="".join(CANARIES))
    page = visit(write_report([run]))
    assert page.locator("img, iframe, object, embed, a[href^=javascript]").count() == 0
    text = page.locator(".tree").first.inner_text()
    assert "<img src=x onerror=" in text and "⟨U+202E⟩gnp.exe" in text and "⟨U+001B⟩[31m" in text
    assert json.dumps(CANARIES[1])[1:-1] not in page.content().split('id="data"')[0]
