"""Reward functions of TRL and verl are called as these libraries call them, from Python and on the command line."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import groupwise as gw
from groupwise.__main__ import main
from groupwise.core import Usage
from groupwise.data import Finish, Outcome, Prompt, Sample
from groupwise.data.verdicts import as_verdict
from groupwise.verifiers import grade_function
from groupwise.verifiers.grade_function_arguments import GradeFunctionParameters

TEXT = Prompt("rows/1", (1,), "2+3=", {"answer": 5, "level": 2, "data_source": "sums", "extra_info": {"index": 7}})
CHAT = Prompt("rows/2", (1,), "2+3=", {"answer": 5, "messages": [{"role": "user", "content": "2+3="}]})
ANSWERS = [Sample(context=(), stream=(4, i), text=text, finish=Finish.stop) for i, text in enumerate(("5", "6"))]


def passed(function: Callable[..., Any], prompt: Prompt) -> dict[str, Any]:
    """The arguments that a function gets for the answers of a group; of verl's for the first answer."""
    parameters = GradeFunctionParameters.of(function)
    positional, named = parameters.arguments([(prompt, sample) for sample in ANSWERS])
    assert positional == []
    return named


def trl(completions, prompts, **kwargs):
    return [float(len(completion)) for completion in completions]


def trl_of_columns(prompts, completions, answer, level, trainer_state=None, **kwargs):
    return [float(c == str(a)) + level[0] for c, a in zip(completions, answer, strict=True)]


def verl(data_source, solution_str, ground_truth, extra_info=None):
    return float(solution_str == str(ground_truth))


def test_a_function_of_trl_gets_lists_for_a_group() -> None:
    assert passed(trl, TEXT) == {
        "completions": ["5", "6"], "prompts": ["2+3=", "2+3="], "completion_ids": [list(a.tokens) for a in ANSWERS],
        "answer": [5, 5], "level": [2, 2], "data_source": ["sums"] * 2, "extra_info": [{"index": 7}] * 2,
    }  # fmt: skip
    assert set(passed(trl_of_columns, TEXT)) == {
        "prompts", "completions", "answer", "level", "completion_ids", "data_source", "extra_info",
    }  # fmt: skip
    assert (
        GradeFunctionParameters.of(trl).graded_unit == "group"
        and GradeFunctionParameters.of(verl).graded_unit == "answer"
    )


def test_conversational_completions_are_lists_of_messages() -> None:
    named = passed(trl, CHAT)
    assert named["completions"] == [[{"role": "assistant", "content": text}] for text in ("5", "6")]
    assert named["prompts"] == [[{"role": "user", "content": "2+3="}]] * 2 and "messages" not in named


def test_a_gold_answer_has_the_name_that_a_function_of_trl_gives_it() -> None:
    assert passed(lambda completions, ground_truth: [], TEXT)["ground_truth"] == [5, 5]
    assert passed(lambda completions, solution: [], TEXT)["solution"] == [5, 5]
    with pytest.raises(Usage, match="gives no grade") as caught:
        grade_function(lambda completions, colour: [0.0], in_process=True).gate([TEXT])
    assert "colour is no column of the row, which has answer, level" in caught.value.evidence


def test_a_function_of_verl_gets_one_answer() -> None:
    assert passed(verl, TEXT) == {
        "data_source": "sums", "solution_str": "5", "ground_truth": 5, "extra_info": {"index": 7},
    }  # fmt: skip
    assert passed(verl, CHAT)["data_source"] == "" and passed(verl, CHAT)["extra_info"] == {}
    assert set(passed(lambda solution_str, ground_truth, method="strict": 0.0, TEXT)) == {
        "solution_str", "ground_truth"}  # fmt: skip


def test_grades_are_those_of_the_function() -> None:
    for function, scores in ((trl, [1.0, 1.0]), (trl_of_columns, [3.0, 2.0])):
        verifier = grade_function(function, in_process=True)
        verdicts = asyncio.run(verifier.grade_group(TEXT, ANSWERS))
        assert [verdict.score for verdict in verdicts] == scores
    verifier = grade_function(verl)  # in a worker process
    assert [asyncio.run(verifier(TEXT, sample)).score for sample in ANSWERS] == [1.0, 0.0]
    verifier.close()


def test_a_dict_of_verl_is_a_score_with_subscores() -> None:
    verdict = as_verdict({"score": 0.5, "acc": True, "pred": "5"})
    assert (verdict.outcome, verdict.score, verdict.subscores) == (Outcome.scored, 0.5, {"acc": 1.0})
    assert "finite" in as_verdict({"score": float("nan")}).cause and "dict" in as_verdict({"acc": 1.0}).cause


def test_a_ground_truth_alone_is_not_passed_by_position() -> None:
    with pytest.raises(Usage, match="fit no kind") as caught:
        GradeFunctionParameters.of(lambda text, ground_truth, other: 0.0)
    assert "ground_truth" in caught.value.evidence


def test_a_column_beside_answer_is_a_column() -> None:
    assert GradeFunctionParameters.of(lambda answer, solution_str: 0.0).signature_library == ""
    assert GradeFunctionParameters.of(lambda answer, ground_truth: 0.0).keyword_names == ("answer", "ground_truth")
    assert GradeFunctionParameters.of(lambda answers, golds, completions: [0.0]).graded_unit == "bulk"


def test_both_run_from_python_and_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"{a}+{b}=", "answer": a + b, "level": a} for a in range(2, 8) for b in range(2, 8)]
    small: dict[str, Any] = {
        "prompts": 2,
        "iterations": 1,
        "max_tokens": 4,
        "method": gw.gspo(group_size=2, minibatches=1),
    }
    run = gw.train(model="calculator", data=rows, reward={"trl": trl_of_columns, "verl": (0.5, verl)}, **small)
    assert {tuple(sorted(sample["subscores"])) for sample in run.samples(1)} == {("trl", "verl")}
    Path("mine.py").write_text(
        "def score(completions, answer, **kwargs):\n    return [float(len(c)) for c in completions]\n"
    )
    words = ["eval", "calculator", "--task", str(run.directory / "data.jsonl"), "--verifier", "mine.py:score",
             "--use", "mine.py", "--samples", "2", "--problems", "2", "--sampling.max_tokens", "4"]  # fmt: skip
    assert main(words) == 0
    assert "score" in capsys.readouterr().out
