"""`groupwise merge`: add an adapter (LoRA) to its base model and write a plain model."""

from pathlib import Path

from groupwise.config.user_code import load_use
from groupwise.data import Usage, visible
from groupwise.models import base_directory, find_model, merge, read_model, read_tokenizer, stored_dtype, write_model
from groupwise.runs.disk import storage_errors
from groupwise.runs.layout import RunLayout
from groupwise.runs.phases import finished_run


def merge_adapter(model_or_run: str, out: str, *, trust_remote_code: bool = False) -> int:
    """Merge the adapter of a run or of a directory. Sums are float32; the result has the base's dtype."""
    run, target = Path(model_or_run), Path(out)
    directory = find_model(RunLayout(finished_run(run) or run).model if RunLayout(run).is_run else run)
    if base_directory(directory) == directory:
        raise Usage(
            f"{model_or_run} is not an adapter", evidence="no adapter_config.json", fix="use the model as it is"
        )
    if target.exists():
        raise Usage(f"{out} exists already", fix="name a new directory")
    use = load_use((), trust_remote_code=trust_remote_code)
    model = read_model(directory, trust_remote_code=use.trust_remote_code)
    merge(model)
    with storage_errors("the model", target.absolute().parent):
        write_model(model.to(stored_dtype(directory)), target, tokenizer=read_tokenizer(directory))
    print(visible(f"model: {target}"))
    return 0
