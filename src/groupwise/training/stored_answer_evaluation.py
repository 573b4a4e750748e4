"""Held-out loss and accuracy of a method of stored answers, and the number of iterations of its epochs."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from math import ceil

import torch
from jaxtyping import Float, Int
from torch import Tensor

from groupwise.config.recipe import Recipe
from groupwise.data import EVAL_LOSS, EVAL_TOKEN_ACCURACY, Batch, Logp, Outcome, Prompt, Task, pack
from groupwise.learner import Learner, SingleProcess, make_plan
from groupwise.methods import ScheduleInput
from groupwise.objective import describe_preferences
from groupwise.rollout import RolloutSetting, answers
from groupwise.training.loop import compute_advantages

OLD_LOGP = Logp("policy")


@dataclass(frozen=True, slots=True)
class IsLikeliestToken:
    """The measure that is 1 for a token that is the policy's likeliest one, else 0."""

    def __call__(self, logp: Float[Tensor, "rows vocabulary"], token: Int[Tensor, " rows"]) -> Float[Tensor, " rows"]:
        return (logp.argmax(-1) == token).to(logp.dtype)


def with_iterations(recipe: Recipe, task: Task) -> Recipe:
    """The recipe with the number of iterations of its `epochs` over the task, in place of these; rounded up."""
    if recipe.epochs is None:
        return recipe
    return replace(recipe, iterations=ceil(recipe.epochs * len(task) / recipe.prompts), epochs=None)


async def held_out_metrics(
    recipe: Recipe, learner: Learner, prompts: Sequence[Prompt], setting: RolloutSetting
) -> dict[str, float]:
    """Loss, token accuracy and implicit rewards of the answers that held-out rows store; empty without rows.

    All rows are one optimizer step, which is not taken. Rank 0 computes it alone.
    """
    if not prompts:
        return {}
    method = recipe.method.at(ScheduleInput(0, recipe.iterations, learner.memories))
    rollouts = await answers(prompts, method.group_size, setting, strategy=method.strategy)
    batch = pack(rollouts, roles=method.trained_roles, max_tokens=recipe.sampling.max_tokens)
    alone = copy(learner)
    alone.ranks = SingleProcess(learner.ranks.lanes)
    plan = make_plan(
        batch, size=len(prompts), shuffle="prompts", permutation=range, lanes=alone.ranks.lanes,
        microbatch_tokens=recipe.machine.microbatch_tokens,
    )  # fmt: skip
    batch = alone.compute_measures(batch, plan, method.needs | {OLD_LOGP, IsLikeliestToken()}, method.router_replay)
    step = method.objective.prepare(compute_advantages(batch, method).having(logp=batch.logp_old))
    return describe_held_out(step, float(method.objective(step)), method.objective.surrogate)


@torch.no_grad()
def describe_held_out(step: Batch, loss: float, surrogate: object) -> dict[str, float]:
    """The metrics of a held-out step with its measures. Unwanted answers have no token accuracy."""
    likeliest = step[IsLikeliestToken()].double()[step.sequences.spread(step.outcome == Outcome.correct)]
    accuracy = float(likeliest.mean()) if len(likeliest) else 0.0
    rewards = {f"eval/{name}": x for name, x in describe_preferences(step, surrogate).items()}
    return {EVAL_LOSS: loss, EVAL_TOKEN_ACCURACY: accuracy, **rewards}
