"""Ranks that others have started, such as Slurm: they take the optimizer steps of a run that rank 0 writes."""

import os
from collections.abc import Sequence
from pathlib import Path

from groupwise.api.options import RunOptions
from groupwise.cluster.external import has_agent
from groupwise.config.model_dependent_defaults import starting_point
from groupwise.config.recipe import Recipe
from groupwise.config.recipe_toml import read_recipe
from groupwise.config.resolve_devices import resolved
from groupwise.config.toml import read_with_overrides
from groupwise.config.user_code import UserCode, load_use
from groupwise.lifecycle.create_or_open_run import with_ranks
from groupwise.runs.phase_directories import KEY, runs_in
from groupwise.runs.run_layout import RunLayout
from groupwise.training.rank_worker import external_rank, follow_external


def follows(source: str | Path | None, overrides: Sequence[tuple[str, str]], options: RunOptions) -> bool:
    """Whether this process is an external rank above 0 of a new run. If so, it has followed the run to its end."""
    if not above_zero() or (source and KEY in read_with_overrides(source, overrides)):  # phases have no external ranks
        return False
    use = load_use(options.permissions)
    return follow_external(recipe_of(source, overrides, use), use)


def follows_again(layout: RunLayout, options: RunOptions) -> bool:
    """As `follows`, for a run that is continued."""
    if not above_zero():
        return False
    use = load_use(options.permissions)
    recipe = read_recipe(RunLayout(runs_in(layout.run_directory)[-1]).recipe, (), use)
    return follow_external(with_ranks(recipe, options.ranks, options.shard, options.launch), use)


def restarted(source: str | Path | None, overrides: Sequence[tuple[str, str]], options: RunOptions) -> Path | None:
    """The run that this process began before torchrun restarted it; None in most processes."""
    if not has_agent() or (source and KEY in read_with_overrides(source, overrides)):
        return None
    cluster = recipe_of(source, overrides, load_use(options.permissions)).cluster
    rank = external_rank(cluster)
    return rank.recorded_run(cluster.ranks, cluster.deadline) if rank else None


def recipe_of(source: str | Path | None, overrides: Sequence[tuple[str, str]], use: UserCode) -> Recipe:
    """The resolved recipe of a new run."""
    chosen = starting_point(source, overrides, trust_remote_code=use.trust_remote_code)
    return resolved(read_recipe(chosen.source, chosen.overrides, use))


def above_zero() -> bool:
    """Whether the environment names this process a rank above 0; most do not name it a rank."""
    return os.environ.get("RANK", "0") != "0"
