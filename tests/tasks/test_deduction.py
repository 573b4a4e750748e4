"""The task `deduction` and its verifier, each against forward chaining written again here."""

import asyncio
from functools import cache
from hashlib import sha256
from itertools import islice, permutations

import pytest

from groupwise.core import Usage
from groupwise.data import Outcome, Prompt, Sample, Task, Verdict
from groupwise.models import find_model, read_tokenizer
from groupwise.tasks import named_task
from groupwise.tasks.deduction import deduction_demonstrations, split
from groupwise.verifiers import ProofSteps, usual_verifier
from tests.verifiers.built import built

TASK = named_task("deduction").build(lambda text: tuple(map(ord, text)))
RIGHT, WRONG, MALFORMED = Outcome.correct, Outcome.wrong, Outcome.malformed


@cache
def training() -> list[Prompt]:
    return [TASK[i] for i in range(len(TASK))]


def layers(prompt: Prompt) -> dict[str, int]:
    """The layer in which forward chaining derives each letter."""
    facts, rules, _ = prompt.text.rstrip("=").split("|")
    layer = dict.fromkeys(facts, 0)
    for depth in range(1, 7):
        conclusions = {rule[3] for rule in rules.split(",") if rule[0] in layer and rule[1] in layer}
        layer |= dict.fromkeys(conclusions - layer.keys(), depth)
    return layer


def proves(prompt: Prompt, proof: list[str]) -> bool:
    facts, rules, goal = prompt.text.rstrip("=").split("|")
    known = set(facts)
    for step in proof:
        if step not in rules.split(",") or not {step[0], step[1]} <= known:
            return False
        known.add(step[3])
    return goal in known


def grade(prompt: Prompt, text: str) -> Verdict:
    return asyncio.run(ProofSteps()(prompt, Sample(context=(), stream=(0,), text=text)))


def test_problems_differ_and_are_split_by_their_hash() -> None:
    assert isinstance(TASK, Task) and len(training()) == 4096 and len(TASK.held_out) == 256
    texts = [p.text for p in (*training(), *TASK.held_out)]
    assert len(set(texts)) == len(texts)
    for prompts, held in ((training(), False), (TASK.held_out, True)):
        assert all((int(sha256(p.text.encode()).hexdigest()[:16], 16) % 10 == 0) is held for p in prompts)
    assert sha256("".join(texts).encode()).hexdigest()[:12] == "c2678340ac00"  # published results depend on the order


def test_half_of_the_goals_need_two_steps_and_solutions_are_shortest_proofs() -> None:
    depths = []
    for prompt in (*training()[::8], *TASK.held_out):
        facts, rules, goal = prompt.text.rstrip("=").split("|")
        assert prompt.row["facts"] == facts and prompt.row["rules"] == rules.split(",") and prompt.row["answer"] == goal
        *proof, end = prompt.row["solution"].split(";")
        assert end == "#" and proves(prompt, proof)
        assert not any(proves(prompt, list(p)) for n in range(len(proof)) for p in permutations(rules.split(","), n))
        assert layers(prompt)[goal] == len(proof)
        depths.append(len(proof))
    assert set(depths) == {1, 2} and abs(depths.count(1) / len(depths) - 0.5) < 0.05


def test_the_solution_is_right_and_loses_by_any_change() -> None:
    for prompt in TASK.held_out[:64]:
        solution = prompt.row["solution"]
        assert grade(prompt, solution).outcome is RIGHT
        steps = solution.split(";")[:-1]
        for i in range(len(steps)):
            shorter = "".join(f"{s};" for s in steps[:i] + steps[i + 1 :]) + "#"
            assert grade(prompt, shorter).outcome is not RIGHT
        if len(steps) == 2:
            assert grade(prompt, f"{steps[1]};{steps[0]};#").outcome is WRONG


SCENE = Prompt("p", (), "abc|ab>d,cd>e,ae>f|e=", {"answer": "e", "facts": "abc", "rules": ["ab>d", "cd>e", "ae>f"]})
CASES = [
    # answer, outcome, numbers of the steps, whether the goal is reached, feedback
    ("ab>d;cd>e;#", RIGHT, [1, 1], 1, ""),
    ("ab>d;cd>e;ae>f;#", RIGHT, [1, 1, 1], 1, ""),
    ("ab>d;ab>d;cd>e;#", RIGHT, [1, 1, 1], 1, ""),
    ("ab>d;#", WRONG, [1], 0, ""),
    ("cd>e;#", WRONG, [0], 0, "cd>e"),
    ("cd>e;ab>d;#", WRONG, [0, 1], 0, "cd>e"),
    ("cd>e;ab>d;cd>e;#", WRONG, [0, 1, 1], 1, "cd>e"),
    ("ab>d;dc>e;#", WRONG, [1, 0], 0, "dc>e"),
    ("ab>e;#", WRONG, [0], 0, "ab>e"),
    ("ab>d;;cd>e;#", WRONG, [1, 0, 1], 1, ""),
    ("ab>d;cd>e;", MALFORMED, [1, 1], 1, ""),
    ("ab>d;cd>e#", MALFORMED, [1], 0, ""),
    ("ab>d;cd>e;##", MALFORMED, [1, 1], 1, ""),
    ("ab>d;cd>e;#e", MALFORMED, [1, 1], 1, ""),
    ("#", MALFORMED, [], 0, ""),
    ("", MALFORMED, [], 0, ""),
]


@pytest.mark.parametrize("text,outcome,numbers,reached,feedback", CASES, ids=[c[0] for c in CASES])
def test_each_step_is_graded(text: str, outcome: Outcome, numbers: list[int], reached: int, feedback: str) -> None:
    verdict = grade(SCENE, text)
    assert verdict.outcome is outcome and verdict.feedback == feedback
    assert [x for _, x in verdict.step_scores["step"]] == numbers and verdict.subscores["reached"] == reached
    assert [text[end - 1] for end, _ in verdict.step_scores["step"]] == [";"] * len(numbers)
    assert verdict.subscores["valid"] == (sum(numbers) / len(numbers) if numbers else 0)


def test_demonstrations_are_repeatable_and_show_no_held_out_problem() -> None:
    shown = list(deduction_demonstrations())
    assert len(shown) == 8192 and list(islice(deduction_demonstrations(), 20)) == shown[:20]
    assert not {row["prompt"] for row in shown} & {scene.problem for scene in split()[1]}
    right = 0
    for row in shown[:800]:
        facts, rules, goal = row["prompt"].rstrip("=").split("|")
        prompt = Prompt("p", (), row["prompt"], {"answer": goal, "facts": facts, "rules": rules.split(",")})
        right += grade(prompt, row["answer"]).outcome is RIGHT
        assert row["answer"].split(";")[-2].endswith(goal)
    assert 0.55 < right / 800 < 0.9


def test_the_usual_verifier_judges_this_task_alone() -> None:
    assert isinstance(built(usual_verifier(named_task("deduction")), TASK), ProofSteps)
    with pytest.raises(Usage, match="grades answers of its packaged tasks only"):
        built("proof_steps", named_task("calculator").build(lambda text: (1,)))


def test_the_model_of_the_recipe_has_every_character() -> None:
    tokenizer = read_tokenizer(find_model("blank"))
    for prompt in TASK.held_out[:20]:
        text = prompt.text + prompt.row["solution"]
        assert tokenizer.decode(tokenizer.encode(text)) == text
