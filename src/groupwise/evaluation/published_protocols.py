"""Evaluation protocols of papers, as presets of `groupwise eval`. docs/evaluation.md lists the differences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.core import BadData, Usage, counted

Overrides = tuple[tuple[str, str], ...]
"""Recipe fields with their values as text, as on a command line: `("sampling.top_p", "0.7")`."""

RESET: Overrides = (
    ("extra_tasks", "[]"), ("held_out", "none"), ("columns.prompt", "prompt"), ("columns.answer", "answer"),
    ("evaluate.strategy", "Independent"),
)  # fmt: skip
"""Recipe fields that are reset to these values in every evaluation on a published benchmark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedProtocol:
    """A paper's evaluation settings. `tasks`: names and numbers of problems; `source`: where a single task is from."""

    paper: str
    tasks: tuple[tuple[str, int], ...]
    samples_per_problem: int
    recipe_overrides: Overrides
    overrides_by_template: tuple[tuple[str, Overrides], ...] = ()
    task_source: str = ""

    def settings_for(self, template: str) -> Overrides:
        """The recipe fields that the paper fixes for all tasks; some depend on the template."""
        return (*self.recipe_overrides, *dict(self.overrides_by_template).get(template, ()))

    def recipes(self, overrides: Sequence[tuple[str, str]], data: str | None = None) -> list[list[tuple[str, str]]]:
        """The recipe overrides to evaluate each task. Problems come from the hub, or the directory `data`."""
        if task := next((pair for pair in overrides if f"{pair[0]}.".startswith("task.")), None):
            raise Usage(
                "--preset and --data cannot be combined: a preset names its tasks",
                evidence=f"--{task[0]} {task[1]}",
                fix="use --preset-data DIR for another copy of its problems, or leave out --preset",
            )
        settings = self.settings_for(dict(overrides).get("template", ""))
        sources = [str(task_path(Path(data), name)) if data else self.task_source for name, _ in self.tasks]
        tasks = [[("task", name), ("task.source", source)] for (name, _), source in zip(self.tasks, sources)]
        return [[*RESET, *task, *settings, *overrides] for task in tasks]

    def departures(self, overrides: Sequence[tuple[str, str]], results: Sequence[Mapping[str, Any]]) -> list[str]:
        """How an evaluation differs from the paper's settings, one line each."""
        chosen = dict(overrides)
        settings = dict(self.settings_for(chosen.get("template", "")))
        changes = {path: chosen[path] for path, value in settings.items() if chosen.get(path, value) != value}
        lines = [f"{path} {value}, not {settings[path]}" for path, value in changes.items()]
        for (name, count), result in zip(self.tasks, results):
            n, problems = result["protocol"]["n"], result["protocol"]["task"]["problems"]
            lines += [f"{name}: {counted(n, 'answer')} per problem, not {self.samples_per_problem}"] * (
                n != self.samples_per_problem
            )
            lines += [f"{name}: {counted(problems, 'problem')}, not {count}"] * (problems != count)
        return lines


def task_path(directory: Path, name: str) -> Path:
    """The file or directory of a benchmark in a user's folder: `aime24.jsonl`, `aime24.parquet` or `aime24/`."""
    for path in [directory / f"{name}{ending}" for ending in (".jsonl", ".parquet", "")]:
        if path.exists():
            return path
    files = ", ".join(sorted(p.name for p in directory.iterdir())[:8]) if directory.is_dir() else "no such directory"
    raise BadData(
        f"{directory} has no {name}", evidence=files or "it is empty", fix=f"put {name}.jsonl or {name}.parquet there"
    )


def _sampling(temperature: float, top_p: float, max_tokens: int) -> Overrides:
    values = {"temperature": temperature, "top_p": top_p, "top_k": 0, "min_p": 0.0, "max_tokens": max_tokens}
    return (*((f"sampling.{name}", str(value)) for name, value in values.items()), ("sampling.stop", "[]"))


PUBLISHED = {
    "aime24-dapo": PublishedProtocol(
        paper="DAPO, arXiv:2503.14476, section 4.1",
        tasks=(("aime24", 30),),
        samples_per_problem=32,
        recipe_overrides=(("template", "chat"), ("verifier", "math_dapo"), *_sampling(1.0, 0.7, 20480)),
        task_source="datasets:BytedTsinghua-SIA/AIME-2024",
    ),
    "r1-zero-suite": PublishedProtocol(
        paper="Dr. GRPO, arXiv:2503.20783, evaluate_model.py",
        tasks=(("aime24", 30), ("amc", 83), ("math500", 500), ("minerva", 272), ("olympiadbench", 675)),
        samples_per_problem=1,
        recipe_overrides=(("template", "qwen_math"), ("verifier", "math_dr_grpo"), *_sampling(0.0, 1.0, 3000)),
        overrides_by_template=(("r1", (("verifier.use_answer_tag", "true"), ("sampling.stop", "['</answer>']"))),),
    ),
}


def find_published(name: str) -> PublishedProtocol:
    """A preset by name. `Usage` if there is none."""
    if name not in PUBLISHED:
        raise Usage(f"no preset is called {name!r}", fix=f"take {' or '.join(PUBLISHED)}")
    return PUBLISHED[name]
