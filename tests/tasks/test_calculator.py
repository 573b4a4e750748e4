"""The calculator's problems, split and grading, each against a second implementation."""

import re
from fractions import Fraction
from functools import cache
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.data import Outcome, Prompt, Task
from groupwise.tasks import Calculator, calculator_answer, demonstrations
from groupwise.tasks.calculator import OPERANDS, how_many, is_held_out, numbered, solve
from tests.tasks.test_sums import totals
from tests.verifiers.built import verdict_of

TASK = Calculator().build(lambda text: tuple(map(ord, text)))


@cache
def training() -> list[Prompt]:
    return [TASK[i] for i in range(len(TASK))]


def assert_legal(problem: str) -> None:
    assert re.fullmatch(r"[1-9]([+*-][2-9]){3,5}=", problem)
    assert all(0 <= total <= 49 for total in totals(problem))


def brute_force(operands: int) -> list[str]:
    """All legal problems, one operand after the other."""
    sums = [(str(n), n) for n in range(1, 10)]
    for _ in range(operands - 1):
        sums = [
            (f"{text}{sign}{n}", after)
            for text, total in sums
            for sign, values in (("+", total.__add__), ("-", total.__sub__), ("*", total.__mul__))
            for n in range(2, 10)
            if 0 <= (after := values(n)) <= 49
        ]
    return [text + "=" for text, _ in sums]


def judge(problem: str, text: str):
    prompt = Prompt(problem, (), problem, {"answer": solve(problem)[1]})
    return verdict_of(calculator_answer, text, prompt)


# Problems


def test_is_a_task():
    assert isinstance(TASK, Task)


def test_the_example_of_the_specification():
    assert solve("7*5+8-9+3=") == ("7*5=35;35+8=43;43-9=34;34+3=37;", 37)


def test_numbering_lists_every_problem_once():
    assert [numbered(i, 4) for i in range(how_many(4))] == brute_force(4)


def test_counts_agree_with_a_walk_over_totals():
    ways = dict.fromkeys(range(1, 10), 1)
    for operands in range(2, 7):
        after: dict[int, int] = {}
        for total, count in ways.items():
            for n in range(2, 10):
                for value in (total + n, total - n, total * n):
                    if 0 <= value <= 49:
                        after[value] = after.get(value, 0) + count
        ways = after
        if operands in OPERANDS:
            assert how_many(operands) == sum(ways.values())
    assert sum(how_many(n) for n in OPERANDS) == 16_402_222


@given(st.sampled_from(OPERANDS).flatmap(lambda n: st.tuples(st.integers(0, how_many(n) - 1), st.just(n))))
def test_every_numbered_problem_is_valid_and_computed_left_to_right(place: tuple[int, int]):
    problem = numbered(*place)
    assert_legal(problem)
    assert len(re.findall(r"\d", problem)) == place[1]
    chain, result = solve(problem)
    values = totals(problem)
    assert result == values[-1]
    assert [eval(step.replace("=", "==")) for step in chain.split(";")[:-1]] == [True] * (place[1] - 1)
    assert [int(step.partition("=")[2]) for step in chain.split(";")[:-1]] == values[1:]


def test_every_prompt_is_valid_and_has_its_answer():
    for prompt in (*training(), *TASK.held_out):
        assert_legal(prompt.text)
        assert prompt.row == {"answer": totals(prompt.text)[-1]}
        assert prompt.id == prompt.text and prompt.token_ids == tuple(map(ord, prompt.text))


def test_training_and_held_out_problems_are_disjoint():
    assert len(training()) == len(TASK) == 16_384 and len(TASK.held_out) == 512
    ids, held_out = {p.id for p in training()}, {p.id for p in TASK.held_out}
    assert len(ids) == 16_384 and len(held_out) == 512
    assert not ids & held_out


def test_the_split_is_the_hash_of_the_prompt():
    for prompt in training():
        assert int(sha256(prompt.text.encode()).hexdigest()[:16], 16) % 10 != 0
    for prompt in TASK.held_out:
        assert int(sha256(prompt.text.encode()).hexdigest()[:16], 16) % 10 == 0


def test_held_out_is_a_tenth():
    share = Fraction(sum(is_held_out(numbered(i, 4)) for i in range(how_many(4))), how_many(4))
    assert abs(share - Fraction(1, 10)) < 0.005


def test_lengths_take_turns_so_any_prefix_is_balanced():
    for prompts in (training(), TASK.held_out):
        assert [len(p.text) for p in prompts[:7]] == [8, 10, 12, 8, 10, 12, 8]


def test_an_index_always_gives_the_same_problem():
    again = Calculator().build(lambda text: (len(text),))
    assert [p.id for p in again.held_out] == [p.id for p in TASK.held_out]
    # Published results hang on these: a change of the order is a change of the task.
    assert [TASK[i].text for i in (0, 1, 2, 16_383)] == ["7+2+4+2=", "2+9-8+7-6=", "2*4+8+4-5-5=", "4-4*8*4="]
    assert [p.text for p in TASK.held_out[:3]] == ["3+3-3+6=", "4+5-7*2+7=", "3*9-8+8+6+5="]


@pytest.mark.parametrize("index", [-1, 16_384])
def test_an_index_out_of_range_raises(index: int):
    with pytest.raises(IndexError):
        TASK[index]


# Demonstrations


@given(st.integers(0, 2**31), st.floats(0, 1))
def test_demonstrations_are_true_and_never_held_out(seed: int, chain_share: float):
    for problem, answer in demonstrations(seed, 20, chain_share):
        assert_legal(problem)
        assert not is_held_out(problem)
        chain, _, result = answer.partition("#")
        assert int(result) == totals(problem)[-1]
        assert chain in ("", solve(problem)[0])
        assert judge(problem, answer).outcome is Outcome.correct


def test_chain_share_is_the_share_of_chains():
    def share(wanted_share: float) -> float:
        return sum(len(a) > 4 for _, a in demonstrations(0, 2000, wanted_share)) / 2000

    assert share(0.0) == 0 and share(1.0) == 1
    assert abs(share(0.2) - 0.2) < 0.03


def test_demonstrations_differ_by_seed_alone():
    assert demonstrations(1, 50, 0.3) == demonstrations(1, 50, 0.3)
    assert demonstrations(1, 50, 0.3) == demonstrations(1, 80, 0.3)[:50]
    assert demonstrations(1, 50, 0.3) != demonstrations(2, 50, 0.3)
    assert len({len(p) for p, _ in demonstrations(1, 50, 0.3)}) == 3


@pytest.mark.parametrize("chain_share", [-0.1, 1.1, float("nan")])
def test_an_invalid_share_is_refused(chain_share: float):
    with pytest.raises(ValueError, match="0 <= chain_share <= 1"):
        demonstrations(0, 1, chain_share)


# Grading

CHAIN = "7*5=35;35+8=43;43-9=34;34+3=37;"
RIGHT, WRONG, MALFORMED = Outcome.correct, Outcome.wrong, Outcome.malformed
GRADES = [
    # answers to 7*5+8-9+3=, what they are, whether the chain is true
    (f"{CHAIN}#37", RIGHT, 1),
    (f"{CHAIN}#36", WRONG, 1),
    (f"{CHAIN}#037", RIGHT, 1),
    (f"{CHAIN}", MALFORMED, 1),
    (f"{CHAIN}#", MALFORMED, 1),
    (f"{CHAIN}37", MALFORMED, 0),
    (f"{CHAIN}#37;", MALFORMED, 1),
    (f"{CHAIN}#37#37", MALFORMED, 1),
    (f"{CHAIN}##37", MALFORMED, 1),
    ("7*5=35;35+8=43;43-9=34;34+3=38;#37", RIGHT, 0),
    ("7*5=36;35+8=43;43-9=34;34+3=37;#37", RIGHT, 0),
    ("7*5=35;35+8=43;43-9=34;#37", RIGHT, 0),
    ("7*5=35;35+8=43;34+3=37;#37", RIGHT, 0),
    ("35+8=43;43-9=34;34+3=37;#37", RIGHT, 0),
    ("7*5=35;35+8=43;43-9=34;34+3=37#37", RIGHT, 0),
    (f"{CHAIN}{CHAIN}#37", RIGHT, 0),
    (f"{CHAIN}1+1=2;#37", RIGHT, 0),
    (f" {CHAIN}#37", RIGHT, 0),
    ("40-3=37;#37", RIGHT, 0),
    ("garbage#37", RIGHT, 0),
    ("37;\n#37", RIGHT, 0),
    ("#37", RIGHT, 0),
    ("#+37", RIGHT, 0),
    ("#037", RIGHT, 0),
    ("#000000000000037", RIGHT, 0),
    ("#-37", WRONG, 0),
    ("#-3", WRONG, 0),
    ("#36", WRONG, 0),
    ("#3", WRONG, 0),
    ("#370", WRONG, 0),
    ("#0", WRONG, 0),
    ("#" + "9" * 100_000, WRONG, 0),
    ("#37 ", MALFORMED, 0),
    ("#37\n", MALFORMED, 0),
    ("# 37", MALFORMED, 0),
    ("#37.", MALFORMED, 0),
    ("#37.0", MALFORMED, 0),
    ("#37;", MALFORMED, 0),
    ("#37=", MALFORMED, 0),
    ("#3 7", MALFORMED, 0),
    ("#37 and more", MALFORMED, 0),
    ("#3-7", MALFORMED, 0),
    ("#--37", MALFORMED, 0),
    ("#+-37", MALFORMED, 0),
    ("#-", MALFORMED, 0),
    ("#", MALFORMED, 0),
    ("##", MALFORMED, 0),
    ("##37", MALFORMED, 0),
    ("#37#", MALFORMED, 0),
    ("#36#37", MALFORMED, 0),
    ("", MALFORMED, 0),
    (" ", MALFORMED, 0),
    ("37", MALFORMED, 0),
    ("37#", MALFORMED, 0),
    ("#thirty-seven", MALFORMED, 0),
    ("#0x25", MALFORMED, 0),
    ("#3_7", MALFORMED, 0),
    ("#٣٧", MALFORMED, 0),
    ("#³⁷", MALFORMED, 0),
    ("＃37", MALFORMED, 0),
    ("#" * 1_000_000, MALFORMED, 0),
]


@pytest.mark.parametrize("text,outcome,chain", GRADES, ids=[repr(g[0][:40]) for g in GRADES])
def test_grades(text: str, outcome: Outcome, chain: int):
    verdict = judge("7*5+8-9+3=", text)
    assert verdict.outcome is outcome
    assert verdict.subscores == {"chain_true": float(chain)}
    assert verdict.score is None


@pytest.mark.parametrize(
    "text,outcome", [("#0", RIGHT), ("#-0", RIGHT), ("#00", RIGHT), ("#5", WRONG), ("#-", MALFORMED)]
)
def test_grades_of_zero(text: str, outcome: Outcome):
    assert judge("2+2+2-6=", text).outcome is outcome
