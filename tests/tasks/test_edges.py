"""The task `edges` and its verifier, against a search written here."""

import asyncio
from collections import Counter
from hashlib import sha256
from itertools import combinations
from random import Random

import pytest

from groupwise.core import Usage
from groupwise.data import Outcome, Prompt, Sample, Task, Verdict
from groupwise.tasks import named_task
from groupwise.tasks.edges import EDGES, edge_demonstrations, joins_all
from groupwise.verifiers import SpanningGraph, usual_verifier
from tests.verifiers.built import built

TASK = named_task("edges").build(lambda text: tuple(map(ord, text)))
PROBLEM = Prompt("p", (), "03;14=", {"answer": ["03", "14"]})


def reachable(edges: list[str]) -> set[str]:
    """The nodes that a walk from node 0 finds."""
    nodes = {"0"}
    for _ in range(6):
        nodes |= {b for a, b in edges if a in nodes} | {a for a, b in edges if b in nodes}
    return nodes


def grade(text: str, prompt: Prompt = PROBLEM) -> Verdict:
    return asyncio.run(SpanningGraph()(prompt, Sample(context=(), stream=(0,), text=text)))


def test_all_problems_are_there_once_and_split_by_their_hash() -> None:
    training = [TASK[i] for i in range(len(TASK))]
    problems = [p.text for p in (*training, *TASK.held_out)]
    assert isinstance(TASK, Task) and len(EDGES) == 15
    expected = {f"{';'.join(edges)}=" for n in (2, 3) for edges in combinations(EDGES, n)}
    assert set(problems) == expected and len(problems) == len(expected) == 560
    assert 40 <= len(TASK.held_out) <= 72
    for prompts, held in ((training, False), (TASK.held_out, True)):
        assert all((int(sha256(p.text.encode()).hexdigest()[:16], 16) % 10 == 0) is held for p in prompts)
        assert all(p.row["answer"] == p.text[:-1].split(";") for p in prompts)
    assert (
        sha256("".join(problems).encode()).hexdigest()[:12] == "936c3cc3743f"
    )  # published results depend on the order


def test_every_problem_has_an_answer() -> None:
    for prompt in (*TASK.held_out, *(TASK[i] for i in range(len(TASK)))):
        assert reachable([e for e in EDGES if e not in prompt.row["answer"]]) == set("012345")


def test_joining_is_reachability() -> None:
    random, both = Random(0), Counter[bool]()
    for _ in range(600):
        edges = random.sample(EDGES, random.randint(0, 9))
        assert joins_all(edges) is (len(reachable(edges)) == 6)
        both[joins_all(edges)] += 1
    assert min(both[True], both[False]) > 100


def digits(*edges: str) -> str:
    return "".join("1" if edge in edges else "0" for edge in EDGES)


PATH = ("01", "12", "23", "34", "45")
CASES = [
    # answer, outcome, joined, allowed, number of edges
    (digits(*PATH), Outcome.correct, 1, 1, 5),
    (digits(*PATH, "03"), Outcome.wrong, 1, 0.5, 6),
    ("1" * 15, Outcome.wrong, 1, 0, 15),
    ("0" * 15, Outcome.wrong, 0, 1, 0),
    (digits("01", "12", "02", "34", "45"), Outcome.wrong, 0, 1, 5),
    ("1" * 14, Outcome.malformed, 0, 0, 0),
    ("1" * 16, Outcome.malformed, 0, 0, 0),
    ("2" * 15, Outcome.malformed, 0, 0, 0),
    (digits(*PATH) + "\n", Outcome.malformed, 0, 0, 0),
    ("١" * 15, Outcome.malformed, 0, 0, 0),
    ("", Outcome.malformed, 0, 0, 0),
]


@pytest.mark.parametrize("text,outcome,joined,allowed,edges", CASES, ids=[c[0] or "empty" for c in CASES])
def test_grades(text: str, outcome: Outcome, joined: int, allowed: float, edges: int) -> None:
    verdict = grade(text)
    assert verdict.outcome is outcome
    assert verdict.subscores == {"joined": joined, "allowed": allowed, "edges": edges}


def test_demonstrations_toss_a_coin_per_edge_of_a_training_problem() -> None:
    shown = list(edge_demonstrations())
    assert shown == list(edge_demonstrations()) and len(shown) == 2048
    assert {row["prompt"] for row in shown} <= {TASK[i].text for i in range(len(TASK))}
    answers = [row["answer"] for row in shown]
    assert all(0.45 < sum(a[i] == "1" for a in answers) / len(answers) < 0.55 for i in range(15))


def test_the_usual_verifier_judges_this_task_alone() -> None:
    assert isinstance(built(usual_verifier(named_task("edges")), TASK), SpanningGraph)
    with pytest.raises(Usage, match="grades answers of its packaged tasks only"):
        built("spanning_graph", named_task("calculator").build(lambda text: (1,)))
