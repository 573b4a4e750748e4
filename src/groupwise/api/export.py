"""`export`: the model of a run, or of one of its checkpoints, in a new directory."""

from os import PathLike, fspath
from pathlib import Path

from groupwise.api.options import RunOptions
from groupwise.api.python_messages import from_python
from groupwise.config.user_code import Permissions, load_use
from groupwise.core import Usage
from groupwise.inference.models_of_run import DTYPES, At
from groupwise.inference.models_of_run import export as write_model
from groupwise.models.upload import check_upload, upload
from groupwise.report.report import existing_run

__all__ = ["export"]


@from_python
def export(
    run: str | PathLike[str],
    directory: str | PathLike[str],
    *,
    at: At = None,
    dtype: str = "",
    push: str = "",
    permissions: Permissions = Permissions(),  # noqa: B008
) -> Path:
    """Write the model of a run to a new directory, in Hugging Face layout, and return its path.

    It is the finished model, else that of the newest checkpoint, such as of a stopped run. `at` is the number of an
    iteration or `"best"`. `dtype` converts the weights (`"bfloat16"`). `push` also uploads them to the hub, as
    `"owner/name"`. Raises `BadData` for a run without a checkpoint, `Usage` for a directory that exists.
    """
    if dtype and dtype not in DTYPES:
        raise Usage(f"dtype is {dtype!r}", fix=f"choose one of {', '.join(filter(None, DTYPES))}")
    if push:
        check_upload(push)
    code = load_use(RunOptions(permissions=permissions).permissions)
    write_model(existing_run(fspath(run)).run_directory, out := Path(directory), at, dtype, code)
    if push:
        upload(out, push)
    return out
