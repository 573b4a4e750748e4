"""Models of the Hugging Face hub by their names: fetched into its cache, or found there."""

import errno
import re
from functools import cache
from importlib import import_module
from pathlib import Path

from groupwise.data import BadData, GroupwiseError, MissingRequirement, Storage

NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")
"""`owner/name`, or `owner/name@revision`: a branch, a tag or a commit."""
WEIGHTS = "*.safetensors"
WANTED = ("*.json", "*.jinja", "*.py")  # code is kept, and run only where a command line says so
UNWANTED = ("*/*", "consolidated*")  # the same weights once more, as some owners keep them


@cache
def fetched(name: str, *, weights: bool = True) -> Path:
    """The directory of a model of the hub, in the cache that all its tools share. Asked once a process.

    Where the hub cannot be reached, what the cache holds is used. `BadData` for a model or a revision that is not
    there, `Environment` for a gated one, and for one that is not in the cache while the hub cannot be reached.
    """
    model, _, revision = name.partition("@")
    hub, wanted = import_module("huggingface_hub"), [*WANTED, *([WEIGHTS] if weights else [])]
    try:
        found = hub.snapshot_download(
            model, revision=revision or None, allow_patterns=wanted, ignore_patterns=list(UNWANTED)
        )
    except Exception as error:  # the library and its transports raise of all kinds
        raise unfetched(model, revision, error) from error
    return Path(found)


def unfetched(model: str, revision: str, error: Exception) -> GroupwiseError:
    """Why a model could not be had, and the way to it."""
    causes = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)  # type: ignore[arg-type]
    kinds = {kind.__name__ for cause in causes for kind in type(cause).__mro__}
    seen = next((line for line in str(causes[-1]).splitlines() if line.strip()), type(error).__name__)[:200]
    if any(getattr(cause, "errno", None) in (errno.ENOSPC, errno.EDQUOT) for cause in causes):
        fix = "make room where the hub's cache lies, or name another place for it: HF_HOME"
        return Storage(f"the model {model} could not be stored", evidence=seen, fix=fix)
    if "GatedRepoError" in kinds:
        fix = f"accept its terms on its page on the hub ({model}), then log in: hf auth login"
        return MissingRequirement(f"the model {model} is gated", evidence=seen, fix=fix)
    if "RevisionNotFoundError" in kinds:
        fix = f"look at its branches and tags, or leave @{revision} out"
        return BadData(f"the model {model} has no revision {revision!r}", evidence=seen, fix=fix)
    if "RepositoryNotFoundError" in kinds:
        what = f"there is no model at {model}: no such directory, and the hub knows none of that name"
        return BadData(what, evidence=seen, fix="look at its spelling; a private one needs a login: hf auth login")
    if "HFValidationError" in kinds:
        return BadData(f"there is no model at {model}", evidence=seen, fix="give the path of a directory")
    what = f"the model {model} is neither a directory nor in the cache of the hub, and the hub cannot be reached"
    fix = f"where there is a network: hf download {model}\nwithout one: hf download {model} --local-dir DIR "
    fix += "elsewhere, bring DIR here, and name it instead"
    return MissingRequirement(what, evidence=seen, fix=fix)


def is_hub_name(name: object) -> bool:
    """Whether a name could be one of the hub."""
    return NAME.fullmatch(str(name)) is not None
