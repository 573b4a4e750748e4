"""`groupwise merge`: add an adapter (LoRA) to its base model and write a plain model."""

from pathlib import Path

from groupwise.config.user_code import Permissions, load_use
from groupwise.core import Usage, visible
from groupwise.inference.models_of_run import find_run_model, model_directory
from groupwise.models import base_directory, find_model, merge, read_model, read_tokenizer, stored_dtype, write_model
from groupwise.runs.atomic_writes import storage_errors
from groupwise.runs.run_layout import RunLayout
from groupwise.training.progress_output import notify


def merge_adapter(
    model_or_run: str,
    out: str,
    allowed: Permissions = Permissions(),  # noqa: B008
) -> int:
    """Merge the LoRA adapter of a run or a directory. Sums are in float32; the result has the base model's dtype."""
    run, target = Path(model_or_run), Path(out)
    use = load_use(allowed)
    directory = model_directory(find_run_model(run), use, notify) if RunLayout(run).is_run else find_model(run)
    if base_directory(directory) == directory:
        raise Usage(
            f"{model_or_run} is not an adapter", evidence="no adapter_config.json", fix="use the model as it is"
        )
    if target.exists():
        raise Usage(f"{out} exists already", fix="name a new directory")
    model = read_model(directory, trust_remote_code=use.trust_remote_code)
    merge(model)
    with storage_errors("the model", target.absolute().parent):
        tokenizer = read_tokenizer(directory)
        write_model(model.to(stored_dtype(directory)), target, tokenizer=tokenizer, source=directory)
    print(visible(f"model: {target}"))
    return 0
