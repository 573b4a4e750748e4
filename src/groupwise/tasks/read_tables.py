"""Reads rows of CSV files and of JSON arrays, which are no files of one JSON object per line."""

import csv
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from groupwise.core import BadData, open_regular

LARGEST_ARRAY = 512 << 20
"""The most bytes of a JSON array, which is read as a whole."""
LONGEST_FIELD = 1 << 22
"""The most characters of a field of a CSV file: a longer one is a quotation mark that nothing closes."""
WRAPPED = re.compile(rb'\{\s*"[^"]*"\s*:\s*\[\s*\{\s*"(?!role"|content")')
"""The begin of an object with rows, such as `{"data": [{"prompt": `. A list of messages is a prompt."""
DELIMITERS = ",;\t"


def csv_rows(path: Path, lines: Iterator[bytes]) -> Iterator[dict[str, str] | str]:
    """The rows of a CSV file by the names in its first line: each a dict, or the reason why it is none.

    `lines` are those of the file. The delimiter is a comma, or a semicolon or tab if the first line has no comma.
    `BadData` for a file without a header, or with a quotation mark that is not closed.
    """
    limit = csv.field_size_limit(LONGEST_FIELD)
    try:
        texts = _texts(path, lines)
        first = next(texts, "")
        delimiter = next((mark for mark in DELIMITERS if mark in first), ",")
        header = next(csv.reader([first], delimiter=delimiter), [])
        if not first.strip() or len(set(header)) < len(header) or "" in header:
            fix = "write the names of the columns in the first line, such as prompt,answer"
            raise BadData(f"{path} has no header of different names", evidence=first.strip()[:80], fix=fix)
        for values in csv.reader(texts, delimiter=delimiter, strict=True):
            if len(values) == len(header):
                yield dict(zip(header, values))
            elif values:
                yield f"it has {len(values)} values, and the first line names {len(header)} columns"
    except csv.Error as error:
        fix = "close each quotation mark, and write one inside a quoted text twice"
        raise BadData(f"{path} is not CSV", evidence=str(error), fix=fix) from None
    finally:
        csv.field_size_limit(limit)


def _texts(path: Path, lines: Iterator[bytes]) -> Iterator[str]:
    """The lines as text, with their ends: a quoted field may have several."""
    for number, line in enumerate(lines, start=1):
        try:
            yield line.decode("utf-8").removesuffix("\r") + "\n"
        except UnicodeDecodeError as error:
            fix = "convert the file, such as by iconv -f latin1 -t utf-8"
            what = f"line {number} of {path} is not UTF-8"
            raise BadData(what, evidence=f"byte {line[error.start]:#x}", fix=fix) from None


def is_array(path: Path) -> bool:
    """Whether a JSON file is one array, or one object over several lines or with a list of objects.

    Any other has one object per line.
    """
    with open_regular(path) as file:
        begin = file.read(1 << 16).removeprefix(b"\xef\xbb\xbf").lstrip()
    first = begin.partition(b"\n")[0].strip()
    wraps_rows = first == begin.strip() and WRAPPED.match(first) is not None
    return begin[:1] == b"[" or (begin[:1] == b"{" and (wraps_rows or not first.endswith(b"}")))


def array_rows(path: Path, parse: Callable[[bytes], Any]) -> list[Any]:
    """The elements of a JSON array, or of the only list in a JSON object. `parse` reads JSON, and raises ValueError."""
    with open_regular(path) as file:
        content = file.read(LARGEST_ARRAY + 1)
    fix = 'write a list of objects, such as [{"prompt": "7*5=", "answer": 35}], or one object per line'
    if len(content) > LARGEST_ARRAY:
        raise BadData(f"{path} is too large", evidence=f"more than {LARGEST_ARRAY:,} bytes in one array", fix=fix)
    try:
        data = parse(content.removeprefix(b"\xef\xbb\xbf"))
    except (ValueError, RecursionError) as error:
        raise BadData(f"{path} is not JSON", evidence=str(error), fix=fix) from None
    lists = [value for value in data.values() if isinstance(value, list)] if isinstance(data, dict) else [data]
    if len(lists) != 1 or not isinstance(lists[0], list):
        keys = f"an object with {', '.join(map(json.dumps, data))}"[:200] if isinstance(data, dict) else "no list"
        raise BadData(f"{path} holds no list of rows", evidence=keys, fix=fix)
    return lists[0]
