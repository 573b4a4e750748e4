"""Models on the Hugging Face hub: fetch them by name into the hub's cache, or find them there."""

import errno
import re
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

from groupwise.core import BadData, GroupwiseError, MissingRequirement, Storage

NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")
"""`owner/name`, or `owner/name@revision`: a branch, a tag or a commit."""
WEIGHTS = "*.safetensors"
WANTED = ("*.json", "*.jinja", "*.py")  # code is stored, and only run with --trust-remote-code
UNWANTED = ("*/*", "consolidated*")  # second copies of the weights in some repositories
PIPELINE = "model_index.json"


@cache
def fetch(name: str, *, weights: bool = True) -> Path:
    """Download a model of the hub to the shared cache, unless it is there, and return its directory.

    If the hub cannot be reached, the cached files are used. BadData for an unknown model or revision.
    MissingRequirement for a gated model, for one that is neither cached nor reachable, and for a pipeline of diffusers
    whose parts are not in the cache: their folders are not fetched here.
    """
    if weights and (directory := fetch(name, weights=False) / PIPELINE).is_file():
        return directory.parent  # safetensors beside the index are its weights in another layout
    model, _, revision = name.partition("@")
    hub, wanted = import_module("huggingface_hub"), [*WANTED, *([WEIGHTS] if weights else [])]
    try:
        directory = hub.snapshot_download(
            model, revision=revision or None, allow_patterns=wanted, ignore_patterns=list(UNWANTED)
        )
    except Exception as error:  # the library and its transports raise many types
        raise fetch_error(model, revision, error) from error
    if (Path(directory) / PIPELINE).is_file() and not (Path(directory) / "transformer").is_dir():
        what = f"{model} is a pipeline of diffusers, and the cache of the hub does not have its parts"
        chosen = f" --revision {revision}" if revision else ""
        fix = f"fetch them, then use the same name: hf download {model}{chosen} --include '*/*'"
        raise MissingRequirement(what, evidence=f"a {PIPELINE} and no folder transformer", fix=fix)
    return Path(directory)


def fetch_error(model: str, revision: str, error: Exception) -> GroupwiseError:
    """The error to raise for a failed download, with its cause and fix."""
    errors, causes = import_module("huggingface_hub.errors"), causes_of(error)
    evidence = next((line for line in str(causes[-1]).splitlines() if line.strip()), type(error).__name__)[:200]
    if any(getattr(cause, "errno", None) in (errno.ENOSPC, errno.EDQUOT) for cause in causes):
        fix = "free space in the hub's cache, or move the cache: HF_HOME"
        return Storage(f"the model {model} could not be stored", evidence=evidence, fix=fix)
    if has_type(causes, errors.GatedRepoError):
        fix = f"accept its terms on its page on the hub ({model}), then log in: hf auth login"
        return MissingRequirement(f"the model {model} is gated", evidence=evidence, fix=fix)
    if has_type(causes, errors.RevisionNotFoundError):
        fix = f"look at its branches and tags, or leave @{revision} out"
        return BadData(f"the model {model} has no revision {revision!r}", evidence=evidence, fix=fix)
    if has_type(causes, errors.RepositoryNotFoundError):
        what = f"there is no model at {model}: no such directory, and no such model on the hub"
        return BadData(what, evidence=evidence, fix="check the spelling; a private model needs a login: hf auth login")
    if has_type(causes, errors.HFValidationError):
        return BadData(f"there is no model at {model}", evidence=evidence, fix="give the path of a directory")
    what = f"the model {model} is neither a directory nor in the cache of the hub, and the hub cannot be reached"
    fix = f"with a network: hf download {model}\nwithout one: hf download {model} --local-dir DIR "
    fix += "on another machine, copy DIR here, and name it instead"
    return MissingRequirement(what, evidence=evidence, fix=fix)


def causes_of(error: BaseException) -> list[BaseException]:
    """An exception and the chain of its causes."""
    causes = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    return causes


def has_type(causes: Sequence[BaseException], kind: type[BaseException]) -> bool:
    """Whether one of the exceptions has this type."""
    return any(isinstance(cause, kind) for cause in causes)


def is_hub_name(name: object) -> bool:
    """Whether a name has the form of a hub name."""
    return NAME.fullmatch(str(name)) is not None
