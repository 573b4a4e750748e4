"""Files of `--use`: imports from their folder, hashes, and what a resume accepts."""

import hashlib
import sys
from pathlib import Path

import pytest

from groupwise.config.user_code import Permissions, UserCode, load_use
from groupwise.config.user_file_imports import imported_files
from groupwise.core import BadData, Usage
from groupwise.tasks.judge_access import JudgeAccess


def written(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "mine.py"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


FILES = {
    "mine": "import math\nfrom helper import twice\nfrom rules.even import is_even\nVALUE = twice(4)\n",
    "helper": "import third\ndef twice(x):\n    import late\n    return third.TWO * x\n",
    "third": "TWO = 2\n",
    "late": "",
    "unused": "",
    "rules__even": "from .odd import ODD\nis_even = not ODD\n",
    "rules__odd": "ODD = False\n",
}


def test_imports_from_the_folder_load_and_are_hashed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, **FILES)
    (tmp_path / "rules" / "__init__.py").write_text("")
    use = load_use(Permissions(use=[path]))
    assert vars(use.modules["mine"])["VALUE"] == 8 and str(tmp_path) not in sys.path
    names = ["helper.py", "late.py", "rules/__init__.py", "rules/even.py", "rules/odd.py", "third.py"]
    assert sorted(use.hashes) == ["mine", *(f"mine/{name}" for name in names)]
    assert all(use.hashes[f"mine/{name}"] == sha256(tmp_path / name) for name in names)
    assert f"it imports third.py  sha256 {use.hashes['mine/third.py']}" in capsys.readouterr().out


def test_a_second_load_reads_changed_neighbours(tmp_path: Path) -> None:
    path = written(tmp_path, mine="from helper import X", helper="X = 1")
    first = load_use(Permissions(use=[path]))
    written(tmp_path, helper="X = 22")
    second = load_use(Permissions(use=[path]))
    assert [vars(use.modules["mine"])["X"] for use in (first, second)] == [1, 22]
    assert first.hashes["mine"] == second.hashes["mine"] and first.digest("mine") != second.digest("mine")


@pytest.mark.parametrize("name", ["math", "torch"])
def test_a_neighbour_with_the_name_of_an_installed_module_is_refused(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, mine=f"import {name}", **{name: "raise SystemExit"})
    before = sys.modules.get(name)
    with pytest.raises(Usage, match=f"imports {name} from its folder") as caught:
        load_use(Permissions(use=[path]))
    assert f"rename {name}" in caught.value.fix and sys.modules.get(name) is before


def test_files_in_two_folders_import_their_own_helper(tmp_path: Path) -> None:
    a = written(tmp_path / "a", mine="from helper import X", helper="X = 1")
    b = written(tmp_path / "b", other="from helper import X", helper="X = 2").with_name("other.py")
    modules = load_use(Permissions(use=[a, b])).modules
    assert [vars(modules[stem])["X"] for stem in ("mine", "other")] == [1, 2]


def test_a_file_without_imports_has_its_own_hash(tmp_path: Path) -> None:
    path = written(tmp_path, mine="import json, os.path")
    use = load_use(Permissions(use=[path]))
    assert use.hashes == {"mine": sha256(path)} and use.digest("mine") == sha256(path) and use.digest("other") is None
    assert imported_files(written(tmp_path, mine="def broken(")) == {}


def test_a_changed_neighbour_is_refused_and_accepted(tmp_path: Path) -> None:
    path = written(tmp_path, mine="from helper import X", helper="X = 1")
    recorded = dict(load_use(Permissions(use=[path])).hashes)
    assert load_use(Permissions(use=[path]), recorded).accepted_changes == ()
    written(tmp_path, helper="raise SystemExit('it ran')")
    with pytest.raises(BadData, match=r"^helper.py is not the file") as caught:
        load_use(Permissions(use=[path]), recorded)  # it does not run
    assert "add --changed" in caught.value.fix
    written(tmp_path, mine="from helper import X\nY = 2", helper="X = 3")
    use = load_use(Permissions(use=[path]), recorded, accept=True)
    assert [line.partition(":")[0] for line in use.accepted_changes] == ["use.mine", "use.mine/helper.py"]
    assert f"{recorded['mine'][:12]} -> {use.hashes['mine'][:12]}" in use.accepted_changes[0]
    with pytest.raises(Usage, match="started with user code"):
        load_use(Permissions(use=[]), recorded, accept=True)


def test_the_options_that_give_the_same_permissions() -> None:
    use = UserCode(
        paths={"v": "my dir/v.py"}, unsafe_local_exec=True, judge_access=JudgeAccess(("KEY",), ("api.example.com",))
    )
    assert use.options == " --use 'my dir/v.py' --judge api.example.com --key KEY --unsafe-local-exec"
    assert UserCode().options == ""


def test_an_exception_while_loading_names_the_line(tmp_path: Path) -> None:
    path = written(tmp_path, mine="import helper", helper="X = 1\nraise ValueError('lost')")
    with pytest.raises(Usage, match="raises an error") as caught:
        load_use(Permissions(use=[path]))
    assert "helper.py:2 in <module>: ValueError: lost" in caught.value.evidence
