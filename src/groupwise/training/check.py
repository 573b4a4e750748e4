"""`groupwise check`: all errors of a recipe, in seconds; no weights are loaded, no engine starts."""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from groupwise.cluster.given import GivenRank
from groupwise.cluster.launch import check_launch
from groupwise.config.defaults import complete_phases, starting_point
from groupwise.config.devices import device_label, resolved
from groupwise.config.phases import Phase, read_phases
from groupwise.config.recipe import Machine, Recipe
from groupwise.config.text import at, read_with_problems
from groupwise.config.toml import read_with_overrides, without_command_text
from groupwise.config.user_code import Use
from groupwise.data import (
    BadData,
    Batch,
    ChecksProblems,
    Finish,
    GroupwiseError,
    ListsProblems,
    MissingRequirement,
    Prompt,
    Task,
    Usage,
    VerdictPart,
    all_problems,
    data_stats,
    in_graph,
    name_of,
    needs,
    notices_of,
    pack,
    rollout_of,
)
from groupwise.engines import Served
from groupwise.learner import Given, ValueModel, check_routing, routes_experts
from groupwise.learner.auxiliary import Forwarded, Forwards
from groupwise.learner.forward import States
from groupwise.methods import Method, Now
from groupwise.models import (
    PipelineShape,
    Shape,
    Tokenizer,
    base_directory,
    check_targets,
    different_ids,
    experts_of,
    find_model,
    load_peft,
    of_hub,
    outline,
    read_shape,
    read_tokenizer,
    weight_files,
)
from groupwise.models.decoder import Sizes
from groupwise.objective import Clip, Clips, Unclipped
from groupwise.planning.memory import host_memory, refuse_beyond
from groupwise.planning.pipelines import pipeline_memory, pipeline_plan_line
from groupwise.planning.processes import check_memory
from groupwise.rollout import Native, check_columns
from groupwise.runs.checkpoints import plain_json
from groupwise.runs.phases import KEY
from groupwise.runs.trackers import OPENERS
from groupwise.tasks import Each, Mixture
from groupwise.training.build import Inputs, check_vocabulary, find_device
from groupwise.training.check_flow import flow_errors, unfit_prompts
from groupwise.training.environments import environment_of, frame_of, tool_schemas
from groupwise.training.loop import OLD_LOGP, compute_advantages
from groupwise.training.sampling_policy import outdated_sampling_policy
from groupwise.training.sources import (
    Templates,
    demonstrations_of,
    held_out_sources,
    sources,
    task_of,
    templates,
    verifier_of,
)

INPUT_FIELDS = (
    "model",
    "lora",
    "warm_start",
    "task",
    "columns",
    "also",
    "held_out",
    "template",
    "system",
    "template_arguments",
    "verifier",
    "environment",
    "sampling",
)
"""Recipe fields about model, data, verifier and sampling. They can be checked even if the method is invalid."""


def check(
    source: str | Path | None,
    overrides: Sequence[tuple[str, Any]] = (),
    use: Use | None = None,
    warn: Callable[[str], None] = lambda line: None,
) -> list[GroupwiseError]:
    """All errors of a recipe: in its text, its model directory, its task, and its method's formulas.

    Without a source, it is the recipe of `train` without one. Notes and warnings are passed to `warn`.
    """
    use = use or Use()
    try:
        if source is not None and KEY in (data := without_command_text(read_with_overrides(source, overrides))):
            data, notes = complete_phases(data, trust_remote_code=use.trust_remote_code)
            for note in notes:
                warn(note)
            return check_phases(read_phases(data), use, warn)
        start = starting_point(source, overrides, trust_remote_code=use.trust_remote_code)
    except Usage as error:
        return [error]
    if start.note:
        warn(start.note)
    recipe, problems = read_with_problems(start.source, start.fields, use)
    errors: list[GroupwiseError] = [*problems]
    if recipe is None:  # the fields for model and task may still be valid
        recipe, _ = read_with_problems(start.source, start.fields, use, only=INPUT_FIELDS)
    else:
        errors += dry_run(recipe)
        for line in inactive_parts(recipe.method):
            warn(line)
    if recipe is not None:
        inputs = check_inputs(recipe, use, warn, fetch=False, receive=lambda read: other_ids(recipe, read, warn))
        errors += [error for error in inputs if not any(e.what.endswith(error.what) for e in errors)]
    return errors


def check_phases(
    phases: Sequence[Phase], use: Use, warn: Callable[[str], None] = lambda line: None
) -> list[GroupwiseError]:
    """All errors of a recipe with phases that can be found before the first phase starts.

    In place of the model of an earlier phase, a phase is checked with the model that the earlier phase starts from.
    The inputs of a phase with other references are read only when it starts.
    """
    errors: dict[str, GroupwiseError] = {}
    recipes: dict[str, Recipe] = {}
    for phase in phases:
        others: set[str] = set()

        def locate(name: str, path: str, others: set[str] = others) -> str:
            if path == "model":
                return recipes[name].model
            others.add(f"@{name}/{path}")
            return f"@{name}/{path}"

        warn(f"phase {phase.name}:")
        recipe, problems = phase.recipe(locate, use)
        found: list[GroupwiseError] = [*problems]
        if recipe is not None:
            found += [*dry_run(recipe), *second_adapter(phase, recipe, recipes), *given_ranks(recipe)]
            for line in inactive_parts(recipe.method):
                warn(line)
            if others:
                warn(f"  note: its inputs are checked when it starts: {', '.join(sorted(others))}")
            elif not found:
                found += check_inputs(standing_in(phase, recipe), use, warn, fetch=False)
        for error in found:
            if error.what not in errors:  # an error in the recipe above the phases is reported once
                errors[error.what] = error
                error.what = f"phase {phase.name}: {error.what}"
        if recipe is None:  # later phases may refer to it
            break
        recipes[phase.name] = recipe
    return list(errors.values())


def standing_in(phase: Phase, recipe: Recipe) -> Recipe:
    """The recipe with which a phase is checked before it starts: without LoRA if its model has no weights yet."""
    try:
        bare = bool(phase.starts_from) and not weight_files(find_model(recipe.model, weights=False))
    except GroupwiseError:  # `check_inputs` reports it
        return recipe
    return replace(recipe, lora=None) if bare else recipe


def second_adapter(phase: Phase, recipe: Recipe, earlier: Mapping[str, Recipe]) -> list[Usage]:
    """An error if a phase adds LoRA to a model that is itself a LoRA adapter of an earlier phase; else no error."""
    source = earlier.get(phase.starts_from)
    if recipe.lora is None or source is None or source.lora is None:
        return []
    what = f"the phase adds LoRA, but the model of phase {phase.starts_from} is already an adapter"
    return [Usage(what, fix="remove lora from this phase to train that adapter")]


def given_ranks(recipe: Recipe) -> list[Usage]:
    """An error if others start the ranks of a phase: they follow one run to its end. Else no error."""
    if recipe.cluster.launch != "given" or recipe.cluster.ranks == 1:
        return []
    fix = "run the phases one by one, or use --cluster.launch local"
    return [Usage("given ranks follow one run, and this recipe has phases", fix=fix)]


def dry_run(recipe: Recipe) -> list[GroupwiseError]:
    """Compute the method's loss and gradient on a synthetic batch of two groups; return the errors."""
    try:
        memory = {name: part.init() for name, part in recipe.method.memory}
        method = at(recipe.method, Now(0, recipe.iterations, memory))
    except Usage:  # reported when the recipe was read
        return []
    n, budget = method.group_size, recipe.sampling.max_tokens
    scores = [float(i % 2 == 0) for i in range(n)]
    lengths = [min(budget, 1 + i % 3) for i in range(n)]
    parts = {m.name: [i / n for i in range(n)] for m in method.needs if isinstance(m, VerdictPart)}
    rollouts = [rollout_of(scores, lengths=lengths, limit=budget, parts=parts) for _ in range(2)]
    batch = pack(rollouts)
    logp = -torch.linspace(0.1, 1.1, batch.tokens, dtype=torch.float64)
    batch = batch.having(
        finish=torch.where(torch.arange(len(batch)) == 1, Finish.length, batch.finish),
        # A single step has no old log-probs, unless a part declares that it needs them.
        logp_old=logp if OLD_LOGP in method.needs or method.proximal == "sampled" else None,
        measures={measure: logp.clone() for measure in method.needs if not isinstance(measure, VerdictPart)},
        memory=memory,
    )
    try:
        selected = method.filter(pack(rollouts[:1]))
        if selected.shape != (n,) or selected.dtype != torch.bool:
            shape = f"{tuple(selected.shape)} {selected.dtype}"
            return [_part_error("filter", f"it returns {shape}, not one boolean for each of {n} samples")]
        step = compute_advantages(batch, method)
        if step.advantage is None or step.advantage.shape != step.place.shape:
            return [_part_error("credit", "it does not return one number per token")]
        logp = -torch.linspace(0.1, 1.1, step.tokens, dtype=torch.float64)
        leaves = {m: (-logp).requires_grad_() for m in needs(method.objective) if in_graph(m)}
        step = method.objective.prepare(step).having(logp_old=logp, logp=logp.clone().requires_grad_(), measures=leaves)
        loss = method.objective(step)
        loss.backward()
        for name, model in method.models:
            if isinstance(model, ValueModel) and not value_loss(model, step).isfinite():
                return [_part_error(f"the loss of {name}", "it is not finite")]
    except GroupwiseError as error:
        return [error]
    except KeyError as error:
        fix = f"if a verdict has this part: read batch[VerdictPart({error})], and declare it in needs"
        return [_part_error("a component", f"KeyError: {error}", fix)]
    except Exception as error:  # a user's part may raise anything
        return [_part_error("a component", f"{type(error).__name__}: {error}")]
    gradients = [x.grad for x in (step.logp, *leaves.values()) if x.grad is not None]
    if not loss.isfinite() or not gradients or not all(bool(x.isfinite().all()) for x in gradients):
        return [_part_error("the objective", f"a loss of {loss.item()} with equal policy and old policy")]
    return []


def value_loss(model: ValueModel, step: Batch) -> Tensor:
    """Forward and backward of a value model's loss on a synthetic step, where all values are 0.5; returns the loss."""
    value = torch.full_like(step.logp, 0.5).requires_grad_()
    states = States(value.detach()[:, None], torch.zeros_like(step.place), torch.arange(step.tokens))
    term = model.loss(Forwards(None, [step], lambda: None))
    loss = term(Forwarded(step, states, step.logp, None, lambda name: value))
    loss.backward()
    return loss


def inactive_parts(method: Method) -> list[str]:
    """A note if clip bounds have no effect, since one minibatch and one epoch make every ratio 1. Else no note."""
    surrogate = method.objective.surrogate
    bounds = surrogate.ratio if isinstance(surrogate, Unclipped) else surrogate
    steps = (method.minibatches, method.epochs)
    if method.schedules or method.proximal == "sampled" or steps != (1, 1) or not isinstance(bounds, Clips):
        return []
    what = f"with one minibatch and one epoch every ratio is 1: the bounds of {name_of(bounds)} have no effect"
    return [f"  note: {what}; set method.minibatches or method.epochs above 1"]


def unreachable_bound(method: Method) -> list[str]:
    """A note if `Clip.low >= 1`: a ratio is positive, so it is never below `1 - low`. Else no note."""
    clip = method.objective.surrogate
    if not isinstance(clip, Clip) or clip.low < 1:
        return []
    return [f"  note: Clip has no lower bound: low is {clip.low:g}, and a ratio is never below {1 - clip.low:g}"]


def method_notes(recipe: Recipe) -> list[str]:
    """Notes about a method whose settings are valid and probably not meant, for `check` and for the start of a run."""
    return [*unreachable_bound(recipe.method), *outdated_sampling_policy(recipe.method), *untrained(recipe)]


def untrained(recipe: Recipe) -> list[str]:
    """A note if `iterations` is 0: the run then does no reinforcement learning. Else no note."""
    if recipe.iterations:
        return []
    does = "evaluates and writes the model" if recipe.warm_start is None else "does its warm start"
    return [f"  note: iterations is 0: the run only {does}"]


def _part_error(part: str, what: str, fix: str = "correct that component") -> Usage:
    return Usage(f"the method fails in a trial on a synthetic batch: recipe.method, {part}", evidence=what, fix=fix)


def check_model(recipe: Recipe, directory: Path, use: Use, *, weights: bool) -> None:
    """Check the shape of the model in a directory, its routers, and that the recipe's adapter fits it.

    Raises a `GroupwiseError`.
    """
    read_shape(directory, trust_remote_code=use.trust_remote_code)
    if routes_experts(recipe.method.routing, recipe.method.auxiliary):
        outlined = outline(directory, trust_remote_code=use.trust_remote_code)
        check_routing(recipe.method.routing, recipe.method.auxiliary, experts_of(outlined))
    if recipe.lora is None:
        return
    if base_directory(directory) != directory:
        what, fix = f"the model in {directory} is itself an adapter", "remove lora to train this adapter"
        raise Usage(what, fix=f"{fix}\nor merge it first: groupwise merge {directory} NEW_DIRECTORY")
    if weights and not weight_files(directory):
        what = f"the model {recipe.model} has no weights: its random weights would stay frozen under an adapter"
        raise Usage(what, fix="remove lora to train all weights")
    check_targets(outline(directory, trust_remote_code=use.trust_remote_code), recipe.lora)
    load_peft()


def check_side_models(recipe: Recipe, tokenizer: Tokenizer, *, fetch: bool) -> list[GroupwiseError]:
    """Errors of the models (reference, teacher) in directories: missing, unreadable, or with another vocabulary."""
    errors: list[GroupwiseError] = []
    for name, part in recipe.method.models_in_use:
        if not isinstance(part, Given):
            continue
        weights = fetch or not of_hub(part.directory)
        try:
            directory = find_model(part.directory, weights=weights)
            read_shape(directory)
            if weights:
                weight_files(directory)
            check_vocabulary(name, directory, tokenizer)
        except GroupwiseError as error:
            error.what = f"method.models.{name}: {error.what}"
            errors.append(error)
    return errors


def check_machine(recipe: Recipe, use: Use, warn: Callable[[str], None], *, train: bool) -> list[GroupwiseError]:
    """Errors of the device and of the packages that trackers (sinks) need. More threads than cores are a warning.

    `warn` gets a line with device and dtype, which `auto` may have chosen.
    """
    errors: list[GroupwiseError] = []
    try:
        warn(machine_line(recipe.machine))
        check_launch(recipe)
        if train and recipe.cluster.launch == "given" and recipe.cluster.ranks > 1:
            GivenRank.read(recipe.cluster.ranks)
        if recipe.cluster.ranks > 1 and find_device(recipe.machine).type != "cpu":
            fix = "use --machine.device cpu, or --cluster.ranks 1 --cluster.lanes 1"
            raise Usage(f"cluster.ranks is {recipe.cluster.ranks}: several ranks compute on CPUs only", fix=fix)
    except GroupwiseError as error:
        errors.append(error)
    if (cores := os.cpu_count() or 1) < (threads := recipe.machine.threads * recipe.cluster.ranks):
        what = "machine.threads is" if recipe.cluster.ranks == 1 else "machine.threads of all ranks are"
        warn(f"  warning: {what} {threads}, and this machine has {cores} cores: slower")
    for name in recipe.sinks:
        if ":" in name:
            try:
                _ = use.find(name) if train else None
            except GroupwiseError as error:
                errors.append(error)
        elif name not in OPENERS:
            errors.append(Usage(f"unknown sink {name!r}", fix=f"the sinks are {', '.join(OPENERS)}, or my_file:MySink"))
        elif find_spec(module := OPENERS[name][0]) is None:
            fix = f"pip install 'groupwise[{name}]'"
            errors.append(MissingRequirement(f"the sink {name} needs the package {module}", fix=fix))
    return errors


def machine_line(machine: Machine) -> str:
    """The device and dtype as one line for the user. Raises a `GroupwiseError` if there is no such device."""
    masters = " with float32 master weights" if machine.dtype == "bfloat16" else ""
    return f"machine: {device_label(find_device(machine))}, {machine.dtype}{masters}"


def check_rows(problems: Iterable[Prompt]) -> None:
    """`BadData` for a row that is no JSON. With a lag, checkpoints hold the rows of samples for later iterations."""
    for prompt in problems:
        try:
            plain_json(dict(prompt.row))
        except (TypeError, ValueError) as error:
            raise BadData(
                f"the row of problem {prompt.id} cannot be stored in a checkpoint, as cluster.lag needs it",
                evidence=str(error),
                fix="use rows of text, numbers, lists and mappings, or --cluster.lag 0",
            ) from None


def check_place(recipe: Recipe) -> list[GroupwiseError]:
    """An error for an engine that frees its memory while the learner trains, and shall sample meanwhile."""
    same = isinstance(recipe.engine, Served) and recipe.engine.place == "same"
    if not same or not recipe.cluster.lag:
        return []
    what = "engine.place is same: the engine cannot sample while the learner trains, which cluster.lag needs"
    fix = "use --cluster.lag 0, or --engine.place apart"
    return [Usage(what, evidence=f"cluster.lag is {recipe.cluster.lag}", fix=fix)]


def check_inputs(
    recipe: Recipe,
    use: Use,
    warn: Callable[[str], None] = lambda line: None,
    *,
    train: bool = True,
    fetch: bool = True,
    receive: Callable[[Inputs], None] = lambda inputs: None,
) -> list[GroupwiseError]:
    """Errors of trackers (sinks), environment, model directory, tokenizer, task and verifier.

    With `train` the task must have training problems. With `fetch` the weights of a model on the hub are downloaded and
    checked. Warnings are passed to `warn`. `receive` gets what was read, so that a run reads it once.
    """
    recipe = resolved(recipe)
    weights = fetch or not of_hub(recipe.model)
    errors = [*check_machine(recipe, use, warn, train=train), *(check_place(recipe) if train else ())]
    for line in method_notes(recipe) if train else ():
        warn(line)
    try:
        environment_of(recipe, use)
    except GroupwiseError as error:
        errors.append(error)
    try:
        directory = find_model(recipe.model, weights=weights)
    except GroupwiseError as error:
        return [*errors, error]
    if not weights:
        warn(f"only configuration and tokenizer of {recipe.model} were checked: train downloads its weights")
    checks = (partial(check_model, recipe, use=use, weights=weights), *([weight_files] if weights else []))
    for check_directory in checks:
        try:
            check_directory(directory)
        except GroupwiseError as error:
            errors.append(error)
    try:
        tokenizer = read_tokenizer(directory)
        if train:
            errors += check_side_models(recipe, tokenizer, fetch=fetch)
        by_name = templates(recipe, tokenizer, tool_schemas(recipe, use))
        task = task_of(recipe, by_name)
        frame_of(recipe, by_name)
        for line in data_notes(recipe, task, by_name):
            warn(line)
        errors += missing_columns(recipe, task, train=train)
        for source, part in zip(sources(recipe), task.tasks if isinstance(task, Mixture) else (task,), strict=True):
            if train and not len(part):
                fix = "use it as held_out of another task, or evaluate on it: groupwise eval"
                raise BadData(f"{source.task} has no training problems", evidence="all are held out", fix=fix)
        if train and recipe.cluster.lag:
            check_rows(all_problems(task))
        longest = max(len(prompt.context) for prompt in all_problems(task)) + recipe.sampling.max_tokens
        demonstrations = None
        if train:
            demonstrations = demonstrations_of(recipe, tokenizer, by_name)
            for line in (line for source in demonstrations[1] for line in source.lines):
                warn(line)
            longest = max([longest, *(len(d.context) + len(d.answer) for d in demonstrations[0])])
        if not any(isinstance(error, BadData) for error in errors):
            shape = read_shape(directory, context=longest, trust_remote_code=use.trust_remote_code)
            check_sharding(recipe, shape)
            errors += unfit_prompts(shape, all_problems(task))
            if train:
                errors += flow_errors(recipe, shape)
            if train and isinstance(shape, Shape) and not any("lora" in error.what for error in errors):
                context = max(len(prompt.context) for prompt in all_problems(task))
                warn(check_memory(recipe, shape, context, *available_memory(recipe.machine)))
            if train and isinstance(shape, PipelineShape) and not errors:
                warn(check_pipeline_memory(recipe, directory))
        if isinstance(recipe.engine, Native) and longest > recipe.engine.cache_tokens:
            what = f"engine.cache_tokens is {recipe.engine.cache_tokens}: the longest request does not fit"
            raise Usage(what, fix=f"use --engine.cache_tokens {longest} or more")
        verifier = verifier_of(recipe, task, use)
        for line in notices_of(verifier):
            warn(line)
        verifiers = verifier.verifiers if isinstance(verifier, Each) else (verifier,)
        for member, part in zip(verifiers, task.parts if isinstance(task, Mixture) else (task,), strict=True):
            if isinstance(member, ChecksProblems):
                member.gate(all_problems(part))
        receive(Inputs(tokenizer, by_name, task, verifier, demonstrations))
    except GroupwiseError as error:
        if all(error.what != other.what for other in errors):
            errors.append(error)
    return errors


def missing_columns(recipe: Recipe, task: Task, *, train: bool) -> list[Usage]:
    """An error for each strategy, of training and of evaluation, that reads a column which rows lack.

    Of a task that does not list its training problems, the first one is checked.
    """
    errors: list[Usage] = []
    parts = task.tasks if isinstance(task, Mixture) else (task,)
    listed = [part.training if isinstance(part, ListsProblems) else [part[0]] for part in parts if train and len(part)]
    read = {"method": [prompt for prompts in listed for prompt in prompts], "evaluate": task.held_out}
    for owner, prompts in read.items():
        try:
            check_columns(getattr(recipe, owner).strategy, prompts)
        except Usage as error:
            error.what = f"{owner}.strategy: {error.what}"
            errors.append(error)
    return errors


def check_sharding(recipe: Recipe, shape: Sizes) -> None:
    """`Usage` if the learner cannot be sharded over ranks with the bits of replicas."""
    if not recipe.cluster.sharded:
        return
    reasons = {
        "bfloat16 gradients would be rounded before they are added over ranks": recipe.machine.dtype == "bfloat16",
        "compiled layers do not gather weights": recipe.machine.compile,
        "in a mixture of experts or modules of transformers, one rank may leave out a layer": not isinstance(
            shape, Shape
        ),
    }
    if evidence := "\n".join(reason for reason, applies in reasons.items() if applies):
        fix = "use --cluster.shard none: each rank then holds all weights"
        raise Usage("cluster.shard is full, and this run cannot be sharded", evidence=evidence, fix=fix)


def other_ids(recipe: Recipe, inputs: Inputs, warn: Callable[[str], None]) -> None:
    """Warn if transformers' tokenizer of the user's model gives other token ids than ours, for the first problems."""
    if Path(recipe.model).is_dir():
        texts = [prompt.text for prompt, _ in zip(all_problems(inputs.task), range(4))]
        if difference := different_ids(Path(recipe.model), inputs.tokenizer, texts):
            warn(f"  warning: transformers' AutoTokenizer does not follow {recipe.model}/tokenizer.json: {difference}")


def check_pipeline_memory(recipe: Recipe, directory: Path) -> str:
    """The memory that a run of a pipeline needs, as one line for the user. `Usage` if it is more than there is."""
    memory = pipeline_memory(recipe, directory)
    refuse_beyond(memory, *available_memory(recipe.machine))
    return pipeline_plan_line(recipe, memory)


def available_memory(machine: Machine) -> tuple[int, str]:
    """The memory of the GPU or of this machine, in bytes, and its name. An unknown device counts as this machine."""
    try:
        device = find_device(machine)
    except GroupwiseError:  # `check_machine` reports it
        return host_memory(), "this machine"
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory, str(device)
    return host_memory(), "this machine"


def stats_to_show(recipe: Recipe, task: Task) -> list[Any]:
    """The statistics of the data. For multiple choice, no prompt counts as containing its answer, which is a letter."""
    parts = task.parts if isinstance(task, Mixture) else (task,)
    shown = []
    for source, part in zip((*sources(recipe), *held_out_sources(recipe)), parts, strict=True):
        with_options = re.search(r"\bchoice\b", source.verifier) is not None
        shown += [replace(stats, answer_in_prompt=()) if with_options else stats for stats in data_stats(part)]
    return shown


def data_notes(recipe: Recipe, task: Task, templates: Templates) -> list[str]:
    """Lines about the data that a user should read before a run: sizes, mixture, template warnings."""
    lines = [line for stats in stats_to_show(recipe, task) for line in stats.lines]
    if isinstance(task, Mixture) and len(task.tasks) > 1 and len(task):
        parts = ", ".join(f"{share:.0%} {s.task}" for share, s in zip(task.shares, sources(recipe), strict=True))
        lines.append(f"mixture: {parts}; an epoch has {len(task)} draws")
    for name, template in templates.items():
        lines += [f"  warning: {note}" for note in template.warnings]
        if name == "r1" and "</answer>" not in recipe.sampling.stop:
            lines.append("  note: answers with the template r1 end with </answer>: add --sampling.stop '</answer>'")
    return lines
