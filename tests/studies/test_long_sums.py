"""The task of the claims about long answers: its rows and its demonstrations."""

import json

import pytest
from studies.long_answers import BASE

from groupwise.certificates.studies import StudyRun
from groupwise.models import find_model, read_tokenizer
from studies import long_sums

STORED = {path.stem: [json.loads(line) for line in path.read_text("utf-8").splitlines()]
          for path in long_sums.FOLDER.iterdir()}  # fmt: skip


def test_the_files_are_those_of_the_generator_and_share_no_problem() -> None:
    texts = {path.name: path.read_text("utf-8") for path in long_sums.FOLDER.iterdir()}
    assert texts == long_sums.files()
    sets = {name: {row["prompt"] for row in rows} for name, rows in STORED.items()}
    assert sum(map(len, sets.values())) == len(set.union(*sets.values())) == 512 + 128 + 768


def test_answers_are_long_fit_the_budget_and_half_of_them_are_wrong() -> None:
    """A wrong one has true steps, of another problem."""
    tokenizer, recipe = read_tokenizer(find_model("calculator")), StudyRun("gspo", "calculator", 1, BASE).recipe()
    right = 0
    for row in STORED["demonstrations"]:
        problem, answer = row["prompt"], row["answer"]
        assert long_sums.LEAST <= len(tokenizer.encode(answer)) < recipe.sampling.max_tokens
        steps, _, last = answer.rpartition("#")
        said = steps.split(";")[: long_sums.OPERANDS - 1]
        assert steps == ";".join(said * (len(steps.split(";")) // len(said))) + ";"
        total = said[0][0]
        for step in said:
            before, _, after = step.partition("=")
            assert eval(before) == int(after) >= 0 and before.startswith(total)
            total = after
        assert total == last
        value = int(problem[0])
        for sign, operand in zip(problem[1:-1:2], problem[2:-1:2], strict=True):
            value = eval(f"{value}{sign}{operand}")
        right += value == int(last)
    assert right / len(STORED["demonstrations"]) == pytest.approx(1 - long_sums.MISREAD, abs=0.05)
