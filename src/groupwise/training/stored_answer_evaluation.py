"""Held-out loss and accuracy of a method of stored answers, and the number of iterations of its epochs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

import torch
from jaxtyping import Float, Int
from torch import Tensor

from groupwise.cluster.rank_messages import send_held_out
from groupwise.cluster.rank_work_thread import in_thread
from groupwise.config.recipe import Recipe
from groupwise.data import EVAL_LOSS, EVAL_TOKEN_ACCURACY, Batch, Logp, Outcome, Prompt, Rollout, Task, pack
from groupwise.learner import Learner, make_plan
from groupwise.methods import Method, ScheduleInput
from groupwise.objective import describe_preferences
from groupwise.rollout import RolloutSetting, answers
from groupwise.training.loop import compute_advantages, keep_rollout_pictures

OLD_LOGP = Logp("policy")


@dataclass(frozen=True, slots=True)
class IsLikeliestToken:
    """The measure 1 of a token that is the likeliest one under the policy, else 0."""

    def __call__(self, logp: Float[Tensor, "rows vocabulary"], token: Int[Tensor, " rows"]) -> Float[Tensor, " rows"]:
        return (logp.argmax(-1) == token).to(logp.dtype)


def with_iterations(recipe: Recipe, task: Task) -> Recipe:
    """The recipe with the number of iterations of its `epochs` over the task, in place of these."""
    return recipe if recipe.epochs is None else with_passes(recipe, recipe.epochs, len(task))


def with_passes(recipe: Recipe, epochs: float, rows: int) -> Recipe:
    """The recipe with the number of iterations of so many passes over the rows, rounded up, in place of `epochs`."""
    return replace(recipe, iterations=ceil(epochs * rows / recipe.prompts), epochs=None)


def method_of(recipe: Recipe, learner: Learner) -> Method:
    """The method of the held-out loss: all evaluations have the constants of the first iteration."""
    return recipe.method.at(ScheduleInput(0, recipe.iterations, learner.method_states))


async def held_out_metrics(
    recipe: Recipe, learner: Learner, prompts: Sequence[Prompt], setting: RolloutSetting
) -> dict[str, float]:
    """Loss, token accuracy and implicit rewards of the answers that held-out rows store; empty without rows."""
    if not prompts:
        return {}
    method = method_of(recipe, learner)
    rollouts = await answers(prompts, method.group_size, setting, strategy=method.strategy)

    def compute() -> dict[str, float]:
        send_held_out(learner)
        step = held_out_step(recipe, learner, rollouts)
        return describe_held_out(step, float(method.objective(step)), method.objective.surrogate)

    return await in_thread(compute)


def held_out_step(recipe: Recipe, learner: Learner, rollouts: Sequence[Rollout]) -> Batch:
    """Held-out answers as one optimizer step, which is not taken, with its measures."""
    keep_rollout_pictures(learner, rollouts)
    method = method_of(recipe, learner)
    batch = pack(rollouts, roles=method.trained_roles, max_tokens=recipe.sampling.max_tokens)
    plan = make_plan(
        batch, size=len(rollouts), shuffle="prompts", permutation=range, lanes=learner.ranks.lanes,
        microbatch_tokens=recipe.machine.microbatch_tokens,
    )  # fmt: skip
    wanted = method.needs | ({OLD_LOGP} if recipe.trains_reward_model else {OLD_LOGP, IsLikeliestToken()})
    batch = learner.compute_measures(batch, plan, wanted, method.router_replay)
    return method.objective.prepare(compute_advantages(batch, method).having(logp=batch.logp_old))


@torch.no_grad()
def describe_held_out(step: Batch, loss: float, surrogate: object) -> dict[str, float]:
    """The metrics of a held-out step with its measures. Unwanted answers have no token accuracy, nor has a score."""
    metrics = {EVAL_LOSS: loss}
    if IsLikeliestToken() in step.measures:
        likeliest = step[IsLikeliestToken()].double()[step.sequences.spread(step.outcome == Outcome.correct)]
        metrics[EVAL_TOKEN_ACCURACY] = float(likeliest.mean()) if len(likeliest) else 0.0
    return metrics | {f"eval/{name}": x for name, x in describe_preferences(step, surrogate).items()}
