"""An environment that gives verdicts needs no verifier; where neither grades, the error names both ways."""

import json
from pathlib import Path

import pytest

import groupwise as gw
from groupwise.config.user_code import Permissions, load_use
from groupwise.core import Usage
from groupwise.environments import HermesFormat, Tools
from tests.checks import check

CODE = """
import groupwise as gw
from groupwise.environments import HermesFormat, Tools


class Parity:
    def reset(self, prompt, random):
        self.turns = 0

    def step(self, message):
        self.turns += 1
        return gw.Verdict(gw.Outcome(len(message) % 2 == 0)) if self.turns == 2 or "3" in message else "+"


def tools():
    return Tools(HermesFormat(), {"double": lambda x: 2 * x})


class Judge(Tools):
    def __init__(self):
        super().__init__(HermesFormat(), {})

    async def step(self, message):
        return gw.Verdict(gw.Outcome.correct)
"""


@pytest.fixture
def rows(home: Path) -> list[tuple[str, str]]:
    """A folder with rows without answers and the environments; the fields that name the rows."""
    Path("games.py").write_text(CODE)
    Path("games.jsonl").write_text("".join(json.dumps({"prompt": f"{i}+1="}) + "\n" for i in range(9)))
    return [("task", "games.jsonl"), ("columns.answer", "")]


def test_a_run_is_graded_by_its_environment(rows) -> None:
    run = gw.train(
        data="games.jsonl", columns={"answer": ""}, environment="games:Parity", iterations=1,
        permissions=gw.Permissions(use=["games.py"]), prompts=4,
        method=gw.gspo(group_size=4, minibatches=1), max_tokens=14, evaluate={"problems": 1},
    )  # fmt: skip
    outcomes = {sample["outcome"] for sample in run.samples()}
    assert outcomes <= {"correct", "wrong", "malformed"} and outcomes & {"correct", "wrong"}
    assert all(sample["outcome"] == "malformed" for sample in run.samples() if sample["finish"] == "length")
    assert (
        gw.evaluate(run, samples=1, permissions=gw.Permissions(use=["games.py"]))["results"][0]["protocol"]["verifier"][
            "name"
        ]
        == "EnvironmentVerdictVerifier"
    )


@pytest.mark.parametrize("environment", ["games:tools", "calculator_tools", "python_tools", ""])
def test_nothing_that_grades_is_an_error_with_both_ways(environment: str, rows) -> None:
    use = load_use(Permissions(use=["games.py"]))
    (error,) = check(None, [*rows, ("environment", environment)], use)
    assert isinstance(error, Usage) and error.what == "games.jsonl has no verifier"
    assert "--reward last_number" in error.fix and "environment whose step returns a Verdict" in error.fix
    assert not check(None, [*rows, ("environment", environment), ("verifier", "tag_format")], use)


def test_tools_with_verdicts_of_their_own_need_no_verifier(rows) -> None:
    assert not check(None, [*rows, ("environment", "games:Judge")], load_use(Permissions(use=["games.py"])))
    assert Tools(HermesFormat(), {}).schemas == []
