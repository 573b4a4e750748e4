"""Sources of rows: files, splits of a directory, Parquet, and data sets; no test uses a network."""

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from groupwise.core import BadData, GroupwiseError, MissingRequirement, near_paths
from groupwise.tasks import RowsTask, named_task, read_demonstrations
from groupwise.tasks.read_rows import LONGEST_TEXT, DataRowError, files_of, is_source, rows_of
from tests.tasks.published import PUBLISHED, dapo, gsm8k


def jsonl(path: Path, rows: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def parquet(path: Path, rows: list[Any]) -> Path:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    path.parent.mkdir(parents=True, exist_ok=True)
    write_table(arrow.Table.from_pylist(rows), path)
    return path


def refused(source: str, split: str = "train") -> GroupwiseError:
    with pytest.raises(GroupwiseError) as caught:
        list(rows_of(source, split))
    assert caught.value.what and caught.value.evidence and caught.value.fix
    return caught.value


@pytest.mark.parametrize("name", ["a.jsonl", "b.parquet", "datasets:x/y", "datasets:x/y:main@test", "."])
def test_names_of_sources(name: str) -> None:
    assert is_source(name) and not is_source("no-such-" + name.replace("/", "-").replace(".", ""))


# Bounds


def test_a_source_of_rows_is_a_regular_file_or_a_directory(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "zero.jsonl").symlink_to("/dev/zero")
    for name in ("pipe.jsonl", "zero.jsonl"):
        assert refused(str(tmp_path / name)).evidence == "not a file"
    for name in ("pipe.jsonl", "/dev/zero"):
        with pytest.raises(GroupwiseError) as caught:
            named_task(str(tmp_path / name)).build(lambda text: (1,))
        assert "did you mean" not in caught.value.fix
    assert near_paths("/dev/zero") != "did you mean /dev/zero?"


def test_a_row_has_a_bound(tmp_path: Path) -> None:
    """A sparse file is one endless row."""
    file = jsonl(tmp_path / "a.jsonl", [{"prompt": "1", "answer": 1}])
    with file.open("r+b") as sparse:
        sparse.truncate(1 << 40)
    assert refused(str(file)).what == f"row 2 of {file} is too long"


@pytest.mark.parametrize("column", ["prompt", "answer"])
def test_a_prompt_and_an_answer_have_a_bound(tmp_path: Path, column: str) -> None:
    """A prompt of five megabytes took two gigabytes as tokens."""
    row = {"prompt": "1", "answer": "1", column: "1" * (LONGEST_TEXT + 1)}
    file = jsonl(tmp_path / "a.jsonl", [row])
    encoded: list[str] = []

    def encode(text: str) -> tuple[int, ...]:
        encoded.append(text)
        return (1,)

    with pytest.raises(BadData) as caught:
        RowsTask.read(file, encode)
    assert caught.value.evidence == f"row 1: its {column} has 1,048,577 characters: 1,048,576 are the most"
    with pytest.raises(BadData) as caught:
        read_demonstrations(str(file), encode, encode, prompt="prompt", answer="answer")
    assert "are the most" in caught.value.evidence and all(len(text) <= LONGEST_TEXT for text in encoded)


def test_a_directory_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("groupwise.tasks.read_rows.MOST_FILES", 3)
    for name in "abcd":
        jsonl(tmp_path / f"{name}.jsonl", [])
    with pytest.raises(BadData, match="holds more than 3 files"):
        files_of(tmp_path, "a")


# Files of a split


def test_a_split_is_the_files_whose_names_begin_with_it(tmp_path: Path) -> None:
    for name in ("train-00001-of-00002", "train-00000-of-00002", "test", "training-notes"):
        jsonl(tmp_path / "data" / f"{name}.jsonl", [{"n": name}])
    assert [p.stem[:11] for p in files_of(tmp_path, "train")] == ["train-00000", "train-00001"]
    rows = list(rows_of(str(tmp_path)))
    assert rows == [(1, {"n": "train-00000-of-00002"}), (2, {"n": "train-00001-of-00002"})]
    assert [row for _, row in rows_of(str(tmp_path), "test")] == [{"n": "test"}]
    assert "it holds data/test.jsonl" in refused(str(tmp_path), "validation").evidence


def test_a_field_that_occurs_twice_is_a_fault(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"prompt": "1+1=", "answer": 2, "prompt": "2+2="}\n{"a": {"b": 1, "b": 2}}\n{"b": [{"b": 1}]}\n')
    first, second, third = (row for _, row in rows_of(str(file)))
    assert isinstance(first, DataRowError) and str(first) == "the field 'prompt' occurs twice"
    assert isinstance(second, DataRowError) and third == {"b": [{"b": 1}]}


def test_a_single_file_is_every_split(tmp_path: Path) -> None:
    only = jsonl(tmp_path / "problems.jsonl", [1])
    assert files_of(tmp_path, "train") == files_of(tmp_path, "test") == [only]


def test_two_directories_or_kinds_with_one_split_are_refused(tmp_path: Path) -> None:
    for part in ("algebra", "geometry"):
        jsonl(tmp_path / part / "train.jsonl", [{}])
    assert "several splits" in refused(str(tmp_path)).what
    assert list(rows_of(str(tmp_path / "algebra"))) == [(1, {})]


# Parquet


def test_parquet_and_json_lines_are_the_same_rows(tmp_path: Path) -> None:
    for name, (rows, _) in PUBLISHED.items():
        a, b = jsonl(tmp_path / f"{name}.jsonl", rows), parquet(tmp_path / f"{name}.parquet", rows)
        assert list(rows_of(str(a))) == list(rows_of(str(b))), name


def test_problems_of_parquet_by_dotted_paths(tmp_path: Path) -> None:
    path = parquet(tmp_path / "dapo.parquet", dapo())
    prompts = []
    task = RowsTask.read(path, lambda problem: prompts.append(problem) or (1,), answer="reward_model.ground_truth")
    assert {p.row["answer"] for p in (*task.training, *task.held_out)} == {"6", "10", "15"}
    assert prompts[0] == dapo()[0]["prompt"] and task.source_stats[0].repeated_rows == (2, 4, 6)
    lines = RowsTask.read(jsonl(tmp_path / "dapo.jsonl", dapo()), lambda _: (1,), answer="reward_model.ground_truth")
    assert lines.source_stats[0].sha256 == task.source_stats[0].sha256


CANNOT = [(b"4", "is bytes"), (None, "is empty"), (float("nan"), "is a number: an answer")]


@pytest.mark.parametrize("gold,message", CANNOT)
def test_parquet_values_that_no_answer_can_have_are_refused(tmp_path: Path, gold: object, message: str) -> None:
    path = parquet(tmp_path / "a.parquet", [{"prompt": "a", "answer": gold}])
    with pytest.raises(BadData) as caught:
        RowsTask.read(path, lambda _: (1,))
    assert message in caught.value.evidence


def test_a_file_that_is_no_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "a.parquet").write_bytes(b"PAR1 but not really")
    assert "is not a Parquet file" in refused(str(tmp_path / "a.parquet")).what
    assert "has a.parquet" in refused(str(tmp_path / "b.parquet")).evidence


# Data sets


@pytest.fixture
def datasets(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The library, which asks nobody."""
    library = pytest.importorskip("datasets")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return library


def test_a_data_set_saved_to_disk(tmp_path: Path, datasets: Any) -> None:
    sets = datasets.DatasetDict({s: datasets.Dataset.from_list(gsm8k((s,))) for s in ("train", "test")})
    sets.save_to_disk(tmp_path / "both")
    sets["test"].save_to_disk(tmp_path / "one")
    for source, split, who in (
        (f"{tmp_path}/both", "train", "train"),
        (f"datasets:{tmp_path}/both", "test", "test"),
        (f"datasets:{tmp_path}/both@test", "train", "test"),
        (f"datasets:{tmp_path}/one", "train", "test"),
    ):
        assert list(rows_of(source, split)) == [(1, gsm8k((who,))[0])]
    assert "@train" in refused(f"datasets:{tmp_path}/both@validation").fix


def test_a_directory_of_files_through_the_library(
    tmp_path: Path, datasets: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    jsonl(tmp_path / "set" / "train.jsonl", gsm8k())
    assert [row for _, row in rows_of(f"datasets:{tmp_path / 'set'}")] == gsm8k()
    assert (tmp_path / "cache").is_dir()


def test_a_missing_data_set_while_offline(tmp_path: Path, datasets: Any) -> None:
    error = refused("datasets:nobody/nothing-of-this-name")
    assert isinstance(error, MissingRequirement) and error.code == 4
    assert "hub cannot be reached" in error.what and "hf download --repo-type dataset nobody/nothing" in error.fix


def test_a_hub_that_does_not_reply_is_queried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clients ask again and again, for half a minute, unless they are offline."""
    calls: list[object] = []
    errors = pytest.importorskip("huggingface_hub.errors")
    config = SimpleNamespace(HF_HUB_OFFLINE=False, HF_ENDPOINT="http://127.0.0.1:9")

    class Api:
        def __init__(self, endpoint: str) -> None:
            calls.append(endpoint)

        def dataset_info(self, name: str, timeout: float) -> None:
            calls.append((name, timeout <= 5))
            if name == "a/b":
                raise errors.HTTPError("refused")

    def load_dataset(name: str, config_name: str | None) -> list[dict[str, int]]:
        calls.append(config.HF_HUB_OFFLINE)
        return [{"row": 1}]

    library = SimpleNamespace(config=config, load_dataset=load_dataset, disable_progress_bars=lambda: None)
    fake_modules = {
        "datasets": library,
        "huggingface_hub": SimpleNamespace(HfApi=Api),
        "huggingface_hub.errors": errors,
    }
    monkeypatch.setattr("groupwise.tasks.data_sets.import_module", fake_modules.__getitem__)
    assert list(rows_of("datasets:a/b")) == list(rows_of("datasets:here/too")) == [(1, {"row": 1})]
    assert calls == [config.HF_ENDPOINT, ("a/b", True), True, config.HF_ENDPOINT, ("here/too", True), False]
    assert config.HF_HUB_OFFLINE is False


RAISED = [
    ("datasets.DatasetNotFoundError", "'a/b' is a gated dataset on the Hub.", MissingRequirement, "hf auth login"),
    ("huggingface_hub.HfHubHTTPError", "Access is refused", MissingRequirement, "hf auth login"),
    ("datasets.DatasetNotFoundError", "Dataset 'a/b' doesn't exist on the Hub.", BadData, "check its name"),
    ("builtins.ConnectionError", "Couldn't reach 'a/b' on the Hub", MissingRequirement, "hf download"),
    ("huggingface_hub.OfflineModeIsEnabled", "Offline mode", MissingRequirement, "hf download"),
    ("huggingface_hub.HTTPError", "The server closed the connection", MissingRequirement, "hf download"),
    ("builtins.ValueError", "Config name is missing. Pick one: ['x', 'y']", BadData, "datasets:a/b:CONFIG"),
    ("builtins.RuntimeError", "Dataset scripts are no longer supported", BadData, "fetch its files"),
    ("builtins.RuntimeError", "4013 rows are gated by a filter", BadData, "fetch its files"),
]


@pytest.mark.parametrize("kind,message,expected,fix", RAISED, ids=[f"{kind}: {text[:30]}" for kind, text, *_ in RAISED])
def test_errors_of_the_library(
    datasets: Any, monkeypatch: pytest.MonkeyPatch, kind: str, message: str, expected: type[GroupwiseError], fix: str
) -> None:
    library, _, name = kind.partition(".")
    rooms = {"datasets": "datasets.exceptions", "huggingface_hub": "huggingface_hub.errors", "builtins": "builtins"}
    error_type = getattr(import_module(rooms[library]), name)

    def raising(*_: object) -> None:
        with_response = {"response": SimpleNamespace(status_code=403, headers={}, request=None)}
        raise error_type(message, **(with_response if name == "HfHubHTTPError" else {}))

    monkeypatch.setattr(datasets, "load_dataset", raising)
    error = refused("datasets:a/b")
    assert isinstance(error, expected) and fix in error.fix and message[:20] in error.evidence


@pytest.mark.parametrize(
    "package,source,extra", [("pyarrow", "a.parquet", "parquet"), ("datasets", "datasets:a/b", "datasets")]
)
def test_a_missing_package_is_an_error_with_a_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, source: str, extra: str
) -> None:
    (tmp_path / "a.parquet").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    for name in [package, *(m for m in sys.modules if m.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    error = refused(source)
    assert isinstance(error, MissingRequirement) and error.fix == f"pip install 'groupwise[{extra}]'"


def test_no_name_at_all() -> None:
    assert "must be followed by the name of a data set" in refused("datasets:").what


def test_invalid_json_lines_are_described(tmp_path: Path) -> None:
    ((_, fault),) = rows_of(str(jsonl(tmp_path / "a.jsonl", [[1]])))
    assert isinstance(fault, DataRowError) and "a list, not an object" in str(fault)
