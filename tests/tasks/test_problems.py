"""A user's data: rows, split, and the errors for unusable rows."""

import json
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.core import BadData, GroupwiseError, Usage
from groupwise.data import Task
from groupwise.tasks import RowsTask


def encode(text: str) -> tuple[int, ...]:
    if "?" in text:
        raise ValueError("no token for '?'")
    return tuple(map(ord, text.replace("_", "")))


def write(path: Path, *rows: object) -> Path:
    path.write_bytes(b"".join(row if isinstance(row, bytes) else json.dumps(row).encode() + b"\n" for row in rows))
    return path


def row(n: int) -> dict[str, object]:
    return {"prompt": f"{n}+{n}", "answer": 2 * n}


def refused(path: Path, **options) -> str:
    with pytest.raises(BadData) as caught:
        RowsTask.read(path, encode, **options)
    assert caught.value.what and caught.value.evidence and caught.value.fix
    return str(caught.value)


def test_reads_prompts_answers_and_contexts(tmp_path):
    task = RowsTask.read(write(tmp_path / "sums.jsonl", *map(row, range(50))), encode)
    assert isinstance(task, Task)
    everything = [task[i] for i in range(len(task))] + list(task.held_out)
    assert {p.text: p.row["answer"] for p in everything} == {f"{n}+{n}": 2 * n for n in range(50)}
    assert all(p.token_ids == encode(p.text) for p in everything)
    assert {p.id for p in everything} == {f"sums/{n}" for n in range(1, 51)}
    assert task[0].id == "sums/1" and task[0].text == "0+0"
    with pytest.raises(IndexError):
        task[len(task)]


def test_answers_keep_their_type(tmp_path):
    golds = ["37", 37, 3.5, [1, 2], {"tests": ["a"]}, True, False, 0]
    rows = [{"prompt": f"p{i}", "answer": gold, "more": 1} for i, gold in enumerate(golds)]
    task = RowsTask.read(write(tmp_path / "a.jsonl", *rows), encode)
    answers = {p.text: p.row["answer"] for p in (*task.training, *task.held_out)}
    assert [answers[f"p{i}"] for i in range(len(golds))] == golds
    assert [type(answers[f"p{i}"]) for i in range(len(golds))] == [type(g) for g in golds]


def test_other_fields_are_mapped(tmp_path):
    path = write(tmp_path / "a.jsonl", {"question": "a", "gold": "b", "prompt": "not this", "answer": "nor this"})
    (only,) = RowsTask.read(path, encode, prompt="question", answer="gold").training
    assert (only.text, only.row) == ("a", {"prompt": "not this", "answer": "b"})


def test_a_prompt_has_the_other_columns_of_its_row(tmp_path):
    """Not those that are too long as JSON or null; the line on the terminal names the long ones."""
    columns = {"level": 3, "topic": {"name": "sums"}, "tags": ["a"], "long": "x" * 9_998, "gone": None}
    rows = [{"prompt": "a", "answer": 1, **columns}, {"prompt": "b", "answer": 2, "level": 4, "long": "x" * 9_999}]
    task = RowsTask.read(write(tmp_path / "a.jsonl", *rows), encode)
    by_text = {p.text: p.row for p in (*task.training, *task.held_out)}
    assert by_text["a"] == {"answer": 1, **{name: value for name, value in columns.items() if value is not None}}
    assert by_text["b"] == {"answer": 2, "level": 4}
    assert task.source_stats[0].omitted_columns == ("long",) and task.source_stats[0].lines[-1].endswith(
        "not plain JSON: long"
    )


def test_line_ends_marks_and_text_of_all_kinds(tmp_path):
    rows = b'\xef\xbb\xbf{"prompt": "a\xe2\x80\xa8b", "answer": "1"}\r\n{"prompt": "c\\nd", "answer": "2"}'
    task = RowsTask.read(write(tmp_path / "a.jsonl", rows), encode)
    assert {p.text for p in (*task.training, *task.held_out)} == {"a\u2028b", "c\nd"}


# The split


@given(st.sets(st.integers(0, 10_000), min_size=2, max_size=40), st.floats(0.01, 0.99))
def test_both_sides_have_a_problem_and_share_none(tmp_path_factory, numbers: set[int], share: float):
    path = write(tmp_path_factory.mktemp("split") / "a.jsonl", *map(row, sorted(numbers)))
    task = RowsTask.read(path, encode, held_out=share)
    training, held_out = {p.id for p in task.training}, {p.id for p in task.held_out}
    assert training and held_out and not training & held_out
    assert len(training | held_out) == len(numbers)


def test_the_split_is_the_hash_of_the_prompt(tmp_path):
    task = RowsTask.read(write(tmp_path / "a.jsonl", *map(row, range(200))), encode, held_out=0.25)
    for side, held in ((task.training, False), (task.held_out, True)):
        for prompt in side:
            assert (int(sha256(prompt.text.encode()).hexdigest()[:16], 16) / 2**64 < 0.25) is held


def test_no_row_changes_sides_when_the_file_grows(tmp_path):
    small = RowsTask.read(write(tmp_path / "a.jsonl", *map(row, range(60))), encode)
    large = RowsTask.read(write(tmp_path / "b.jsonl", *map(row, range(90))), encode)
    assert {p.text for p in small.held_out} < {p.text for p in large.held_out}
    assert {p.text for p in small.training} < {p.text for p in large.training}


def test_a_single_row_is_a_training_row(tmp_path):
    task = RowsTask.read(write(tmp_path / "a.jsonl", row(1)), encode, held_out=0.99)
    assert len(task) == 1 and not task.held_out


@pytest.mark.parametrize("share", [0, 1, -0.1, float("nan")])
def test_an_invalid_share_is_refused(tmp_path, share: float):
    with pytest.raises(Usage, match="held_out"):
        RowsTask.read(write(tmp_path / "a.jsonl", row(1)), encode, held_out=share)


# What is refused


def test_a_missing_file_names_its_neighbours(tmp_path):
    assert "has no .jsonl file" in refused(tmp_path / "problem.jsonl")
    write(tmp_path / "problems.jsonl", row(1))
    error = refused(tmp_path / "problem.jsonl")
    assert "there is no file" in error and "has problems.jsonl" in error


def test_a_directory_without_rows(tmp_path):
    assert "has no split called 'train'" in refused(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf"])
def test_an_empty_task(tmp_path, content: bytes):
    assert "holds no problem" in refused(write(tmp_path / "a.jsonl", content))


FAULTS = [
    (b"\n", "row 2: empty"),
    (b"  \r\n", "row 2: empty"),
    (b"{]\n", "row 2: not JSON"),
    (b"{'prompt': 'a', 'answer': 'b'}\n", "row 2: not JSON"),
    (b'{"prompt": "a", "answer": NaN}\n', "NaN is no JSON"),
    (b'{"prompt": "a", "answer": Infinity}\n', "Infinity is no JSON"),
    (b'{"prompt": "\xff", "answer": "b"}\n', "row 2: not UTF-8"),
    (b"[" * 100_000 + b"\n", "row 2: not JSON"),
    (b'{"prompt": "a", "answer": ' + b"9" * 5000 + b"}\n", "row 2: not JSON"),
    (["a", "b"], "row 2: a list, not an object"),
    ("a", "row 2: text, not an object"),
    (3, "row 2: a number, not an object"),
    (None, "row 2: null, not an object"),
    (True, "row 2: true or false, not an object"),
    ({}, "row 2: no field 'prompt' and no field 'answer'; it has none"),
    ({"question": "a", "answer": "b"}, "row 2: no field 'prompt'; it has question, answer: say --columns.prompt q"),
    ({"question": "a", "gold": "b"}, "it has question, gold: say --columns.prompt question --columns.answer gold"),
    ({"Prompt": "a", "answer": "b", "x": 1}, "it has Prompt, answer, x: say --columns.prompt Prompt"),
    ({"q": "a", "gold": "b"}, "it has q, gold: say --columns.prompt q --columns.answer gold; without"),
    ({"statement": "a", "gold": "b", "id": 1}, "say --columns.prompt statement --columns.answer gold"),
    (
        {"statement": "a", "topic": "b", "answer": 1},
        "no field 'prompt'; it has statement, topic, answer: say --columns.prompt NAME",
    ),
    ({"my text": "a", "answer": 1}, "say --columns.prompt 'my text'"),
    ({"prompt": "a", "answers": "b", "id": 1}, "it has prompt, answers, id: say --columns.answer answers"),
    ({"prompt": "a"}, "no field 'answer'; it has prompt"),
    ({"prompt": "", "answer": "b"}, "row 2: field 'prompt' is empty"),
    ({"prompt": " \n", "answer": "b"}, "row 2: field 'prompt' is empty"),
    ({"prompt": None, "answer": "b"}, "row 2: field 'prompt' is null: a prompt must be text or messages"),
    ({"prompt": 7, "answer": "b"}, "row 2: field 'prompt' is a number: a prompt must be text or messages"),
    ({"prompt": ["a"], "answer": "b"}, "row 2: field 'prompt' is a list: a prompt must be text or messages"),
    ({"prompt": "a", "answer": ""}, "row 2: field 'answer' is empty"),
    ({"prompt": "a", "answer": "\t"}, "row 2: field 'answer' is empty"),
    ({"prompt": "a", "answer": None}, "row 2: field 'answer' is empty"),
    ({"prompt": "a", "answer": []}, "row 2: field 'answer' is empty"),
    ({"prompt": "a", "answer": {}}, "row 2: field 'answer' is empty"),
    ({"prompt": "1+1", "answer": 3}, "row 2: it repeats the prompt of row 1"),
    ({"prompt": " 1+1\n", "answer": 3}, "row 2: it repeats the prompt of row 1 with another answer"),
    ({"prompt": [{"role": "user"}], "answer": 3}, "row 2: field 'prompt' is a list: a prompt must be text or messages"),
    ({"prompt": "a", "reward_model": {"ground_truth": 1}}, "it has prompt, reward_model: say --columns.answer rew"),
    ({"prompt": "why?", "answer": "b"}, "row 2: the tokenizer cannot read this prompt (no token for '?')"),
    ({"prompt": "\ud800", "answer": "b"}, "row 2: the tokenizer cannot read this prompt"),
    ({"prompt": "_", "answer": "b"}, "row 2: the prompt has no tokens"),
]


@pytest.mark.parametrize("fault,message", FAULTS, ids=[m[:50] for _, m in FAULTS])
def test_a_row_is_refused_with_its_number(tmp_path, fault: object, message: str):
    error = refused(write(tmp_path / "a.jsonl", row(1), fault, row(3)))
    assert message in error and "1 of 3 rows cannot be used" in error


def test_all_faults_are_reported_together(tmp_path):
    error = refused(write(tmp_path / "a.jsonl", row(1), b"\n", 3, {**row(1), "answer": 7}, *[{}] * 10))
    assert "13 of 14 rows" in error and "row 2: empty" in error and "row 3: a number" in error
    assert "row 4: it repeats the prompt of row 1" in error and "and 8 more" in error


def test_exit_code_is_that_of_bad_data(tmp_path):
    with pytest.raises(GroupwiseError) as caught:
        RowsTask.read(tmp_path / "none.jsonl", encode)
    assert caught.value.code == 3


# Columns


def test_dotted_paths_lead_into_objects_and_lists(tmp_path):
    rows = [{"extra": {"q": f"p{n}"}, "a.b": n, "list": [{"gold": n}]} for n in range(3)]
    path = write(tmp_path / "a.jsonl", *rows)
    for answer in ("a.b", "list.0.gold"):
        task = RowsTask.read(path, encode, prompt="extra.q", answer=answer)
        assert {p.text: p.row["answer"] for p in (*task.training, *task.held_out)} == {f"p{n}": n for n in range(3)}
    assert "no field 'extra.p'; it has extra, a.b, list, and in extra q" in refused(
        path, prompt="extra.p", answer="a.b"
    )
    assert "no field 'list.1.gold'" in refused(path, prompt="extra.q", answer="list.1.gold")


def test_a_conversation_is_passed_to_the_encoder_unchanged(tmp_path):
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "7*5="}]
    encoded = []
    task = RowsTask.read(
        write(tmp_path / "a.jsonl", {"prompt": talk, "answer": 35}), lambda problem: encoded.append(problem) or (1,)
    )
    assert encoded == [talk] and task[0].text == "Be brief.\n\n7*5="


# Warnings before a run


def facts_of(tmp_path, *rows):
    (facts,) = RowsTask.read(write(tmp_path / "a.jsonl", *rows), encode).source_stats
    return facts


def test_repeated_problems_are_left_out_and_reported(tmp_path):
    rows = [row(1), row(2), {"prompt": " 1+1\n", "answer": "2"}, row(3), row(2)]
    task = RowsTask.read(write(tmp_path / "a.jsonl", *rows), encode)
    (facts,) = task.source_stats
    assert {p.id for p in (*task.training, *task.held_out)} == {"a/1", "a/2", "a/4"}
    assert (facts.row_count, facts.training_count + facts.held_out_count, facts.repeated_rows) == (5, 3, (3, 5))
    assert facts.lines[1:] == ("  warning: 2 rows (3, 5) repeat the problem of an earlier row: left out",)


@pytest.mark.parametrize(
    "prompt,answer,warns",
    [
        ("6*7 is 42. What is 6*7", 42, True),
        ("Is it Rome, or not", " Rome ", True),
        ("the sum (42)", "42", True),
        ("it ends in 42.", 42, True),
        ("142 and 420 and 4.42 and 1,42 and 42.5", 42, False),
        ("Romeo or rome", "Rome", False),
        ("true or not", True, False),
        ("tests: a", {"tests": "a"}, False),
    ],
)
def test_a_prompt_that_contains_its_answer_gives_a_warning(tmp_path, prompt, answer, warns):
    facts = facts_of(tmp_path, row(3), {"prompt": prompt, "answer": answer})
    assert facts.answer_in_prompt_rows == ((2,) if warns else ())
    assert any("the prompt contains the answer in row 2" in line for line in facts.lines) is warns


def test_the_hash_is_of_the_content(tmp_path):
    first = facts_of(tmp_path, row(1), row(2))
    assert first.sha256 == facts_of(tmp_path, {"x": None, "answer": 2, "prompt": "1+1"}, row(2)).sha256
    other_answer, other_column = [row(1), {"prompt": "2+2", "answer": "4"}], [{"x": 1, **row(1)}, row(2)]
    for others in ([row(2), row(1)], [row(1)], other_answer, other_column):
        assert facts_of(tmp_path, *others).sha256 != first.sha256
    assert first.lines == (f"data: {tmp_path}/a.jsonl: 2 rows, 1 to train on, 1 held out, sha256 {first.sha256[:12]}",)


def test_the_record_is_json_and_bounded(tmp_path):
    record = facts_of(tmp_path, *[row(1)] * 300, row(2)).record
    assert json.loads(json.dumps(record)) == record
    assert record["repeated"] == {"count": 299, "rows": list(range(2, 102))} and "answer_in_prompt" not in record


def long_rows(path: Path, lengths: list[int]) -> RowsTask:
    """A file with a prompt of each length, in characters, which are its tokens."""
    path.write_text("".join(json.dumps({"prompt": f"{i:02}".ljust(n, "x"), "answer": i}) + "\n" for i, n in
                            enumerate(lengths)))  # fmt: skip
    return RowsTask.read(path, lambda text: tuple(text.encode()))


def test_long_prompts_are_left_out_by_their_rows(tmp_path: Path) -> None:
    """The rows that are left split as a file of these rows alone; a file without long ones is untouched."""
    lengths = [4, 90, 5, 70, 6, 7, 80, *[8] * 20]
    whole = long_rows(tmp_path / "a.jsonl", lengths)
    short = whole.of_at_most(69)
    assert short.source_stats[0].too_long_rows == (2, 4, 7) and whole.of_at_most(90) is whole
    assert "3 rows (2, 4, 7) have more prompt tokens than max_prompt_tokens: left out" in short.source_stats[0].lines[1]
    assert (len(short.training), len(short.held_out)) == (
        short.source_stats[0].training_count,
        short.source_stats[0].held_out_count,
    )
    assert short.source_stats[0].record["too_long"] == {"count": 3, "rows": [2, 4, 7]} and short.source_stats[
        0
    ].row_count == len(lengths)
    rows = sorted(int(p.id.partition("/")[2]) for p in (*short.training, *short.held_out))
    assert rows == [i for i, n in enumerate(lengths, 1) if n < 70]
    (tmp_path / "b.jsonl").write_text(
        "".join(line for line in (tmp_path / "a.jsonl").read_text().splitlines(True) if len(line) < 90)
    )
    alone = RowsTask.read(tmp_path / "b.jsonl", lambda text: tuple(text.encode()))
    assert [p.text for p in alone.held_out] == [p.text for p in short.held_out]


def test_a_limit_that_leaves_no_prompt_says_the_shortest(tmp_path: Path) -> None:
    problems = long_rows(tmp_path / "a.jsonl", [40, 50, 60])
    with pytest.raises(BadData, match=r"no prompt of at most 9 tokens") as caught:
        problems.of_at_most(9)
    assert caught.value.fix.startswith("raise max_prompt_tokens to ") and "a/1: 40 tokens" in caught.value.evidence
    assert (len(problems.of_at_most(40).training), len(problems.of_at_most(40).held_out)) == (1, 0)
    other = long_rows(tmp_path / "b.jsonl", [41, 45]).entirely_held_out
    every = problems.entirely_held_out
    two = RowsTask.from_two(
        (list(every.held_out), every.source_stats[0]), (list(other.held_out), other.source_stats[0])
    )
    kept = two.of_at_most(44)
    assert [stats.too_long_rows for stats in kept.source_stats][1] == (2,) and [
        len(kept.held_out),
        kept.source_stats[1].held_out_count,
    ] == [1, 1]
    with pytest.raises(BadData, match="no prompt of at most 40 tokens"):
        two.of_at_most(40)
