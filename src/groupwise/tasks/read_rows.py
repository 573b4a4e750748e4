"""Reads rows of data from JSON, CSV or Parquet files, or a data set of the `datasets` library."""

import json
from collections.abc import Iterable, Iterator
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from typing import Any

from groupwise.core import BadData, open_regular, or_near
from groupwise.tasks.data_sets import HUB, data_set, is_saved, missing_package
from groupwise.tasks.read_tables import array_rows, csv_rows, is_array

SHOWN = 5
"""The most rows or names that a message lists; further ones are only counted."""
TABLES = (".csv", ".tsv")
ENDINGS = (".jsonl", ".parquet", *TABLES)
"""The ends of names of files with rows; a `.json` file is one, too, except among the other files of a directory."""
JSON = ".json"
LONGEST_ROW = 64 << 20
"""The most bytes of a row in a JSONL file."""
LONGEST_TEXT = 1 << 20
"""The most characters of a prompt or an answer: a longer one is a damaged row, and would fill the memory as tokens."""
MOST_FILES = 100_000
"""The most files and folders of a directory in which the files of a data set are searched."""

Row = dict[str, Any]


class DataRowError(Exception):
    """The error for a data row that cannot be used, with the reason. `fix` is its own advice, if it has some."""

    def __init__(self, why: str, fix: str = "") -> None:
        super().__init__(why)
        self.fix = fix


def fix_of(advice: Iterable[str], example: str) -> str:
    """The fix for rows that cannot be used, from the advice for each, where it has its own; the example for others.

    >>> fix_of(["", "pictures are files", ""], "write x")
    'correct or remove these rows; write x\\npictures are files'
    """
    own = set(advice)
    return "\n".join([f"correct or remove these rows; {example}"] * ("" in own) + sorted(own - {""}))


def is_source(name: str) -> bool:
    """Whether a task's name means data rows: a .jsonl, .json, .csv or .parquet file, a directory, `datasets:NAME`."""
    return name.endswith((*ENDINGS, JSON)) or name.startswith(HUB) or (bool(name) and Path(name).is_dir())


def rows_of(source: str, split: str = "train") -> Iterator[tuple[int, Row | DataRowError]]:
    """Read the rows of a source with their numbers, from 1: each a dict, or the `DataRowError` of the row.

    `datasets:NAME` and `datasets:NAME:CONFIG`, both optionally with `@SPLIT`, name a data set of the hub or one saved
    to disk. In a directory, the split's files are those whose names begin with it. `BadData` if the source cannot be
    read; `MissingRequirement` if a package or the network is missing.
    """
    if source.startswith(HUB):
        return enumerate(data_set(source, split), start=1)
    path = Path(source)
    if path.is_dir():
        if is_saved(path):
            return enumerate(data_set(f"{HUB}{source}", split), start=1)
        return enumerate(chain.from_iterable(_file(file) for file in files_of(path, split)), start=1)
    return enumerate(_file(path), start=1)


def files_of(directory: Path, split: str) -> list[Path]:
    """The files of a data set's split, sorted by name: `train.jsonl`, `main/train-00000-of-00002.parquet`.

    A single file serves every split. `BadData` if no name begins with the split, or if the names that do are of two
    file types or in two directories.
    """
    found = list(islice(directory.rglob("*"), MOST_FILES + 1))
    if len(found) > MOST_FILES:
        raise BadData(f"{directory} holds more than {MOST_FILES:,} files", fix="name the file with the rows itself")
    paths = sorted(p for p in found if p.suffix in ENDINGS and p.is_file())
    matches = [p for p in paths if p.stem == split or p.stem.startswith((f"{split}-", f"{split}_", f"{split}."))]
    matches = matches or [p for p in found if p.name == f"{split}{JSON}"]
    if not matches and len(paths) == 1:
        return paths
    if not matches:
        names = ", ".join(str(p.relative_to(directory)) for p in paths[:SHOWN]) or f"no {', '.join(ENDINGS)} file"
        fix = "name the file itself"
        raise BadData(f"{directory} has no split called {split!r}", evidence=f"it holds {names}", fix=fix)
    if len({(p.parent, p.suffix) for p in matches}) > 1:
        names = ", ".join(str(p.relative_to(directory)) for p in matches[:SHOWN])
        raise BadData(f"{directory} has several splits called {split!r}", evidence=names, fix="name one directory")
    return matches


def _file(path: Path) -> Iterable[Row | DataRowError]:
    if not path.is_file():
        raise _no_file(path)
    if path.suffix == ".parquet":
        return _parquet(path)
    if path.suffix in TABLES:
        return (DataRowError(row) if isinstance(row, str) else row for row in csv_rows(path, _lines(path)))
    if path.suffix == JSON and is_array(path):
        rows = array_rows(path, _json)
        return (row if isinstance(row, dict) else DataRowError(f"{kind_of(row)}, not an object") for row in rows)
    return map(_parse, _lines(path))


def _lines(path: Path) -> Iterator[bytes]:
    """The lines of a file. They end at "\\n" only: other ends of lines are legal inside a JSON string."""
    try:
        with open_regular(path) as file:
            if file.peek(3)[:3] == b"\xef\xbb\xbf":  # a byte order mark
                file.read(3)
            number = 0
            while line := file.readline(LONGEST_ROW + 1):
                number += 1
                if len(line) > LONGEST_ROW:
                    what, evidence = f"row {number} of {path} is too long", f"more than {LONGEST_ROW:,} bytes"
                    raise BadData(what, evidence=evidence, fix="correct the file: one JSON object per line")
                yield line.removesuffix(b"\n")
    except OSError as error:
        raise BadData(f"{path} cannot be read", evidence=str(error), fix="give the path of a JSONL file") from None


def check_length(text: str, what: str) -> None:
    """Raise `DataRowError` for a text that is too long to be a prompt or an answer."""
    if len(text) > LONGEST_TEXT:
        raise DataRowError(f"its {what} has {len(text):,} characters: {LONGEST_TEXT:,} are the most")


def _no_file(path: Path) -> BadData:
    if path.exists():
        return BadData(f"{path} cannot be read", evidence="not a file", fix="give the path of a JSONL file")
    if not path.suffix:
        fix = or_near(path, "give the path of a directory, or of a .jsonl, .json, .csv or .parquet file")
        return BadData(f"there is no file or directory {path}", evidence=f"in {path.absolute().parent}", fix=fix)
    others = ", ".join(sorted(p.name for p in path.parent.glob(f"*{path.suffix}"))[:SHOWN])
    evidence = f"{path.parent} has {others or f'no {path.suffix} file'}"
    fix = or_near(path, f"give the path of a {path.suffix} file")
    return BadData(f"there is no file {path}", evidence=evidence, fix=fix)


def _parse(line: bytes) -> Row | DataRowError:
    if not line.strip():
        return DataRowError("empty")
    try:
        row = _json(line)
    except DataRowError as fault:
        return fault
    except UnicodeDecodeError as error:
        return DataRowError(
            f"not UTF-8 (byte {line[error.start]:#x}): convert the file, such as by iconv -f latin1 -t utf-8"
        )
    except (ValueError, RecursionError) as error:
        return DataRowError(f"not JSON ({error})")
    return row if isinstance(row, dict) else DataRowError(f"{kind_of(row)}, not an object with fields")


def _json(text: bytes) -> Any:
    """JSON with finite numbers, and without repeated fields."""
    return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_fields)


def _fields(pairs: list[tuple[str, Any]]) -> Row:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise DataRowError(f"the field {next(name for name in names if names.count(name) > 1)!r} occurs twice")
    return fields


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON: write a finite number, or null")


_KIND = {dict: "an object", list: "a list", str: "text", int: "a number", float: "a number", bool: "true or false"}
_KIND |= {type(None): "null"}


def kind_of(value: Any) -> str:
    """The type of a row's value as words for a message."""
    return _KIND.get(type(value), type(value).__name__)


def _parquet(path: Path) -> Iterator[Row | DataRowError]:
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise missing_package("pyarrow", "reading Parquet", "parquet") from None
    try:
        with parquet.ParquetFile(path) as file:
            for rows in file.iter_batches(batch_size=4096):
                yield from rows.to_pylist()
    except (arrow.ArrowException, OSError, ValueError) as error:
        first_line = str(error).partition("\n")[0]
        raise BadData(f"{path} is not a Parquet file", evidence=first_line, fix="fetch the file again") from error
