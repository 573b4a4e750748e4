"""A run of format 1: `report` and `compare` read it, `resume` refuses it. `format_1/` has five real iterations."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from groupwise.__main__ import main
from groupwise.data import METRICS, Storage
from groupwise.methods import Method
from groupwise.report.read import read
from groupwise.report.rollouts import choose, scan
from groupwise.runs.format_1 import KEYS, SAMPLE_KEYS
from groupwise.runs.info import FORMAT, RunInfo
from groupwise.runs.layout import RunLayout
from tests.runs.infos import INFO

OLD = Path(__file__).parent / "format_1"
OLD_METRICS = {former: metric.name for metric in METRICS.values() for former in metric.former if "<" not in former}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD, tmp_path / "run"))


def test_the_fixture_has_old_names():
    """Without them, the tests below would show nothing."""
    metrics = (OLD / "metrics.jsonl").read_text()
    assert '"rollout/kept"' in metrics and '"rollout/families"' in metrics
    assert all(f'"{key}"' in (OLD / "samples" / "000001.jsonl").read_text() for key in SAMPLE_KEYS)
    assert all(f"{key} = " in (OLD / "recipe.toml").read_text() for table in KEYS.values() for key in table)
    assert "format" not in json.loads((OLD / "run.json").read_text())


def test_the_report_reads_metrics_and_recipe_under_new_names():
    run = read(OLD)
    assert not set(run.metrics) & set(OLD_METRICS) and run.notes == ()
    selected = [json.loads(line)["rollout/kept"] for line in (OLD / "metrics.jsonl").read_text().splitlines()[1:]]
    assert run.metrics["rollout/selected"].value.tolist() == selected and max(selected) > 0
    assert run.fields["method.filter"] == "mixed_outcomes" and "method.keep" not in run.fields
    names = {field.split(".")[1] for field in run.fields if field.startswith("method.")}
    assert names <= set(Method.__dataclass_fields__)


def test_the_report_reads_which_samples_were_selected():
    groups, _, _ = scan(RunLayout(OLD))
    chosen, _ = choose(RunLayout(OLD), groups, most=64, budget=1_000_000)
    selected = [sample["selected"] for group in chosen for sample in group["samples"]]
    lines = [json.loads(line) for path in (OLD / "samples").glob("*.jsonl") for line in path.read_text().splitlines()]
    assert selected.count(True) == sum(line["kept"] for line in lines) > 0
    assert selected.count(False) == sum(not line["kept"] for line in lines) > 0


def test_a_run_of_format_2_keeps_its_names(run: Path):
    (run / "run.json").write_text(json.dumps(json.loads((run / "run.json").read_text()) | {"format": FORMAT}))
    assert "rollout/kept" in read(run).metrics


def test_the_report_is_written_without_torch(run: Path):
    script = """
import sys
from groupwise.__main__ import main
assert main(["report", sys.argv[1]]) == 0
print("LOADED", "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script, str(run)], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "LOADED False", done.stderr
    assert "rollout/selected" in (run / "report.html").read_text()


def test_compare_reads_its_evaluation(run: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["compare", str(OLD), str(run)]) == 0
    assert "B is better on 0 problems, A on 0, equal on 4" in capsys.readouterr().out


def test_resume_refuses_it_and_names_the_format(run: Path, capsys: pytest.CaptureFixture[str]):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert main(["resume", str(run)]) == 6
    error = capsys.readouterr().err
    assert "was started by an earlier version of Groupwise and cannot be resumed" in error
    assert f"format 1; this version resumes format {FORMAT}" in error and "start a new run" in error
    assert all(path.read_bytes() == data for path, data in before.items())


def test_a_newer_format_advises_an_upgrade(tmp_path: Path):
    (tmp_path / "run.json").write_text(json.dumps(INFO.to_json() | {"format": FORMAT + 1}))
    with pytest.raises(Storage, match="newer version") as error:
        RunInfo.read(RunLayout(tmp_path))
    assert "pip install --upgrade" in error.value.fix
