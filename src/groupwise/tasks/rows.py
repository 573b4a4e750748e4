"""Rows of data wherever they are kept: JSON lines, Parquet, or a data set that the `datasets` library finds."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

from groupwise.data import BadData, MissingRequirement

SHOWN = 5
"""Rows, or names, that a message lists before it only counts."""
ENDINGS = (".jsonl", ".parquet")
HUB = "datasets:"
ANSWER = 5.0
"""Seconds in which the hub has to answer; after that its cache alone is asked, instead of the hub again and again."""
UNREACHED = {"ConnectionError", "OfflineModeIsEnabled", "ConnectError", "TimeoutException", "TimeoutError"}
"""What it is called, by the libraries in between, that nobody answers."""

Row = dict[str, Any]


class Fault(Exception):
    """Why one row cannot be used."""


def is_source(name: str) -> bool:
    """Whether a name says where rows are: a file by its ending, a directory, or `datasets:NAME`."""
    return name.endswith(ENDINGS) or name.startswith(HUB) or (bool(name) and Path(name).is_dir())


def rows_of(source: str, split: str = "train") -> Iterator[tuple[int, Row | Fault]]:
    """The rows of a source with their numbers, from 1: each an object with fields, or why it is none.

    `datasets:NAME`, `datasets:NAME:CONFIG` and a closing `@SPLIT` name a data set of the hub or one saved to disk; in a
    directory, the files whose names begin with the split. `BadData` or `Environment` where there is nothing to read.
    """
    if source.startswith(HUB):
        return enumerate(_data_set(source, split), start=1)
    path = Path(source)
    if path.is_dir():
        if any((path / name).is_file() for name in ("dataset_dict.json", "state.json")):
            return enumerate(_data_set(f"{HUB}{source}", split), start=1)
        return enumerate(chain.from_iterable(_file(file) for file in files_of(path, split)), start=1)
    return enumerate(_file(path), start=1)


def files_of(directory: Path, split: str) -> list[Path]:
    """The files of a split, in the order of their names: `train.jsonl`, `main/train-00000-of-00002.parquet`.

    A directory with a single file has it for every split. `BadData` where no name begins with the split, or where
    files of two kinds or of two directories do.
    """
    every = sorted(p for p in directory.rglob("*") if p.suffix in ENDINGS and p.is_file())
    found = [p for p in every if p.stem == split or p.stem.startswith((f"{split}-", f"{split}_", f"{split}."))]
    if not found and len(every) == 1:
        return every
    if not found:
        names = ", ".join(str(p.relative_to(directory)) for p in every[:SHOWN]) or "no .jsonl or .parquet file"
        fix = "name the file itself"
        raise BadData(f"{directory} has no split called {split!r}", evidence=f"it holds {names}", fix=fix)
    if len({(p.parent, p.suffix) for p in found}) > 1:
        names = ", ".join(str(p.relative_to(directory)) for p in found[:SHOWN])
        raise BadData(f"{directory} has several splits called {split!r}", evidence=names, fix="name one directory")
    return found


def _file(path: Path) -> Iterable[Row | Fault]:
    if not path.is_file():
        raise _no_file(path)
    if path.suffix == ".parquet":
        return _parquet(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadData(f"{path} cannot be read", evidence=str(error), fix="give the path of a JSONL file") from None
    # Only "\n" ends a row: str.splitlines would also cut at characters that are legal inside a JSON string.
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return map(_parsed, lines[:-1] if lines[-1] == b"" else lines)


def _no_file(path: Path) -> BadData:
    if path.exists():
        return BadData(f"{path} cannot be read", evidence="it is no file", fix="give the path of a JSONL file")
    if not path.suffix:
        fix = "give the path of a directory, or of a .jsonl or .parquet file"
        return BadData(f"there is no file or directory {path}", evidence=f"in {path.absolute().parent}", fix=fix)
    others = sorted(p.name for p in path.parent.glob(f"*{path.suffix}"))
    near = f"beside it: {', '.join(others[:SHOWN])}" if others else f"no {path.suffix} file is in {path.parent}"
    return BadData(f"there is no file {path}", evidence=near, fix=f"give the path of a {path.suffix} file")


def _parsed(line: bytes) -> Row | Fault:
    if not line.strip():
        return Fault("empty")
    try:
        row = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        return Fault(f"not JSON ({error})")
    return row if isinstance(row, dict) else Fault(f"{kind_of(row)}, not an object with fields")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


_KIND = {dict: "an object", list: "a list", str: "text", int: "a number", float: "a number", bool: "true or false"}
_KIND |= {type(None): "null"}


def kind_of(value: Any) -> str:
    """What a value of a row is, in words."""
    return _KIND.get(type(value), type(value).__name__)


def _parquet(path: Path) -> Iterator[Row | Fault]:
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise _lacks("pyarrow", "reading Parquet", "parquet") from None
    try:
        with parquet.ParquetFile(path) as file:
            for some in file.iter_batches(batch_size=4096):
                yield from some.to_pylist()
    except (arrow.ArrowException, OSError, ValueError) as error:
        first = str(error).partition("\n")[0]
        raise BadData(f"{path} is no Parquet file", evidence=first, fix="fetch the file again") from error


def _lacks(package: str, doing: str, extra: str) -> MissingRequirement:
    fix = f"pip install 'groupwise[{extra}]'"
    return MissingRequirement(f"{doing} needs the package {package}", evidence="it is not installed", fix=fix)


def _data_set(source: str, split: str) -> Iterator[Row]:
    """The rows of a data set by its name, or of one that `save_to_disk` wrote. No code of a data set is ever run."""
    whole, _, said = source.removeprefix(HUB).partition("@")
    split = said or split
    name, _, config = whole.partition(":")
    if not name:
        fix = "write datasets:NAME, such as datasets:openai/gsm8k:main@train"
        raise BadData("datasets: names no data set", evidence=repr(source), fix=fix)
    try:
        datasets = import_module("datasets")
    except ImportError:
        raise _lacks("datasets", f"reading {source}", "datasets") from None
    datasets.disable_progress_bars()
    saved = any((Path(name) / mark).is_file() for mark in ("dataset_dict.json", "state.json"))
    try:
        with _offline_if_nobody_answers(name, datasets):
            found: Any = datasets.load_from_disk(name) if saved else datasets.load_dataset(name, config or None)
    except Exception as error:  # the library, the hub's client and their transports raise of all kinds
        raise _unread(name, error) from error
    if isinstance(found, dict):
        if split not in found:
            seen, fix = f"it has {', '.join(found) or 'none'}", f"write {HUB}{whole}@{next(iter(found), 'SPLIT')}"
            raise BadData(f"{name} has no split called {split!r}", evidence=seen, fix=fix)
        found = found[split]
    return iter(found)


@contextmanager
def _offline_if_nobody_answers(name: str, datasets: Any) -> Iterator[None]:
    """The library goes offline, as its own switch has it, where the hub does not answer a first question in time."""
    was = datasets.config.HF_HUB_OFFLINE
    try:
        if not was and not Path(name).exists():
            import_module("huggingface_hub").HfApi(datasets.config.HF_ENDPOINT).dataset_info(name, timeout=ANSWER)
    except Exception as error:  # what else is wrong, the library finds out by itself
        datasets.config.HF_HUB_OFFLINE = bool(_kinds(error) & UNREACHED)
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = was


def _kinds(error: Exception) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}


def _unread(name: str, error: Exception) -> BadData | MissingRequirement:
    """Why a data set could not be had, and the way to it."""
    seen = f"{type(error).__name__}: {str(error).strip()[:300]}"
    told = str(error).lower()
    if "gated" in told or "401" in told or "403" in told:
        fix = "accept its terms on its page on the hub, then log in: hf auth login"
        return MissingRequirement(f"the data set {name} is gated", evidence=seen, fix=fix)
    if _kinds(error) & UNREACHED:
        fix = f"where there is a network: hf download --repo-type dataset {name} --local-dir DIR\n"
        fix += "then name DIR, or PRESET:DIR, instead"
        return MissingRequirement(
            f"the data set {name} is not here, and the hub cannot be reached", evidence=seen, fix=fix
        )
    if isinstance(error, ValueError) and "config" in told:
        fix = f"name one of its configurations: {HUB}{name}:CONFIG"
        return BadData(f"the data set {name} does not say which part of it", evidence=seen, fix=fix)
    fix = "look at its name, or fetch its files and give their path"
    return BadData(f"the data set {name} cannot be read", evidence=seen, fix=fix)
