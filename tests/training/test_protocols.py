"""Tests of an evaluation's protocol: complete, equal for equal evaluations, different for others."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from groupwise.__main__ import main
from groupwise.commands.compare_evaluations import differences, flat
from groupwise.config.user_code import UserCode
from groupwise.models import find_model, read_model, read_tokenizer, write_model
from groupwise.training import evaluation_protocol as protocols_module
from groupwise.training.evaluation_protocol import digest, model_hash, versions

SMALL = ["--problems", "3", "--samples", "2", "--sampling.max_tokens", "8"]
GRADE = "def grade(prompt, answer, gold):\n    return answer.strip() == str(gold)\n"


@pytest.fixture(autouse=True)
def here(home: Path) -> None:
    for name, shift in (("a", 0), ("b", 0), ("c", 1)):
        sums = [{"prompt": f"{i}+{i}=", "answer": 2 * i + shift} for i in range(1, 40)]
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sums))
    Path("mine.py").write_text(GRADE)


def protocols(*words: str, model: str = "calculator") -> list[dict[str, Any]]:
    """The protocols of the numbers that a command writes."""
    assert main(["eval", model, *SMALL, *words, "--out", "x.json"]) == 0
    return [number["protocol"] for number in json.loads(Path("x.json").read_text())["results"]]


def test_a_record_has_all_that_a_number_depends_on() -> None:
    greedy, sampled = protocols()
    fields = dict(flat(sampled))
    required = {
        "model.sha256", "task.sha256", "task.problems", "template.no", "n", "sampling.temperature", "sampling.top_p",
        "sampling.top_k", "sampling.min_p", "sampling.max_tokens", "sampling.stop", "strategy", "seed", "seed_rule",
        "engine.name", "versions.groupwise", "versions.torch", "versions.python", "dtype", "verifier.name",
        "verifier.sha256", "interval.rule", "interval.resamples",
    }  # fmt: skip
    assert required <= fields.keys() and all(fields[name] not in (None, "") for name in required)
    assert (fields["sampling.max_tokens"], fields["task.problems"], fields["n"]) == (8, 3, 2)
    changed = {name for name, _, _ in differences(greedy, sampled)}
    assert changed == {"n", "sampling.temperature"} and greedy["sampling"]["temperature"] == 0


def test_truncation_says_nothing_of_a_greedy_number() -> None:
    cut, plain = protocols("--sampling.top_p", "0.5", "--sampling.top_k", "3")[0], protocols()[0]
    assert cut == plain


def test_the_same_question_leaves_the_same_bytes() -> None:
    protocols()
    first = Path("x.json").read_bytes()
    protocols()
    assert Path("x.json").read_bytes() == first


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--sampling.top_p", "0.9"], {"sampling.top_p"}),
        (["--sampling.stop", "['#']"], {"sampling.stop"}),
        (["--seed", "1"], {"seed"}),
        (["--problems", "4"], {"task.problems", "task.sha256"}),
        (["--machine.dtype", "float64"], {"dtype"}),
        (["--task", "b.jsonl"], {"task.name"}),  # the same problems under another name
        (["--task", "c.jsonl"], {"task.name", "task.sha256", "task.data_sha256"}),  # other gold answers
        (["--template", "{prompt}0"], {"template.no", "template.{prompt}0"}),
        (["--verifier", "last_number"], {"verifier.name"}),
        (["--verifier", "mine:grade", "--use", "mine.py"], {"verifier.name", "verifier.sha256"}),
        (["--machine.verdict_deadline", "5"], {"verifier.deadline"}),
    ],
)  # fmt: skip
def test_another_question_differs_in_its_own_fields(words: list[str], named: set[str]) -> None:
    base = ["--task", "a.jsonl", "--verifier", "exact"]
    before = protocols(*base)[1]
    after = protocols(*base, *words)[1]
    assert {name for name, _, _ in differences(before, after)} == named


def test_one_s_own_file_counts_by_its_content() -> None:
    words = ["--task", "a.jsonl", "--verifier", "mine:grade", "--use", "mine.py"]
    before = protocols(*words)[1]
    Path("mine.py").write_text(GRADE + "# another\n")
    assert [name for name, _, _ in differences(before, protocols(*words)[1])] == ["verifier.sha256"]


def test_a_strategy_is_told_with_its_constants_and_its_file() -> None:
    Path("twice.py").write_text(
        "from dataclasses import dataclass\nfrom groupwise.rollout import Independent\n\n\n"
        "@dataclass(frozen=True)\nclass Inner:\n    much: float = 0.5\n\n\n"
        "@dataclass(frozen=True)\nclass Twice:\n    inner: Inner = Inner()\n    words: tuple = ('a',)\n\n"
        "    async def __call__(self, draw, sampler):\n        return await Independent()(draw, sampler)\n"
    )
    strategy = protocols("--evaluate.strategy", "twice:Twice", "--use", "twice.py")[1]["strategy"]
    assert strategy["part"] == {"name": "Twice", "inner": {"name": "Inner", "much": 0.5}, "words": ["a"]}
    assert strategy["sha256"] == sha256(Path("twice.py").read_bytes()).hexdigest()
    assert protocols()[1]["strategy"] == "Independent"


def test_a_model_s_hash_depends_on_its_files_not_on_its_path() -> None:
    home = find_model("calculator")
    model, tokenizer = read_model(home), read_tokenizer(home)
    for name in ("one", "two"):
        write_model(model, Path(name), tokenizer=tokenizer)
    assert model_hash(Path("one")) == model_hash(Path("two"))
    next(model.parameters()).data[0, 0] += 1e-3
    write_model(model, Path("two"), tokenizer=tokenizer)
    assert model_hash(Path("one")) != model_hash(Path("two"))
    Path("one/README.md").write_text("not a part of the model")
    assert model_hash(Path("one")) == protocols(model="one")[0]["model"]["sha256"]


def test_the_protocol_of_a_mixture_names_both_tasks() -> None:
    Path("mixed.toml").write_text('task = "a.jsonl"\nverifier = "exact"\nmethod = { base = "grpo" }\nprompts = 4\n'
                                  '[[extra_tasks]]\ntask = "calculator"\n')  # fmt: skip
    record = protocols("--recipe", "mixed.toml", "--problems", "6")[1]
    assert record["task"]["name"] == "a.jsonl + calculator"
    assert record["verifier"]["name"] == "Exact + CalculatorAnswer" and len(record["task"]["data_sha256"]) == 1


def test_versions_are_of_installed_packages() -> None:
    assert versions(["no-such-package", "pytest"]) == {"pytest": pytest.__version__}
    assert digest({"a": [1, 2]}) != digest({"a": [2, 1]})


def test_a_verifier_s_hash_covers_the_files_of_verifiers_and_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[Path] = []
    monkeypatch.setattr(protocols_module, "file_hash", lambda path: hashed.append(path) or "x")
    protocols_module.verifiers_hash((), UserCode())
    names = {"/".join(path.parts[-2:]) for path in hashed}
    assert {
        "verifiers/exact_and_last_number.py",
        "math/math_verifier.py",
        "sandbox/server.py",
        "tasks/reasoning_gym.py",
    } <= names
