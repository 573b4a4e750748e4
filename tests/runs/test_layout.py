"""File names of a run directory: known in runs/run_layout.py only."""

import ast
from pathlib import Path

import groupwise
from groupwise.runs.run_layout import SAMPLE_FILES, RunLayout, iteration_files, numbered

PACKAGE = Path(groupwise.__file__).parent
NAMES = {
    getattr(RunLayout(Path("run")), name).name
    for name, value in vars(RunLayout).items()
    if isinstance(value, property) and name != "is_run"
}


def names_in_paths(source: str) -> set[str]:
    """File names of the layout that a source file spells out: `path / "model"`, or any string with a file suffix."""
    nodes = list(ast.walk(ast.parse(source)))
    operands = [n.right for n in nodes if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Div)]
    joined = {n.value for n in operands if isinstance(n, ast.Constant)}
    strings = {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return NAMES & (joined | {text for text in strings if "." in text})


def test_the_names_include_all_files():
    assert {"metrics.jsonl", "samples", "recipe.toml", "run.json", "lock", "replay", "checkpoints", "model"} <= NAMES


def test_no_other_file_of_the_package_spells_a_name_out():
    found = {
        str(path.relative_to(PACKAGE)): names
        for path in PACKAGE.rglob("*.py")
        if path.name != "run_layout.py" and (names := names_in_paths(path.read_text()))
    }
    assert found == {}
    assert names_in_paths('run / "model"') == {"model"} and names_in_paths('x = "run.json"') == {"run.json"}
    assert names_in_paths('recipe["model"]') == set()


def test_paths_of_an_iteration(tmp_path: Path):
    layout = RunLayout(tmp_path)
    assert layout.checkpoint(3) == tmp_path / "checkpoints" / "000003"
    assert layout.replay_log(1_000_000) == tmp_path / "replay" / "1000000.jsonl"
    assert [layout.sample_file(2, suffix).name for suffix in SAMPLE_FILES] == ["000002.jsonl", "000002.safetensors"]
    assert not layout.is_run
    layout.recipe.write_text("")
    assert layout.is_run


def test_files_of_iterations_are_in_order_and_others_are_left_out(tmp_path: Path):
    for name in ("1000000.jsonl", "000009.jsonl", "12.jsonl", "notes.jsonl", "000009.txt", ".writing-000001.jsonl"):
        (tmp_path / name).write_text("")
    assert [i for i, _ in iteration_files(tmp_path, SAMPLE_FILES)] == [9, 1_000_000]
    assert list(iteration_files(tmp_path / "missing", SAMPLE_FILES)) == []
    assert numbered(7) == "000007"
