"""Checks of a recipe's method: a trial of its formulas, and notes about settings that are probably not meant."""

import torch
from torch import Tensor

from groupwise.checks.check_clip_bounds import narrow_bounds
from groupwise.checks.check_needs import untrainable_roles
from groupwise.checks.check_sampling_policy_models import outdated_sampling_policy
from groupwise.checks.synthetic_samples_trial import backward, with_columns
from groupwise.config.recipe import Recipe
from groupwise.core import GroupwiseError, Usage
from groupwise.data import Batch, Finish, Subscore, name_of, pack, rollout_of
from groupwise.learner import ValueModel
from groupwise.learner.auxiliary import AuxiliaryLossInputs, ForwardResult
from groupwise.learner.forward import TokenStates
from groupwise.methods import Method, ScheduleInput
from groupwise.objective import Clip, ReportsClipping, UnclippedSurrogate
from groupwise.training.loop import compute_advantages

CORRECT = "correct that component"
UNWRITTEN = (
    f"{CORRECT}: it reads a column that is not written yet; a mask of advantages declares reads_advantage = True"
)

WITHOUT_GRADIENT = f"{CORRECT}: no gradient reaches batch.logp; token_ratio(batch) has one, and .detach() ends it"


def dry_run(recipe: Recipe) -> list[GroupwiseError]:
    """Compute the method's loss and gradient on a synthetic batch of two groups; return the errors.

    A trained role without a sample that can be trained is an error, too.
    """
    try:
        states = {name: part.init() for name, part in recipe.method.states}
        method = recipe.method.at(ScheduleInput(0, recipe.iterations, states))
    except Usage:  # reported when the recipe was read
        return []
    n, budget = method.group_size, recipe.sampling.max_tokens
    scores = [float(i % 2 == 0) for i in range(n)]
    lengths = [min(budget, 1 + i % 3) for i in range(n)]
    parts = {m.name: [i / n for i in range(n)] for m in method.needs if isinstance(m, Subscore)}
    rollouts = [rollout_of(scores, lengths=lengths, limit=budget, subscores=parts) for _ in range(2)]
    batch = pack(rollouts, max_tokens=budget)
    finish = torch.where(torch.arange(len(batch)) == 1, Finish.length, batch.finish)
    batch = with_columns(batch.having(finish=finish), method, states)
    try:
        selected = method.filter(pack(rollouts[:1], max_tokens=budget))
        if selected.shape != (n,) or selected.dtype != torch.bool:
            shape = f"{tuple(selected.shape)} {selected.dtype}"
            return [_part_error("filter", f"it returns {shape}, not one boolean for each of {n} samples")]
        step = compute_advantages(batch, method)
        if step.advantage is None or step.advantage.shape != step.index_in_sample.shape:
            return [_part_error("credit", "it does not return one number per token")]
        step, loss, gradients = backward(step, method)
        for name, model in method.models:
            if isinstance(model, ValueModel) and not value_loss(model, step).isfinite():
                return [_part_error(f"the loss of {name}", "it is not finite")]
    except GroupwiseError as error:
        return [error]
    except KeyError as error:
        fix = f"if a verdict has this subscore: read batch[Subscore({error})], and declare it in needs"
        return [_part_error("a component", f"KeyError: {error}", fix)]
    except Exception as error:  # a user's component may raise anything
        what = f"{type(error).__name__}: {error}"
        fixes = {"NoneType": UNWRITTEN, "does not require grad": WITHOUT_GRADIENT}
        return [_part_error("a component", what, next((fix for word, fix in fixes.items() if word in what), CORRECT))]
    if roles := list(untrainable_roles(method)):
        return roles
    if not loss.isfinite() or not gradients or not all(bool(x.isfinite().all()) for x in gradients):
        return [_part_error("the objective", f"a loss of {loss.item()} with equal policy and old policy")]
    return []


def value_loss(model: ValueModel, step: Batch) -> Tensor:
    """Forward and backward of a value model's loss on a synthetic step, where all values are 0.5; returns the loss."""
    value = torch.full_like(step.logp, 0.5).requires_grad_()
    states = TokenStates(value.detach()[:, None], torch.zeros_like(step.index_in_sample), torch.arange(step.tokens))
    term = model.loss(AuxiliaryLossInputs(None, [step], lambda: None))
    loss = term(ForwardResult(step, states, step.logp, None, lambda name: value))
    loss.backward()
    return loss


def _part_error(part: str, what: str, fix: str = CORRECT) -> Usage:
    return Usage(f"the method fails in a trial on a synthetic batch: recipe.method, {part}", evidence=what, fix=fix)


def method_notes(recipe: Recipe) -> list[str]:
    """Notes about a method whose settings are valid and probably not meant, for `check` and for the start of a run."""
    return [
        *unreachable_bound(recipe.method),
        *narrow_bounds(recipe),
        *outdated_sampling_policy(recipe),
        *untrained(recipe),
    ]


def inactive_parts(method: Method) -> list[str]:
    """A note if clip bounds have no effect, since one minibatch and one epoch make every ratio 1. Else no note."""
    surrogate = method.objective.surrogate
    bounds = surrogate.ratio if isinstance(surrogate, UnclippedSurrogate) else surrogate
    steps = (method.minibatches, method.epochs)
    if (
        method.schedules
        or method.old_logprobs == "engine"
        or steps != (1, 1)
        or not isinstance(bounds, ReportsClipping)
    ):
        return []
    what = f"with one minibatch and one epoch every ratio is 1: the bounds of {name_of(bounds)} have no effect"
    return [f"  note: {what}; set method.minibatches or method.epochs above 1"]


def unreachable_bound(method: Method) -> list[str]:
    """A note if `Clip.low >= 1`: a ratio is positive, so it is never below `1 - low`. Else no note."""
    clip = method.objective.surrogate
    if not isinstance(clip, Clip) or clip.low < 1:
        return []
    return [f"  note: Clip has no lower bound: low is {clip.low:g}, and a ratio is never below {1 - clip.low:g}"]


def untrained(recipe: Recipe) -> list[str]:
    """A note if `iterations` is 0: the run then does no reinforcement learning. Else no note."""
    if recipe.iterations:
        return []
    does = "evaluates and writes the model" if recipe.warm_start is None else "does its warm start"
    return [f"  note: iterations is 0: the run only {does}"]
