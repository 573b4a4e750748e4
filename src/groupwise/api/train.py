"""`train` and `resume`: start or continue a run from Python."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal

from groupwise.api import start_run
from groupwise.api.arguments import agent_in_memory, arguments_of
from groupwise.api.event_loop import run_blocking
from groupwise.api.notebook import live_table
from groupwise.api.options import RunOptions
from groupwise.api.python_messages import from_python
from groupwise.api.reward import NO_REWARD, reward_of
from groupwise.api.run import Run
from groupwise.config.recipe import Recipe
from groupwise.config.train_keyword_arguments import recipe_source
from groupwise.config.user_code import Permissions
from groupwise.core import Usage, spelled, visible
from groupwise.lifecycle.run_handle import RunControl, RunEnding
from groupwise.methods import Method
from groupwise.report.report import existing_run

__all__ = ["resume", "train"]

OnIteration = Callable[[Run, dict[str, Any]], object]
Rows = str | Path | Iterable[Mapping[str, Any]]


@from_python
def train(
    recipe: Recipe | str | Path | None = None,
    *,
    model: str | Path | None = None,
    data: Rows | None = None,
    eval_data: Rows | None = None,
    reward: Any = None,
    agent: Any = None,
    method: Method | str | Mapping[str, Any] | None = None,
    max_tokens: int | None = None,
    permissions: Permissions = Permissions(),  # noqa: B008
    out: str | Path = "runs",
    name: str | None = None,
    stop_after: float | None = None,
    on_iteration: OnIteration | None = None,
    **settings: Any,
) -> Run:
    """Train a model, and return its run, finished or stopped.

    `recipe` is a TOML file, the name of a packaged recipe, or a `Recipe`; the other arguments change its fields. A file
    with phases starts a run of phases. `model` is a directory, a packaged name or a name on the hub. `data` is a list
    of dicts with a `prompt`, a `datasets.Dataset`, a path or the name of a task; `eval_data` is one, too, to evaluate
    on: all rows of `data` are trained on, where else a tenth is held out. `reward` is a function, the name of a
    verifier, or a dict of both with weights; a function asks by name for `answer`, `prompt`, `gold`, `row` and others
    (docs/verifiers.md). `agent` is an async function of a row and an OpenAI client, which may return the reward
    (docs/agents.md); it runs in this process. `permissions` say what the run may execute, read and reach. `settings`
    are fields of `Recipe` by name: `iterations=50`, `optimizer=gw.AdamW(lr=1e-5)`. Without arguments `train()` runs the
    packaged recipe.

    Rows and functions are written to the run's directory, `out/<name>-<time>`. A function that needs nothing outside
    itself runs in worker processes; any other runs in this process, and only `resume(run, reward=...)` continues its
    run. `on_iteration(run, line)` gets each line of metrics. Ctrl-C, or `stop_after` seconds,
    saves a checkpoint and returns. Raises a `GroupwiseError`, before anything is loaded if the settings are wrong.

    >>> run = train(iterations=1, prompts=2, out="runs")                                            # doctest: +SKIP
    >>> run.metrics["reward"]                                                                       # doctest: +SKIP
    {1: 0.40625}
    """
    named = {
        "model": model,
        "method": method,
        "data": data,
        "eval_data": eval_data,
        "reward": reward,
        "agent": agent,
        "max_tokens": max_tokens,
    }
    source, arguments = recipe_source(recipe), arguments_of(named, settings)
    options = RunOptions(
        permissions=permissions, out=out, name=name, stop_after_seconds=stop_after, command_line="gw.train(...)"
    )
    control = control_of(on_iteration)

    def work() -> Run:
        layout, ending = start_run.start(source, arguments, options, print_ending, control)
        return Run(layout.run_directory, ending.stop_reason, control.stop)

    return shown(work, control)


@from_python
def resume(
    run: str | PathLike[str],
    *,
    reward: Any = None,
    agent: Any = None,
    permissions: Permissions = Permissions(),  # noqa: B008
    strict: bool = False,
    changed: bool = False,
    iterations: int | None = None,
    ranks: int | None = None,
    shard: Literal["none", "full"] | None = None,
    launch: Literal["local", "external", "ray"] | None = None,
    stop_after: float | None = None,
    on_iteration: OnIteration | None = None,
) -> Run:
    """Continue a run from its newest checkpoint, and return it. `iterations` is the new total number of iterations.
    `ranks` is the number of the learner's processes this time; it divides the run's lanes. `shard` and `launch` are
    those of `cluster`.

    `reward` and `agent` are those that the run was started with, if they were functions. `changed` accepts a changed
    reward, agent, recipe, tokenizer or template. The other arguments are as for `train`. A run of phases continues with
    its first unfinished phase.
    """
    layout = existing_run(fspath(run))
    grades = NO_REWARD if reward is None else reward_of(reward)
    if agent is not None:
        grades = replace(grades, functions_in_memory={**grades.functions_in_memory, **agent_in_memory(agent)})
    options = RunOptions(
        permissions=permissions, stop_after_seconds=stop_after, command_line="gw.resume(...)",
        strict_checkpoints=strict,
        accept_changes=changed, iterations=iterations, ranks=ranks, shard=shard, launch=launch,
    )  # fmt: skip
    control = control_of(on_iteration)

    def work() -> Run:
        ending = start_run.proceed(layout, options, print_ending, control, grades)
        return Run(layout.run_directory, ending.stop_reason, control.stop)

    return shown(work, control)


def shown(work: Callable[[], Run], control: RunControl) -> Run:
    """Run `work`, which trains. A notebook shows a table of the iterations meanwhile."""
    if (table := live_table()) is not None:
        control.progress = table.progress
    try:
        return run_blocking(work, control.stop, *([table.refresh] if table else ()))
    finally:
        control.close()
        if table:
            table.refresh(ended=True)


def control_of(on_iteration: OnIteration | None) -> RunControl:
    """The object that calls the user's callback with the run and each iteration's metrics, and can stop the run."""
    control = RunControl()
    if on_iteration is not None and not callable(on_iteration):
        what = f"on_iteration is {type(on_iteration).__name__}"
        raise Usage(what, fix="pass a function of two arguments: the run, and a dict of an iteration's metrics")
    if on_iteration is not None:
        control.on_iteration = lambda run, line: on_iteration(Run(run, _stop=control.stop), line)
    return control


def print_ending(ending: RunEnding) -> None:
    """Print the results of a run, which are output; progress and notes go to stderr."""
    if ending.message:
        print(visible(spelled(ending.message), lines=True), flush=True)
