"""`groupwise export`: write the model of a run or of one of its checkpoints to a directory."""

from pathlib import Path

from groupwise.config.user_code import Permissions, load_use
from groupwise.core import visible
from groupwise.inference.models_of_run import At, export
from groupwise.models.upload import check_upload, upload
from groupwise.report.report import existing_run


def export_model(
    run: str,
    out: str,
    allowed: Permissions = Permissions(),  # noqa: B008
    *,
    at: At = None,
    dtype: str = "",
    push: str = "",
) -> int:
    """Write a model of a run to a new directory: by default the finished one, else the newest checkpoint's.

    It is also uploaded to the hub as `push`.
    """
    if push:
        check_upload(push)
    model = export(existing_run(run).run_directory, Path(out), at, dtype, load_use(allowed))
    print(visible(f"{model}: {out}"))
    if push:
        print(visible(f"uploaded: {upload(Path(out), push)}"))
    return 0
