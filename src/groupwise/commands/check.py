"""All that is wrong with a recipe, found in seconds: no weights are loaded, no engine starts."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from groupwise.config.recipe import Recipe
from groupwise.config.text import at, attempt
from groupwise.config.user_code import Use
from groupwise.data import BadData, Finish, GroupwiseError, Prompt, Task, Usage, Verifier, pack, rollout_of
from groupwise.learner import Routing, check_routing
from groupwise.models import (
    Tokenizer,
    base_directory,
    check_targets,
    experts_of,
    find_model,
    load_peft,
    of_hub,
    outline,
    read_shape,
    read_tokenizer,
    weight_files,
)
from groupwise.runs.trackers import OPENERS
from groupwise.tasks import Each, Mixture, Problems
from groupwise.training.environments import environment_of, frame_of
from groupwise.training.loop import OLD, credited
from groupwise.training.sources import demonstrations_of, sources, task_of, templates, verifier_of
from groupwise.verifiers import CodeVerifier

TOLD = (
    "model",
    "lora",
    "warm_start",
    "task",
    "columns",
    "also",
    "held_out",
    "template",
    "verifier",
    "environment",
    "sampling",
)
"""Fields of a recipe that say what stands on the disk."""


def check(
    source: str | Path,
    overrides: Sequence[tuple[str, str]] = (),
    use: Use | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> list[GroupwiseError]:
    """Every error that the recipe would meet: in its text, its model directory, its task, and its method's formulas.

    What is no error and should be seen, about the data, is told in lines.
    """
    use = use or Use()
    recipe, problems = attempt(source, overrides, use)
    found: list[GroupwiseError] = [*problems]
    if recipe is None:  # what it says of model and task may still be understood
        recipe, _ = attempt(source, overrides, use, only=TOLD)
    else:
        found += dry_run(recipe)
    if recipe is not None:
        met = check_inputs(recipe, use, tell, fetch=False)
        found += [problem for problem in met if not any(f.what.endswith(problem.what) for f in found)]
    return found


def dry_run(recipe: Recipe) -> list[GroupwiseError]:
    """The method's whole way from verdicts to a gradient, on a made-up batch of two groups."""
    try:
        method = at(recipe.method, 0)
    except Usage:  # told when the recipe was read
        return []
    n, budget = method.group_size, recipe.sampling.max_tokens
    scores = [float(i % 2 == 0) for i in range(n)]
    rollouts = [rollout_of(scores, lengths=[min(budget, 1 + i % 3) for i in range(n)], limit=budget) for _ in range(2)]
    batch = pack(rollouts)
    logp = -torch.linspace(0.1, 1.1, batch.tokens, dtype=torch.float64)
    batch = batch.having(
        finish=torch.where(torch.arange(len(batch)) == 1, Finish.length, batch.finish),
        # Where nothing says that it reads them, the old log-probs of a single step are not there yet.
        logp_old=logp if OLD in method.needs or method.proximal == "sampled" else None,
        measures={measure: logp.clone() for measure in method.needs},
        memory={name: memory.init() for name, memory in method.memory},
    )
    try:
        kept = method.filter(pack(rollouts[:1]))
        if kept.shape != (n,) or kept.dtype != torch.bool:
            return [_odd("keep", f"{tuple(kept.shape)} {kept.dtype}, not one truth value for {n} samples")]
        step = credited(batch, method)
        if step.advantage is None or step.advantage.shape != step.place.shape:
            return [_odd("credit", "not one number a token")]
        logp = -torch.linspace(0.1, 1.1, step.tokens, dtype=torch.float64)
        step = method.objective.prepare(step).having(logp_old=logp, logp=logp.clone().requires_grad_())
        loss = method.objective(step)
        loss.backward()
    except GroupwiseError as error:
        return [error]
    except Exception as error:  # a part of one's own may raise anything
        return [_odd("a part", f"{type(error).__name__}: {error}")]
    slope = step.logp.grad
    if not loss.isfinite() or slope is None or not slope.isfinite().all():
        return [_odd("the objective", f"a loss of {loss.item()}, where policy and old policy are equal")]
    return []


def _odd(which: str, what: str) -> Usage:
    return Usage(f"recipe.method fails on a made-up batch: {which}", evidence=what, fix="mend that part")


def check_model(recipe: Recipe, directory: Path, use: Use, *, weights: bool) -> None:
    """The shape of the model in a directory, and that the recipe's adapter fits it. Raises what is wrong."""
    read_shape(directory, trust_remote_code=use.trust_remote_code)
    if recipe.method.routing != Routing():
        outlined = outline(directory, trust_remote_code=use.trust_remote_code)
        check_routing(recipe.method.routing, experts_of(outlined))
    if recipe.lora is None:
        return
    if base_directory(directory) != directory:
        what, fix = f"the model in {directory} is itself an adapter", "leave lora out: then this adapter is trained"
        raise Usage(what, fix=f"{fix}\nor merge it first: groupwise merge {directory} A_NEW_DIRECTORY")
    if weights and not weight_files(directory):
        what, fix = f"the model {recipe.model} is fresh: an adapter would stand beside noise", "leave lora out"
        raise Usage(what, fix=f"{fix}: all of it is then trained")
    check_targets(outline(directory, trust_remote_code=use.trust_remote_code), recipe.lora)
    load_peft()


def check_inputs(
    recipe: Recipe,
    use: Use,
    tell: Callable[[str], None] = lambda line: None,
    *,
    train: bool = True,
    fetch: bool = True,
    hand: Callable[[Task, Verifier], None] = lambda task, verifier: None,
) -> list[GroupwiseError]:
    """What stands on the disk: model directory, tokenizer, task and verifier; and problems to `train` on.

    Weights of a model of the hub are looked at only where they may be fetched. `hand` receives task and verifier,
    so that a run need not build them again.
    """
    weights = fetch or not of_hub(recipe.model)
    found: list[GroupwiseError] = [
        Usage(f"no sink is called {name!r}", fix="the sinks are " + ", ".join(OPENERS))
        for name in recipe.sinks
        if name not in OPENERS
    ]
    try:
        environment_of(recipe, use)
    except GroupwiseError as error:
        found.append(error)
    try:
        directory = find_model(recipe.model, weights=weights)
    except GroupwiseError as error:
        return [*found, error]
    if not weights:
        tell(f"of {recipe.model} only configuration and tokenizer were looked at: train fetches its weights")
    looks = (partial(check_model, recipe, use=use, weights=weights), *([weight_files] if weights else []))
    for look in looks:
        try:
            look(directory)
        except GroupwiseError as error:
            found.append(error)
    try:
        tokenizer = read_tokenizer(directory)
        task = task_of(recipe, tokenizer)
        frame_of(recipe, tokenizer)
        for line in notes(recipe, task, tokenizer):
            tell(line)
        for source, part in zip(sources(recipe), task.tasks if isinstance(task, Mixture) else (task,), strict=True):
            if train and not len(part):
                fix = "name it as held_out, beside a task to train on; or evaluate on it: groupwise eval"
                raise BadData(f"{source.task} has no problems to train on", evidence="all are held out", fix=fix)
        longest = max(len(prompt.context) for prompt in every(task)) + recipe.sampling.max_tokens
        if train:
            shown, facts = demonstrations_of(recipe, tokenizer)
            for line in (line for f in facts for line in f.lines):
                tell(line)
            longest = max([longest, *(len(d.context) + len(d.answer) for d in shown)])
        if not any(isinstance(problem, BadData) for problem in found):
            read_shape(directory, context=longest, trust_remote_code=use.trust_remote_code)
        verifier = verifier_of(recipe, task, use)
        for line in getattr(verifier, "notices", ()):
            tell(line)
        judges = verifier.verifiers if isinstance(verifier, Each) else (verifier,)
        for judge, part in zip(judges, task.parts if isinstance(task, Mixture) else (task,), strict=True):
            if isinstance(judge, CodeVerifier):
                judge.gate(every(part))
        hand(task, verifier)
    except GroupwiseError as error:
        found.append(error)
    return found


def every(task: Task) -> Sequence[Prompt]:
    """The problems that a task lists."""
    return (*task.held_out, *task.training) if isinstance(task, Problems | Mixture) else task.held_out


def notes(recipe: Recipe, task: Task, tokenizer: Tokenizer) -> list[str]:
    """What a person should see of the data before a run."""
    lines = [line for f in task.stats for line in f.lines] if isinstance(task, Problems | Mixture) else []
    if isinstance(task, Mixture) and len(task.tasks) > 1 and len(task):
        parts = ", ".join(f"{share:.0%} {s.task}" for share, s in zip(task.shares, sources(recipe), strict=True))
        lines.append(f"mixture: {parts}; {len(task)} draws are an epoch")
    for name, template in templates(recipe, tokenizer).items():
        lines += [f"  warning: {note}" for note in template.warnings]
        if name == "r1" and "</answer>" not in recipe.sampling.stop:
            lines.append("  note: answers to the template r1 end at </answer>: --sampling.stop '</answer>'")
    return lines
