"""`groupwise eval` and `groupwise sample`: print the accuracy of a model, and answers to one prompt."""

from collections.abc import Sequence
from pathlib import Path

from groupwise.commands.sample_text import episodes_of, format_episode, format_sample
from groupwise.config.user_code import Permissions, load_use
from groupwise.core import visible
from groupwise.evaluation.evaluation_files import check_file, evaluation_text, write
from groupwise.inference import evaluate_model as evaluation
from groupwise.inference.models_of_run import At
from groupwise.models import read_picture
from groupwise.models.flow.latent_pictures import PictureSheet, picture_of, png
from groupwise.training.progress_output import notify


def evaluate(
    model_or_run: str,
    overrides: Sequence[tuple[str, str]] = (),
    allowed: Permissions = Permissions(),  # noqa: B008
    *,
    at: At = None,
    samples: int | None = None,
    problems: int | None = None,
    recipe_path: str | None = None,
    preset: str | None = None,
    preset_data: str | None = None,
    out: str | None = None,
) -> int:
    """Print the held-out accuracy of a model directory or of a run's model, and write it with its protocol.

    `at` chooses a checkpoint of a run.
    """
    loaded = load_use(allowed)
    settings = {
        "samples": samples, "problems": problems, "recipe_path": recipe_path, "preset": preset,
        "preset_data": preset_data,
    }  # fmt: skip

    def check(folder: Path) -> None:
        check_file(Path(out) if out else folder / "evaluation.json")

    result, usual = evaluation.evaluate(model_or_run, overrides, loaded, at=at, before=check, **settings)
    print(visible(evaluation_text(result), lines=True))
    path = Path(out) if out else usual
    write(path, result)
    print(visible(f"written: {path}"))
    return 0


def sample(
    model_or_run: str,
    prompt: str,
    overrides: Sequence[tuple[str, str]] = (),
    allowed: Permissions = Permissions(),  # noqa: B008
    *,
    at: At = None,
    n: int = 1,
    answer: str | None = None,
    images: Sequence[str] = (),
    out: str | None = None,
) -> int:
    """Print `n` answers of a model directory or of a run's model to one prompt. No verifier grades them.

    The prompt of a vision-language model has the pictures in the files `images` before its text.

    The pictures of a flow model are written to the file `out` instead (default: sample.png), side by side. A single
    answer is greedy unless the overrides choose how tokens are drawn. `at` chooses a checkpoint of a run.
    """
    loaded = load_use(allowed)
    changes = evaluation.for_one_answer(overrides) if n == 1 else overrides
    pictures = [read_picture(Path(file)) for file in images]
    samples = evaluation.sample(model_or_run, prompt, changes, loaded, at=at, n=n, answer=answer, pictures=pictures)
    if sheet := PictureSheet.of([[picture_of(result.actions) for result in samples]]):
        path = Path(out or "sample.png")
        check_file(path)
        path.write_bytes(png(sheet.pixels))
        print(visible(f"written: {path}"))
        return 0
    if out:
        notify(f"note: {visible(out)} is not written: --out is for pictures, and the answers are text")
    for i, (result, *threads) in enumerate(episodes_of(samples), 1):
        if result.counts and n > 1:
            print(visible(f"-- {i} of {n}"))
        text = format_episode([result, *threads]) if result.requests else format_sample(result)
        print(visible(text, lines=True))
    return 0
