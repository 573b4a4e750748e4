"""The call or command that a run proposes at its end gives the scores of the run's own last evaluation."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import groupwise as gw
from groupwise.__main__ import main
from groupwise.core import Usage

ROWS = [{"prompt": f"{a}*{b}=", "answer": a * b} for a in range(2, 8) for b in range(2, 6)]
SMALL = {"model": "calculator", "data": ROWS, "prompts": 1, "iterations": 0, "max_tokens": 6}
SMALL |= {"method": gw.gspo(group_size=2, minibatches=1), "evaluate": {"problems": 3}}
FACTOR = 0.5


def variety(answer):
    return len(set(answer)) / 26


def in_memory(answer):
    return FACTOR * len(answer)


PLAIN = "def brief(answer):\n    return 1 / (1 + len(answer))\n"
REWARDS: dict[str, Callable[[Path], Any]] = {
    "a function": lambda folder: variety,
    "a function in memory": lambda folder: in_memory,
    "several": lambda folder: {"right": variety, "memory": (0.25, in_memory), "text": (2, "exact")},
    "several with a file": lambda folder: {"file": "mine:brief", "memory": (0.3, in_memory)},
    "several without memory": lambda folder: {"text": "exact", "right": (0.5, variety)},
}


@pytest.mark.parametrize("kind", REWARDS)
def test_the_proposed_call_grades_as_the_run_did(kind: str, home: Path, capsys) -> None:
    Path("mine.py").write_text(PLAIN)
    run = gw.train(
        reward=REWARDS[kind](home), permissions=gw.Permissions(use=["mine.py"] if "file" in kind else []), **SMALL
    )
    (proposed,) = [line.partition("try:")[2].strip() for line in capsys.readouterr().out.splitlines() if "try:" in line]
    if proposed.startswith("gw."):
        numbers = eval(proposed, {"gw": gw, "variety": variety, "in_memory": in_memory})["results"]
    else:
        assert main(shlex.split(proposed)[1:]) == 0
        (file,) = (run.directory / "evaluations").glob("*.json")
        numbers = json.loads(file.read_text())["results"]
    greedy = next(number for number in numbers if not number["protocol"]["sampling"]["temperature"])
    score = next(value for name, (value, *_) in greedy["figures"].items() if "score" in name)
    assert score == pytest.approx(run.metrics["eval/score_greedy"][0], abs=1e-12)


def test_a_part_of_a_reward_is_refused_and_the_error_has_the_whole(tmp_path: Path, capsys) -> None:
    whole = {"right": variety, "memory": (0.25, in_memory), "text": (2, "exact")}
    run = gw.train(reward=whole, out=tmp_path, **SMALL)
    text = 'reward={"right": variety, "memory": (0.25, in_memory), "text": (2.0, "Exact")}'
    code = run.directory / "code" / "reward.py"
    for part in (in_memory, {"memory": in_memory, "text": "exact"}):
        with pytest.raises(Usage, match="memory grades only a part") as caught:
            gw.evaluate(run, reward=part, permissions=gw.Permissions(use=[code] if part is in_memory else []))
        assert "right" in caught.value.evidence and text in caught.value.fix
    for call in (gw.evaluate, gw.resume):  # without the functions
        with pytest.raises(Usage, match="was a function in memory") as caught:
            call(run, permissions=gw.Permissions(use=[code]))
        assert caught.value.fix.count(text) == 2 and "errors" not in caught.value.what
    assert gw.evaluate(run, reward=variety, samples=1).figures  # another reward
    assert gw.resume(run, reward=whole, iterations=1).done == 1  # as the error proposes

    def other(answer):
        return FACTOR

    other.__name__ = "in_memory"
    capsys.readouterr()
    assert gw.evaluate(run, reward={**whole, "memory": (0.25, other)}, samples=1).figures
    assert "note: the reward in_memory is not the function that" in capsys.readouterr().err
