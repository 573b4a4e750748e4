"""Checks of the models that phases pass on: which are reward models, also before they exist."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from groupwise.config.phase_recipes import Phase
from groupwise.config.recipe import Recipe
from groupwise.config.user_code import UserCode
from groupwise.core import Usage
from groupwise.verifiers.classifier_grader import ClassifierSettings
from groupwise.verifiers.process_reward_model import ProcessRewardModel
from groupwise.verifiers.reward_model import FutureRewardModel, RewardModel
from groupwise.verifiers.user_function import kinds_in


def model_errors(phase: Phase, use: UserCode, earlier: Mapping[str, Recipe]) -> list[Usage]:
    """Errors of a phase that generates with a reward model, or scores with the model of a policy."""
    recipe, _ = phase.recipe(reference, use)
    if recipe is None:  # its own errors are reported
        return []
    trained = [name for name, other in earlier.items() if other.trains_reward_model]
    errors = []
    if not recipe.trains_reward_model and (start := phase_named(recipe.model)) in trained:
        others = [name for name in earlier if name not in trained]
        what = f"the phase starts from the reward model of the phase {start}, which generates no answers"
        fix = f'set its model, such as model = "@{others[-1]}/model"' if others else "set its model"
        errors.append(Usage(what, fix=fix))
    for kind in reward_models(recipe):
        if (name := phase_named(kind.path)) not in earlier:
            continue
        if isinstance(kind, ProcessRewardModel):
            what = f"the verifier's process reward model is that of the phase {name}: no method here trains one"
            errors.append(Usage(what, fix='use kind = "RewardModel", or name the directory of a trained one'))
        elif name not in trained:
            what = f"the verifier's reward model is that of the phase {name}, whose method trains a policy"
            known = ", ".join(trained) or "none"
            fix = 'name a phase with method.base = "bradley_terry"'
            errors.append(Usage(what, evidence=f"earlier phases with a reward model: {known}", fix=fix))
    return errors


def with_future_reward_models(phase: Phase, recipe: Recipe, use: UserCode, earlier: Mapping[str, Recipe]) -> Recipe:
    """The recipe with which a phase is checked before the reward models of earlier phases exist.

    Each is replaced by the model that its phase starts from, whose tokenizer is the same.
    """
    referring, _ = phase.recipe(reference, use)
    if referring is None or not any(phase_named(kind.path) for kind in reward_models(referring)):
        return recipe
    extra_tasks = tuple(
        replace(task, verifier=with_stand_ins(written.verifier, earlier))
        for task, written in zip(recipe.extra_tasks, referring.extra_tasks, strict=True)
    )
    return replace(recipe, verifier=with_stand_ins(referring.verifier, earlier), extra_tasks=extra_tasks)


def reference(name: str, path: str) -> str:
    """A reference to a file of an earlier phase, as the recipe writes it."""
    return f"@{name}/{path}"


def phase_named(path: str) -> str:
    """The phase whose model a path is, by a reference; empty for any other path.

    >>> phase_named("@reward/model"), phase_named("runs/model")
    ('reward', '')
    """
    return path[1:].removesuffix("/model") if path.startswith("@") and path.endswith("/model") else ""


def reward_models(recipe: Recipe) -> list[ClassifierSettings]:
    """The reward models in the verifiers of a recipe."""
    verifiers = (recipe.verifier, *(task.verifier for task in recipe.extra_tasks))
    return [kind for verifier in verifiers for kind in kinds_in(verifier) if isinstance(kind, ClassifierSettings)]


def with_stand_ins(value: Any, earlier: Mapping[str, Recipe]) -> Any:
    """A verifier's settings with a `FutureRewardModel` for each reward model of an earlier phase."""
    if isinstance(value, RewardModel):
        if (name := phase_named(value.path)) not in earlier:
            return value
        settings: dict[str, Any] = {field.name: getattr(value, field.name) for field in fields(value)}
        settings["path"] = earlier[name].model
        return FutureRewardModel(**settings)
    if isinstance(value, tuple):
        return tuple(with_stand_ins(item, earlier) for item in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changes = {field.name: with_stand_ins(getattr(value, field.name), earlier) for field in fields(value) if field.init}
    return replace(value, **changes)
