"""`evaluate` and `sample`: the accuracy of a model, and answers to a prompt."""

import html
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any, overload

from groupwise.api.arguments import arguments_of, own_words
from groupwise.api.event_loop import run_blocking
from groupwise.api.options import RunOptions
from groupwise.api.python_messages import from_python
from groupwise.api.reward import Reward
from groupwise.api.write_pictures import pictures_of_images
from groupwise.config.python_advice import in_python
from groupwise.config.recipe_toml import read_verifier
from groupwise.config.registry import UnloadedPart
from groupwise.config.train_keyword_arguments import fields_of, overrides_of
from groupwise.config.user_code import Permissions, function_hash, load_use
from groupwise.core import BadData, Usage, spelling
from groupwise.data import VerifierSettings
from groupwise.evaluation.evaluation_files import evaluation_text
from groupwise.inference import evaluate_model as evaluation
from groupwise.inference.models_of_run import At
from groupwise.runs.find_run import run_or_model
from groupwise.runs.next_command import verifier_of_run
from groupwise.runs.run_info import RunInfo
from groupwise.runs.run_layout import RunLayout
from groupwise.training.progress_output import notify
from groupwise.verifiers import Combined, Function
from groupwise.verifiers.reward_argument_of_verifier import python_reward
from groupwise.verifiers.user_function import functions_in

__all__ = ["Evaluation", "evaluate", "sample"]


class Evaluation(dict[str, Any]):
    """The results of an evaluation: figures such as pass@k, with the settings and the counts per problem."""

    def __str__(self) -> str:
        return in_python(evaluation_text(self))

    def __repr__(self) -> str:
        figures = ", ".join(f"{name} {value:.3f}" for name, value in self.figures.items())
        return f"<Evaluation: {figures or 'no figures'}>"

    def _repr_html_(self) -> str:
        return f'<pre style="font-family: monospace">{html.escape(str(self))}</pre>'  # exported pages set another font

    @property
    def figures(self) -> dict[str, float]:
        """The value of each figure by name: `avg@4`, `level=2` of `evaluate.by_column`; `greedy ...` if greedy."""
        figures: dict[str, float] = {}
        for result in self["results"]:
            kind = "" if result["protocol"]["sampling"]["temperature"] else "greedy "
            named = {**result["figures"], **result.get("by", {})}
            figures |= {f"{kind}{name}": value for name, (value, *_) in named.items()}
        return figures


@from_python
def evaluate(
    model: str | PathLike[str],
    *,
    at: At = None,
    data: str | Path | Iterable[Mapping[str, Any]] | None = None,
    reward: Any = None,
    samples: int | None = None,
    problems: int | None = None,
    permissions: Permissions = Permissions(),  # noqa: B008
    **settings: Any,
) -> Evaluation:
    """Measure the held-out accuracy or score of a run's model, of a model directory, or of a model on the hub.

    `at` chooses a checkpoint of a run: the number of an iteration, or `"best"`. Without it the model is the finished
    one, else the newest checkpoint's. Without `data` and `reward` the run's recipe holds, with up to
    `evaluate.problems` of its held-out problems. All rows of `data` are evaluated on, and no others. Each problem is
    answered once greedily and `samples` times with the recipe's sampling.
    `settings` are fields of the recipe by name.
    """
    name = name_of(model)
    arguments = arguments_of({"data": data, "reward": reward}, settings)
    allowed = RunOptions(permissions=permissions).permissions
    of_run = evaluation.find_model_of(name, at)
    if of_run and arguments.reward.functions_in_memory:
        check_whole_reward(of_run.run_layout, arguments.reward)
    source = of_run.run_layout.recipe if of_run else None

    def work(folder: Path) -> Evaluation:
        layout = RunLayout(folder)
        with own_words(layout), spelling(lambda text: text.replace(f"{folder}/", "")):
            overrides, loaded = arguments.write(layout.data, layout.code, allowed, source)
            result, _ = evaluation.evaluate(name, overrides, loaded, at=at, samples=samples, problems=problems)
        for task in (part["protocol"]["task"] for part in result["results"]):
            task["name"] = "data" if task["name"] == str(layout.data) else task["name"]
        return Evaluation(result)

    with tempfile.TemporaryDirectory(prefix="groupwise-") as folder:
        return run_blocking(lambda: work(Path(folder)))


def check_whole_reward(layout: RunLayout, reward: Reward) -> None:
    """`Usage` for a function in memory that is only a part of the run's reward. A changed function is a note."""
    run, data = layout.run_directory, verifier_of_run(layout.run_directory)
    whole, own = (read_verifier(one) if one else None for one in (data, reward.verifier_toml))
    graders = [member.verifier for member in own.members] if isinstance(own, Combined) else [own]
    parts = {member.name: member.verifier for member in whole.members} if isinstance(whole, Combined) else {}
    passed = [_key(kind) for kind in graders]
    shared = [f.name for f in functions_in(whole) if not f.file and f in passed]
    if shared and (missing := [name for name, part in parts.items() if _key(part) not in passed]):
        raise Usage(
            f"{' and '.join(shared)} grades only a part of the reward of {run}",
            evidence=f"without {', '.join(missing)}",
            fix=f"pass the whole reward: reward={python_reward(data)}\n"
            "or, to grade by this function alone, a function of another name",
        )
    recorded = RunInfo.read(layout).in_memory if shared else {}
    for name in shared:
        if function_hash(reward.functions_in_memory[name]) != recorded.get(name):
            notify(f"note: the reward {name} is not the function that {run} was started with")


def _key(kind: VerifierSettings | None) -> Any:
    """What two verifiers share if they are the same: of a function in a file, its name there."""
    if isinstance(kind, Function) and kind.file:
        return kind.user_name
    return kind.part if isinstance(kind, UnloadedPart) else kind


def name_of(model: str | PathLike[str]) -> str:
    """The directory of a run, also for a name without the time (`runs/first`); for a model, the name as it is."""
    return run_or_model(fspath(model))


@overload
def sample(
    model: str | PathLike[str], prompt: str, *, n: None = None, at: At = None, images: Sequence[Any] = (),
    **settings: Any,
) -> str: ...  # fmt: skip
@overload
def sample(
    model: str | PathLike[str], prompt: str, *, n: int, at: At = None, images: Sequence[Any] = (), **settings: Any
) -> list[str]: ...
@from_python
def sample(
    model: str | PathLike[str],
    prompt: str,
    *,
    n: int | None = None,
    at: At = None,
    images: Sequence[Any] = (),
    permissions: Permissions = Permissions(),  # noqa: B008
    **settings: Any,
) -> str | list[str]:
    """A model's answer to a prompt; with `n`, a list of `n` answers.

    `images` are before the prompt of a vision-language model: paths, bytes of files, or images of Pillow. `at` chooses
    a checkpoint of a run, as in `evaluate`. `settings` are fields of the recipe by name, such as
    `**{"sampling.temperature": 0.7}`. One answer is greedy unless they say otherwise. `permissions`
    are as for `train`.
    """
    if not isinstance(prompt, str):
        raise Usage(f"prompt is {type(prompt).__name__}", evidence=repr(prompt)[:80], fix="pass a text")
    if n is not None and n < 1:
        raise BadData(f"n, the number of answers, is {n}", fix="ask for at least one answer")
    name = name_of(model)
    overrides = overrides_of(fields_of({}, settings))
    if n is None and "sampling" not in settings:
        overrides = evaluation.for_one_answer(overrides)
    loaded = load_use(RunOptions(permissions=permissions).permissions)
    pictures = pictures_of_images(images)
    samples = run_blocking(
        lambda: evaluation.sample(name, prompt, overrides, loaded, at=at, n=n or 1, pictures=pictures)
    )
    return samples[0].text if n is None else [each.text for each in samples]
