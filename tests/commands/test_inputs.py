"""`check_inputs` hands what it read to the run: task, demonstrations and verifier are read once."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import groupwise.checks.check_inputs as checking
import groupwise.training.build_run as building
from groupwise.__main__ import main

SMALL = ["--prompts", "4", "--method.group_size", "4", "--evaluate.problems", "4", "--iterations", "0"]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Counter[str]:
    """How often each input was read."""
    monkeypatch.chdir(tmp_path)
    counts: Counter[str] = Counter()
    for module in (checking, building):
        for name in ("task_of", "verifier_of", "demonstrations_of", "read_tokenizer"):
            monkeypatch.setattr(module, name, counted(getattr(module, name), counts))
    return counts


def counted(read: Callable[..., Any], counts: Counter[str]) -> Callable[..., Any]:
    """The function, with its calls counted by name."""

    def call(*args: Any, **options: Any) -> Any:
        counts[read.__name__] += 1
        return read(*args, **options)

    return call


def test_train_reads_each_input_once(reads: Counter[str]) -> None:
    Path("d.jsonl").write_text(json.dumps({"prompt": "1+1=", "answer": "#2"}) + "\n")
    warm = ["--warm_start.demonstrations", "d.jsonl", "--warm_start.steps", "1", "--warm_start.per_step", "1"]
    assert main(["train", *SMALL, *warm]) == 0
    assert reads == {"task_of": 1, "verifier_of": 1, "demonstrations_of": 1, "read_tokenizer": 1}


def test_eval_reads_each_input_once(reads: Counter[str]) -> None:
    assert main(["eval", "calculator", "--samples", "1", "--problems", "2", "--sampling.max_tokens", "4"]) == 0
    assert reads == {"task_of": 1, "verifier_of": 1, "read_tokenizer": 1}


def test_resume_reads_each_input_once(reads: Counter[str]) -> None:
    assert main(["train", *SMALL]) == 0
    reads.clear()
    (run,) = Path("runs").iterdir()
    assert main(["resume", str(run)]) == 0
    assert reads == {"task_of": 1, "verifier_of": 1, "demonstrations_of": 1, "read_tokenizer": 1}
