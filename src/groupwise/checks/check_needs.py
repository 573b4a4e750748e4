"""Checks that a method's components get what they need: feedback, subscores, roles, failed groups, known prompts."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from groupwise.checks.synthetic_samples_trial import trained_roles
from groupwise.config.diff import label
from groupwise.config.recipe import Recipe
from groupwise.config.registry import fitting_names, methods
from groupwise.config.task_sources import sources
from groupwise.core import GroupwiseError, Usage, counted, part_named
from groupwise.data import (
    Outcome,
    Role,
    Rollout,
    Subscore,
    Task,
    Verdict,
    VerdictContents,
    Verifier,
    VerifierSettings,
    added_contents,
    contents_of,
    joined_contents,
    name_of,
    needs,
    pack,
    roles_of,
    rollout_of,
    with_fields,
)
from groupwise.methods import Method
from groupwise.rollout.strategies.multi_round import as_written

BUDGET = 16
"""The generation budget of synthetic answers, in tokens."""


def unmet_needs(recipe: Recipe, verifier: Verifier) -> Iterator[Usage]:
    """An error for feedback, and for each subscore, that a component of the method needs and no verdict will have.

    Nothing is known of the verdicts of a user's function or environment; then there is no error.
    """
    of_verifier, name = contents_of(verifier), " and ".join(dict.fromkeys(label(s.verifier) for s in sources(recipe)))
    if of_verifier is None or recipe.environment:
        return
    for owner in ("method", "evaluate"):
        parts = with_fields(getattr(recipe, owner).strategy)
        readers = [part for part in parts if getattr(part, "needs_feedback", False)]
        if readers and not of_verifier.has_feedback:
            what = (
                f"{name_of(readers[0])} writes the feedback of verdicts into prompts, and verdicts of {name} have none"
            )
            yield Usage(f"{owner}.strategy: {what}", fix=_givers(lambda contents: contents.has_feedback, "feedback"))
    strategy = recipe.method.strategy
    if (contents := joined_contents([of_verifier, added_contents(strategy)])) is None:
        return
    for measure in sorted({*recipe.method.needs, *needs(strategy)}, key=str):
        if isinstance(measure, Subscore) and measure.name not in contents.subscore_names:
            (part, *_) = [p for p in with_fields(_all_parts(recipe.method)) if measure in getattr(p, "needs", ())]
            names = ", ".join(contents.subscore_names)
            has = f"their subscores are {names}" if names else "they have no subscores"
            what = f"{name_of(part)} needs the subscore {measure.name!r}, and verdicts of {name} lack it"
            fix = _givers(lambda c, n=measure.name: n in c.subscore_names, f"the subscore {measure.name!r}")
            yield Usage(f"method: {what}", evidence=has, fix=fix)


def untrainable_roles(method: Method) -> Iterator[GroupwiseError]:
    """An error for each trained role of which no sample can be trained: not made, always dropped, or no gradient."""
    if (roles := roles_of(method.strategy)) is None:
        return
    for name in method.trained_roles:
        if name == "answer":
            continue
        if name not in roles:
            made = ", ".join(("answer", *roles))
            what = (
                f"method.trained_roles names the role {name}, and the strategy {name_of(method.strategy)} makes {made}"
            )
            yield Usage(what, fix=f"leave the role out of method.trained_roles, or {_makers(name)}")
        elif roles[name].in_failed_rollouts == "always" and drops_failures(method):
            what = f"{name_of(method.filter)} drops each prompt without a correct answer"
            made = f"samples of the role {name}, which method.trained_roles names, are made {roles[name].made_when}"
            yield Usage(f"{what}, and {made}", fix='use method.filter = "everything", or another strategy')
        elif roles[name].alone_in_group and not has_gradient(method, roles[name]):
            what = f"no gradient reaches samples of the role {name}: each is alone in its group, and its advantage is 0"
            fix = "use an objective that trains it without an advantage, as expo's surrogate GatedSurrogate does"
            yield Usage(what, fix=f"{fix}, or leave the role out of method.trained_roles")


def need_notes(recipe: Recipe, task: Task) -> list[str]:
    """Notes about a method whose mechanism acts rarely: dropped failures, or prompts that do not come back."""
    method, roles = recipe.method, roles_of(recipe.method.strategy) or {}
    notes = []
    for name in method.trained_roles:
        if name in roles and roles[name].in_failed_rollouts == "often" and drops_failures(method):
            dropped = f"{name_of(method.filter)} drops prompts that stay without a correct answer"
            notes.append(f"  note: {dropped}, and with them their samples of the role {name}")
    drawn = recipe.iterations * recipe.prompts
    if getattr(method.curriculum, "tracks_prompts", False) and 0 < drawn <= len(task):
        name, enough = name_of(method.curriculum), len(task) // recipe.prompts + 1
        share = f"{drawn:,} of {counted(len(task), 'prompt')}"
        what = f"{name} treats a prompt by its earlier answers, and this run draws {share}"
        notes.append(
            f"  note: {what}: few or none come back; use {counted(enough, 'iteration')} or more, or fewer problems"
        )
    return notes


def drops_failures(method: Method) -> bool:
    """Whether the method's filter selects no sample of a prompt whose answers are all wrong. Not if the trial fails."""
    try:
        return not bool(method.filter(pack([failed_rollout(method)], max_tokens=BUDGET)).any())
    except Exception:  # a user's filter may raise anything, and `dry_run` reports it
        return False


def has_gradient(method: Method, role: Role) -> bool:
    """Whether the loss has a gradient at a sample of this role that is alone in its group, beside wrong answers.

    True if the trial fails: `dry_run` reports the error.
    """
    rollout = failed_rollout(method)
    sample = replace(rollout.samples[0], stream=(len(rollout.samples),), role=role.name, group=1)
    sample = sample.with_verdict(Verdict(Outcome.correct, 1.0, sample.verdict.subscores if sample.verdict else {}))
    if role.is_demonstration:
        sample = as_written(sample, sample.context)
    try:
        whole = replace(rollout, samples=(*rollout.samples, sample))
        batch = pack([whole], roles=method.trained_roles, max_tokens=BUDGET)
        return role.name in trained_roles(method, batch)
    except Exception:  # a user's component may raise anything
        return True


def failed_rollout(method: Method) -> Rollout:
    """A synthetic rollout whose answers are all wrong, with the subscores that the method reads."""
    n = max(method.group_size, 2)
    names = {m.name for m in method.needs if isinstance(m, Subscore)}
    return rollout_of([0.0] * n, limit=BUDGET, subscores={name: [0.0] * n for name in names})


def _all_parts(method: Method) -> tuple[Any, ...]:
    """The components of a method that may need subscores."""
    states = tuple(state for _, state in method.states)
    scoring = (method.strategy, method.filter, *method.shaping, *method.advantage, method.credit, *method.mask)
    return (*scoring, method.objective, *method.auxiliary_losses, *states)


def _makers(role: str) -> str:
    """The advice to use a strategy that makes this role."""
    published = [m().strategy for m in methods().values()]
    names = sorted({name_of(strategy) for strategy in published if role in (roles_of(strategy) or {})})
    return f"use a strategy that makes it: {', '.join(names)}" if names else "use a strategy of yours that makes it"


def _givers(gives: Callable[[VerdictContents], bool], what: str) -> str:
    """The advice to use a verifier whose verdicts have this."""
    kinds = {name: part_named(name) for name in sorted(fitting_names(VerifierSettings))}
    givers = {name: kind for name, kind in kinds.items() if (c := contents_of(kind)) is not None and gives(c)}
    names = sorted(givers, key=lambda name: bool(givers[name].supported_tasks))
    listed = [f"{name} (packaged tasks only)" if givers[name].supported_tasks else name for name in names]
    packaged = f"a verifier that gives {what}, such as {', '.join(listed)}, or " if names else ""
    return f"use {packaged}your own function that returns a Verdict with {what}"
