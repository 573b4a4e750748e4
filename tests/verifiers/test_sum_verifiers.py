"""The verifiers of sums: each step, a price, and a new problem at the end."""

import pytest

from groupwise.core import Usage
from groupwise.data import Outcome, Prompt, Verdict, Verifier
from groupwise.tasks import named_task
from groupwise.verifiers import SumSteps, SumWithProposal
from tests.verifiers.built import built, verdict_of

RIGHT, WRONG, MALFORMED = Outcome.correct, Outcome.wrong, Outcome.malformed
PROBLEM = Prompt("p", (), "7*5+8-9=", {"answer": 34})
FIRST, SECOND, THIRD = "7*5=35;", "35+8=43;", "43-9=34;"


STEPS = SumSteps()


def grade(text: str, verifier: Verifier = STEPS, prompt: Prompt = PROBLEM) -> Verdict:
    return verdict_of(verifier, text, prompt)


CASES = [
    # answer, outcome, numbers of the steps, progress, the step that is due
    (f"{FIRST}{SECOND}{THIRD}#34", RIGHT, [1, 1, 1], 1, ""),
    ("#34", RIGHT, [], 0, FIRST),
    ("#35", WRONG, [], 0, FIRST),
    ("", MALFORMED, [], 0, FIRST),
    (f"{FIRST}{SECOND}{THIRD}", MALFORMED, [1, 1, 1], 1, ""),
    (f"{FIRST}{SECOND}{THIRD}#35", WRONG, [1, 1, 1], 1, ""),
    (f"{FIRST}35+8=44;44-9=35;#35", WRONG, [1, 0, 0], 1 / 3, SECOND),
    (f"{FIRST}{FIRST}{SECOND}{THIRD}#34", RIGHT, [1, 0, 1, 1], 1, ""),  # a repetition gets nothing
    (f"{FIRST}35+8=44;{SECOND}{THIRD}#34", RIGHT, [1, 0, 1, 1], 1, ""),
    (f"{SECOND}{THIRD}#34", RIGHT, [1, 1], 1, ""),  # behind a hint
    (f"{SECOND}#43", WRONG, [1], 2 / 3, THIRD),
    (f"{SECOND}{FIRST}#34", RIGHT, [1, 0], 2 / 3, THIRD),
    (f"{FIRST}{THIRD}#34", RIGHT, [1, 0], 1 / 3, SECOND),
    (";;#34", RIGHT, [0, 0], 0, FIRST),
    (f"7*5=35#{SECOND}34", MALFORMED, [], 0, FIRST),
    (f" {FIRST}#34", RIGHT, [0], 0, FIRST),
]


@pytest.mark.parametrize("text,outcome,numbers,progress,due", CASES, ids=[c[0] for c in CASES])
def test_each_step_is_graded(text: str, outcome: Outcome, numbers: list[int], progress: float, due: str) -> None:
    verdict = grade(text)
    assert verdict.outcome is outcome and verdict.feedback == due and verdict.score is None
    assert [number for _, number in verdict.step_scores["step"]] == numbers
    assert verdict.subscores["progress"] == pytest.approx(progress) and verdict.subscores["thought"] == bool(numbers)
    assert [text[end - 1] for end, _ in verdict.step_scores["step"]] == [";"] * len(numbers)


def test_steps_end_at_their_semicolons() -> None:
    assert grade(f"{FIRST}{SECOND}#3").step_scores == {"step": [(7, 1.0), (15, 1.0)]}


def test_a_solution_that_repeats_a_step_is_followed_to_its_end() -> None:
    """5+2-2+2-2: after the first step the position is known only from the next ones."""
    prompt = Prompt("p", (), "5+2-2+2-2=", {"answer": 5})
    steps = ["5+2=7;", "7-2=5;", "5+2=7;", "7-2=5;"]
    whole = grade("".join(steps) + "#5", prompt=prompt)
    assert whole.subscores["progress"] == 1 and [x for _, x in whole.step_scores["step"]] == [1, 1, 1, 1]
    assert grade("5+2=7;", prompt=prompt).subscores["progress"] == 1 / 4


def test_each_step_costs_the_price() -> None:
    priced = SumSteps(step_price=0.25)
    assert grade("#34", priced).score == 1 and grade("#35", priced).score == 0
    assert grade(f"{FIRST}{SECOND}#34", priced).score == 0.5
    assert grade(f"{FIRST}{FIRST}", priced).score == -0.5
    assert grade(f"{FIRST}{SECOND}#34", priced).outcome is RIGHT


def test_a_proposal_is_judged_by_the_answer_before_it() -> None:
    verdict = grade(f"{FIRST}{SECOND}{THIRD}#34;2+9*3=", SumWithProposal())
    assert verdict.outcome is RIGHT and verdict.answer == "34" and verdict.subscores["proposed"] == 1
    assert verdict.subscores["progress"] == 1
    assert grade("#35;2+9*3=", SumWithProposal()).outcome is WRONG
    bare = grade("#34", SumWithProposal())
    assert bare.outcome is RIGHT and bare.subscores["proposed"] == 0
    assert grade("#34;nonsense#", SumWithProposal()).outcome is RIGHT
    assert grade("34;2+9*3=", SumWithProposal()).outcome is MALFORMED


@pytest.mark.parametrize("name", ["sum_steps", "sum_with_proposal"])
def test_they_judge_sums_only(name: str) -> None:
    assert built(name, named_task("calculator").build(lambda text: (1,)))
    with pytest.raises(Usage, match="grades answers of its packaged tasks only"):
        built(name, named_task("big_sums").build(lambda text: (1,)))


def test_a_price_is_a_number() -> None:
    with pytest.raises(Usage, match="price"):
        built({"kind": "sum_steps", "price": "high"}, None)
