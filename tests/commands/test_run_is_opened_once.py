"""Between a command and the loop, a run's files are read once, and no function takes a path of the run."""

import inspect
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from groupwise.api import start_run
from groupwise.api.options import RunOptions
from groupwise.commands.train import resume, train
from groupwise.config import recipe_toml as text
from groupwise.lifecycle import create_or_open_run, extend_run, run, sft_warm_start
from groupwise.lifecycle import final_message as closing
from groupwise.lifecycle import resume_checks as identity
from groupwise.lifecycle import run_info as about
from groupwise.lifecycle import run_phases as phases
from groupwise.runs import open_run
from groupwise.runs.run_info import RunInfo
from groupwise.runs.run_layout import RunLayout
from groupwise.training import loop, run_recorder
from groupwise.training import rank_worker as follower

SMALL = {"iterations": 1, "prompts": 2, "method": "grpo", "method.group_size": 2, "sampling.max_tokens": 4}
SMALL |= {"evaluate.problems": 1}


@contextmanager
def counted(patch: pytest.MonkeyPatch) -> Iterator[Counter[tuple[str, Path]]]:
    """Counts the layouts of each directory, and the reads of each run.json and recipe.toml, before the report."""
    calls: Counter[tuple[str, Path]] = Counter()
    create, read = RunLayout.__init__, Path.read_text

    def created(self: RunLayout, path: Path) -> None:
        calls["layout", path] += 1
        create(self, path)

    def opened(self: Path, *args: Any, **kwargs: Any) -> str:
        if self.name in ("run.json", "recipe.toml"):
            calls[self.name, self.parent] += 1
        return read(self, *args, **kwargs)

    with patch.context() as patched:
        patched.setattr(RunLayout, "__init__", created)
        patched.setattr(Path, "read_text", opened)
        patched.setattr(run, "write_report", lambda directories: directories[0] / "report.html")
        yield calls


def test_a_run_is_read_once_and_has_one_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with counted(monkeypatch) as calls:
        fields = [(name, str(value)) for name, value in SMALL.items()]
        assert train(None, fields, RunOptions(out=tmp_path, name="run")) == 0
    (directory,) = tmp_path.iterdir()
    of_run = {what: count for (what, path), count in calls.items() if path == directory}
    assert of_run == {"layout": 1}  # what train has written itself is never read

    for options in (RunOptions(), RunOptions(iterations=2)):
        with counted(monkeypatch) as calls:
            assert resume(str(directory), options) == 0
        of_run = {what: count for (what, path), count in calls.items() if path == directory}
        assert of_run == {"layout": 1, "run.json": 1, "recipe.toml": 1}
    assert RunInfo.read(RunLayout(directory)).iterations == 2


def test_a_recipe_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = [(name, str(value)) for name, value in SMALL.items()]
    assert train(None, fields, RunOptions(out=tmp_path, name="run")) == 0
    (directory,) = tmp_path.iterdir()
    reads, read = [], text.read_run_recipe
    monkeypatch.setattr(create_or_open_run, "read_run_recipe", lambda *args: reads.append(args) or read(*args))
    for name in ("read_recipe", "read_with_overrides"):
        monkeypatch.setattr(start_run, name, lambda *args: pytest.fail("a resume reads the open run"))
    assert resume(str(directory), RunOptions(iterations=2)) == 0
    assert len(reads) == 1


@pytest.mark.parametrize(
    "module",
    [
        about,
        closing,
        extend_run,
        follower,
        identity,
        loop,
        phases,
        run_recorder,
        run,
        create_or_open_run,
        sft_warm_start,
        start_run,
        open_run,
    ],
    ids=lambda module: module.__name__.rpartition(".")[2],
)
def test_no_function_between_the_command_and_the_loop_takes_a_path_of_a_run(module: ModuleType) -> None:
    functions = [x for x in vars(module).values() if inspect.isfunction(x) and x.__module__ == module.__name__]
    classes = [x for x in vars(module).values() if inspect.isclass(x) and x.__module__ == module.__name__]
    functions += [x for c in classes for x in vars(c).values() if inspect.isfunction(x)]
    taken = {
        f"{f.__qualname__}({name})"
        for f in functions
        for name, parameter in inspect.signature(f).parameters.items()
        if parameter.annotation in (Path, "Path") and name in ("run", "directory", "home")
    }
    assert not taken
