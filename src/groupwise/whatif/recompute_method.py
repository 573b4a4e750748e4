"""Computes a method on an iteration's stored samples (rewards, advantages, gradient), with the code of training."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.config.diff import label
from groupwise.core import BadData, Usage  # fmt: skip
from groupwise.data import Batch, NeededMeasure, Outcome, TokenMark, in_batch, label_of, name_of, needs, with_fields
from groupwise.learner import token_gradients
from groupwise.methods import Method, ScheduleInput, StateValue
from groupwise.rollout.prompt_template import FORMS, worded
from groupwise.rollout.rollout_buffer import eligible_answers, with_rule
from groupwise.training.loop import OLD_LOGP, compute_advantages, plan
from groupwise.whatif.stored_iteration import StoredIteration


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RecomputedMethod:
    """A method's results on stored samples: those that it selects, with advantages, and `d loss / d logp` per token.

    `method` has the numbers of the iteration, without the terms that `omission_notes` name.
    """

    method_name: str
    method: Method
    batch: Batch
    logp_gradient: Float[Tensor, " n"]
    omission_notes: tuple[str, ...]


def recompute(stored: StoredIteration, name: str, method: Method) -> RecomputedMethod:
    """Compute a method on the stored samples, in the optimizer steps of the run.

    Tokens without a stored log-prob, which a mask of the run removed, are left out. `BadData` if the method needs
    numbers that are not stored.
    """
    method, notes = without_terms(stored, name, method)
    batch = with_rule(stored.batch, method.unverifiable)
    chosen = chosen_samples(batch, method)
    if len(chosen) < len(stored.batch):
        notes.append(f"{name_of(method.filter)} drops {len(stored.batch) - len(chosen)} of {len(stored.batch)} samples")
    if not chosen:
        raise unavailable(name, f"{name_of(method.filter)} drops all samples that the run trained")
    batch = batch.take(chosen)
    if method.old_logprobs == "engine":
        sampled = batch.logp_engine
        batch = batch.having(logp_old=torch.where(sampled.isnan(), batch.logp_old, sampled))
    try:
        batch = compute_advantages(batch, method)
        batch = batch.keep(~batch.logp.isnan())
        index = {sample: i for i, sample in enumerate(chosen)}
        prepared, gradients = [], []
        for step in run_steps(stored):
            part = method.objective.prepare(batch.take([index[i] for i in step if i in index]))
            _, (gradient,) = token_gradients(method.objective, part, part.logp, {})
            prepared.append(part)
            gradients.append(gradient)
    except Usage as error:
        raise unavailable(name, error.what) from error
    return RecomputedMethod(
        method_name=name,
        method=method,
        batch=Batch.joined(prepared),
        logp_gradient=torch.cat(gradients),
        omission_notes=tuple(notes),
    )


def unavailable(name: str, reason: str) -> BadData:
    """The error for a method that needs more than the stored samples contain."""
    what = f"{name} cannot be computed from the stored samples"
    return BadData(what, evidence=reason, fix="leave this method out of --methods")


def without_terms(stored: StoredIteration, name: str, method: Method) -> tuple[Method, list[str]]:
    """The method without auxiliary losses and without penalties on unstored numbers; and notes on each difference.

    Penalties and auxiliary losses are terms that the rest does not depend on. `BadData` if another component needs a
    number that is not stored.
    """
    if method.states:
        raise unavailable(name, f"its state {', '.join(x for x, _ in method.states)} is not stored with the samples")
    method = at_iteration(stored, method)
    left_out = {p: missing for p in method.objective.penalties if (missing := not_stored(stored.batch, needs(p)))}
    notes = [f"without {label(p)}: {' and '.join(missing)} not stored" for p, missing in left_out.items()]
    notes += [f"without the auxiliary loss {label(loss)}" for loss in method.auxiliary]
    of_run = stored.recipe.method
    if method.curriculum != of_run.curriculum:
        notes.append(f"its curriculum {label(method.curriculum)} would draw other prompts")
    if of_run.strategy not in (method.strategy, *(worded(method.strategy, form) for form in FORMS)):
        notes.append(f"its strategy {label(method.strategy)} would sample other answers")
    penalties = tuple(p for p in method.objective.penalties if p not in left_out)
    method = replace(method, auxiliary=(), objective=replace(method.objective, penalties=penalties))
    parts = (method.filter, *method.shaping, *method.advantage, method.credit, *method.mask, method.objective)
    missing = not_stored(stored.batch, needs(parts))
    missing += [part.unstored_input for part in with_fields(parts) if hasattr(part, "unstored_input")]
    if missing:
        raise unavailable(name, f"it needs {' and '.join(missing)}, which samples/ does not have")
    return method, notes


def not_stored(batch: Batch, measures: frozenset[NeededMeasure]) -> list[str]:
    """The measures (such as reference log-probs) that the stored samples lack, by name."""
    names = (label_of(m) for m in measures if m != OLD_LOGP and not (in_batch(m) and has_mark(batch, m)))
    return sorted(names)


def has_mark(batch: Batch, measure: NeededMeasure) -> bool:
    """Whether a mark (a number per token) is stored: a verdict's marks are, a strategy's are not. True for others."""
    return not isinstance(measure, TokenMark) or measure in batch.measures


def chosen_samples(batch: Batch, method: Method) -> list[int]:
    """The indices of the samples that the method would train, among the run's samples, by the rules of `RolloutBuffer`.

    `batch` has the outcomes of the method's rule for unverifiable answers (`with_rule`).
    """
    indices = [i for i, s in enumerate(batch.samples) if s.role == "answer"]
    answers = batch.take(indices)
    eligible = eligible_answers(answers, method.unverifiable)
    rollout = answers.rollouts.index[answers.groups.index]
    whole = getattr(method.filter, "scope", "rollout") == "iteration"
    units = [eligible] if whole else [eligible & (rollout == index) for index in rollout.unique()]
    selected = torch.zeros_like(eligible)
    for unit in units:
        rows = unit.nonzero().squeeze(1)
        if len(rows):
            selected[rows] = method.filter(answers.take(rows))
    chosen = {indices[i] for i in selected.nonzero().squeeze(1).tolist()}
    draws = {batch.sample_keys[i][0] for i in chosen}
    trained = [s.role in method.trained_roles and s.role != "answer" for s in batch.samples]
    judged = (batch.outcome != Outcome.unverifiable).tolist()
    others = {i for i, key in enumerate(batch.sample_keys) if trained[i] and judged[i] and key[0] in draws}
    return sorted(chosen | others)


def run_steps(stored: StoredIteration) -> list[tuple[int, ...]]:
    """The samples of each optimizer step of the run's last epoch. Log-probs are stored for this epoch only."""
    method = at_iteration(stored, stored.recipe.method)
    steps = plan(stored.recipe, method, stored.batch, stored.iteration - 1, method.epochs - 1)
    return [step.samples for step in steps]


def at_iteration(stored: StoredIteration, method: Method) -> Method:
    """The method with the values of its schedules at the iteration, except those that need an unstored memory."""
    schedules = tuple((path, x) for path, x in method.schedules if not isinstance(x, StateValue))
    return replace(method, schedules=schedules).at(ScheduleInput(stored.iteration - 1, stored.recipe.iterations, {}))
