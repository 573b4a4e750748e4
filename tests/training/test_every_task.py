"""Tests of evaluation with every kind of task: scripted answers, with a known number of right ones per problem and an
empty last one, go through the task's verifier. Random states stay unchanged."""

import asyncio
import itertools
import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from groupwise.config.recipe import Evaluate, Recipe
from groupwise.config.user_code import Permissions, load_use
from groupwise.data import GenerationRequest, Prompt, Rollout, Sampling, TaskSettings, VerifierSettings
from groupwise.evaluation.accuracy import average, counts, figures, tally
from groupwise.evaluation.interval import interval
from groupwise.methods import grpo
from groupwise.models import Decoder, write_model
from groupwise.rollout import answers
from groupwise.tasks import Calculator, DataRows, PublishedSet
from groupwise.training.build_run import RunObjects, build
from groupwise.verifiers import Code, Exact, Function, LastNumber, Math
from tests.docs.warm_shell import environment
from tests.evaluation.test_evaluate import GOLDEN, RIGHT
from tests.models.directories import shape
from tests.models.test_templates import trained
from tests.rollout.fakes import FakeEngine
from tests.sandbox.boxes import needed

GRADE = "def grade(prompt, answer, gold):\n    return answer.strip() == str(gold)\n"
CODE = "```python\ndef add(a, b):\n    return a {} b\n```"


ROWS = DataRows("rows.jsonl")


@dataclass(frozen=True)
class Kind:
    """A task with `problems` problems: its rows, its verifier, a right and a wrong answer."""

    problems: int
    row: Callable[[int], dict[str, Any]]
    verifier: VerifierSettings | None
    right: Callable[[Prompt], str]
    wrong: str = "none of it 99991"
    source: TaskSettings = ROWS
    answers: int = 32


def gold(prompt: Prompt) -> str:
    return str(prompt.row["answer"])


def adds(i: int) -> dict[str, Any]:
    cases = [{"args": [i, n], "expected": i + n} for n in (2, 3)]
    return {"prompt": f"add {i}", "answer": {"function": "add", "cases": cases}}


KINDS = {
    "exact": Kind(30, lambda i: {"prompt": f"say {i}", "answer": f"word {i}"}, Exact(), gold),
    "last_number": Kind(30, lambda i: {"prompt": f"double {i}", "answer": 2 * i}, LastNumber(),
                        lambda p: f"so {gold(p)}."),
    "user": Kind(30, lambda i: {"prompt": f"say {i}", "answer": f"word {i}"}, Function("grade", "mine.py"), gold,
                 answers=4),
    "math": Kind(30, lambda i: {"problem": f"Halve ${i}$.", "solution": f"So $\\boxed{{\\frac{{{i}}}{{2}}}}$"},
                 Math(use_algebra=False), lambda p: f"\\boxed{{{gold(p)}}}", "\\boxed{99991}",
                 source=PublishedSet("math500", "rows.jsonl"), answers=4),
    "gsm8k": Kind(30, lambda i: {"question": f"What is {i}?", "answer": f"It is {i}.\n#### {i}"},
                  None, lambda p: f"It is {gold(p)}", source=PublishedSet("gsm8k", "rows.jsonl")),
    "countdown": Kind(30, lambda i: {"nums": [i, 7, 2], "target": i + 14}, None,
                      lambda p: "<answer>{} + {} * {}</answer>".format(*p.row["answer"]["numbers"]),
                      "<answer>1 + 1</answer>", PublishedSet("countdown", "rows.jsonl")),
    "calculator": Kind(30, adds, None, lambda p: f"#{gold(p)}", "#99", Calculator()),
    "code": Kind(4, adds, Code(), lambda p: CODE.format("+"), CODE.format("-"), answers=4),
}  # fmt: skip


def ready(kind: Kind, home: Path) -> RunObjects:
    """The runtime of a random model with a byte tokenizer, and a task with only held-out problems."""
    os.chdir(home)
    Path("rows.jsonl").write_text("".join(json.dumps(kind.row(i)) + "\n" for i in range(1, kind.problems + 1)))
    Path("train.jsonl").write_text(json.dumps(adds(1000)) + "\n")
    Path("mine.py").write_text(GRADE)
    tokenizer = trained()
    size = shape(vocabulary_size=len(tokenizer.backend_tokenizer.get_vocab()), max_positions=2048)
    write_model(Decoder.new(size, 1, spread=0.2), Path("m"), tokenizer=tokenizer)
    task = "train.jsonl" if kind.verifier == Code() else "calculator"
    recipe = Recipe(
        model="m", task=task, held_out=kind.source, verifier=kind.verifier, method=grpo(), template="no",
        evaluate=Evaluate(problems=kind.problems), sampling=Sampling(max_tokens=200),
    )  # fmt: skip
    return build(recipe, load_use(Permissions(use=["mine.py"] if isinstance(kind.verifier, Function) else [])))


def scripted_rollouts(kind: Kind, home: Path) -> tuple[list[Rollout], list[int]]:
    """Rollouts of a scripted engine, and the number of right answers to each problem."""
    at = ready(kind, home)
    c = [round(x * kind.answers / 32) for x in RIGHT[: kind.problems]]

    def says(ask: GenerationRequest) -> tuple[int, ...]:
        prompt = at.held_out[ask.draw_id]
        text = kind.right(prompt) if ask.stream[0] < c[ask.draw_id] else kind.wrong
        text = "" if c[ask.draw_id] <= ask.stream[0] == kind.answers - 1 else text
        return (*at.tokenizer.encode(text), *at.tokenizer.eos_ids)

    setting = replace(
        at.rollout_setting, engine=FakeEngine(says), seed=0, rollout_deadline=600.0, verdict_deadline=60.0
    )
    rollouts = answers(at.held_out, kind.answers, setting)
    return asyncio.run(rollouts), c


@pytest.mark.t(46)
@pytest.mark.t(48)
@pytest.mark.parametrize("name", KINDS)
def test_metrics_match_the_scripted_answers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "code":
        needed()
    monkeypatch.chdir(tmp_path)
    kind = KINDS[name]
    rollouts, right = scripted_rollouts(kind, tmp_path)
    n, total = kind.answers, kind.answers * kind.problems
    assert [len(f.samples) for f in rollouts] == [n] * kind.problems
    by_outcome = counts(rollouts)
    assert (by_outcome["correct"], by_outcome["unverifiable"], by_outcome["missing"]) == (sum(right), 0, 0)
    assert by_outcome["correct"] + by_outcome["wrong"] + by_outcome["malformed"] == total
    assert by_outcome["malformed"] == (0 if isinstance(kind.verifier, Function) else sum(c < n for c in right))
    figure = average(rollouts)
    assert figure.value == pytest.approx(sum(right) / total, abs=1e-15)
    assert (figure.low, figure.high) == interval(np.array(right) / n)[0]
    if n == 32:
        assert (figure.value, figure.low, figure.high) == pytest.approx(GOLDEN, abs=1e-12)
    passes = figures([tally(f) for f in rollouts], n, [2])["pass@2"].value
    pairs = [[a or b for a, b in itertools.combinations([True] * c + [False] * (n - c), 2)] for c in right]
    assert passes == pytest.approx(np.mean([np.mean(p) for p in pairs]), abs=1e-12)


@pytest.mark.t(47)
def test_evaluating_a_task_leaves_random_states_unchanged(tmp_path: Path) -> None:
    """Runs in a separate process, since the checker of annotations in these tests draws random numbers."""
    process = subprocess.run(["python", "-c", STATES], env=environment(), capture_output=True, text=True, check=False)
    assert process.stdout.splitlines()[-1:] == [f"same {len(KINDS)}"], process.stderr[-2000:]


STATES = """
import asyncio, random, shutil, tempfile
from pathlib import Path
import numpy as np, torch
from tests.training.test_every_task import KINDS, ready
def states():
    return random.getstate(), torch.get_rng_state().tolist(), [np.asarray(x).tolist() for x in np.random.get_state()]
same = 0
for name, kind in KINDS.items():
    if name == "code" and shutil.which("bwrap") is None:
        same += 1
        continue
    with tempfile.TemporaryDirectory() as home:
        from dataclasses import replace
        runtime = ready(replace(kind, problems=2), Path(home))
        torch.manual_seed(1), np.random.seed(2), random.seed(3)
        before = states()
        sampling = replace(runtime.recipe.sampling, max_tokens=4, top_p=0.9)
        assert len(asyncio.run(runtime.answers(runtime.rollout_setting, 2, sampling))) == 2
        assert states() == before, name
        same += 1
print("same", same)
"""
