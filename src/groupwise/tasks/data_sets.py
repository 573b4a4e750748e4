"""Reads the rows of a data set with the `datasets` library: from the hub, its cache, or a saved directory."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from groupwise.core import BadData, MissingRequirement
from groupwise.models.hub import causes_of, has_type

HUB = "datasets:"
HUB_TIMEOUT = 5.0
"""The hub must reply within this many seconds; otherwise only the local cache is read."""
NO_ACCESS = (401, 403)
"""The HTTP status codes with which the hub refuses a user without access."""


def data_set(source: str, split: str) -> Iterator[dict[str, Any]]:
    """Read the rows of a data set by name, or from a directory of `save_to_disk`. Never runs a data set's code."""
    full_name, _, named_split = source.removeprefix(HUB).partition("@")
    split = named_split or split
    name, _, config = full_name.partition(":")
    if not name:
        fix = "write datasets:NAME, such as datasets:openai/gsm8k:main@train"
        raise BadData("datasets: must be followed by the name of a data set", evidence=repr(source), fix=fix)
    try:
        datasets = import_module("datasets")
    except ImportError:
        raise missing_package("datasets", f"reading {source}", "datasets") from None
    datasets.disable_progress_bars()
    try:
        with _offline_if_unreachable(name, datasets):
            if is_saved(Path(name)):
                data: Any = datasets.load_from_disk(name)
            else:
                data = datasets.load_dataset(name, config or None)
    except Exception as error:  # the library, the hub's client and their transports raise many types
        raise _load_error(name, error) from error
    if isinstance(data, dict):
        if split not in data:
            evidence = f"it has {', '.join(data) or 'none'}"
            fix = f"write {HUB}{full_name}@{next(iter(data), 'SPLIT')}"
            raise BadData(f"{name} has no split called {split!r}", evidence=evidence, fix=fix)
        data = data[split]
    return iter(_undecoded(data, datasets))


def _undecoded(data: Any, datasets: Any) -> Any:
    """The data set with pictures as bytes: the library would decode files of strangers in this process."""
    for name, feature in dict(getattr(data, "features", None) or {}).items():
        inner = feature[0] if isinstance(feature, list) else getattr(feature, "feature", None)
        if isinstance(feature, datasets.Image):
            data = data.cast_column(name, datasets.Image(decode=False))
        elif isinstance(inner, datasets.Image):
            data = data.cast_column(name, datasets.Sequence(datasets.Image(decode=False)))
    return data


def is_saved(directory: Path) -> bool:
    """Whether a directory is a data set that `save_to_disk` wrote."""
    return any((directory / file).is_file() for file in ("dataset_dict.json", "state.json"))


def missing_package(package: str, action: str, extra: str) -> MissingRequirement:
    """The error for an action whose package is not installed; the extra of `groupwise` installs it."""
    fix = f"pip install 'groupwise[{extra}]'"
    return MissingRequirement(f"{action} needs the package {package}", evidence="it is not installed", fix=fix)


@contextmanager
def _offline_if_unreachable(name: str, datasets: Any) -> Iterator[None]:
    """Switches `datasets` to its offline mode if the hub does not reply to a first request within HUB_TIMEOUT."""
    offline = datasets.config.HF_HUB_OFFLINE
    try:
        if not offline and not Path(name).exists():
            hub = import_module("huggingface_hub").HfApi(datasets.config.HF_ENDPOINT)
            hub.dataset_info(name, timeout=HUB_TIMEOUT)
    except Exception as error:  # `datasets` itself reports every other error
        datasets.config.HF_HUB_OFFLINE = _is_unreached(error)
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = offline


def _is_unreached(error: Exception) -> bool:
    """Whether the hub did not reply. With a reply, its client raises `HfHubHTTPError`."""
    errors, causes = import_module("huggingface_hub.errors"), causes_of(error)
    if has_type(causes, errors.HfHubHTTPError):
        return False
    return any(has_type(causes, kind) for kind in (ConnectionError, TimeoutError, errors.HTTPError))


def _has_no_access(error: Exception) -> bool:
    """Whether the hub refuses the request: the data set is gated, or this user may not read it."""
    refused = import_module("huggingface_hub.errors").HfHubHTTPError
    not_found = import_module("datasets.exceptions").DatasetNotFoundError
    causes: list[Any] = [*causes_of(error)]
    if any(isinstance(cause, refused) and cause.response.status_code in NO_ACCESS for cause in causes):
        return True
    return isinstance(error, not_found) and "gated" in str(error)  # `datasets` drops the client's GatedRepoError


def _load_error(name: str, error: Exception) -> BadData | MissingRequirement:
    """The error for a data set that could not be loaded, with its fix."""
    evidence = f"{type(error).__name__}: {str(error).strip()[:300]}"
    if _has_no_access(error):
        fix = "accept its terms on its page on the hub, then log in: hf auth login"
        return MissingRequirement(f"the data set {name} is gated", evidence=evidence, fix=fix)
    if _is_unreached(error):
        fix = f"where there is a network: hf download --repo-type dataset {name} --local-dir DIR\n"
        fix += "then name DIR instead: --task DIR, or for a published set --task.source DIR"
        what = f"the data set {name} is not in the local cache, and the hub cannot be reached"
        return MissingRequirement(what, evidence=evidence, fix=fix)
    if isinstance(error, ValueError) and "config" in str(error).lower():  # `datasets` has no type for it
        fix = f"name one of its configurations: {HUB}{name}:CONFIG"
        return BadData(f"the data set {name} needs the name of one of its configurations", evidence=evidence, fix=fix)
    fix = "check its name, or fetch its files and give their path"
    return BadData(f"the data set {name} cannot be read", evidence=evidence, fix=fix)
