"""Builds the environment of a recipe. `Usage` if a strategy needs an environment and the recipe names none."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from groupwise.config.recipe import Recipe
from groupwise.config.task_sources import held_out_sources, sources
from groupwise.config.user_code import UserCode
from groupwise.core import Usage
from groupwise.data import Environment, Ids, declares, name_of
from groupwise.environments import CoinFlip, Tools, calculator_tools, python_tools, user_environment
from groupwise.sandbox import ExecutionLimits, Sandbox
from groupwise.training.build_tasks import Templates, no_verifier
from groupwise.verifiers import EnvironmentVerdictVerifier


def environment_of(recipe: Recipe, use: UserCode) -> Callable[[], Environment] | None:
    """A function that creates an environment of the recipe, packaged or from a user's file; None without one."""
    name = recipe.environment
    strategies = {"method.strategy": recipe.method.strategy, "evaluate.strategy": recipe.evaluate.strategy}
    for where, strategy in strategies.items():
        if declares(strategy, "needs_environment") and not name:
            fix = "add --environment calculator_tools, or my_file:MyEnvironment with --use my_file.py"
            what = f"{where} is {name_of(strategy)}, which needs an environment, and the recipe names none"
            raise Usage(what, fix=fix)
    if not name:
        return None
    wall = recipe.machine.verdict_deadline
    if ":" in name:
        return user_environment(use.find(name), deadline=wall)
    if name == "calculator_tools":
        return user_environment(calculator_tools, deadline=wall)
    if name == "coin_flip":
        return user_environment(CoinFlip, deadline=wall)
    if name == "python_tools":
        sandbox = Sandbox(ExecutionLimits(cpu_seconds=wall / 5, wall_seconds=wall), unsafe=use.unsafe_local_exec)

        def python() -> Tools:
            return python_tools(sandbox)

        # Calls wait in a queue for a sandbox, and the sandbox limits their time.
        return user_environment(python, deadline=recipe.machine.rollout_deadline)
    fix = (
        "use calculator_tools, python_tools or coin_flip, or a class from your file: "
        "my_file:MyEnvironment with --use my_file.py"
    )
    raise Usage(f"no environment is called {name!r}", fix=fix)


def tool_schemas(recipe: Recipe, use: UserCode) -> Sequence[Mapping[str, Any]]:
    """The JSON schemas of the tools of the recipe's environment, which the chat template passes to the model."""
    tools = tools_of(recipe, use)
    return tools.schemas if tools else ()


def tools_of(recipe: Recipe, use: UserCode) -> Tools | None:
    """The recipe's environment if it is one with tools that need no sandbox; else None.

    A function in the user's file, or a subclass of `Tools`, is called once. Raises `Usage` if it fails.
    """
    name = recipe.environment
    if name == "calculator_tools":
        return calculator_tools()
    if ":" not in name:
        return None
    make = use.find(name)
    if isinstance(make, type) and Tools not in make.__mro__:
        return None
    try:
        environment = make()
    except Exception as error:  # a user's function may raise anything
        evidence = f"{type(error).__name__}: {error}"
        raise Usage(f"the environment {name} cannot be created", evidence=evidence, fix="correct its code") from error
    return environment if isinstance(environment, Tools) else None


def check_judge(recipe: Recipe, use: UserCode) -> None:
    """`Usage` for a task without a verifier, in an environment that gives no verdicts either: one of tools."""
    graded = (*sources(recipe), *held_out_sources(recipe))
    ungraded = [s.task.label for s in graded if isinstance(s.verifier, EnvironmentVerdictVerifier)]
    if not ungraded:
        return
    tools = tools_of(recipe, use)
    if recipe.environment == "python_tools" or (tools is not None and type(tools).step is Tools.step):
        raise no_verifier(ungraded[0], f"{recipe.environment} runs tools, and gives no verdict")


def frame_of(recipe: Recipe, templates: Templates) -> tuple[Ids, Ids]:
    """The token ids that the chat template puts before and after an environment's reply."""
    if all(getattr(s, "works_on_whole_answers", False) for s in (recipe.method.strategy, recipe.evaluate.strategy)):
        return (), ()
    frames = {name: template.turn_frame() for name, template in templates.items()}
    if len(set(frames.values())) > 1:
        problem = f"conversations need one template for all problems, and these use several: {', '.join(frames)}"
        raise Usage(problem, fix="use one template for all problems: --template chat")
    return next(iter(frames.values()))
