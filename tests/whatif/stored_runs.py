"""A toy run on disk, with the files that `whatif` reads."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from groupwise.config.recipe_toml import write
from groupwise.methods import Method
from groupwise.runs.run_layout import RunLayout
from groupwise.runs.write_run_info import write_info
from tests.runs.infos import INFO
from tests.toys.echo import ToyRun, small


def stored_run(directory: Path, method: Method | str = "dapo", **changes: Any) -> Path:
    """A run of two iterations with its samples. Its second iteration has ratios other than 1."""
    sizes = {"minibatches": 2, "max_refills": 0, "group_size": 4}
    value = small(method, **sizes) if isinstance(method, str) else method
    toy = ToyRun(value, directory, **{"lr": 0.1, "max_tokens": 3} | changes)
    toy.go()
    write_info(RunLayout(directory), replace(INFO, method={"name": method if isinstance(method, str) else ""}))
    (directory / "recipe.toml").write_text(write(toy.recipe))
    return directory
