"""Rows with pictures: files below the data, bytes, the Image of `datasets`, parts of messages; and what is refused."""

import io
import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from groupwise.api.write_rows import rows_in_memory, write_rows
from groupwise.checks.check_data import data_notes
from groupwise.config.recipe import Recipe
from groupwise.core import BadData
from groupwise.data import Ids, Prompt
from groupwise.methods import grpo
from groupwise.models import find_template, pixels_of_picture
from groupwise.tasks import DataRows, RowsTask
from groupwise.tasks.read_rows import DataRowError
from groupwise.tasks.row_columns import RowColumns
from groupwise.tasks.row_pictures import plain_messages, row_pictures
from tests.models.vision_directories import tiny_vision

_, TOKENIZER = tiny_vision()
CHAT, PLAIN = find_template("chat", TOKENIZER), find_template("no", TOKENIZER)


def png(seed: int) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def rows_file(folder: Path, *rows: dict[str, Any], pictures: int = 3) -> Path:
    """A file with rows, beside a folder with pictures `pics/0.png`, ..."""
    (folder / "pics").mkdir(parents=True, exist_ok=True)
    for i in range(pictures):
        (folder / "pics" / f"{i}.png").write_bytes(png(i))
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def problems(task: RowsTask) -> list[Prompt]:
    return sorted((*task.training, *task.held_out), key=lambda prompt: prompt.id)


def test_rows_name_files_below_the_data(tmp_path: Path) -> None:
    text = [{"role": "user", "content": [{"type": "text", "text": "which?"}, {"type": "image"}, {"type": "image"}]}]
    path = rows_file(
        tmp_path,
        {"prompt": "how many?", "image": "pics/0.png", "answer": 1},
        {"prompt": "how many?", "images": ["pics/1.png"], "answer": 2},
        {"prompt": text, "images": ["pics/0.png", "pics/2.png"], "answer": "a"},
        {"prompt": "no picture", "answer": 4},
        {"prompt": "how many?", "image": "pics/0.png", "answer": 1},
    )
    task = RowsTask.read(path, CHAT)
    found = problems(task)
    assert [len(p.pictures) for p in found] == [1, 1, 2, 0], "the last row repeats the first"
    assert found[0].token_ids == found[1].token_ids and found[0].content_hash != found[1].content_hash
    assert [pixels_of_picture(p)[0, 0].tolist() for p in found[2].pictures] == [
        np.random.default_rng(i).integers(0, 256, (16, 16, 3), dtype=np.uint8)[0, 0].tolist() for i in (0, 2)
    ]
    assert found[0].row == {"answer": 1} and found[3].content_hash == ""
    assert task.source_stats[0].repeated_rows == (5,) and not task.source_stats[0].omitted_columns
    assert found[2].text == "which?" and found[2].row["messages"][0]["content"][1] == {"type": "image"}


def test_equal_texts_with_other_pictures_are_split_and_no_picture_is_on_both_sides(tmp_path: Path) -> None:
    rows = [{"prompt": "red", "image": f"pics/{i}.png", "answer": i} for i in range(12)]
    task = RowsTask.read(rows_file(tmp_path, *rows, pictures=12), PLAIN, held_out=0.3)
    assert len(task.training) > 2 and len(task.held_out) > 1
    with pytest.raises(BadData, match="held out too"):
        RowsTask.from_two((list(task.training), task.source_stats[0]), (list(task.training[:1]), task.source_stats[0]))
    RowsTask.from_two((list(task.training), task.source_stats[0]), (list(task.held_out), task.source_stats[0]))


def test_another_picture_is_another_data_set(tmp_path: Path) -> None:
    path = rows_file(tmp_path, {"prompt": "red", "image": "pics/0.png", "answer": 1})
    before = RowsTask.read(path, PLAIN).source_stats[0].sha256
    (tmp_path / "pics" / "0.png").write_bytes(png(9))
    assert RowsTask.read(path, PLAIN).source_stats[0].sha256 != before


def test_image_columns_of_the_library_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saved to disk and as Parquet, one image or a list of them, also of stored conversations, and in memory."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    files = [str(rows_file(tmp_path).parent / "pics" / f"{i}.png") for i in range(3)]
    expected = [row_pictures({"images": [f"pics/{i}.png", "pics/0.png"]}, "red", tmp_path) for i in range(3)]
    feature = datasets.Sequence(datasets.Image())
    rows = [{"prompt": f"which {i}?", "images": [name, files[0]], "answer": i} for i, name in enumerate(files)]
    many = datasets.Dataset.from_list(rows).cast_column("images", feature)
    single = [{"prompt": row["prompt"], "image": row["images"][0], "answer": row["answer"]} for row in rows]
    one = datasets.Dataset.from_list(single).cast_column("image", datasets.Image())
    for data, count in ((many, 2), (one, 1)):
        data.save_to_disk(tmp_path / f"saved{count}")
        data.to_parquet(tmp_path / f"{count}.parquet")
        for source in (tmp_path / f"saved{count}", tmp_path / f"{count}.parquet", f"datasets:{tmp_path}/saved{count}"):
            found = sorted(problems(RowsTask.read(source, PLAIN)), key=lambda prompt: prompt.text)
            assert [p.pictures for p in found] == [pictures[:count] for pictures in expected], source
    parts = [{"type": "image", "text": None}, {"type": "text", "text": "which?"}]
    answer = {"role": "assistant", "content": [{"type": "text", "text": "9"}]}
    chat = [{"messages": [{"role": "user", "content": parts}, answer], "images": [name]} for name in files]
    datasets.Dataset.from_list(chat).cast_column("images", feature).save_to_disk(tmp_path / "chat")
    stored = DataRows(str(tmp_path / "chat")).build(CHAT, rows="stored")
    assert isinstance(stored, RowsTask)
    assert [p.pictures for p in problems(stored)] == [pictures[:1] for pictures in expected]
    decoded = rows_in_memory(many)
    assert decoded is not None and isinstance(decoded[0]["images"][0], Image.Image)
    write_rows(decoded, tmp_path / "memory" / "data.jsonl")
    assert [p.pictures for p in problems(RowsTask.read(tmp_path / "memory" / "data.jsonl", PLAIN))] == expected


def test_pictures_in_memory_are_written_beside_their_rows(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    values = [png(0), bytearray(png(0)), {"bytes": png(0), "path": None}, Image.fromarray(pixels)]
    rows = [{"prompt": f"red {i}", "image": value, "answer": i} for i, value in enumerate(values)]
    rows.append({"prompt": "red 4", "images": [png(1), Image.fromarray(pixels).convert("L")], "answer": 4})
    write_rows(rows, tmp_path / "data.jsonl")
    found = problems(RowsTask.read(tmp_path / "data.jsonl", PLAIN))
    assert len({p.content_hash for p in found[:4]}) == 1 and [len(p.pictures) for p in found] == [1, 1, 1, 1, 2]
    assert (pixels_of_picture(found[3].pictures[0]) == pixels).all()
    assert len(list((tmp_path / "pictures").iterdir())) <= 4, "equal files are written once"
    with pytest.raises(BadData, match="row 1 of data has an image that cannot be written"):
        write_rows([{"prompt": "a", "image": Image.new("F", (2, 2))}], tmp_path / "b.jsonl")


def test_bytes_and_images_of_datasets_are_read(tmp_path: Path) -> None:
    folder = rows_file(tmp_path).parent
    data, image = png(0), {"bytes": png(0), "path": "elsewhere.png"}
    hashes = {
        row_pictures({"image": value}, "red", folder)[0].sha256
        for value in (data, bytearray(data), image, [image], {"bytes": None, "path": "pics/0.png"}, "pics/0.png")
    }
    assert len(hashes) == 1


OUTSIDE = "is not below the directory of the data"
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a parent": ({"image": "../secret.png"}, OUTSIDE),
    "an absolute path": ({"image": "/etc/passwd"}, OUTSIDE),
    "a link": ({"image": "link.png"}, OUTSIDE),
    "a folder": ({"image": "pics"}, "cannot be read"),
    "a missing file": ({"image": "pics/9.png"}, "No such file"),
    "a null character": ({"image": "pics/\0.png"}, "cannot be read"),
    "an address": ({"image": "https://example.org/a.png"}, "not fetched"),
    "a data URI": ({"image": "data:image/png;base64," + b64encode(b"x").decode()}, "not fetched"),
    "a number": ({"image": 7}, "is a number"),
    "an object": ({"image": {"url": "a"}}, "is an object"),
    "two columns": ({"image": "pics/0.png", "images": ["pics/1.png"]}, "keep one"),
    "many pictures": ({"images": ["pics/0.png"] * 65}, "64 are the most"),
    "a text file": ({"image": "rows.jsonl"}, "no picture of the formats"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_values_are_refused_with_the_row(name: str, tmp_path: Path) -> None:
    columns, why = REFUSED[name]
    (tmp_path / "secret.png").write_bytes(png(0))
    path = rows_file(tmp_path / "data", {"prompt": "good", "answer": 1}, {"prompt": "red", "answer": 1, **columns})
    (path.parent / "link.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(BadData) as caught:
        RowsTask.read(path, PLAIN)
    assert "row 2: " in str(caught.value) and why in str(caught.value)


PARTS: dict[str, tuple[Any, list[str], str]] = {
    "too many parts": ([{"type": "image"}, {"type": "image"}], ["pics/0.png"], "2 pictures, and its columns 1"),
    "too few parts": ([{"type": "image"}], ["pics/0.png", "pics/1.png"], "1 pictures, and its columns 2"),
    "another kind": ([{"type": "audio"}], [], "audio"),
    "a path in a part": ([{"type": "image", "image": "pics/0.png"}], ["pics/0.png"], "in the column images"),
    "no object": (["image"], [], "a part of a message is image"),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_that_fit_no_picture_are_refused(name: str, tmp_path: Path) -> None:
    parts, images, why = PARTS[name]
    row = {"prompt": [{"role": "user", "content": [*parts, {"type": "text", "text": "?"}]}], "answer": 1}
    with pytest.raises(BadData, match="row 1") as caught:
        RowsTask.read(rows_file(tmp_path, row | ({"images": images} if images else {})), CHAT)
    assert why in str(caught.value)


def test_a_text_model_reads_parts_of_text_and_refuses_pictures(tmp_path: Path) -> None:
    def encode(problem: Any) -> Ids:
        return tuple(map(ord, problem if isinstance(problem, str) else problem[0]["content"]))

    parts = [{"type": "text", "text": "1+", "image": None}, {"type": "text", "text": "1="}]
    row = {"prompt": [{"role": "user", "content": parts}], "answer": 2, "image": "pics/0.png"}
    (prompt,) = problems(RowsTask.read(rows_file(tmp_path, row), encode))
    assert prompt.text == "1+1=" and not prompt.pictures and prompt.row["image"] == "pics/0.png"
    row["prompt"] = [{"role": "user", "content": [{"type": "image"}, *parts]}]
    with pytest.raises(BadData, match="the model takes none"):
        RowsTask.read(rows_file(tmp_path, row), encode)


def test_messages_keep_their_other_fields() -> None:
    message = {"role": "user", "content": [{"type": "image"}], "name": "a"}
    assert plain_messages([message, "no message"]) == [message, "no message"]
    with pytest.raises(DataRowError, match="must be text or messages"):
        RowColumns().read({"prompt": ["no message"], "answer": 1})


@pytest.mark.parametrize("url", ["https://example.org/1.png", "s3://pictures/1.png", "data:image/png;base64,AAAA"])
def test_a_url_is_not_fetched_and_the_advice_is_about_pictures(url: str, tmp_path: Path) -> None:
    path = rows_file(tmp_path, {"prompt": "which?", "image": url, "answer": 1})
    stored = rows_file(tmp_path / "stored", {"prompt": "which?", "image": url, "completion": "one"})
    for task in (DataRows(str(path)), DataRows(str(stored))):
        with pytest.raises(BadData) as caught:
            task.build(CHAT, rows="problems" if str(path) in task.source else "stored")
        assert "pictures are not fetched" in caught.value.evidence
        assert caught.value.fix.startswith('name a file beside the rows, "image": "pictures/1.png"')


def test_prompts_without_a_picture_beside_others_are_noted(tmp_path: Path) -> None:
    shown = [{"prompt": f"how many {i}?", "image": "pics/0.png", "answer": 1} for i in range(3)]
    for bare, count in ({"image": None}, 1), ({}, 1), ({"image": "pics/1.png"}, 0):
        path = rows_file(tmp_path, *shown, {"prompt": "which?", "answer": 2, **bare})
        recipe = Recipe(model="shapes", task=DataRows(str(path)), method=grpo())
        notes = [line for line in data_notes(recipe, RowsTask.read(path, CHAT), {}) if "no picture" in line]
        assert notes == ["  note: 1 prompt has no picture, and others have: rows/4"] * count
