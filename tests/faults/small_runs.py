"""Runs of the packaged model that take about a second, and the files that they write."""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from groupwise.config.recipe import Evaluate, Machine, Recipe, Save
from groupwise.config.recipe_toml import read_recipe, write
from groupwise.config.user_code import UserCode
from groupwise.data import Sampling
from groupwise.learner import AdamW
from groupwise.lifecycle import create_or_open_run as starting
from groupwise.lifecycle import run as running
from groupwise.lifecycle.resume_checks import identity
from groupwise.lifecycle.run_handle import RunEnding
from groupwise.lifecycle.run_info import describe_run
from groupwise.methods import grpo
from groupwise.models import Lora, Tokenizer, find_model, read_tokenizer
from groupwise.rewards import mixed_outcomes
from groupwise.runs.atomic_writes import FileSystemOperations
from groupwise.runs.checkpoints import RunLock, newest_checkpoint
from groupwise.runs.open_run import OpenRun, recipe_text, start_run
from groupwise.runs.run_layout import RunLayout
from groupwise.training.build_run import RunObjects, build
from groupwise.training.build_tasks import templates
from tests.checked import relax

EVERY = Recipe(
    method=replace(grpo(group_size=4), minibatches=2),  # with a reference model
    prompts=4,
    iterations=3,
    sampling=Sampling(max_tokens=10),
    evaluate=Evaluate(every=2, problems=2),
    optimizer=AdamW(lr=3e-4, lr_scheduler="linear"),
    save=Save(every=1),
)
"""A checkpoint after every iteration."""

SECOND = replace(
    EVERY,
    method=replace(EVERY.method, group_size=8, epochs=2, filter=mixed_outcomes, max_refills=2, shuffle="samples"),
    prompts=2,
    iterations=4,
    evaluate=Evaluate(every=0, problems=2),
    save=Save(every=2),
)
"""A checkpoint after every second iteration, with refill and two epochs."""

HALF = replace(EVERY, machine=Machine(dtype="bfloat16"))
"""The same in bfloat16, with float32 masters in the checkpoints."""


ADAPTER = replace(HALF, lora=Lora(rank=2, target_modules=("q_proj", "down_proj")))
"""Trains an adapter only."""


class Quick(FileSystemOperations):
    """A disk that does not sync. A killed process loses nothing that it wrote."""

    def sync(self, path: Path) -> None:
        pass


@cache
def tokenizer_of(model: str) -> Tokenizer:
    """The tokenizer of a model, read once."""
    return read_tokenizer(find_model(model))


def begun(run: Path, recipe: Recipe) -> Path:
    """Create a run's directory as `train` does before it computes."""
    run.mkdir(parents=True)
    text = write(recipe)
    facts = identity(recipe, templates(recipe, tokenizer_of(recipe.model)), text)
    with RunLock(RunLayout(run)) as lock:
        start_run(lock, describe_run(run.name, recipe, "", UserCode(), "", {"data": (), **facts}), text, disk=Quick())
    return run


@contextmanager
def opened(directory: Path) -> Iterator[OpenRun]:
    """A run as `resume` opens it."""
    with RunLock(layout := RunLayout(directory)) as lock:
        yield OpenRun.read(lock, recipe_text(layout))


def run_from(directory: Path, objects: RunObjects, stop_after: float | None = None, **how: Any) -> RunEnding:
    """Open a run, and compute it from its newest checkpoint."""
    with opened(directory) as run:
        return running.run_from(run, objects, stop_after, **how)


def reopen(directory: Path, use: UserCode, iterations: int | None = None) -> RunObjects:
    """The objects of a run, built again as `resume` builds them."""
    with opened(directory) as run:
        return starting.reopen(run, use, iterations)[1]


def begin(directory: Path, objects: RunObjects, use: UserCode, base: str = "", command: str = "") -> OpenRun:
    """Make an empty directory a run, as `train` does."""
    with RunLock(RunLayout(directory)) as lock:
        return starting.begin(lock, objects, use, base, command)


def ran(run: Path, recipe: Recipe, **how: Any) -> Path:
    """Compute a run to its end in this process."""
    code = run_from(
        run if run.exists() else begun(run, recipe), build(recipe, UserCode()), **{"disk": Quick()} | how
    ).exit_code
    assert code == 0
    return run


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def left(run: Path) -> dict[str, Any]:
    """The bytes that are equal between equal runs: metrics, samples, the model, and the newest checkpoint.

    The checkpoint's size of timings.jsonl is left out, because it depends on the clock.
    """
    newest = newest_checkpoint(RunLayout(run), strict=True)
    assert newest
    newest.state["sizes"].pop("timings")
    files = [run / "metrics.jsonl", *sorted((run / "samples").iterdir()), newest.path / "tensors.safetensors"]
    files += sorted((run / "model").iterdir()) if (run / "model").is_dir() else []
    return {"state": newest.state} | {str(path.relative_to(run)): path.read_bytes() for path in files}


def left_without_recipe(run: Path) -> dict[str, Any]:
    """The same without the recipe, which names engines and ranks."""
    files = left(run)
    files["state"].pop("recipe")
    return files


def alive(run: Path, recipe: Recipe) -> None:
    """Assert one line per iteration and a policy that has not collapsed: collapsed runs are all equal."""
    metrics = lines(run)
    assert [line["iteration"] for line in metrics] == list(range(recipe.iterations + 1))
    assert all(line["entropy"] > 0.05 for line in metrics[1:])
    assert metrics[-1]["step"] > recipe.iterations


def forked(act: Callable[[], object], log: Path, *, checks: bool = False) -> int:
    """Run `act` in a fork of this warm process. Return 0, its exit code, or minus the signal that ended it.

    Forks repeat a run that was checked once, so they skip the checks of array annotations unless `checks`.
    """
    child = os.fork()
    if child == 0:
        try:
            if not checks:
                relax()
            sys.stdout = sys.stderr = log.open("a", buffering=1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
            code = act()
            os._exit(code if isinstance(code, int) else 0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def ready(recipe: Recipe) -> RunObjects:
    """Engine, learner and buffer before the first iteration. A fork that uses them does not change its parent's."""
    torch.zeros(1, requires_grad=True).backward(torch.ones(1))  # imports SymPy here, and not in each fork
    return build(recipe, UserCode())


def run_recipe(
    directory: Path, name: str, iterations: int, stop_at: int, changes: dict[str, Any], *, group_size: bool = True
) -> Path:
    """A run of a recipe of the repository; with `stop_at` it is stopped after that iteration and resumed.

    With `group_size`, groups have four answers.
    """
    fields = {"evaluate.problems": 4, "evaluate.every": 0, "save.every": 1, **changes}
    fields = {"method.group_size": 4, **fields} if group_size else fields
    recipe = read_recipe(
        Path(__file__).parents[2] / "recipes" / f"{name}.toml",
        [(field, str(value)) for field, value in {**fields, "iterations": iterations}.items()],
    )
    directory.mkdir()
    first = replace(recipe, iterations=stop_at) if stop_at else recipe
    begin(directory, build(first, UserCode()), UserCode())
    run_from(directory, build(first, UserCode()))
    if stop_at:
        file = directory / "recipe.toml"
        file.write_text(file.read_text().replace(f"iterations = {stop_at}", f"iterations = {iterations}"))
        run_from(directory, build(recipe, UserCode()), changed=True)
    return directory
