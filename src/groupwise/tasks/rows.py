"""Reads rows of data from JSON lines, Parquet, or a data set of the `datasets` library."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

from groupwise.data import BadData, MissingRequirement

SHOWN = 5
"""The number of rows or names that a message lists; it only counts further ones."""
ENDINGS = (".jsonl", ".parquet")
HUB = "datasets:"
HUB_TIMEOUT = 5.0
"""Seconds that the hub has for a first reply; after that only the local cache is read, without further requests."""
UNREACHED = {"ConnectionError", "OfflineModeIsEnabled", "ConnectError", "TimeoutException", "TimeoutError"}
"""Names of the exceptions that the libraries raise if the hub does not reply."""

Row = dict[str, Any]


class Fault(Exception):
    """The reason why one row cannot be used."""


def is_source(name: str) -> bool:
    """Whether a task's name is a source of rows: a .jsonl or .parquet file, a directory, or `datasets:NAME`."""
    return name.endswith(ENDINGS) or name.startswith(HUB) or (bool(name) and Path(name).is_dir())


def rows_of(source: str, split: str = "train") -> Iterator[tuple[int, Row | Fault]]:
    """The rows of a source with their numbers, from 1: each an object with fields, or the `Fault` of the row.

    `datasets:NAME` and `datasets:NAME:CONFIG`, both optionally with `@SPLIT`, name a data set of the hub or one saved
    to disk. In a directory, the split's files are those whose names begin with it. `BadData` if the source cannot be
    read; `MissingRequirement` if a package or the network is missing.
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
    """The files of a split, sorted by name: `train.jsonl`, `main/train-00000-of-00002.parquet`.

    A single file serves every split. `BadData` if no name begins with the split, or if the names that do are of two
    file types or in two directories.
    """
    paths = sorted(p for p in directory.rglob("*") if p.suffix in ENDINGS and p.is_file())
    matches = [p for p in paths if p.stem == split or p.stem.startswith((f"{split}-", f"{split}_", f"{split}."))]
    if not matches and len(paths) == 1:
        return paths
    if not matches:
        names = ", ".join(str(p.relative_to(directory)) for p in paths[:SHOWN]) or "no .jsonl or .parquet file"
        fix = "name the file itself"
        raise BadData(f"{directory} has no split called {split!r}", evidence=f"it holds {names}", fix=fix)
    if len({(p.parent, p.suffix) for p in matches}) > 1:
        names = ", ".join(str(p.relative_to(directory)) for p in matches[:SHOWN])
        raise BadData(f"{directory} has several splits called {split!r}", evidence=names, fix="name one directory")
    return matches


def _file(path: Path) -> Iterable[Row | Fault]:
    if not path.is_file():
        raise _no_file(path)
    if path.suffix == ".parquet":
        return _parquet(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadData(f"{path} cannot be read", evidence=str(error), fix="give the path of a JSONL file") from None
    # Split at "\n" only: str.splitlines also splits at characters that are legal inside a JSON string.
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return map(_parse, lines[:-1] if lines[-1] == b"" else lines)


def _no_file(path: Path) -> BadData:
    if path.exists():
        return BadData(f"{path} cannot be read", evidence="not a file", fix="give the path of a JSONL file")
    if not path.suffix:
        fix = "give the path of a directory, or of a .jsonl or .parquet file"
        return BadData(f"there is no file or directory {path}", evidence=f"in {path.absolute().parent}", fix=fix)
    others = ", ".join(sorted(p.name for p in path.parent.glob(f"*{path.suffix}"))[:SHOWN])
    evidence = f"{path.parent} has {others or f'no {path.suffix} file'}"
    return BadData(f"there is no file {path}", evidence=evidence, fix=f"give the path of a {path.suffix} file")


def _parse(line: bytes) -> Row | Fault:
    if not line.strip():
        return Fault("empty")
    try:
        row = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        return Fault(f"not JSON ({error})")
    return row if isinstance(row, dict) else Fault(f"{kind_of(row)}, not an object with fields")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


_KIND = {dict: "an object", list: "a list", str: "text", int: "a number", float: "a number", bool: "true or false"}
_KIND |= {type(None): "null"}


def kind_of(value: Any) -> str:
    """The type of a row's value as words for a message."""
    return _KIND.get(type(value), type(value).__name__)


def _parquet(path: Path) -> Iterator[Row | Fault]:
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise _missing_package("pyarrow", "reading Parquet", "parquet") from None
    try:
        with parquet.ParquetFile(path) as file:
            for rows in file.iter_batches(batch_size=4096):
                yield from rows.to_pylist()
    except (arrow.ArrowException, OSError, ValueError) as error:
        first_line = str(error).partition("\n")[0]
        raise BadData(f"{path} is no Parquet file", evidence=first_line, fix="fetch the file again") from error


def _missing_package(package: str, action: str, extra: str) -> MissingRequirement:
    fix = f"pip install 'groupwise[{extra}]'"
    return MissingRequirement(f"{action} needs the package {package}", evidence="it is not installed", fix=fix)


def _data_set(source: str, split: str) -> Iterator[Row]:
    """The rows of a named data set, or of one that `save_to_disk` wrote. Never runs code of a data set."""
    full_name, _, named_split = source.removeprefix(HUB).partition("@")
    split = named_split or split
    name, _, config = full_name.partition(":")
    if not name:
        fix = "write datasets:NAME, such as datasets:openai/gsm8k:main@train"
        raise BadData("datasets: names no data set", evidence=repr(source), fix=fix)
    try:
        datasets = import_module("datasets")
    except ImportError:
        raise _missing_package("datasets", f"reading {source}", "datasets") from None
    datasets.disable_progress_bars()
    on_disk = any((Path(name) / file).is_file() for file in ("dataset_dict.json", "state.json"))
    try:
        with _offline_if_unreachable(name, datasets):
            data: Any = datasets.load_from_disk(name) if on_disk else datasets.load_dataset(name, config or None)
    except Exception as error:  # the library, the hub's client and their transports raise many types
        raise _load_error(name, error) from error
    if isinstance(data, dict):
        if split not in data:
            evidence = f"it has {', '.join(data) or 'none'}"
            fix = f"write {HUB}{full_name}@{next(iter(data), 'SPLIT')}"
            raise BadData(f"{name} has no split called {split!r}", evidence=evidence, fix=fix)
        data = data[split]
    return iter(data)


@contextmanager
def _offline_if_unreachable(name: str, datasets: Any) -> Iterator[None]:
    """Switches `datasets` to its offline mode if the hub does not reply to a first request within HUB_TIMEOUT."""
    offline = datasets.config.HF_HUB_OFFLINE
    try:
        if not offline and not Path(name).exists():
            hub = import_module("huggingface_hub").HfApi(datasets.config.HF_ENDPOINT)
            hub.dataset_info(name, timeout=HUB_TIMEOUT)
    except Exception as error:  # `datasets` itself reports every other error
        datasets.config.HF_HUB_OFFLINE = bool(_class_names(error) & UNREACHED)
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = offline


def _class_names(error: Exception) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}


def _load_error(name: str, error: Exception) -> BadData | MissingRequirement:
    """The error for a data set that could not be loaded, with its fix."""
    evidence = f"{type(error).__name__}: {str(error).strip()[:300]}"
    message = str(error).lower()
    if "gated" in message or "401" in message or "403" in message:
        fix = "accept its terms on its page on the hub, then log in: hf auth login"
        return MissingRequirement(f"the data set {name} is gated", evidence=evidence, fix=fix)
    if _class_names(error) & UNREACHED:
        fix = f"where there is a network: hf download --repo-type dataset {name} --local-dir DIR\n"
        fix += "then name DIR, or PRESET:DIR, instead"
        what = f"the data set {name} is not here, and the hub cannot be reached"
        return MissingRequirement(what, evidence=evidence, fix=fix)
    if isinstance(error, ValueError) and "config" in message:
        fix = f"name one of its configurations: {HUB}{name}:CONFIG"
        return BadData(f"the data set {name} has several configurations", evidence=evidence, fix=fix)
    fix = "check its name, or fetch its files and give their path"
    return BadData(f"the data set {name} cannot be read", evidence=evidence, fix=fix)
