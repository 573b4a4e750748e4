"""Builds the runner of a recipe's agent: the user's function, the model's chat template, and the limits."""

import inspect
from collections.abc import Callable
from math import ceil
from pathlib import Path
from typing import Any

from groupwise.config.recipe import Agent, Recipe
from groupwise.config.user_code import UserCode
from groupwise.core import Usage
from groupwise.data import declares, name_of
from groupwise.rollout import AgentProgram, AgentRunner
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
        if use.agent_command:
            fix = "give the recipe one: agent = {}"
            raise Usage("the command names a program, and the recipe has no agent", evidence=use.agent_command, fix=fix)
        strategies = {"method.strategy": recipe.method.strategy, "evaluate.strategy": recipe.evaluate.strategy}
        for where, strategy in strategies.items():
            if declares(strategy, "needs_agent"):
                what = f"{where} is {name_of(strategy)}, which needs an agent, and the recipe names none"
                raise Usage(what, fix="add --agent my_agent.py:agent")
        return None
    file, _, name = agent.file.rpartition(":")
    named = f"{Path(file).stem}:{name}"  # a recipe may write the ending of the file
    function = program_of(agent, use) or (use.find(named) if file else use.function("", name))
    if not isinstance(function, AgentProgram):
        check_function(function, agent.file)
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
        warning_callback=notify,
    )


def program_of(agent: Agent, use: UserCode) -> AgentProgram | None:
    """The program of the command line, if the recipe's agent is one. `Usage` if only one of both says so."""
    command = use.agent_command
    if agent.file and command:
        what = f"the command names a program, and the recipe's agent is {agent.file}"
        raise Usage(what, evidence=command, fix="leave out --agent-command, or the recipe's agent.file")
    if agent.file:
        return None
    if not command:
        fix = "add --agent-command 'node my-agent.js', or name a function: --agent my_agent.py:agent"
        raise Usage("the recipe's agent is a program, and the command names none", fix=fix)
    return AgentProgram.of(command)


def check_function(function: Any, name: str) -> None:
    """`Usage` for an agent that is no function of a row and a client."""
    try:
        inspect.signature(function).bind({}, None)
    except TypeError as error:
        raise Usage(f"the agent {name} cannot be called", evidence=str(error), fix=EXAMPLE) from None


def draw_deadline(recipe: Recipe, agent: AgentRunner | None) -> float:
    """The limit of a draw, in seconds: that of the machine, after the time that its agents may take.

    Agents outside the event loop wait for a free place: all of an iteration, or of an evaluation, may be before them.
    """
    if agent is None:
        return recipe.machine.rollout_deadline
    episodes = recipe.prompts * recipe.method.group_size * (1 + recipe.cluster.max_staleness)
    evaluated = recipe.evaluate.problems * recipe.evaluate.samples
    turns = 1 if is_async(agent.agent) else ceil(max(episodes, evaluated) / agent.processes)
    return recipe.machine.rollout_deadline + agent.deadline * turns
