"""`evaluate` and `sample`: the accuracy of a model, and answers to a prompt."""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

from groupwise.api.reward import Reward, reward_of, write_code
from groupwise.api.rows import rows_in_memory, write_task
from groupwise.api.run import Run
from groupwise.api.threads import run_blocking
from groupwise.config.settings import as_data
from groupwise.config.user_code import Use, load_use
from groupwise.data import BadData, Usage
from groupwise.evaluation.result import evaluation_text
from groupwise.training import evaluate as evaluation

__all__ = ["Evaluation", "evaluate", "sample"]


class Evaluation(dict[str, Any]):
    """The results of an evaluation: figures such as pass@k, with the protocol and the counts per problem."""

    def __str__(self) -> str:
        return evaluation_text(self)

    @property
    def figures(self) -> dict[str, float]:
        """The value of each figure by name: `avg@4` and others of sampled answers, `greedy ...` of greedy ones."""
        figures: dict[str, float] = {}
        for number in self["numbers"]:
            kind = "" if number["protocol"]["sampling"]["temperature"] else "greedy "
            figures |= {f"{kind}{name}": value for name, (value, _, _) in number["figures"].items()}
        return figures


def evaluate(
    model: Run | str | Path,
    *,
    data: str | Path | Iterable[Mapping[str, Any]] | None = None,
    reward: Any = None,
    samples: int | None = None,
    problems: int | None = None,
    use: Sequence[str | Path] = (),
    unsafe_local_exec: bool = False,
    trust_remote_code: bool = False,
    keys: Sequence[str] = (),
    judges: Sequence[str] = (),
    **settings: Any,
) -> Evaluation:
    """Measure the held-out accuracy or score of a run's model, of a model directory, or of a model on the hub.

    Without `data` and `reward` those of the run's recipe hold. All rows of `data` are evaluated on. Each problem is
    answered once greedily and `samples` times with the recipe's sampling. `settings` are fields of the recipe by name.
    """
    name = str(model.directory if isinstance(model, Run) else model)
    rows = rows_in_memory(data) if data is not None else None
    grades = reward_of(reward) if reward is not None else Reward("")
    for word, field, value in (("data", "task", data), ("reward", "verifier", reward)):
        if value is not None and field in settings:
            raise Usage(f"{word} and {field} set the same field", fix=f"leave out {field}")

    def work(folder: Path) -> Evaluation:
        fields: dict[str, Any] = dict(settings)
        if grades.verifier:
            fields["verifier"] = grades.verifier
        if rows is not None:
            write_task(rows, folder / "rows.jsonl", fields)
        elif data is not None:
            fields["task"] = str(data)
        permissions: dict[str, Any] = {"unsafe_local_exec": unsafe_local_exec, "trust_remote_code": trust_remote_code}
        loaded = load_use([*use, *write_code(grades, folder)], **permissions, keys=keys, judges=judges)
        loaded = replace(loaded, in_memory=grades.in_memory)
        overrides = [(path, as_data(value)) for path, value in fields.items()]
        chosen: dict[str, Any] = {"samples": samples, "problems": problems, "all_rows": data is not None}
        if data is not None:
            chosen["problems"] = problems or evaluation.ALL
        result, _ = evaluation.evaluate(name, overrides, loaded, **chosen)
        return Evaluation(result)

    with tempfile.TemporaryDirectory(prefix="groupwise-") as folder:
        return run_blocking(lambda: work(Path(folder)))


@overload
def sample(model: Run | str | Path, prompt: str, *, n: None = None, **settings: Any) -> str: ...
@overload
def sample(model: Run | str | Path, prompt: str, *, n: int, **settings: Any) -> list[str]: ...
def sample(model: Run | str | Path, prompt: str, *, n: int | None = None, **settings: Any) -> str | list[str]:
    """A model's answer to a prompt; with `n`, a list of `n` answers.

    `settings` are fields of the recipe by name, such as `**{"sampling.temperature": 0.7}`. One answer is greedy unless
    they say otherwise.
    """
    if n is not None and n < 1:
        raise BadData(f"n, the number of answers, is {n}", fix="ask for at least one answer")
    name = str(model.directory if isinstance(model, Run) else model)
    overrides = [(path, as_data(value)) for path, value in settings.items()]
    if n is None and "sampling" not in settings:
        overrides = evaluation.for_one_answer(overrides)
    samples = run_blocking(lambda: evaluation.sample(name, prompt, overrides, Use(), n=n or 1))
    return samples[0].text if n is None else [each.text for each in samples]
