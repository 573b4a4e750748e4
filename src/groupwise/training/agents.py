"""Builds the runner of a recipe's agent: the user's function, the model's chat template, and the limits."""

import inspect
from collections.abc import Callable
from math import ceil

from groupwise.config.recipe import Recipe
from groupwise.config.user_code import UserCode
from groupwise.core import Usage
from groupwise.data import declares, name_of
from groupwise.rollout import AgentRunner
from groupwise.rollout.agents.runner import is_async
from groupwise.training.build_tasks import Templates

EXAMPLE = "write def agent(row, client), async or not, which may return a reward"


def agent_of(
    recipe: Recipe, use: UserCode, templates: Templates, notify: Callable[[str], object]
) -> AgentRunner | None:
    """The runner of the recipe's agent; None without one. `notify` gets lines for the user.

    `Usage` if a strategy needs an agent and the recipe names none, if the agent is no function of two arguments, or if
    the problems have several templates.
    """
    if (agent := recipe.agent) is None:
        strategies = {"method.strategy": recipe.method.strategy, "evaluate.strategy": recipe.evaluate.strategy}
        for where, strategy in strategies.items():
            if declares(strategy, "needs_agent"):
                what = f"{where} is {name_of(strategy)}, which needs an agent, and the recipe names none"
                raise Usage(what, fix="add --agent my_agent.py:agent")
        return None
    function = use.find(agent.file) if ":" in agent.file else use.function("", agent.file)
    try:
        inspect.signature(function).bind({}, None)
    except TypeError as error:
        raise Usage(f"the agent {agent.file} cannot be called", evidence=str(error), fix=EXAMPLE) from None
    if len(templates) > 1:
        problem = f"an agent needs one template for all problems, and these use several: {', '.join(templates)}"
        raise Usage(problem, fix="use one template for all problems: --template chat")
    return AgentRunner(
        function,
        next(iter(templates.values())),
        recipe.sampling.temperature,
        deadline=agent.deadline,
        processes=agent.processes,
        model_names=agent.model_names,
        notify=notify,
    )


def draw_deadline(recipe: Recipe, agent: AgentRunner | None) -> float:
    """The limit of a draw, in seconds: that of the machine, after the time that its agents may take.

    Agents outside the event loop wait for a free place: all of an iteration, or of an evaluation, may be before them.
    """
    if agent is None:
        return recipe.machine.deadline
    episodes = recipe.prompts * recipe.method.group_size * (1 + recipe.cluster.max_staleness)
    evaluated = recipe.evaluate.problems * recipe.evaluate.samples
    turns = 1 if is_async(agent.agent) else ceil(max(episodes, evaluated) / agent.processes)
    return recipe.machine.deadline + agent.deadline * turns
