"""A task is a part of a recipe like all others: typed, written, compared, overridden by path, and extensible."""

import json
from dataclasses import MISSING, fields, replace
from pathlib import Path

import pytest

import groupwise as gw
from groupwise.commands.field_help import field_help
from groupwise.config.diff import diff
from groupwise.config.parse_toml_values import default
from groupwise.config.recipe import ExtraTask, Recipe
from groupwise.config.recipe_toml import read_recipe, read_with_problems, write
from groupwise.config.registry import UnloadedPart, fitting_names
from groupwise.config.task_sources import sources
from groupwise.config.user_code import Permissions, UserCode, load_use
from groupwise.core import Usage, class_name, part_named, plain_name
from groupwise.data import Task, TaskSettings
from groupwise.tasks import BigSums, Calculator, DataRows, Demonstrations, PublishedSet, ReasoningGym, named_task
from groupwise.training.build_tasks import task_of, templates, verifier_of
from tests.training.test_sources import CALCULATOR

KINDS = {name: part_named(name) for name in fitting_names(TaskSettings)}
EXAMPLES = {
    "Demonstrations": Demonstrations("programs", drop_thoughts=0.5, thought_marks=("", "#")),
    "PublishedSet": PublishedSet("math", "files/math"),
    "ReasoningGym": ReasoningGym("maze", seed=3, max_problems=7),
    "DataRows": DataRows("datasets:openai/gsm8k:main@test"),
}
EVENS = """\
from dataclasses import dataclass

from groupwise.data import Prompt, TaskSettings
from groupwise.tasks import RowsTask


@dataclass(frozen=True)
class Evens(TaskSettings):
    step: int = 2

    def build(self, encode):
        texts = [f"{n}+{self.step}=" for n in range(2, 8, 2)]
        prompts = [Prompt(f"evens/{i}", encode(x), x, {"answer": eval(x[:-1])}) for i, x in enumerate(texts)]
        return RowsTask(tuple(prompts[1:]), tuple(prompts[:1]))


class Other:
    pass
"""


def recipe(*overrides: tuple[str, object], text: str = "method = 'grpo'", use: UserCode | None = None) -> Recipe:
    return read_recipe(text, overrides, use)


@pytest.fixture
def use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UserCode:
    monkeypatch.chdir(tmp_path)
    Path("evens.py").write_text(EVENS)
    return load_use(Permissions(use=["evens.py"]))


@pytest.mark.parametrize("name", KINDS)
def test_every_task_is_a_value_that_reads_back(name: str) -> None:
    assert class_name(plain_name(name)) == name
    kind = EXAMPLES[name] if name in EXAMPLES else named_task(plain_name(name))
    assert isinstance(kind, KINDS[name]) and kind.label and kind.template
    if name not in EXAMPLES:
        assert recipe(("task", plain_name(name))).task == recipe(("task", name)).task == kind
        assert isinstance(kind.build(lambda text, **_: (1,)), Task)
    extra = (ExtraTask(task=kind),)
    again = recipe(text=write(replace(recipe(), task=kind, held_out=kind, extra_tasks=extra)))
    assert (again.task, again.held_out, again.extra_tasks[0].task) == (kind, kind, kind)
    for field in fields(KINDS[name]):
        assert f"{field.name}:" in field_help(f"task.{field.name}") and field.name in field_help("task")
        assert default(field) is not MISSING or name in EXAMPLES


def test_a_text_is_short_for_a_table_which_is_written() -> None:
    texts = {
        "big_sums": '"BigSums"',
        "gsm8k": '{ kind = "PublishedSet", name = "gsm8k" }',
        "a/b.jsonl": '{ kind = "DataRows", source = "a/b.jsonl" }',
        "datasets:x/y:main@test": '{ kind = "DataRows", source = "datasets:x/y:main@test" }',
        "2024": '{ kind = "DataRows", source = "2024" }',
    }
    for text, table in texts.items():
        short = recipe(("task", text), ("held_out", text), ("extra_tasks", [{"task": text}]))
        whole = recipe(text=f"method = 'grpo'\ntask = {table}\nheld_out = {table}\nextra_tasks = [{{task = {table}}}]")
        assert short == whole and write(short) == write(whole)
        assert Recipe(method=gw.grpo(), task=text).task == short.task == ExtraTask(task=text).task
        data = {"kind": text} if text != "2024" else {"kind": "DataRows", "source": text}
        assert text.startswith(("a/", "datasets", "2")) or recipe(("task", data)).task == short.task
    assert '[task]\nkind = "PublishedSet"\nname = "gsm8k"\nsource = ""\n' in write(recipe(("task", "gsm8k")))
    assert recipe(("held_out", "math500"), ("held_out", "none")).held_out is None


def test_fields_are_set_by_path_and_compared() -> None:
    base = recipe(("task", "gsm8k"), ("extra_tasks", [{"task": {"kind": "reasoning_gym", "name": "maze"}}]))
    deep = recipe(("task.source", "files"), ("extra_tasks.0.task.seed", "3"), text=write(base))
    assert deep.task == PublishedSet("gsm8k", "files") and deep.extra_tasks[0].task == ReasoningGym("maze", seed=3)
    assert diff(base, deep)[0] == 'task.source: "" -> files' and len(diff(base, deep)) == 2
    assert recipe(("task.seed", "3"), ("task.name", "maze"), ("task", "reasoning_gym")).task == ReasoningGym("maze", 3)
    assert diff(recipe(), base)[0] == 'task: Calculator -> PublishedSet(name=gsm8k, source="")'


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("gsm8k:files", 'task = { kind = "PublishedSet", name = "gsm8k", source = "files" }'),
        ("reasoning_gym:maze", "--task reasoning_gym --task.name maze"),
        ("", "the task has no name"),
        ("{ kind = 'gsm8k', sorce = 'x' }", "PublishedSet has no field 'sorce'; did you mean source?"),
        ("{ kind = 'reasoning_gym', name = 'maze', seed = 'x' }", "recipe.task.seed: 'x' is a string"),
        ("{ kind = 'reasoning_gym', name = 'maze', max_problems = 0 }", "use seed >= 0 and max_problems >= 1"),
        ("{ kind = 'reasoning_gym', name = 'maze', max_problems = 1048577 }", "max_problems >= 1, at most 1048576"),
        ("{ kind = 'PublishedSet', name = 'gsm9k' }", "no published set is called 'gsm9k'"),
        ("{ kind = 'DataRows' }", "Rows needs source"),
        ("{ kind = 'Clip' }", "Clip is not a TaskSettings"),
        ("{ kind = 'calculater' }", "unknown component 'calculater'; similar: Calculator"),
        ("{ source = 'a.jsonl' }", "Calculator has no field 'source', and no other"),
        ("evens:Other", "Other is not a dataclass"),
        ("evens.py:Even", "evens.py does not define 'Even'"),
    ],
)
def test_other_values_are_answered_with_what_to_write(value: str, what: str, use: UserCode) -> None:
    for path in ("task", "held_out"):
        if not (path == "held_out" and value.startswith("{ source")):
            with pytest.raises(Usage) as caught:
                recipe((path, value), use=use)
            assert what.replace("recipe.task.", f"recipe.{path}.") in str(caught.value) and caught.value.fix


def test_a_class_in_a_user_s_file_is_a_task(use: UserCode) -> None:
    own = recipe(("task", "evens:Evens"), ("task.step", "3"), ("verifier", "exact"), use=use)
    assert write(own).count('[task]\nkind = "evens:Evens"\nstep = 3\n') == 1 and own.task.label == "evens"
    assert recipe(text=write(own), use=use) == own
    assert recipe(("task", "code/evens.py:Evens"), ("task.step", "3"), ("verifier", "exact"), use=use) == own
    task = task_of(own, templates(own, CALCULATOR))
    assert [task[0].text, task.held_out[0].text] == ["4+3=", "2+3="] and verifier_of(own, task, use) == own.verifier
    unloaded, problems = read_with_problems(write(own))
    assert (
        unloaded and isinstance(unloaded.task, UnloadedPart) and not problems and unloaded.task.label == "evens:Evens"
    )
    assert sources(unloaded)[0].template == "no" and write(unloaded) == write(own)


def test_a_run_of_a_user_s_task_starts_and_resumes(use: UserCode) -> None:
    small = {
        "prompts": 2,
        "method.minibatches": 1,
        "method.group_size": 2,
        "sampling.max_tokens": 8,
        "evaluate.problems": 1,
    }
    allowed = gw.Permissions(use=["evens.py"])
    run = gw.train(task="evens:Evens", reward="exact", iterations=1, permissions=allowed, **small)
    assert run.directory.name.startswith("evens-Evens-")
    assert json.loads((run.directory / "run.json").read_text())["task"] == "evens"
    assert len(gw.resume(run.directory, iterations=2, permissions=allowed).metrics["reward"]) == 2


@pytest.mark.parametrize("value", ["evens:Evens", "code/evens.py:Evens", "{ kind = 'evens:Evens', step = 3 }"])
def test_a_recipe_alone_loads_no_file(value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("evens.py").write_text("raise SystemExit")
    for path, text in (("task", value), ("held_out", value)):
        with pytest.raises(Usage, match=r"evens.* is code in a file that is not loaded") as caught:
            recipe((path, text))
        assert "evens.py to the command" in caught.value.fix


def test_a_kind_without_a_build_is_refused() -> None:
    class Empty(TaskSettings):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Empty()


def test_the_library_takes_values_names_and_tables() -> None:
    assert Recipe(method=gw.grpo()).task == Calculator()
    assert Recipe(method=gw.grpo(), task="big_sums", held_out="math500") == Recipe(
        method=gw.grpo(), task=BigSums(), held_out=PublishedSet("math500")
    )
