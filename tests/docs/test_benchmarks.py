"""The table and the curve of `make seeds` equal the numbers in the run directories."""

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

HOME = Path(__file__).parents[2]
ABOUT = {"versions": {"torch": "2.9.9"}, "iterations": 20}
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def seeds(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(HOME / "benchmarks"))
    for name in ("seeds", "curve"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("seeds")


def write_run(directory: Path, greedy: list[float]) -> Path:
    """A run directory with an evaluation every ten iterations, and one metrics line without an evaluation."""
    directory.mkdir(parents=True)
    lines = [{"iteration": 10 * i, "eval/accuracy_greedy": g, "eval/accuracy": g / 2, "eval/mean_length": 10 + i}
             for i, g in enumerate(greedy)]  # fmt: skip
    lines.insert(1, {"iteration": 5, "reward": 0.5})
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (directory / "run.json").write_text(json.dumps(ABOUT))
    return directory


def runs_of(seeds: ModuleType, root: Path, last: list[float]) -> list:
    directories = [write_run(root / f"seed-{i}-0", [0.25, 0.5, x]) for i, x in enumerate(last)]
    return [seeds.Run(i, path, *seeds.ends(path), 60.0 + i) for i, path in enumerate(directories)]


LAST = [0.875, 0.9, 0.84, 0.95, 0.9, 0.9, 0.8, 0.9, 0.9, 0.9]


def test_a_row_is_the_first_and_the_last_evaluation(seeds: ModuleType, tmp_path: Path) -> None:
    runs = runs_of(seeds, tmp_path, LAST)
    assert "| 2 | 0.250 | 0.840 | 0.125 | 0.420 | 10.0 | 12.0 | 62 |" in seeds.page(runs, ABOUT)


def test_the_page_has_mean_least_spread_and_the_seeds_below_the_bound(seeds: ModuleType, tmp_path: Path) -> None:
    page = seeds.page(runs_of(seeds, tmp_path, LAST), ABOUT)
    assert "| mean | 0.250 | 0.887 | 0.125 | 0.443 | 10.0 | 12.0 | 64 |" in page
    assert "| least | 0.250 | 0.800 |" in page and "| spread | 0.000 | 0.150 |" in page
    assert "Of 10, seeds that end below 0.85 greedy: 2 (0.840), 6 (0.800)." in page
    assert "20 iterations each" in page and "torch 2.9.9" in page


def test_only_text_between_the_marks_is_replaced(seeds: ModuleType) -> None:
    page = (HOME / "docs" / "laptop.md").read_text()
    once = seeds.between(page, "| x |", "programs")
    assert once.count("| x |") == 1 and seeds.between(once, "| x |", "programs") == once
    assert once.partition("<!-- programs -->")[0] == page.partition("<!-- programs -->")[0]
    assert once.partition("<!-- /programs -->")[2] == page.partition("<!-- /programs -->")[2]


def test_a_trial_run_does_not_change_the_page(
    seeds: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = []

    def fake(command: list[str], check: bool) -> object:
        commands.append(command[2:])
        write_run(tmp_path / f"seed-{command[5]}-0", [0.25, 0.75, 1.0])
        return type("Done", (), {"returncode": 0})

    monkeypatch.setattr(seeds.subprocess, "run", fake)
    monkeypatch.setattr(seeds, "HOME", tmp_path / "nowhere")
    assert seeds.main(["--only", "3", "1", "--iterations", "2", "--out", str(tmp_path)]) == 0
    assert commands[0] == [
        "groupwise", "train", "--seed", "3", "--name", "seed-3", "--evaluate.every", "10",
        "--out", str(tmp_path), "--iterations", "2",
    ]  # fmt: skip
    assert "| 3 |" in (tmp_path / "SEEDS.md").read_text() and (tmp_path / "curve.svg").is_file()


def test_another_recipe_has_its_own_marks_and_curve(
    seeds: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands, out = [], tmp_path / "runs"

    def fake(command: list[str], check: bool) -> object:
        commands.append(command[2:])
        write_run(out / "mine" / f"seed-{command[5]}-0", [0.0, 0.5, 1.0])
        return type("Done", (), {"returncode": 0})

    monkeypatch.setattr(seeds.subprocess, "run", fake)
    monkeypatch.setattr(seeds, "HOME", tmp_path)
    (tmp_path / "docs").mkdir()
    page, recipe = tmp_path / "docs" / "laptop.md", tmp_path / "mine.toml"
    page.write_text("a <!-- mine -->old<!-- /mine --> b <!-- yours -->kept<!-- /yours -->")
    assert seeds.main([str(recipe), "--out", str(out)]) == 0
    assert [command[3] for command in commands] == ["0", "1", "2"]
    assert commands[0] == [
        "groupwise", "train", "--seed", "0", "--name", "seed-0", str(recipe), "--out", str(out / "mine")
    ]  # fmt: skip
    text = page.read_text()
    assert "old" not in text and "kept" in text and "| spread | 0.000 |" in text and "torch 2.9.9" in text
    assert (tmp_path / "docs" / "mine.svg").is_file()
    assert seeds.main([str(recipe), "--only", "4", "--out", str(out)]) == 0
    assert page.read_text() == text and (out / "mine.svg").is_file()


def test_a_failed_seed_is_an_error(seeds: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeds.subprocess, "run", lambda *_, **__: type("Done", (), {"returncode": 5}))
    with pytest.raises(SystemExit, match="seed 0 ended with exit code 5"):
        seeds.train(0, tmp_path, None)


def test_the_curve_has_each_evaluation(seeds: ModuleType, tmp_path: Path) -> None:
    directories = [write_run(tmp_path / str(i), [0.0, 0.5, last]) for i, last in enumerate([1.0, 0.5])]
    curves = [seeds.evaluations(path) for path in directories]
    assert curves[0] == [(0, 0.0), (10, 0.5), (20, 1.0)]
    svg = ElementTree.fromstring(seeds.draw(curves))
    lines = [(e.get("class"), [tuple(map(float, p.split(","))) for p in e.get("points", "").split()])
             for e in svg.iter(f"{SVG}polyline")]  # fmt: skip
    assert [kind for kind, _ in lines] == ["run", "run", "mean"]
    (left, floor), (centre, half), (right, roof) = lines[0][1]
    assert floor > half > roof and centre - left == right - centre
    assert abs(half - (floor + roof) / 2) < 0.11
    assert lines[2][1][2][1] == pytest.approx((roof + half) / 2, abs=0.11)
    words = [e.text for e in svg.iter(f"{SVG}text")]
    assert {"iteration", "held-out accuracy, greedy", "0.0", "1.0", "20"} <= set(words)
    style = svg.find(f"{SVG}style")
    assert style is not None and "prefers-color-scheme: dark" in (style.text or "")
