"""Checks on resume that recipe, model files, data and code are those that the run started with."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from hashlib import sha256
from typing import Any

from groupwise.config.diff import diff
from groupwise.config.recipe import Cluster, Recipe, Save
from groupwise.config.recipe_toml import read_with_problems
from groupwise.config.resolve_devices import resolved
from groupwise.config.task_sources import held_out_sources, sources
from groupwise.config.user_code import UserCode
from groupwise.core import BadData, counted, read_regular
from groupwise.data import data_stats
from groupwise.learner import FromDirectory
from groupwise.lifecycle.run_info import movable, origin
from groupwise.models import base_directory, find_model, kind_of, remote_code
from groupwise.models.json_fields import MOST_BYTES
from groupwise.runs.atomic_writes import DISK, FileSystemOperations
from groupwise.runs.log_hashes import abbreviated
from groupwise.runs.open_run import OpenRun
from groupwise.runs.run_info import RunInfo
from groupwise.training.build_run import RunObjects
from groupwise.training.build_tasks import Templates
from groupwise.training.evaluation_protocol import digest, model_hash, reward_model_hashes

MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "adapter_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)
"""Small files of a model directory whose hashes are part of a run's identity. Weights are not among them."""
PIPELINE_FILES = (".json", ".txt", ".model")
"""Endings of the small files of a pipeline's parts."""


def identity(recipe: Recipe, templates: Templates, text: str) -> dict[str, Any]:
    """A run's identity: the text of its recipe.toml, and the SHA-256 of the model's small files and of the templates.

    run.json and every checkpoint contain it. Data, user code and the base of an adapter have their own entries.
    """
    directory = find_model(recipe.model)
    directories = dict.fromkeys((directory, base_directory(directory)))
    files = {name: path / name for path in directories for name in MODEL_FILES if (path / name).is_file()}
    for path in directories:
        files |= {str(file.relative_to(path)): file for file in kind_of(path).part_files(path, *PIPELINE_FILES)}
    return {
        "recipe": text,
        "files": {name: sha256(read_regular(path, MOST_BYTES)).hexdigest() for name, path in sorted(files.items())},
        "templates": {name: template.digest for name, template in templates.items()},
    }


def check_changes(run: OpenRun, objects: RunObjects, state: Mapping[str, Any], *, accept: bool) -> list[str]:
    """Compare recipe, templates and small model files with the last checkpoint's `state`; without one, with run.json.

    Returns one line per difference. Without `accept` differences raise `BadData`, except for those in run.json: the run
    accepted them, and ended before its next checkpoint.
    """
    now, info = current_identity(run, objects), asdict(run.info)
    lines = changes(state or info, now)
    if lines and not accept and changes(info, now):
        after = "checkpoint" if state else "start"
        command = f"groupwise resume {run.path}{objects.user_code.options} --changed"
        raise BadData(
            f"the recipe or the model's files of {run.path} were changed after its {after}",
            evidence="\n".join(lines),
            fix=f"restore the old files, or continue with the new ones: {command}",
        )
    return lines


def device_changes(run: OpenRun, objects: RunObjects, state: Mapping[str, Any]) -> list[str]:
    """A line `device: cpu -> cuda` if the run continues on another device than before; else no line.

    `machine.device = "auto"` allows it, so it needs no consent. The dtype is the recipe's.
    """
    then = str(state.get("device", "") if state else run.info.device)
    return [f"device: {then} -> {objects.device}"] if then and then != objects.device else []


def record_changes(
    run: OpenRun,
    objects: RunObjects,
    state: Mapping[str, Any],
    lines: list[str],
    iteration: int,
    disk: FileSystemOperations = DISK,
) -> tuple[OpenRun, dict[str, Any]]:
    """Write changes that the user accepted to run.json. Returns the run, and its new identity for later checkpoints."""
    stored = run.info
    earlier = state["changes"] if state else stored.changes
    history = [*earlier, *([{"iteration": iteration, "changes": lines}] if lines else [])]
    now, recipe = current_identity(run, objects), objects.recipe
    new = replace(
        stored,
        **{name: getattr(recipe, name) for name in ("model", "seed", "iterations")},
        task=recipe.task.label,
        method=origin(recipe.method, stored.method.get("name", "")),
        changes=tuple(history),
        use=dict(objects.user_code.hashes),
        agent_command=objects.user_code.agent_command,
        device=objects.device,
        stopped="",
        **now,
    )
    run = run.changed(movable(new, run.earlier), disk=disk)
    return run, now | {"device": objects.device, "changes": history}


def current_identity(run: OpenRun, objects: RunObjects) -> dict[str, Any]:
    """The identity of a run as its files are now."""
    return identity(objects.recipe, objects.inputs.templates, run.recipe_text)


def changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The differences of two identities, one per line: `recipe.optimizer.lr: 0.0002 -> 0.002`.

    `save`, `trackers` and `cluster` without lanes and staleness are not compared, since no metric depends on them.
    """
    lines = recipe_changes(then["recipe"], now["recipe"])
    for kind in ("files", "templates"):
        for name in sorted(then[kind] | now[kind]):
            before, after = (x[kind].get(name) for x in (then, now))
            if before != after:
                lines.append(f"{kind}.{name}: {_digest(before)} -> {_digest(after)}")
    return lines


def recipe_changes(then: str, now: str) -> list[str]:
    """The differences of two recipes, given as TOML; `save`, `trackers` and the number of ranks are not compared."""
    (before, problems), (after, _) = read_with_problems(then), read_with_problems(now)
    if before is None or after is None:
        return [f"recipe: this version cannot read the old one ({problems[0].what if problems else 'unknown'})"]
    before, after = (_compared(recipe) for recipe in (before, after))
    return [f"recipe.{line}" for line in diff(before, after)]


def _compared(recipe: Recipe) -> Recipe:
    """The recipe with defaults where no metric depends on a field."""
    cluster = resolved(recipe).cluster
    return replace(
        recipe,
        save=Save(),
        trackers=(),
        cluster=Cluster(reduction_lanes=cluster.reduction_lanes, max_staleness=cluster.max_staleness),
    )


def _digest(sha256: str | None) -> str:
    return abbreviated(sha256) if sha256 else "none"


def data_record(objects: RunObjects) -> dict[str, Any]:
    """The row counts and hashes of the run's data, for run.json."""
    tasks = [each.task for each in (objects, objects.warm_start) if each is not None]
    return {"data": tuple(f.record for task in tasks for f in data_stats(task))}


def check_data(info: RunInfo, objects: RunObjects) -> None:
    """`BadData` if the hash of a data source differs from that at the start of the run."""
    stored, current = info.data, data_record(objects)["data"]
    for then, now in zip(stored, current):
        if then["sha256"] != now["sha256"]:
            before, rows = f"at the start {then['rows']:,}, {then['sha256'][:12]}", counted(now["rows"], "row")
            raise BadData(
                f"{now['source']} differs from the data at the start of this run",
                evidence=f"{rows}, sha256 {now['sha256'][:12]}; {before}",
                fix="restore the old data, or start a new run with these",
            )


def check_base(info: RunInfo, objects: RunObjects) -> None:
    """`BadData` if the base weights of an adapter differ from those at the start."""
    then, now = info.base_sha256, objects.adapter.get("base_sha256", "")
    if then != now:
        raise BadData(
            f"the weights of {objects.recipe.model} differ from those at the start of this run",
            evidence=f"sha256 {now[:12]}; at the start {then[:12]}",
            fix="restore the old weights, or start a new run on these",
        )


def side_model_hashes(recipe: Recipe) -> dict[str, str]:
    """The SHA-256 of the files of each model that the method reads from a directory (reference, teacher), by name."""
    hashes = {}
    for name, part in recipe.method.models_in_use:
        if isinstance(part, FromDirectory):
            directory = find_model(part.directory)
            hashes[name] = digest([model_hash(d) for d in dict.fromkeys((directory, base_directory(directory)))])
    return hashes


def check_given_models(info: RunInfo, recipe: Recipe) -> None:
    """`BadData` if a reference's or teacher's files differ from those at the start: no checkpoint contains them."""
    then, now = info.side_models, side_model_hashes(recipe)
    for name in sorted(then.keys() & now.keys()):
        if then[name] != now[name]:
            raise BadData(
                f"the model {name} in method.models differs from that at the start of this run",
                evidence=f"sha256 {now[name][:12]}; at the start {then[name][:12]}",
                fix="restore its old files, or start a new run with these",
            )


def all_reward_models(recipe: Recipe) -> tuple[str, ...]:
    """The SHA-256 of the files of each reward model in the recipe's verifiers, in their order."""
    return tuple(reward_model_hashes((*sources(recipe), *held_out_sources(recipe))))


def check_reward_models(info: RunInfo, recipe: Recipe) -> None:
    """`BadData` if a reward model's files differ from those at the start: no checkpoint contains them."""
    then, now = info.reward_models, all_reward_models(recipe)
    for before, after in zip(then, now):
        if before != after:
            raise BadData(
                "a reward model of the verifier differs from that at the start of this run",
                evidence=f"sha256 {after[:12]}; at the start {before[:12]}",
                fix="restore its old files, or start a new run with these",
            )


def check_model_code(info: RunInfo, recipe: Recipe, use: UserCode) -> None:
    """`BadData` if Python files of the model differ from those at the start. Must be called before any of them runs."""
    then, now = info.trust_remote_code, remote_code(find_model(recipe.model))
    if use.trust_remote_code and then != now:
        names = [name for name in sorted(then | now) if then.get(name) != now.get(name)]
        raise BadData(
            f"the code of {recipe.model} differs from that at the start of this run",
            evidence=", ".join(names[:4]),
            fix="restore the old files, or start a new run with these",
        )
