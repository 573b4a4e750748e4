"""Tests of the presets of `groupwise eval` against the papers, and of the reported departures."""

import json
from pathlib import Path
from typing import Any

import pytest

from groupwise.__main__ import main
from groupwise.config.model_dependent_defaults import RecipeSource
from groupwise.config.recipe_toml import read_verifier
from groupwise.config.task_sources import sources
from groupwise.config.toml import DEFAULT
from groupwise.config.user_code import UserCode
from groupwise.core import BadData, MissingRequirement, Usage
from groupwise.data import Sampling
from groupwise.evaluation.published_protocols import PUBLISHED, find_published
from groupwise.inference.evaluate_model import recipe_and_sampling
from groupwise.models import Decoder, write_model
from groupwise.tasks.published_sets import PRESETS, PublishedSet
from groupwise.verifiers import MathDrGrpo
from tests.models.directories import shape
from tests.models.test_templates import CHATML, trained
from tests.tasks import published as layouts
from tests.verifiers.built import built

PAPERS = {
    "aime24-dapo": (  # arXiv:2503.14476, section 4.1, and the released test set of 30 problems, each 32 times
        {"aime24": 30}, 32, Sampling(temperature=1.0, top_p=0.7, max_tokens=20480), "chat", "math_dapo",
    ),
    "r1-zero-suite": (  # arXiv:2503.20783 and its evaluate_model.py
        {"aime24": 30, "amc": 83, "math500": 500, "minerva": 272, "olympiadbench": 675}, 1,
        Sampling(temperature=0.0, top_p=1.0, max_tokens=3000), "qwen_math", "math_dr_grpo",
    ),
}  # fmt: skip


def rows(path: Path, every: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in every))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory with every task of the suite in its published layout."""
    home = tmp_path / "data"
    home.mkdir()
    for name, _ in PUBLISHED["r1-zero-suite"].tasks:
        rows(home / f"{name}.jsonl", layouts.PUBLISHED[name][0])
    return home


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A random model with a tokenizer for any text, a chat template and a long context."""
    tokenizer = trained(chat=CHATML)
    size = len(tokenizer.backend_tokenizer.get_vocab())
    write_model(
        Decoder.new(shape(vocabulary_size=size, max_positions=32768), 1, spread=0.2),
        tmp_path / "m",
        tokenizer=tokenizer,
    )
    return tmp_path / "m"


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_preset_has_its_paper_s_protocol(name: str) -> None:
    tasks, samples, sampling, template, verifier = PAPERS[name]
    published = find_published(name)
    assert (
        dict(published.tasks) == tasks and published.samples_per_problem == samples and tasks.keys() <= PRESETS.keys()
    )
    for task, overrides in zip(tasks, published.recipes([])):
        recipe, law = recipe_and_sampling(RecipeSource(DEFAULT, tuple(overrides)), UserCode())
        (source,) = sources(recipe)
        assert (law, source.template, source.verifier) == (sampling, template, read_verifier(verifier))
        assert source.task.label.partition(":")[0] == task
    assert list(PUBLISHED) == list(PAPERS)


@pytest.mark.parametrize("template", ["", "r1"])
def test_the_verifiers_of_the_papers_are_available(template: str) -> None:
    for published in PUBLISHED.values():
        try:
            assert built(dict(published.settings_for(template))["verifier"])
        except MissingRequirement as error:  # the package of the verifier is not installed
            assert "groupwise[math]" in error.fix


def test_the_template_r1_has_its_own_verifier_and_stop() -> None:
    for overrides in find_published("r1-zero-suite").recipes([("template", "r1")]):
        recipe, law = recipe_and_sampling(RecipeSource(DEFAULT, tuple(overrides)), UserCode())
        assert (sources(recipe)[0].verifier, law.stop) == (MathDrGrpo(use_answer_tag=True), ("</answer>",))
    assert find_published("r1-zero-suite").departures([("template", "r1")], []) == ["template r1, not qwen_math"]


def test_a_preset_resets_the_mixture_and_the_held_out_task_of_a_run(tmp_path: Path) -> None:
    mixed = tmp_path / "mixed.toml"
    toml = 'task = "a.jsonl"\nheld_out = "b.jsonl"\nverifier = "exact"\nmethod = { base = "grpo" }\n'
    toml += 'columns = { prompt = "q" }\nextra_tasks = [{ task = "c.jsonl" }]\n[machine]\ndtype = "float64"\n'
    mixed.write_text(toml)
    (overrides,) = find_published("aime24-dapo").recipes([])
    recipe, _ = recipe_and_sampling(RecipeSource(mixed, tuple(overrides)), UserCode())
    (source,) = sources(recipe)
    assert source.task == PublishedSet("aime24", "datasets:BytedTsinghua-SIA/AIME-2024") and recipe.held_out is None
    assert recipe.machine.dtype == "float64"  # the machine of the run stays


def test_a_suite_from_disk_is_printed_with_its_mean_and_departures(data, model, home, capsys) -> None:
    exact = ["--verifier", '{kind = "math", answer_location = "boxed", use_algebra = false}']
    flags = ["--preset", "r1-zero-suite", "--preset-data", str(data), "--sampling.max_tokens", "3", *exact]
    assert main(["eval", str(model), *flags]) == 0
    output = capsys.readouterr()
    assert [line.partition(":")[0] for line in output.out.splitlines() if ", greedy" in line] == list(
        PAPERS["r1-zero-suite"][0]
    )
    assert "mean of 5  0.000  (0.000 .. 0." in output.out
    (file,) = (home / "evaluations").iterdir()
    assert file.name.startswith("r1-zero-suite-") and output.out.splitlines()[-1] == f"written: evaluations/{file.name}"
    written = json.loads(file.read_text())
    assert written["departures"][:2] == [
        'verifier {kind = "math", answer_location = "boxed", use_algebra = false}, not math_dr_grpo',
        "sampling.max_tokens 3, not 3000",
    ]
    assert "olympiadbench: 2 problems, not 675" in written["departures"] and len(written["departures"]) == 7
    assert all(f"not as published: {line}" in output.err for line in written["departures"])
    assert [x["protocol"]["n"] for x in written["results"]] == [1] * 5
    again = file.with_name("again.json")
    again.write_bytes(file.read_bytes())
    assert main(["compare", str(file), str(again)]) == 0
    assert "mean of 5 " in capsys.readouterr().out


def test_wrong_presets_tasks_and_data_are_errors(data, model, tmp_path, capsys) -> None:
    with pytest.raises(Usage, match="no preset is called 'aime'"):
        find_published("aime")
    assert main(["eval", str(model), "--preset", "aime24_dapo"]) == 2
    assert "take aime24-dapo or r1-zero-suite" in capsys.readouterr().err
    assert main(["eval", str(model), "--preset", "r1-zero-suite", "--task", "amc"]) == 2
    assert main(["eval", str(model), "--preset-data", str(data)]) == 2
    assert "add --preset NAME" in capsys.readouterr().err
    (data / "minerva.jsonl").unlink()
    with pytest.raises(BadData, match="has no minerva") as caught:
        find_published("r1-zero-suite").recipes([], str(data))
    assert "amc.jsonl" in caught.value.evidence
    with pytest.raises(BadData, match="has no aime24"):
        find_published("aime24-dapo").recipes([], str(tmp_path / "nowhere"))
