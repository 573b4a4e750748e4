"""`check` compares what the parts of a method need with what verdicts, strategy, filter, objective and task give."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from groupwise.api import load_method
from groupwise.checks.check_needs import untrainable_roles
from groupwise.data import Draw, Role, Rollout, Sampler, Subscore, added_contents, needs, roles_of
from groupwise.lifecycle.alerts import AlertDetector, trained_role_reasons
from groupwise.methods import (
    ExplainGoldAnswer,
    HintWriter,
    PrefixContinuationStrategy,
    ReplayStoredAnswer,
    expo,
    gspo,
    hill,
    m_grpo,
    murphy,
    published,
)
from groupwise.rollout import Independent
from groupwise.rollout.prompt_template import worded
from tests.checks import check

ROWS = [{"prompt": f"{a}+{b}=", "answer": str(a + b), "solution": "1"} for a in range(1, 6) for b in range(2, 6)]


def checked(tmp_path: Path, *overrides: tuple[str, str], verifier: str = "last_number") -> tuple[list[str], list[str]]:
    """The errors and the notes for a method on rows of the user."""
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    lines: list[str] = []
    errors = check(None, [("task", str(file)), ("verifier", verifier), *overrides], notify=lines.append)
    return [str(error) for error in errors], lines


@pytest.mark.parametrize(("name", "part"), [
    ("fission_grpo", "RecoveryPrompts"), ("murphy", "FeedbackTree"), ("rgr_grpo", "BestAnswerRefinement"),
])  # fmt: skip
def test_a_method_that_needs_feedback_is_refused_without_it(name: str, part: str, tmp_path: Path) -> None:
    (error,), _ = checked(tmp_path, ("method", name))
    assert error.startswith(f"method.strategy: {part} writes the feedback of verdicts into prompts, and verdicts of ")
    assert "LastNumber have none" in error and "such as Code, JsonSchema, Math, Regex," in error
    assert checked(tmp_path, ("method", name), verifier="math")[0] == []


def test_a_strategy_of_the_evaluation_needs_feedback_too(tmp_path: Path) -> None:
    (error,), _ = checked(tmp_path, ("evaluate.strategy", "FeedbackTree"))
    assert error.startswith("evaluate.strategy: FeedbackTree")


@pytest.mark.parametrize(("name", "parts"), [("trustgeogen", ["leading", "reached"]), ("syn_grpo", ["proposed"])])
def test_a_verdict_part_that_no_verdict_has_is_refused_before_the_run(
    name: str, parts: list[str], tmp_path: Path
) -> None:
    errors, _ = checked(tmp_path, ("method", name))
    assert len(errors) == len(parts)
    for error, part in zip(errors, parts):
        assert f"needs the subscore '{part}', and verdicts of LastNumber lack it" in error
        assert "(packaged tasks only), or your own function that returns a Verdict" in error


def test_parts_of_the_strategy_and_of_several_verifiers_count(tmp_path: Path) -> None:
    assert checked(tmp_path, ("method", "spo"))[0] == [], "TrackedBaselineStrategy adds baseline"
    shaping = ("method.shaping", '["Score", { kind = "AddSubscore", subscore = "shape" }]')
    shape = '{ name = "shape", verifier = { kind = "regex", pattern = "1" } }'
    several = f'{{ kind = "Combined", members = [{{ name = "right", verifier = "last_number" }}, {shape}] }}'
    assert checked(tmp_path, shaping, verifier=several)[0] == []
    (error,), _ = checked(tmp_path, shaping)
    assert "AddSubscore needs the subscore 'shape'" in error


def test_nothing_is_known_of_the_verdicts_of_a_user_s_code(tmp_path: Path) -> None:
    from groupwise.config.user_code import Permissions, load_use

    file = tmp_path / "mine.py"
    file.write_text("def grade(answer):\n    return 1.0\n")
    use = load_use(Permissions(use=[file]))
    for name in ("murphy", "trustgeogen", "fission_grpo", "syn_grpo"):
        assert check(None, [("method", name), ("verifier", "mine:grade"), ("correct_threshold", "1")], use) == []


def test_the_published_methods_can_train_their_roles() -> None:
    assert [(m.__name__, str(e)) for m in published for e in untrainable_roles(m())] == []
    trained = {role for method in published for role in method().trained_roles} - {"answer"}
    assert trained >= {"branch", "explained", "helper", "hint", "prediction", "pressed", "refinement", "schedule"}


def test_a_filter_that_drops_failures_removes_explanations() -> None:
    for name in ("mixed_outcomes", "mixed_scores", "mixed_groups", "correct_only"):
        (error,) = untrainable_roles(load_method("expo", filter=name))
        assert f"{name} drops each prompt without a correct answer, and samples of the role explained" in str(error)
    assert not list(untrainable_roles(load_method("expo", filter="not_all_correct")))
    assert not list(untrainable_roles(load_method("expo", filter="mixed_outcomes", explain_always=True)))


def test_a_filter_that_drops_failures_is_noted_with_a_role_that_failures_mostly_have(tmp_path: Path) -> None:
    errors, lines = checked(tmp_path, ("method", "hill"), ("method.filter", "mixed_outcomes"))
    assert not errors and sum("with them their samples of the role hint" in line for line in lines) == 1
    assert not any("role hint" in line for line in checked(tmp_path, ("method", "hill"))[1])


def test_an_objective_without_a_gradient_for_a_lone_sample_is_refused() -> None:
    crossed = replace(gspo(), strategy=ExplainGoldAnswer(), trained_roles=("answer", "explained"))
    (error,) = untrainable_roles(crossed)
    assert "no gradient reaches samples of the role explained" in str(error)
    assert not list(untrainable_roles(replace(crossed, objective=expo().objective, models=expo().models)))
    assert not list(untrainable_roles(replace(crossed, trained_roles=("answer",))))


def test_a_trained_role_that_the_strategy_does_not_make_is_refused() -> None:
    (error,) = untrainable_roles(replace(hill(), strategy=Independent()))
    assert "names the role hint, and the strategy Independent makes answer" in str(error)
    assert "use a strategy that makes it: HintWriter" in str(error)
    assert not list(
        untrainable_roles(replace(hill(), strategy=PrefixContinuationStrategy(inner_strategy=HintWriter())))
    ), "wrapped"

    class Mine:
        async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout: ...

    assert roles_of(Mine()) is None and added_contents(ReplayStoredAnswer(inner_strategy=Mine())) is None
    assert not list(untrainable_roles(replace(hill(), strategy=Mine()))), "nothing is known of the user's"

    class Declared(Mine):
        roles = (Role("critique", "for each prompt"),)

    assert list(roles_of(ReplayStoredAnswer(inner_strategy=Declared())) or ()) == ["critique"]


@pytest.mark.parametrize("name", ["knapsack_rl", "vade", "spo", "sage_hint"])
def test_prompts_that_do_not_come_back_are_noted(name: str, tmp_path: Path) -> None:
    settings = [("method", name), ("prompts", "8")] + [("method.form", "light")] * (name == "sage_hint")
    few, enough = (checked(tmp_path, *settings, ("iterations", n)) for n in ("2", "3"))
    assert not few[0]
    (note,) = [line for line in few[1] if "come back" in line]
    assert "this run draws 16 of 18 prompts" in note and "use 3 iterations or more" in note
    assert not [line for line in enough[1] if "come back" in line]


def test_the_first_iteration_warns_about_a_role_without_a_sample() -> None:
    line: dict[str, Any] = {"iteration": 1, "rollout/roles/helper": 0.0}
    (warning,) = AlertDetector(1.0, trained_role_reasons(worded(m_grpo(), "packaged")))(line)
    assert warning == (
        "warning: iteration 1: no sample has the role helper, which method.trained_roles names: one is made where a "
        "turn of "
        "the main agent ends in '=' (request_end)"
    )
    assert (
        AlertDetector(1.0, trained_role_reasons(worded(m_grpo(), "packaged")))({**line, "rollout/roles/helper": 3.0})
        == []
    )
    assert AlertDetector(1.0, trained_role_reasons(worded(m_grpo(), "packaged")))({**line, "iteration": 2}) == []
    assert AlertDetector(1.0, trained_role_reasons(murphy()))({"iteration": 1}) == []


def test_needs_of_a_strategy_are_those_of_its_parts() -> None:
    assert needs(load_method("syn_grpo").strategy) == {Subscore("proposed")}
