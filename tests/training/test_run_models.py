"""Models of stopped, finished and extended runs: export, `--at`, extension, the best checkpoint."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from safetensors.torch import load_file

from groupwise.__main__ import main
from groupwise.commands.export import export_model
from groupwise.config.parse_toml_values import hints_of
from groupwise.config.recipe import Evaluate, Recipe, Save
from groupwise.config.recipe_toml import read_recipe
from groupwise.config.user_code import UserCode
from groupwise.core import BadData, Storage, Usage
from groupwise.inference.models_of_run import BEST, export, find_run_model
from groupwise.lifecycle.run_handle import RunControl
from groupwise.methods import LinearRamp
from groupwise.report.read_run import read
from groupwise.report.report import POINTS, describe
from groupwise.report.run_warnings import headline
from groupwise.runs.best_checkpoint import METRICS
from groupwise.runs.checkpoints import save_checkpoint
from groupwise.runs.run_info import RunInfo
from groupwise.runs.run_layout import RunLayout
from tests.faults.small_runs import ADAPTER, EVERY, Quick, begun, lines, ran, ready, reopen, run_from

SMALL = replace(
    EVERY, method=replace(EVERY.method, group_size=2), prompts=2, sampling=replace(EVERY.sampling, max_tokens=6)
)
CONSTANT = replace(
    SMALL, optimizer=replace(EVERY.optimizer, lr_scheduler="constant"), evaluate=Evaluate(every=1, problems=2)
)
"""A run whose iterations do not depend on their number."""


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def stopped(run: Path, recipe: Recipe, after: int) -> Path:
    """A run that was stopped after this many iterations."""
    control = RunControl()
    control.on_iteration = lambda run, line: control.stop("interrupted") if line["iteration"] == after else None
    assert run_from(begun(run, recipe), ready(recipe), control=control, disk=Quick()).stop_reason == "interrupted"
    assert not (run / "model").exists()
    return run


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of three iterations with all its checkpoints and the model of each iteration on the way."""
    recipe = replace(CONSTANT, save=Save(every=1, keep=9, export_every=1))
    return ran(tmp_path_factory.mktemp("kept") / "run", recipe)


@pytest.fixture
def run(kept: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(kept, tmp_path / "run"))


# Models of checkpoints


def test_an_exported_checkpoint_is_the_model_that_the_run_had(run: Path, tmp_path: Path) -> None:
    assert sorted(path.name for path in (run / "models").iterdir()) == ["000001", "000002"]
    for iteration, expected in ((1, run / "models/000001"), (2, run / "models/000002"), (3, run / "model")):
        models = files(expected)
        (out := tmp_path / "out" / str(iteration)).parent.mkdir(exist_ok=True)
        hidden = expected.rename(tmp_path / "hidden")  # only the checkpoint is left
        export(run, out, iteration)
        hidden.rename(expected)
        assert files(out) == models
        export(run, tmp_path / "copies" / str(iteration), iteration)
        assert files(tmp_path / "copies" / str(iteration)) == models
    assert len({files(tmp_path / "out" / str(i))["model.safetensors"] for i in (1, 2, 3)}) == 3


def test_a_stopped_run_is_evaluated_sampled_and_exported_from_its_newest_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = stopped(tmp_path / "run", CONSTANT, 2)
    capsys.readouterr()
    assert main(["eval", str(run), "--samples", "1", "--problems", "2"]) == 0
    output = capsys.readouterr()
    assert output.err.startswith(f"the model of iteration 2 of 3: {run}/models/000002\n")
    greedy = lines(run)[2]["eval/accuracy_greedy"]
    assert output.out.splitlines()[1].startswith(f"avg@1      {greedy:.3f}")
    (evaluation,) = (run / "evaluations").iterdir()
    assert evaluation.name.endswith("-at-000002.json")
    assert main(["sample", str(run), "7*5+8=", "--at", "1"]) == 0
    assert "the model of iteration 1 of 3" in capsys.readouterr().err
    assert main(["export", str(run), str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == f"the model of iteration 2 of 3: {tmp_path}/out\n"
    assert files(tmp_path / "out") == files(run / "models" / "000002")
    assert main(["resume", str(run)]) == 0 and main(["export", str(run), str(tmp_path / "end")]) == 0
    assert files(tmp_path / "end") == files(run / "model")


def test_an_adapter_is_exported_with_its_tokenizer(tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="adapters need peft: pip install 'groupwise[lora]'")
    run = ran(tmp_path / "run", replace(ADAPTER, iterations=1))
    shutil.rmtree(run / "model")
    export(run, tmp_path / "first", 0)
    export(run, tmp_path / "out")
    names = ["adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    assert sorted(files(tmp_path / "out")) == names
    first, last = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("first", "out"))
    assert first.keys() == last.keys() and any(not first[name].equal(last[name]) for name in last)
    with pytest.raises(Usage, match="the dtype of an adapter cannot be changed"):
        export(run, tmp_path / "half", dtype="float32")


def test_an_export_in_another_dtype(run: Path, tmp_path: Path) -> None:
    export(run, tmp_path / "half", dtype="bfloat16")
    export(run, tmp_path / "first", 1, dtype="bfloat16")
    for name, full in (("half", run / "model"), ("first", run / "models/000001")):
        expected = load_file(full / "model.safetensors")
        stored = load_file(tmp_path / name / "model.safetensors")
        assert all(stored[key].equal(x.bfloat16()) for key, x in expected.items())
        assert json.loads((tmp_path / name / "config.json").read_text())["dtype"] == "bfloat16"


def test_missing_models_are_named(run: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`home` has no `runs`, where `calculator` could be the name of a run."""
    for words, code, what in (
        (["export", str(run), str(home / "out"), "--at", "7"], 3, "has no model of iteration 7"),
        (["export", str(run), str(run / "model")], 2, "exists already"),
        (["eval", "calculator", "--at", "7"], 2, "calculator is not a run"),
        (["export", "calculator", str(home / "out")], 3, "calculator is not a run"),
    ):
        assert main(words) == code
        assert what in capsys.readouterr().err
    with pytest.raises(BadData, match=r"none of its checkpoints was evaluated"):
        (run / "metrics.jsonl").write_text("")
        find_run_model(run, BEST)
    empty = begun(home / "empty", EVERY)
    with pytest.raises(BadData, match="no model yet, and no checkpoint"):
        find_run_model(empty)
    assert not (home / "out").exists()


def test_a_damaged_checkpoint_is_not_exported(run: Path, tmp_path: Path) -> None:
    path = run / "checkpoints/000003/tensors.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    shutil.rmtree(run / "model")
    with pytest.raises(Storage, match="000003 is damaged"):
        export(run, tmp_path / "out", 3)
    assert find_run_model(run).iteration == 2 and not (tmp_path / "out").exists()


def test_a_run_that_is_stopped_before_it_starts_has_a_checkpoint(tmp_path: Path) -> None:
    control = RunControl()
    control.stop("interrupted")
    run = begun(tmp_path / "run", SMALL)
    ending = run_from(run, ready(SMALL), control=control, disk=Quick())
    assert ending.stop_reason == "interrupted" and "after 0 of 3 iterations; saved." in ending.message
    assert find_run_model(run).iteration == 0


# Extension


def test_a_finished_run_that_is_extended_equals_a_longer_run(tmp_path: Path, kept: Path) -> None:
    """With a constant rate, no schedule and an evaluation at the seam, metrics, samples and model are equal bytes."""
    recipe = replace(CONSTANT, save=Save(every=1, keep=9, export_every=1), iterations=2)
    run = ran(tmp_path / "run", recipe)
    short = files(run / "model")
    again = reopen(run, UserCode(), 3)
    assert not (run / "model").exists() and files(run / "models/000002") == short
    assert run_from(run, again, disk=Quick()).exit_code == 0
    assert (run / "metrics.jsonl").read_bytes() == (kept / "metrics.jsonl").read_bytes()
    assert files(run / "samples") == files(kept / "samples")
    assert files(run / "model") == files(kept / "model")
    change = {"iteration": 2, "changes": ["recipe.iterations: 2 -> 3"]}
    assert RunInfo.read(RunLayout(run)).changes == (change,) and RunInfo.read(RunLayout(run)).iterations == 3
    notes = describe(read(run), [], POINTS)["notes"]
    assert notes[0].startswith("Extended at iteration 2, from 2 to 3 iterations") and "not a run of 3" in notes[0]


def test_rate_and_schedules_see_the_new_total(tmp_path: Path) -> None:
    method = replace(SMALL.method, schedules=(("objective.surrogate.high", LinearRamp(0.1, 0.5)),))
    recipe = replace(SMALL, method=method, iterations=1)
    run = ran(tmp_path / "run", recipe)
    run_from(run, reopen(run, UserCode(), 3), disk=Quick())
    whole = ran(tmp_path / "whole", replace(recipe, iterations=3))
    rates = [[line["learning_rate"] for line in lines(path)[1:]] for path in (run, whole)]
    assert rates[0][0] != rates[1][0] and rates[0][1:] == rates[1][1:]


def test_an_extension_that_is_killed_goes_on(run: Path) -> None:
    """The number is in run.json before the loop starts, so that a plain `resume` continues."""
    reopen(run, UserCode(), 4)
    assert RunInfo.read(RunLayout(run)).changes == ()
    assert run_from(run, reopen(run, UserCode()), disk=Quick()).exit_code == 0
    assert RunInfo.read(RunLayout(run)).changes == ({"iteration": 3, "changes": ["recipe.iterations: 3 -> 4"]},)
    assert len(lines(run)) == 5
    reopen(run, UserCode(), 4)  # again: no change
    assert (run / "model").is_dir()


def test_an_edit_of_the_recipe_is_not_accepted_with_an_extension(run: Path) -> None:
    recipe = run / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("lr = 0.0003", "lr = 0.5"))
    with pytest.raises(BadData, match="were changed") as error:
        run_from(run, reopen(run, UserCode(), 4), disk=Quick())
    assert "optimizer.lr: 0.0003 -> 0.5" in error.value.evidence


def test_a_run_is_not_shortened(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resume", str(run), "--iterations", "2"]) == 2
    assert "already has 3 iterations" in capsys.readouterr().err and (run / "model").is_dir()


def test_compare_names_an_extended_run(run: Path, kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resume", str(run), "--iterations", "4"]) == 0
    for path in (run, kept):
        assert main(["eval", str(path), "--samples", "1", "--problems", "2"]) == 0
    capsys.readouterr()
    assert main(["compare", str(kept), str(run)]) == 0
    output = capsys.readouterr().out.splitlines()
    assert "B: extended at iteration 3 from 3 to 4 iterations; not a run of 4" in output
    assert not any("A: extended" in line for line in output)


# Runs without checkpoints


def test_resume_does_not_begin_again(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (run / "metrics.jsonl").read_bytes()
    shutil.rmtree(run / "checkpoints")
    assert main(["resume", str(run)]) == 6
    output = capsys.readouterr().err
    assert "has no checkpoint to continue from" in output and "its metrics have 3 iterations" in output
    assert f"groupwise train {run}/recipe.toml" in output
    assert (run / "metrics.jsonl").read_bytes() == before


def test_a_run_without_an_iteration_begins(tmp_path: Path) -> None:
    run = begun(tmp_path / "run", replace(CONSTANT, iterations=1))
    (run / "metrics.jsonl").write_text('{"iteration": 0}\n')
    reopen(run, UserCode())


# The best checkpoint


def test_the_best_checkpoint_is_kept_and_exported(run: Path, tmp_path: Path) -> None:
    values = [0.25, 0.75, 0.75, 0.5]
    text = [{"iteration": i, "eval/accuracy_greedy": x, "eval/score": -x} for i, x in enumerate(values)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in text))
    assert find_run_model(run, BEST).iteration == 2  # the later of two
    recipe = run / "recipe.toml"
    recipe.write_text(recipe.read_text().replace('best_metric = ""', 'best_metric = "eval/score"'))
    assert find_run_model(run, BEST).iteration == 0
    (note,) = describe(read(run), [], POINTS)["notes"]
    assert "held-out sampled score -0.250, held-out greedy accuracy 0.250 at iteration 0, of 4" in note
    assert "optimistic" in note


def test_a_score_decides_where_no_answer_is_right(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def write(scores: list[float]) -> None:
        lines = [{"iteration": i, "eval/accuracy_greedy": 0.0, "eval/score_greedy": x} for i, x in enumerate(scores)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    write([0.1, 0.3, 0.3, 0.2])
    assert find_run_model(run, BEST).iteration == 2  # the later of two
    figures = "held-out greedy accuracy 0.000, held-out greedy score 0.300 at iteration 2, equal at 1, of 4 evaluations"
    assert figures in str(find_run_model(run, BEST))
    assert export_model(str(run), str(tmp_path / "best"), at=BEST) == 0
    assert f"the model of iteration 2 of 3, the best: {figures}" in capsys.readouterr().out
    assert headline(read(run), 0).startswith("held-out greedy score 0.10 → 0.20")
    write([0.3] * 4)
    latest, out = (
        find_run_model(run, BEST),
        tmp_path / "latest",
    )  # a full tie: the finished model, not the untrained one
    assert latest.iteration is None and latest.best_by.endswith("at iteration 3, equal at 0, 1, 2, of 4 evaluations")
    assert latest.best_by.startswith("held-out greedy accuracy 0.000, held-out greedy score 0.300")
    assert export_model(str(run), str(out), at=BEST) == 0 and files(out) == files(run / "model")
    assert headline(read(run), 0).startswith("held-out greedy accuracy 0.00 → 0.00")


def test_the_best_checkpoint_is_not_called_the_best_evaluation(run: Path) -> None:
    """Evaluations are more frequent than checkpoints."""
    values = [0.25, 0.75, 0.25, 0.5]
    text = [{"iteration": i, "eval/accuracy_greedy": x} for i, x in enumerate(values)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in text))
    assert find_run_model(run, BEST).best_by.endswith("0.750 at iteration 1, of 4 evaluations")
    shutil.rmtree(run / "checkpoints" / "000001")
    best = find_run_model(run, BEST).best_by
    assert best.endswith("0.500 at iteration 3, of 4 evaluations; iteration 1 was better, and has no checkpoint")


def test_a_run_keeps_its_best_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = replace(CONSTANT, iterations=4, save=Save(every=1, keep=1))
    values = iter([0.2, 0.1, 0.9, 0.3, 0.9])
    runtime = ready(recipe)

    async def evaluate() -> dict[str, float]:
        x = next(values)
        figures = {"accuracy_greedy": x, "low_greedy": x, "high_greedy": x, "unverifiable": 0.0}
        return {f"eval/{name}": value for name, value in figures.items()}

    monkeypatch.setattr(type(runtime), "evaluate", lambda self, setting, learner: evaluate())
    run = begun(tmp_path / "run", recipe)
    control = RunControl()
    control.on_iteration = lambda run, line: control.stop("interrupted") if line["iteration"] == 3 else None
    run_from(run, runtime, control=control, disk=Quick())
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["000002", "000003"]
    assert run_from(run, ready(recipe), disk=Quick()).exit_code == 0  # a new process reads the values from the metrics
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["000004"]  # the later of two


def test_a_checkpoint_is_exported_without_the_model_that_the_run_started_from(run: Path, tmp_path: Path) -> None:
    assert main(["export", str(run), str(tmp_path / "before"), "--at", "1"]) == 0
    recipe = run / "recipe.toml"
    recipe.write_text(recipe.read_text().replace('model = "calculator"', 'model = "/gone"'))
    assert '"/gone"' in recipe.read_text()
    shutil.rmtree(run / "models")
    assert main(["export", str(run), str(tmp_path / "after"), "--at", "1"]) == 0
    assert files(tmp_path / "before") == files(tmp_path / "after")


def test_the_recipe_takes_the_metrics_that_can_choose() -> None:
    assert set(get_args(hints_of(Evaluate)["best_metric"])) == {"", *METRICS}


def test_a_save_keeps_the_best_of_those_on_disk(tmp_path: Path) -> None:
    for iteration in range(5):
        save_checkpoint(RunLayout(tmp_path), iteration, {}, {}, keep=2, best=lambda among: min(among), disk=Quick())
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["000000", "000003", "000004"]


# Models on the way


def test_models_of_iterations_that_are_computed_again_are_removed(run: Path) -> None:
    shutil.rmtree(run / "checkpoints/000003")
    shutil.rmtree(run / "checkpoints/000002")
    (run / "models/.writing-1-000009").mkdir()
    second = files(run / "models/000002")
    (run / "models/000002/config.json").unlink()
    seen: list[list[str]] = []
    control = RunControl(lambda run, line: seen.append(sorted(path.name for path in (run / "models").iterdir())))
    assert run_from(run, reopen(run, UserCode()), control=control, disk=Quick()).exit_code == 0
    assert seen == [["000001", "000002"], ["000001", "000002"]] and files(run / "models/000002") == second


# A run as a model


def test_a_run_is_the_model_of_another(run: Path) -> None:
    assert read_recipe('method = "grpo"', [("model", str(run))]).model == f"{run}/model"
    shutil.rmtree(run / "model")
    with pytest.raises(Usage, match="has not finished") as error:
        read_recipe('method = "grpo"', [("model", str(run))])
    assert f"groupwise export {run} " in error.value.fix
