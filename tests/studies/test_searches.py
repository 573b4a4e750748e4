"""The task of the study of useful length: its rows, its demonstrations, and what the study compares."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from studies.study import Measured

from groupwise.certificates.studies import StudyRun, StudyRunResult
from groupwise.config.user_code import UserCode
from groupwise.training.build_run import read_inputs
from studies import searches, useful_length

STORED = {path.stem: [json.loads(line) for line in path.read_text("utf-8").splitlines()]
          for path in searches.FOLDER.iterdir()}  # fmt: skip
TRY = re.compile(r"(\d)([-+*])(\d)=(\d\d);(\d\d)([-+*])(\d)=(\d\d);")


def value(a: str, first: str, b: str, second: str, c: str) -> tuple[int, int]:
    """The results of both steps, from left to right."""
    middle = eval(f"{a}{first}{b}")
    return middle, eval(f"({middle}){second}{c}")


def test_the_files_are_those_of_the_generator_and_share_no_problem() -> None:
    assert {f"{name}.jsonl": Path(searches.FOLDER / f"{name}.jsonl").read_text("utf-8") for name in STORED} == (
        searches.files()
    )
    prompts = {name: {row["prompt"] for row in rows} for name, rows in STORED.items()}
    assert len(prompts["train"]) == 512 and len(prompts["test"]) == 128 and len(STORED["demonstrations"]) == 4096
    assert not prompts["test"] & (prompts["train"] | prompts["demonstrations"])


def test_the_pattern_accepts_right_pairs_of_signs_alone_whatever_was_tried_before() -> None:
    for row in STORED["test"][:40]:
        a, b, c, target = re.fullmatch(r"(\d);(\d);(\d)#(\d\d)=", row["prompt"]).groups()  # type: ignore[union-attr]
        for first in "+-*":
            for second in "+-*":
                middle, last = value(a, first, b, second, c)
                right = last == int(target) and 0 <= middle <= searches.LARGEST
                for tried in ("", f"{a}+{b}=99;"):
                    assert bool(re.fullmatch(row["answer"], f"{tried}#{first}{second}")) is right
        assert not re.fullmatch(row["answer"], "") and not re.fullmatch(row["answer"], "#++#++")


def test_demonstrations_are_worked_out_and_stop_at_a_hit_or_after_a_miss() -> None:
    hits, counts = 0, set()
    for row in STORED["demonstrations"]:
        a, b, c, target = re.fullmatch(r"(\d);(\d);(\d)#(\d\d)=", row["prompt"]).groups()  # type: ignore[union-attr]
        text, _, signs = row["answer"].partition("#")
        tries = TRY.findall(text)
        assert "".join("{}{}{}={};{}{}{}={};".format(*x) for x in tries) == text
        for x in tries:
            assert (x[0], x[2], x[6]) == (a, b, c) and x[3] == x[4]
            assert value(a, x[1], b, x[5], c) == (int(x[3]), int(x[7]))
        assert all(x[7] != target for x in tries[:-1]) and signs == tries[-1][1] + tries[-1][5]
        hits, counts = hits + (tries[-1][7] == target), counts | {len(tries)}
    assert 0.3 < hits / len(STORED["demonstrations"]) < 0.5 and counts == set(range(1, searches.TRIES + 1))


def test_arms_differ_by_advantage_and_aggregate_alone_and_evaluate_the_held_out_file() -> None:
    recipes = {key: arm.trial(0).recipe() for key, arm in useful_length.ARMS.items()}
    plain = recipes["grpo"]
    for key, recipe in recipes.items():
        own = recipe.method
        method = replace(plain.method, advantage=own.advantage,
                         objective=replace(plain.method.objective, aggregate=own.objective.aggregate))  # fmt: skip
        assert replace(recipe, method=plain.method) == plain and own == method, key
    task = read_inputs(plain, UserCode()).task
    assert sorted(prompt.text for prompt in task.held_out) == sorted(row["prompt"] for row in STORED["test"])


def test_lengths_are_compared_with_dr_grpo_within_a_seed() -> None:
    def run(trial: StudyRun, wrong: float) -> StudyRunResult:
        points = {i: 90.0 if i <= 40 else wrong for i in range(1, useful_length.LAST + 1)}
        return StudyRunResult(trial=trial, metrics={useful_length.WRONG: points}, tokens=(), cpu_seconds=1.0,
                           commit="c", recipe_hash="r", code_hash="x")  # fmt: skip

    lengths = {"grpo": (50.0, 51.0), "no_std": (42.0, 39.0), "token_mean": (30.0, 31.0), "dr_grpo": (40.0, 41.0)}
    arms = useful_length.ARMS
    results = {arms[key].trial(seed): run(arms[key].trial(seed), x)
               for key, pair in lengths.items() for seed, x in enumerate(pair)}  # fmt: skip
    m = Measured(arms, results)
    assert useful_length.longer(m, "grpo").values == pytest.approx((10.0, 10.0))
    assert [useful_length.verdict(m, key) for key in list(arms)[:3]] == ["*longer*", "*undecided*", "*shorter*"]
