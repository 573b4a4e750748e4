"""The page of the library: its script runs, and its table names the arguments of `train`."""

import inspect
import re
from pathlib import Path

import groupwise as gw
from groupwise.runs.permission_options import OPTIONS
from tests.docs.test_pages import HOME, follow


def test_the_page_runs(tmp_path: Path) -> None:
    assert follow("docs/library.md", tmp_path) == ["python train.py", "python early_stopping.py"]
    run, stopped = sorted((tmp_path / "runs").iterdir())
    assert gw.Run(run).done == 2 and (run / "code" / "reward.py").is_file()
    assert gw.Run(stopped).done < gw.Run(stopped).iterations


def test_the_table_of_names_has_those_of_the_package_once_each() -> None:
    table = (HOME / "docs" / "library.md").read_text().partition("## Names")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|$", table, re.M)
    names = [name for row, _ in rows for name in re.findall(r"`@?gw\.(\w+)`", row)]
    assert sorted(names) == sorted(gw.__all__) and all(meaning for _, meaning in rows)


def test_the_table_names_the_arguments() -> None:
    table = (HOME / "docs" / "library.md").read_text().partition("## Arguments")[2].partition("##")[0]
    named = {name for row in re.findall(r"^\| (`.*?) \|", table, re.M) for name in re.findall(r"`(\w+)`", row)}
    same_as_the_command_line = {"unsafe_local_exec", "trust_remote_code", *OPTIONS, "settings"}
    assert named == set(inspect.signature(gw.train).parameters) - same_as_the_command_line
