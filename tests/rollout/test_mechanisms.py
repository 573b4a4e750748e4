"""Metrics that show whether the mechanism of a method acted: roles, other prompts, sizes, numbers of curricula."""

import asyncio
import json

import pytest

from groupwise.data import CurriculumWithMetrics, Role, find_metric, roles_of
from groupwise.data.rollout_json import from_json, to_json
from groupwise.methods import fission_grpo, grpo, knapsack_rl, murphy, published, rest_rl, rgr_grpo, vade
from groupwise.methods.method import Method
from groupwise.rollout import IterationRollouts, PendingIteration, RolloutBuffer, RolloutSetting, Shuffled
from groupwise.rollout.prompt_template import worded
from tests.golden.play import RIGHT, WRONG, sevens
from tests.rollout.fakes import FakeEngine, NumberedTask, judged_by, sampling, tokenizer


def taken(method: Method, tokens, iterations: int = 1, prompts: int = 2) -> tuple[RolloutBuffer, IterationRollouts]:  # type: ignore[no-untyped-def]
    engine = FakeEngine(tokens)
    setting = RolloutSetting(
        engine=engine, verifier=judged_by(sevens), tokenizer=tokenizer(), sampling=sampling(), seed=1
    )
    buffer, rollouts = (
        RolloutBuffer(NumberedTask(8), method.curriculum, setting, trained_roles=method.trained_roles),
        None,
    )
    for _ in range(iterations):
        strategy = worded(method.strategy, "packaged")
        wanted = prompts, method.group_size, strategy, method.filter, method.max_refills
        rollouts = asyncio.run(buffer.take(*wanted))
    assert rollouts is not None
    return buffer, rollouts


def test_a_plain_method_has_no_further_metrics() -> None:
    _, rollouts = taken(grpo(group_size=2), lambda request: (RIGHT,))
    assert rollouts.strategy_metrics == {}


def test_refinements_are_counted_also_where_there_are_none() -> None:
    assert taken(murphy(group_size=2), lambda r: (WRONG,))[1].metrics["rollout/roles/refinement"] == 8
    assert taken(murphy(group_size=2), lambda r: (RIGHT,))[1].metrics["rollout/roles/refinement"] == 0


def test_rewritten_answers_and_answers_to_other_prompts_are_counted() -> None:
    first: dict[int, tuple[int, ...]] = {}

    def corrected(request) -> tuple[int, ...]:  # type: ignore[no-untyped-def]
        plain = first.setdefault(request.draw_id, request.context)
        return (WRONG,) if request.context == plain else (RIGHT,)

    numbers = taken(rgr_grpo(group_size=2), corrected)[1].strategy_metrics
    assert (numbers["rollout/written"], numbers["rollout/other_prompt"]) == (2, 2)


def test_a_curriculum_reports_its_numbers() -> None:
    method = fission_grpo(group_size=2, least=1)
    _, first = taken(method, lambda r: (WRONG,))
    _, second = taken(method, lambda r: (WRONG,), iterations=2)
    assert (first.metrics["curriculum/failures"], first.metrics["curriculum/recoveries"]) == (2, 0)
    assert (second.metrics["curriculum/failures"], second.metrics["curriculum/recoveries"]) == (2, 1)
    assert taken(vade(group_size=2), lambda r: (WRONG,))[1].metrics["curriculum/known"] == 2
    assert taken(knapsack_rl(group_size=8), lambda r: (WRONG,))[1].metrics["curriculum/known"] == 2
    assert taken(rest_rl(group_size=2), lambda r: (WRONG,))[1].metrics["curriculum/surveyed"] == 2


def test_every_number_of_a_curriculum_is_a_documented_metric() -> None:
    reporting = {type(c): c for m in published if isinstance(c := m().curriculum, CurriculumWithMetrics)}
    assert len(reporting) == 7 and Shuffled not in reporting
    for curriculum in reporting.values():
        state = curriculum.init(NumberedTask(8), 0)
        for name in curriculum.numbers(state, []):
            metric = find_metric(f"curriculum/{name}")
            assert metric is not None and metric.name == f"curriculum/{name}", name


def test_numbers_of_rollouts_that_wait_survive_a_checkpoint() -> None:
    pending = PendingIteration(
        finished_rounds=1, completed_rollouts=IterationRollouts((), 1, strategy_metrics={"curriculum/known": 3.0})
    )
    assert (
        from_json(PendingIteration, json.loads(json.dumps(to_json(pending)))).completed_rollouts
        == pending.completed_rollouts
    )


@pytest.mark.parametrize("method", published, ids=lambda m: m.__name__)
def test_the_roles_of_a_strategy_are_declared(method) -> None:  # type: ignore[no-untyped-def]
    roles = roles_of(method().strategy)
    assert roles is not None and all(isinstance(role, Role) for role in roles.values())
    assert set(method().trained_roles) <= {"answer", *roles}
