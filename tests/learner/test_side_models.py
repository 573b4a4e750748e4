"""Side models: the average of the policy, a given model, what a checkpoint holds, and exact resume."""

import copy
from pathlib import Path

import pytest
import torch

from groupwise.checks.check_inputs import check_inputs
from groupwise.config.recipe import Recipe
from groupwise.config.recipe_toml import read_recipe
from groupwise.config.user_code import UserCode
from groupwise.core import Usage
from groupwise.data import Logp, Sampling, pack
from groupwise.learner import EMA, AdamW, FromDirectory, InitialPolicy, Learner, SamplingPolicy, StepPlan
from groupwise.training.build_run import build
from tests.learner.small import SHAPE, model, ragged
from tests.learner.test_gradients import OBJECTIVES, credited
from tests.models.directories import directory

PLAN = (StepPlan((tuple(range(6)), tuple(range(6, 12)))), StepPlan((tuple(range(12, 24)),)))
MODELS = (("average", EMA(decay=0.9)), ("reference", InitialPolicy()), ("lagged", EMA(decay=0.0, every=3)))


def learner(dtype: torch.dtype = torch.float64, **settings: object) -> Learner:
    side_models = settings.pop("side_models", MODELS)
    return Learner(
        model(dtype), optimizer=AdamW(lr=1e-2), steps=10, temperature=0.7, side_models=side_models, **settings
    )  # pyright: ignore[reportArgumentType]


def train(it: Learner, steps: int, dtype: torch.dtype = torch.float64) -> None:
    for _ in range(steps):
        it.step(credited(dtype=dtype), PLAN[0], OBJECTIVES["tokens"])


def test_an_average_follows_every_step_and_a_lagged_copy_every_third() -> None:
    it = learner()
    initial = copy.deepcopy(it.model.state_dict())
    average = copy.deepcopy(initial)
    for step in range(1, 5):
        train(it, 1)
        average = {name: 0.9 * x + 0.1 * it.model.state_dict()[name] for name, x in average.items()}
        for name, x in it.models["average"].state_dict().items():
            torch.testing.assert_close(x, average[name], rtol=1e-12, atol=1e-14)
            assert torch.equal(it.models["reference"].state_dict()[name], initial[name])
        if step == 3:
            third = copy.deepcopy(it.model.state_dict())
    assert all(torch.equal(x, third[name]) for name, x in it.models["lagged"].state_dict().items())


def test_the_policy_that_sampled_is_copied_once_an_iteration_however_many_steps_it_had() -> None:
    """`EMA(0, every=2)` would be one step out of phase for the rest of the run after an iteration of one step."""
    it = learner(side_models=(("old", SamplingPolicy()),))
    for steps in (2, 1, 2, 0, 2):
        sampled = copy.deepcopy(it.model.state_dict())
        train(it, steps)
        assert all(torch.equal(x, sampled[name]) for name, x in it.models["old"].state_dict().items())
        it.end_iteration()
    assert all(torch.equal(x, it.model.state_dict()[name]) for name, x in it.models["old"].state_dict().items())


def test_a_skipped_step_changes_no_average() -> None:
    it = learner()
    before = copy.deepcopy(it.models["average"].state_dict())
    batch = credited()
    batch = batch.having(advantage=batch.advantage * float("nan"))
    assert it.step(batch, PLAN[0], OBJECTIVES["tokens"]).skip_reason
    assert all(torch.equal(x, before[name]) for name, x in it.models["average"].state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_resumed_run_has_the_same_averages_bit_by_bit(dtype: torch.dtype) -> None:
    whole, first, second = (learner(dtype) for _ in range(3))
    train(whole, 5, torch.float32)
    train(first, 2, torch.float32)
    tensors, state = first.state()
    second.restore({name: x.clone() for name, x in tensors.items()}, state)
    train(second, 3, torch.float32)
    a, b = whole.state()[0], second.state()[0]
    assert a.keys() == b.keys() and all(torch.equal(x, b[name]) for name, x in a.items())
    for name, side_model in whole.models.items():
        weights = second.models[name].state_dict()
        assert all(torch.equal(x, weights[key]) for key, x in side_model.state_dict().items())


def test_an_average_in_half_precision_keeps_small_updates() -> None:
    """Steps of 0.1 % of a tenth of the distance are below bfloat16's last bit, but not below float32's."""
    it = learner(torch.bfloat16, side_models=(("average", EMA(decay=0.999)),))
    before = {name: x.clone() for name, x in it.models["average"].state_dict().items()}
    weights = it._following["average"].exact
    assert {x.dtype for x in weights.values()} == {torch.float32}
    train(it, 2, torch.float32)
    assert all(torch.equal(weights[name].bfloat16(), x) for name, x in it.models["average"].state_dict().items())
    assert any(not torch.equal(weights[name], x.float()) for name, x in before.items())


def test_a_given_model_computes_measures_and_is_in_no_checkpoint() -> None:
    teacher = model(seed=5)
    it = learner(side_models=(("teacher", FromDirectory("elsewhere")), *MODELS), from_directories={"teacher": teacher})
    measures = it.compute_measures(pack(ragged()), PLAN, frozenset({Logp("teacher")}))
    direct = Learner(teacher, optimizer=AdamW(), steps=1, temperature=0.7)
    expected = direct.compute_measures(pack(ragged()), PLAN, frozenset({Logp("policy")})).logp_old
    assert torch.equal(measures[Logp("teacher")], expected)
    train(it, 2)
    assert not [name for name in it.state()[0] if "teacher" in name]
    assert [name for name in it.state()[0] if name.startswith("models.average.")]
    other = learner(
        side_models=(("teacher", FromDirectory("elsewhere")), *MODELS), from_directories={"teacher": teacher}
    )
    other.restore({name: x.clone() for name, x in it.state()[0].items()}, it.state()[1])


@pytest.mark.parametrize("settings", [{"decay": 1.0}, {"decay": -0.1}, {"every": 0}])
def test_invalid_averages_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="needs 0 <= decay < 1 and every >= 1"):
        EMA(**settings)  # pyright: ignore[reportArgumentType]


TEXT = """
task = "calculator"
method = { base = "grpo", models = { reference = %s } }
prompts = 2
"""


def test_a_recipe_names_a_directory_and_an_average(tmp_path: Path) -> None:
    path = directory(tmp_path / "teacher")
    for text, part in (
        (f'{{ kind = "FromDirectory", directory = "{path}" }}', FromDirectory(str(path))),
        ('{ kind = "EMA", decay = 0.5 }', EMA(decay=0.5)),
    ):
        (tmp_path / "recipe.toml").write_text(TEXT % text)
        recipe = read_recipe(tmp_path / "recipe.toml")
        assert recipe.method.models == (("reference", part),)


def test_a_given_model_needs_the_policys_vocabulary(tmp_path: Path) -> None:
    from dataclasses import replace

    from groupwise.methods import grpo

    path = directory(tmp_path / "teacher", vocabulary_size=SHAPE.vocabulary_size + 4)
    method = replace(grpo(), models=(("reference", FromDirectory(str(path))),))
    recipe = Recipe(method=method, prompts=2, sampling=Sampling(max_tokens=24))
    with pytest.raises(Usage, match=r"reference.*vocabular"):
        build(recipe, UserCode()).new_learner()
    (error,) = check_inputs(recipe, UserCode()).errors
    assert "reference" in error.what and "vocabular" in error.what
    missing = replace(method, models=(("reference", FromDirectory(str(tmp_path / "absent"))),))
    (error,) = check_inputs(replace(recipe, method=missing), UserCode()).errors
    assert f"method.models.reference: there is no model at {tmp_path / 'absent'}" in error.what
    packaged = replace(recipe, method=replace(method, models=(("reference", FromDirectory("calculator")),)))
    it = build(packaged, UserCode()).new_learner()
    assert not any(p.requires_grad for p in it.models["reference"].parameters())
