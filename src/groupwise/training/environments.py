"""The environment that a recipe names, and whether its strategies ask one."""

from collections.abc import Callable

from groupwise.config.recipe import Recipe
from groupwise.config.user_code import Use
from groupwise.data import Environment, Ids, Usage
from groupwise.environments import Tools, calculator_tools, python_tools, user_environment
from groupwise.models import Tokenizer
from groupwise.rollout import Independent, Turns
from groupwise.sandbox import Limits, Sandbox
from groupwise.training.sources import templates


def environment_of(recipe: Recipe, use: Use) -> Callable[[], Environment] | None:
    """What makes the recipe's environments, one's own class among them; None where it names none."""
    name = recipe.environment
    strategies = {"method.strategy": recipe.method.strategy, "evaluate.strategy": recipe.evaluate.strategy}
    for where, strategy in strategies.items():
        if isinstance(strategy, Turns) and not name:
            fix = "add --environment calculator_tools, or my_file:MyEnvironment with --use my_file.py"
            raise Usage(f"{where} is Turns, and nothing says with which environment", fix=fix)
        if isinstance(strategy, Independent) and name:
            what = f"{where} is Independent: it asks no environment, and the recipe names {name}"
            raise Usage(what, fix=f"say --{where} Turns, or leave the environment out")
    if not name:
        return None
    wall = recipe.machine.verdict_deadline
    if ":" in name:
        return user_environment(use.find(name), deadline=wall)
    if name == "calculator_tools":
        return user_environment(calculator_tools, deadline=wall)
    if name == "python_tools":
        sandbox = Sandbox(Limits(cpu=wall / 5, wall=wall), unsafe=use.unsafe_local_exec)

        def python() -> Tools:
            return python_tools(sandbox)

        return user_environment(
            python, deadline=recipe.machine.deadline
        )  # calls queue for a box, which keeps their time
    fix = "take calculator_tools or python_tools, or name a class of your own: my_file:MyEnvironment with --use"
    raise Usage(f"no environment is called {name!r}", fix=fix)


def frame_of(recipe: Recipe, tokenizer: Tokenizer) -> tuple[Ids, Ids]:
    """What the recipe's template writes before and behind an environment's words."""
    if not recipe.environment:
        return (), ()
    frames = {name: template.turn_frame() for name, template in templates(recipe, tokenizer).items()}
    if len(set(frames.values())) > 1:
        what = f"an environment speaks in one template, and the problems stand in {', '.join(frames)}"
        raise Usage(what, fix="take one template for all of them: --template chat")
    return next(iter(frames.values()))
