"""What a run's numbers depend on beside its checkpoint, and what of it has changed since the run was stopped."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from groupwise.config.diff import diff
from groupwise.config.recipe import Recipe, Save
from groupwise.config.text import read_with_problems
from groupwise.config.user_code import Use
from groupwise.data import BadData
from groupwise.models import base_directory, find_model, remote_code
from groupwise.runs.disk import DISK, RECIPE, Disk
from groupwise.runs.hashes import abbreviated
from groupwise.tasks import Mixture, Problems
from groupwise.training.about import describe, description, origin, recorded
from groupwise.training.build import Runtime
from groupwise.training.sources import templates

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
"""The files of a model directory that are read at every start. Weights come from the checkpoint."""


def identity(ready: Runtime, recipe: str) -> dict[str, Any]:
    """The text of the run's recipe.toml, and the SHA-256 of the model's small files and of the templates.

    Stored in run.json and in every checkpoint. Data, used code and the base of an adapter have their own entries.
    """
    directory = find_model(ready.recipe.model)
    homes = dict.fromkeys((directory, base_directory(directory)))
    files = {name: home / name for home in homes for name in MODEL_FILES if (home / name).is_file()}
    found = templates(ready.recipe, ready.tokenizer)
    return {
        "recipe": recipe,
        "files": {name: sha256(path.read_bytes()).hexdigest() for name, path in sorted(files.items())},
        "templates": {name: template.digest for name, template in found.items()},
    }


def see_changes(
    run: Path, ready: Runtime, state: Mapping[str, Any], *, accept: bool, warn: Callable[[str], None]
) -> list[str]:
    """What of the run's identity differs from its checkpoint's `state`, or from run.json before the first checkpoint.

    A line each. `BadData` with these lines, unless `accept`. Checkpoints of earlier versions have no identity.
    """
    then = state or description(run)
    if "recipe" not in then:
        if state:
            warn("warning: a checkpoint of an earlier version: recipe, tokenizer and logs cannot be compared with it")
        return []
    lines = changes(then, identity(ready, (run / RECIPE).read_text()))
    if lines and not accept:
        raise BadData(
            f"the recipe or the model's files of {run} were changed after its " + ("checkpoint" if state else "start"),
            evidence="\n".join(lines),
            fix=f"bring the old back, or go on with the new: groupwise resume {run} --changed",
        )
    return lines


def note_changes(
    run: Path, ready: Runtime, state: Mapping[str, Any], lines: list[str], iteration: int, disk: Disk = DISK
) -> dict[str, Any]:
    """The identity with all accepted changes, for the checkpoints to come; run.json is brought in line with it."""
    told = description(run)
    history = [*(state or told).get("changes", []), *([{"iteration": iteration, "changes": lines}] if lines else [])]
    now = identity(ready, (run / RECIPE).read_text()) | {"changes": history}
    recipe = ready.recipe
    fields = {name: getattr(recipe, name) for name in ("model", "task", "seed", "iterations")}
    method = origin(recipe.method, told.get("method", {}).get("name", ""))
    if told != (new := told | fields | {"method": method} | now):
        describe(run, new, disk=disk)
    return now


def changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What distinguishes two identities, a line each: `recipe.optimizer.lr: 0.0002 -> 0.002`.

    `save` and `sinks` of a recipe may differ: no number depends on them.
    """
    lines = _recipe_changes(then["recipe"], now["recipe"])
    for kind in ("files", "templates"):
        for name in sorted(then[kind] | now[kind]):
            before, after = (x[kind].get(name) for x in (then, now))
            if before != after:
                lines.append(f"{kind}.{name}: {_digest(before)} -> {_digest(after)}")
    return lines


def _recipe_changes(then: str, now: str) -> list[str]:
    (before, problems), (after, _) = read_with_problems(then), read_with_problems(now)
    if before is None or after is None:
        return [f"recipe: this version cannot read the old one ({problems[0].what if problems else 'unknown'})"]
    before, after = (replace(recipe, save=Save(), sinks=()) for recipe in (before, after))
    return [f"recipe.{line}" for line in diff(before, after)]


def _digest(sha256: str | None) -> str:
    return abbreviated(sha256) if sha256 else "none"


def asked(ready: Runtime) -> dict[str, Any]:
    """What exactly a run asks: the content of its data."""
    facts = ready.task.stats if isinstance(ready.task, Problems | Mixture) else ()
    return {"data": [f.record for f in (*facts, *ready.demonstrations[1])]}


def same_data(run: Path, ready: Runtime) -> None:
    """`BadData` where the data are not those that the run began with: it would not end as one never stopped."""
    began, now = recorded(run, "data"), asked(ready)["data"]
    for then, here in zip(began, now):
        if then["sha256"] != here["sha256"]:
            what = f"{here['source']} is not what this run was started with"
            seen = f"{here['rows']} rows, sha256 {here['sha256'][:12]}; then {then['rows']}, {then['sha256'][:12]}"
            raise BadData(what, evidence=seen, fix="bring the old data back, or start a new run with these")


def same_base(run: Path, ready: Runtime) -> None:
    """`BadData` where the weights beside an adapter are not those that the run began on."""
    then, here = str(recorded(run, "base_sha256") or ""), ready.adapter.get("base_sha256", "")
    if then != here:
        what, seen = f"the weights of {ready.recipe.model} are others now", f"sha256 {here[:12]}; then {then[:12]}"
        raise BadData(what, evidence=seen, fix="bring the old weights back, or start a new run on these")


def same_code(run: Path, recipe: Recipe, use: Use) -> None:
    """`BadData` where the code that the model brings is not what the run began with; asked before any of it runs."""
    then, here = recorded(run, "trust_remote_code") or {}, remote_code(find_model(recipe.model))
    if use.trust_remote_code and then != here:
        odd = [name for name in sorted(then | here) if then.get(name) != here.get(name)]
        what, seen = f"the code of {recipe.model} is not what this run was started with", ", ".join(odd[:4])
        raise BadData(what, evidence=seen, fix="bring the old files back, or start a new run with these")
