"""How papers took their numbers, as presets of `groupwise eval`; docs/evaluation.md says where ours differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.data import BadData, Usage

Words = tuple[tuple[str, str], ...]
"""Fields of a recipe as a command line says them: `("sampling.top_p", "0.7")`."""

ALONE: Words = (
    ("also", "[]"), ("held_out", ""), ("columns.prompt", "prompt"), ("columns.answer", "answer"),
    ("evaluate.strategy", "Independent"),
)  # fmt: skip
"""What a run's own recipe may say, and an evaluation of published problems does not take from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A paper's protocol: its tasks and how many problems each has. `home` is where the paper keeps its only task."""

    paper: str
    tasks: tuple[tuple[str, int], ...]
    samples: int
    says: Words
    by_template: tuple[tuple[str, Words], ...] = ()
    home: str = ""

    def words(self, template: str) -> Words:
        """What it says of a recipe, whatever the task; of some papers' the template decides more."""
        return (*self.says, *dict(self.by_template).get(template, ()))

    def recipes(self, overrides: Sequence[tuple[str, str]], data: str | None = None) -> list[list[tuple[str, str]]]:
        """For each task all that is said of its recipe. Problems come from the hub, or from the directory `data`."""
        said = dict(overrides)
        if "task" in said:
            raise Usage(
                "a preset has its own tasks", evidence=f"--task {said['task']}", fix="say --data DIR, or no preset"
            )
        words = self.words(said.get("template", ""))
        at = [str(beside(Path(data), name)) if data else self.home for name, _ in self.tasks]
        tasks = [f"{name}:{where}" if where else name for (name, _), where in zip(self.tasks, at)]
        return [[*ALONE, ("task", task), *words, *overrides] for task in tasks]

    def departures(self, overrides: Sequence[tuple[str, str]], numbers: Sequence[Mapping[str, Any]]) -> list[str]:
        """In what numbers were not taken as published."""
        said = dict(overrides)
        known = dict(self.words(said.get("template", "")))
        told = [
            f"{path} {said[path]}, not {known[path]}" for path in known if said.get(path, known[path]) != known[path]
        ]
        for (name, count), number in zip(self.tasks, numbers):
            n, asked = number["protocol"]["n"], number["protocol"]["task"]["problems"]
            told += [f"{name}: {n} answers a problem, not {self.samples}"] * (n != self.samples)
            told += [f"{name}: {asked} problems, not {count}"] * (asked != count)
        return told


def beside(directory: Path, name: str) -> Path:
    """The file or directory of a task: `aime24.jsonl`, `aime24.parquet` or `aime24/`."""
    found = [directory / f"{name}{ending}" for ending in (".jsonl", ".parquet", "")]
    for path in found:
        if path.exists():
            return path
    seen = ", ".join(sorted(p.name for p in directory.iterdir())[:8]) if directory.is_dir() else "no such directory"
    raise BadData(
        f"{directory} has no {name}", evidence=seen or "it is empty", fix=f"put {name}.jsonl or {name}.parquet there"
    )


def _law(temperature: float, top_p: float, max_tokens: int) -> Words:
    law = {"temperature": temperature, "top_p": top_p, "top_k": 0, "min_p": 0.0, "max_tokens": max_tokens}
    return (*((f"sampling.{name}", str(value)) for name, value in law.items()), ("sampling.stop", "[]"))


PUBLISHED = {
    "aime24-dapo": Published(
        paper="DAPO, arXiv:2503.14476, section 4.1",
        tasks=(("aime24", 30),),
        samples=32,
        says=(("template", "chat"), ("verifier", "math_dapo"), *_law(1.0, 0.7, 20480)),
        home="datasets:BytedTsinghua-SIA/AIME-2024",
    ),
    "r1-zero-suite": Published(
        paper="Dr. GRPO, arXiv:2503.20783, evaluate_model.py",
        tasks=(("aime24", 30), ("amc", 83), ("math500", 500), ("minerva", 272), ("olympiadbench", 675)),
        samples=1,
        says=(("template", "qwen_math"), ("verifier", "math_dr_grpo"), *_law(0.0, 1.0, 3000)),
        by_template=(("r1", (("verifier", "math_dr_grpo(tag=True)"), ("sampling.stop", "['</answer>']"))),),
    ),
}


def find_published(name: str) -> Published:
    """A preset by its name; `Usage` where there is none."""
    if name not in PUBLISHED:
        raise Usage(f"no evaluation is called {name!r}", fix=f"there is {' and '.join(PUBLISHED)}")
    return PUBLISHED[name]
