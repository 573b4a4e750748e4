"""A rank that others have started, such as Slurm: it takes the optimizer steps of a run that rank 0 writes."""

import os
from collections.abc import Sequence
from pathlib import Path

from groupwise.api.options import RunOptions
from groupwise.config.defaults import starting_point
from groupwise.config.text import read_recipe
from groupwise.config.toml import read_with_overrides
from groupwise.config.user_code import load_use
from groupwise.runs.layout import RunLayout
from groupwise.runs.phases import KEY, runs_in
from groupwise.training.follower import follow_given
from groupwise.training.run import with_ranks


def follows(source: str | Path | None, overrides: Sequence[tuple[str, str]], options: RunOptions) -> bool:
    """Whether this process is a given rank above 0 of a new run. If so, it has followed the run to its end."""
    if not above_zero() or (source and KEY in read_with_overrides(source, overrides)):  # phases have no given ranks
        return False
    use = load_use(options.allowed)
    chosen = starting_point(source, overrides, trust_remote_code=use.trust_remote_code)
    return follow_given(read_recipe(chosen.source, chosen.fields, use), use)


def follows_again(run: Path, options: RunOptions) -> bool:
    """As `follows`, for a run that is continued."""
    if not above_zero():
        return False
    use = load_use(options.allowed)
    recipe = read_recipe(RunLayout(runs_in(run)[-1]).recipe, (), use)
    return follow_given(with_ranks(recipe, options.ranks, options.shard, options.launch), use)


def above_zero() -> bool:
    """Whether the environment names this process a rank above 0; most do not name it a rank."""
    return os.environ.get("RANK", "0") != "0"
