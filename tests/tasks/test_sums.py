"""The tasks of sums: problems, split, rows and demonstrations, each against Python's arithmetic."""

import re
from collections import Counter
from dataclasses import replace
from functools import cache
from hashlib import sha256
from itertools import islice
from typing import Any

import pytest

from groupwise.data import ENVIRONMENT, WRITTEN, Ids, Outcome, Prompt, Task
from groupwise.models import find_model, find_template, read_tokenizer
from groupwise.tasks import Demonstrations, named_task
from groupwise.tasks.demonstrations import PACKAGED, need_environment
from groupwise.tasks.hinted_sums import PROMPT_FORMS, WEIGHTS, hinted_demonstrations
from groupwise.tasks.proposed_sums import proposed_problem
from groupwise.verifiers import usual_verifier
from tests.rollout.fakes import stored
from tests.verifiers.built import built, verdict_of

SIZES = {
    "delegated_sums": {4: 2048, 5: 2048},
    "hinted_sums": {5: 2048, 6: 2048},
    "mixed_sums": {2: 128, 3: 1024, 6: 1024},
    "proposed_sums": {4: 2048, 5: 2048},
    "wordy_sums": {3: 2048, 4: 2048},
}
HELD_OUT = {2: 15}
"""The held-out tenth of the problems with two operands is smaller than an eighth of the training problems."""
DIGESTS = {
    "delegated_sums": "5c9f122aab00",
    "hinted_sums": "4eff51fb93f2",
    "mixed_sums": "ff3a8e985f75",
    "proposed_sums": "5c9f122aab00",
    "wordy_sums": "4a80fac41ffe",
}


def codes(text: str) -> Ids:
    return tuple(map(ord, text))


@cache
def task_of(name: str) -> Task:
    task = named_task(name).build(codes)
    assert isinstance(task, Task)
    return task


@cache
def prompts_of(name: str) -> tuple[Prompt, ...]:
    task = task_of(name)
    return tuple(task[i] for i in range(len(task)))


@cache
def rows(name: str) -> list[dict[str, Any]]:
    return list(islice(PACKAGED[name](), 2000))


def totals(problem: str) -> list[int]:
    """Running totals, left to right, by brackets and Python's arithmetic."""
    first, *steps = re.findall(r"[-+*]?\d+", problem)
    values, expression = [int(first)], first
    for step in steps:
        expression = f"({expression}){step}"
        values.append(eval(expression))
    return values


def solution_of(problem: str) -> list[str]:
    steps, values = re.findall(r"[-+*]\d+", problem), totals(problem)
    return [f"{a}{step}={b};" for a, step, b in zip(values, steps, values[1:])]


def operands(problem: str) -> int:
    return len(re.findall(r"\d+", problem))


def is_held_out(problem: str) -> bool:
    return int(sha256(problem.encode()).hexdigest()[:16], 16) % 10 == 0


@pytest.mark.parametrize("name", SIZES)
def test_sizes_and_split(name: str) -> None:
    task = task_of(name)
    training, held_out = [task[i].text for i in range(len(task))], [p.text for p in task.held_out]
    assert Counter(map(operands, training)) == SIZES[name]
    assert Counter(map(operands, held_out)) == {n: HELD_OUT.get(n, size // 8) for n, size in SIZES[name].items()}
    assert len({*training, *held_out}) == len(training) + len(held_out)
    assert not any(map(is_held_out, training)) and all(map(is_held_out, held_out))
    assert [operands(p) for p in training[: len(SIZES[name])]] == list(SIZES[name])


@pytest.mark.parametrize("name", SIZES)
def test_rows_are_those_of_another_computation(name: str) -> None:
    for prompt in (*prompts_of(name)[::16], *task_of(name).held_out):
        steps, result = solution_of(prompt.text), totals(prompt.text)[-1]
        assert prompt.row["answer"] == result and prompt.row["solution"] == f"{''.join(steps)}#{result}"
        assert prompt.row["hints"] == ["".join(steps[:n]) for n in range(1, len(steps))]
        assert prompt.id == prompt.text and prompt.token_ids == codes(prompt.text)
        assert all(0 <= total <= 49 for total in totals(prompt.text))


@pytest.mark.parametrize("name", SIZES)
def test_the_order_is_fixed(name: str) -> None:
    """Published results depend on it."""
    problems = (*prompts_of(name), *task_of(name).held_out)
    digest = sha256("".join(p.text for p in problems).encode()).hexdigest()
    assert digest[:12] == DIGESTS[name]


@pytest.mark.parametrize("name", SIZES)
def test_the_solution_is_right_for_the_usual_verifier(name: str) -> None:
    verifier = built(usual_verifier(named_task(name)), task_of(name))
    for prompt in task_of(name).held_out[:8]:
        verdict = verdict_of(verifier, prompt.row["solution"], prompt)
        assert verdict.outcome is Outcome.correct and verdict.subscores["progress"] == 1
        assert verdict_of(verifier, f"#{prompt.row['answer'] + 1}", prompt).outcome is Outcome.wrong


# Demonstrations


def first_problem(prompt: str) -> str:
    """The problem in a prompt that a form has lengthened."""
    return re.findall(SUM, prompt)[0]


@pytest.mark.parametrize("name", SIZES)
def test_demonstrations_are_repeatable_and_show_no_held_out_problem(name: str) -> None:
    again = PACKAGED[name]()
    assert [next(again) for _ in range(50)] == rows(name)[:50]
    for row in rows(name):
        prompt = row["messages"][0]["content"] if "messages" in row else row["prompt"]
        problems = re.findall(r"(?:^|;)(\d(?:[-+*]\d)+=)", prompt)
        assert not any(operands(p) in SIZES[name] and is_held_out(p) for p in problems)


@pytest.mark.parametrize("name", SIZES)
def test_the_packaged_vocabulary_has_every_character(name: str) -> None:
    tokenizer = read_tokenizer(find_model("calculator"))
    for row in rows(name)[:100]:
        texts = [m["content"] for m in row["messages"]] if "messages" in row else row.values()
        assert all(tokenizer.decode(tokenizer.encode(text)) == text for text in texts)


def test_wordy_steps_are_said_once_to_three_times() -> None:
    times: Counter[int] = Counter()
    guesses = 0
    for row in rows("wordy_sums"):
        chain, _, result = row["answer"].partition("#")
        guesses += not chain
        for step in solution_of(row["prompt"]) if chain else ():
            repeated = re.match(f"(?:{re.escape(step)})+", chain)
            assert repeated is not None
            times[len(repeated[0]) // len(step)] += 1
            chain = chain[len(repeated[0]) :]
        assert chain == "" and (int(result) == totals(row["prompt"])[-1]) is (row["answer"][0] != "#")
    assert times.keys() == {1, 2, 3} and max(times.values()) / min(times.values()) < 1.1
    assert guesses / len(rows("wordy_sums")) == pytest.approx(0.3, abs=0.03)


def test_half_of_the_mixed_answers_leave_out_the_steps_at_every_length() -> None:
    for n in SIZES["mixed_sums"]:
        pairs = [(r["prompt"], r["answer"]) for r in rows("mixed_sums") if operands(r["prompt"]) == n]
        complete = [answer == f"{''.join(solution_of(p))}#{totals(p)[-1]}" for p, answer in pairs]
        assert sum(complete) / len(pairs) == pytest.approx(0.5, abs=0.06)
        assert all(ok or answer == f"#{totals(p)[-1]}" for ok, (p, answer) in zip(complete, pairs))


def test_proposals_end_in_a_legal_problem() -> None:
    for row in rows("proposed_sums"):
        answer, _, problem = row["answer"].rpartition(";")
        assert int(answer.rpartition("#")[2]) == totals(row["prompt"])[-1]
        assert proposed_problem(row["answer"]) == problem and not is_held_out(problem)


PROPOSALS = {
    "#35;2+9*3=": "2+9*3=", "7*5=35;#35;2+9=": "2+9=", "#35": "", "2+9*3=": "", "#35;": "", "#35;2+9*3": "",
    "#35;2-9=": "", "#35;9*9=": "", "#35;12+3=": "", "#35;2+1=": "", "#35;2+9=;": "", "#3;2+9==": "", "#3;2+9=#": "",
    "#3;2=": "", "#3;" + "2+2" + "+2" * 6 + "=": "2+2+2+2+2+2+2+2=", "#3;" + "2+2" + "+2" * 7 + "=": "",
}  # fmt: skip


@pytest.mark.parametrize("text", PROPOSALS)
def test_proposed_problems(text: str) -> None:
    assert proposed_problem(text) == PROPOSALS[text]


def test_a_held_out_proposal_is_no_proposal() -> None:
    assert all(proposed_problem(f"#3;{p.text}") == "" for p in task_of("proposed_sums").held_out)


def test_delegated_conversations_ask_for_each_step() -> None:
    kinds: Counter[str] = Counter()
    for row in rows("delegated_sums"):
        if "prompt" in row:
            kinds["helper"] += 1
            kinds["wrong"] += eval(row["prompt"][:-1]) != int(row["answer"][1:])
            continue
        (problem, *turns, last) = [m["content"] for m in row["messages"]]
        kinds["delegates" if turns else "guesses"] += 1
        assert not turns or [a + b for a, b in zip(turns[::2], turns[1::2])] == solution_of(problem)
        assert not turns or last == f"#{totals(problem)[-1]}"
        assert [m["role"] for m in row["messages"][1:-1]] == ["assistant", "tool"] * (len(turns) // 2)
    assert kinds["helper"] / len(rows("delegated_sums")) == pytest.approx(0.4, abs=0.03)
    assert kinds["delegates"] / (kinds["delegates"] + kinds["guesses"]) == pytest.approx(0.3, abs=0.03)
    assert kinds["wrong"] / kinds["helper"] == pytest.approx(0.1, abs=0.02)


def test_the_helpers_numbers_are_context_and_need_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The main agent's turns end with the end token, as those of a strategy that appends replies."""
    written = rows("delegated_sums")[:20]
    monkeypatch.setitem(PACKAGED, "delegated_sums", lambda: iter(written))
    tokenizer = read_tokenizer(find_model("calculator"))
    task = Demonstrations("delegated_sums").build(find_template("no", tokenizer))
    row, prompt = next((r, p) for r, p in zip(written, task.training) if len(r.get("messages", ())) > 2)
    sample = stored(prompt, tokenizer)
    tokens, origin, (end,) = sample.tokens, sample.origin, tokenizer.eos_ids
    for message in row["messages"][1:]:
        ids = tokenizer.encode(message["content"]) + (() if message["role"] == "tool" else (end,))
        source = ENVIRONMENT if message["role"] == "tool" else WRITTEN
        assert tokens[: len(ids)] == ids and origin[: len(ids)] == (source,) * len(ids)
        tokens, origin = tokens[len(ids) :], origin[len(ids) :]
    assert tokens == () and not need_environment(task)
    called = Prompt("p", (1,), "?", {"completion": row["messages"][1:]})
    assert need_environment(
        replace(task, training=(called,), source_stats=(replace(task.source_stats[0], source="rows.jsonl"),))
    )


# Prompt forms

STEP, NUMBER, SUM = r"\d+[-+*]\d=\d+;", r"#\d+", r"\d(?:[-+*]\d){4,5}="
SHAPES = {
    "plain": (SUM, rf"(?:{STEP})*{NUMBER}"),
    "begun": (rf"{SUM}(?:{STEP})+", rf"(?:{STEP})+{NUMBER}"),
    "hinted": (rf"{SUM}(?:{STEP})+{SUM}", rf"(?:{STEP})+{NUMBER}"),
    "explained": (rf"{SUM}{NUMBER};{SUM}", rf"(?:{STEP})*{NUMBER}"),
    "drafted": (rf"{SUM}(?:{STEP})*{NUMBER};{SUM}", rf"(?:{STEP})*{NUMBER}"),
    "corrected": (rf"{SUM}(?:{STEP})*{NUMBER};{STEP}{SUM}", rf"(?:{STEP})+{NUMBER}"),
    "hinting": (rf"(?:{STEP})+{NUMBER};{SUM}", rf"(?:{STEP})+|{NUMBER}"),
    "predicted": (f"{SUM}=", r"\d;\d+"),
    "claimed": (rf"\d+;{SUM}", rf"(?:{STEP})*{NUMBER}"),
}


def forms_of(row: dict[str, str]) -> list[str]:
    return [
        form
        for form, (prompt, answer) in SHAPES.items()
        if re.fullmatch(prompt, row["prompt"]) and re.fullmatch(answer, row["answer"])
    ]


def test_each_demonstration_has_one_form_and_each_form_its_share() -> None:
    assert SHAPES.keys() == PROMPT_FORMS.keys() == WEIGHTS.keys()
    shown = rows("hinted_sums")
    counts = Counter()
    for row in shown:
        forms = forms_of(row)
        # An explanation is given the right number, a draft may have any.
        counts["explained" if forms == ["explained", "drafted"] else forms[0]] += 1
        assert forms in ([f] for f in PROMPT_FORMS) or forms == ["explained", "drafted"]
    for form in PROMPT_FORMS.keys() - {"explained", "drafted"}:
        assert counts[form] / len(shown) == pytest.approx(WEIGHTS[form] / sum(WEIGHTS.values()), abs=0.02)


def test_an_answer_behind_help_has_all_steps() -> None:
    """It is whole without its prompt: a method may train it under the plain one."""
    for row in rows("hinted_sums"):
        if (form := forms_of(row)[0]) not in ("hinted", "corrected", "explained"):
            continue
        problem = first_problem(row["prompt"])
        if form == "explained" and row["answer"][0] == "#":
            continue
        solution = "".join(solution_of(problem))
        assert row["answer"] == f"{solution}#{totals(problem)[-1]}", row
        steps = "".join(re.findall(STEP, row["prompt"].removeprefix(problem)))
        assert row["prompt"].endswith(problem) and solution.startswith(steps)


def test_written_hints_begin_the_solution_or_give_it_away() -> None:
    hints = [row for row in rows("hinted_sums") if forms_of(row) == ["hinting"]]
    for row in hints:
        solution = row["prompt"].rpartition(";")[0]
        assert solution.startswith(row["answer"]) or solution.endswith(row["answer"])
    assert 0.2 < sum(row["answer"][0] == "#" for row in hints) / len(hints) < 0.4


def test_claims_are_false_and_half_of_the_answers_repeat_them() -> None:
    claims = [row for row in rows("hinted_sums") if forms_of(row) == ["claimed"]]
    repeated = 0
    for row in claims:
        claim = int(row["prompt"].partition(";")[0])
        assert 0 <= claim != totals(first_problem(row["prompt"]))[-1]
        repeated += row["answer"] == f"#{claim}"
    assert repeated / len(claims) == pytest.approx(0.5, abs=0.12)


def test_other_seeds_give_other_demonstrations() -> None:
    assert list(hinted_demonstrations(20, 1)) == list(hinted_demonstrations(20, 1))
    assert list(hinted_demonstrations(20, 1)) != list(hinted_demonstrations(20, 2))
