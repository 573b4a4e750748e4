"""A room exports the names in its files' `__all__`, without any other list."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from tools.front_doors import ROOMS, SOURCE, package_stub, stub

import groupwise
from groupwise.core.lazy_imports import files_of, names_of
from tests.docs.test_pages import blocks


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_exports_the_names_its_files_list_once_each(room: str) -> None:
    package = importlib.import_module(f"groupwise.{room}")
    lists = files_of(package.__name__)
    assert all((SOURCE.parent / f"{module.replace('.', '/')}.py").is_file() for module in lists)
    assert sorted(name for names in lists.values() for name in names) == package.__all__ == sorted(set(package.__all__))
    for module, names in lists.items():
        assert importlib.import_module(module).__all__ == names
        for name in names:
            assert getattr(package, name) is getattr(sys.modules[module], name)
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = package.Nothing


@pytest.mark.parametrize("room", ROOMS)
def test_the_stub_of_a_room_is_fresh(room: str) -> None:
    assert (SOURCE / room / "__init__.pyi").read_text() == stub(room), "run python tools/front_doors.py"


def test_the_stub_of_the_package_is_fresh() -> None:
    assert (SOURCE / "__init__.pyi").read_text() == package_stub(), "run python tools/front_doors.py"


def test_the_names_of_the_package_keep_their_meaning_after_all_rooms_and_import_torch_late() -> None:
    code = (
        "import sys, groupwise as gw; assert gw.__version__ and 50 <= len(dir(gw)) <= 70 and gw.parts;"
        "assert 'torch' not in sys.modules and 'groupwise.objective.surrogates' not in sys.modules;"
        "import importlib; from groupwise.core.lazy_imports import ROOMS;"
        "[importlib.import_module(f'groupwise.{room}') for room in ROOMS];"
        "import groupwise.training, groupwise.commands, groupwise.report, groupwise.runs;"
        "from types import ModuleType; parts = [name for names in gw.parts.values() for name in names];"
        "names = [*dir(gw), *parts, *gw.list_methods()];"
        "assert not [name for name in names if isinstance(getattr(gw, name), ModuleType)];"
        "assert set(dir(gw)) == set(gw.__all__) and not {'Clip', 'centred', *gw.list_methods()} & set(dir(gw));"
        "assert all(callable(getattr(gw, name)) for name in 'train resume evaluate sample Run load_method'.split());"
        "assert all(getattr(gw, name)() == gw.load_method(name) for name in gw.list_methods());"
        "print(len(parts) > 200, len(gw.list_methods()) > 80, gw.gspo().group_size, gw.Clip().low);"
        "print(gw.train.__module__, gw.Run.__module__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "16", "0.2", "groupwise.api.train", "groupwise.api.run"]


@pytest.mark.parametrize(
    ("name", "room"), [("Segments", "data"), ("reference_of", "methods"), ("InvalidValue", "core")]
)
def test_a_name_of_a_room_is_answered_with_its_import(name: str, room: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(groupwise, name)
    assert str(caught.value) == f"groupwise has no attribute '{name}'; from groupwise.{room} import {name}"
    assert getattr(importlib.import_module(f"groupwise.{room}"), name)
    with pytest.raises(AttributeError, match=r"^groupwise has no attribute 'tran'; did you mean gw\.train\?$"):
        _ = groupwise.tran


def test_names_are_unique_over_rooms() -> None:
    names = [name for room in ROOMS for name in names_of(f"groupwise.{room}")]
    assert sorted(names) == sorted(set(names))


def exported(source: str) -> set[str]:
    """The names that a module defines, assigns, imports or lists in `__all__`."""
    names: set[str] = set()
    for node in ast.parse(source).body:
        match node:
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names |= {(alias.asname or alias.name).partition(".")[0] for alias in aliases}
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                names |= set(ast.literal_eval(value))
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    return names


def test_the_package_exports_no_name_of_a_room() -> None:
    """Importing a room sets its name on the package, and would replace a function of that name."""
    example = "from groupwise.training import train as run\n__all__ = ['report']\ndef show(): ...\nX: int = 0"
    assert exported(example) == {"run", "report", "show", "X"}
    rooms = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").is_file()}
    names = exported((SOURCE / "__init__.py").read_text())
    names |= {name for room in ROOMS for name in names_of(f"groupwise.{room}")}
    assert len(rooms) > 10 and not names & rooms


NEW = {
    "advantages/quantile.py": '''"""A part in a new file."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from groupwise.data import Advantage, Batch

__all__ = ["Quantile"]


@dataclass(frozen=True, slots=True)
class Quantile(Advantage):
    """The reward less the group's largest."""

    share: float = 0.5

    def __call__(self, x: Float[Tensor, " s"], batch: Batch) -> Float[Tensor, " s"]:
        return x - batch.groups.spread(batch.groups.largest(x)) * self.share
''',
    "objective/halves.py": '''"""An aggregate in a new file."""

import torch

from groupwise.data import aggregate

__all__ = ["half_mean"]


@aggregate
def half_mean(step):
    """Half of the token mean."""
    return torch.full_like(step.advantage, 0.5 / max(step.tokens, 1))
''',
    "methods/ratio/wide_gspo.py": next(b.text for b in blocks("docs/add-a-method.md") if b.file == "wide_gspo.py"),
}

TRY = """
import sys
import groupwise
groupwise.__path__.insert(0, sys.argv[1])
from groupwise.core import Usage
from groupwise.commands.methods import list_methods
from groupwise.methods import published, reference_of, wide_gspo
from groupwise.config.recipe_toml import read_recipe, write
assert "groupwise.config" in sys.modules and wide_gspo in published
assert reference_of(wide_gspo).parent == "gspo" and "wide_gspo" in list_methods(family="ratio", like="gspo")
parts = 'advantage = [{kind = "Quantile", share = 0.25}], objective = {aggregate = "half_mean"}'
assert read_recipe('method = "wide_gspo"').method == wide_gspo()
recipe = read_recipe('method = {base = "dapo", %s}' % parts)
assert read_recipe(write(recipe)) == recipe and 'kind = "Quantile"' in write(recipe)
wrongs = 'objective = {surrogate = "half_mean"}', 'credit = "Quantile"', 'objective = {aggregate = "describe_samples"}'
for wrong in wrongs:
    try:
        read_recipe('method = {base = "dapo", %s}' % wrong)
    except Usage as error:
        print(error)
    else:
        raise AssertionError(wrong)
"""


def test_a_new_part_or_method_needs_one_new_file(tmp_path: Path) -> None:
    """It is read and written by name and refused in another socket, without a change to any other file."""
    for room in ROOMS:
        for path in (SOURCE / room).rglob("*"):
            if path.is_dir() or path.suffix == ".pyc":
                continue
            place = tmp_path / path.relative_to(SOURCE)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(path)
    for name, text in NEW.items():
        (tmp_path / name).write_text(text)
    process = subprocess.run([sys.executable, "-c", TRY, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr
    assert "half_mean is not a Surrogate" in process.stdout and "describe_samples is not an Aggregate" in process.stdout
