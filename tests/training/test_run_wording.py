"""A run's recipe has the texts of its strategies, so that it goes on with them."""

import json
import re
from pathlib import Path

import pytest

from groupwise.__main__ import main
from groupwise.config.recipe_toml import read_recipe
from groupwise.methods import DraftAndRefine
from groupwise.rollout.prompt_template import worded

SMALL = [
    "--method",
    "igrpo",
    "--method.group_size",
    "2",
    "--method.draft_count",
    "2",
    "--prompts",
    "2",
    "--iterations",
    "1",
]


def test_the_run_s_recipe_has_the_texts_and_goes_on_with_them(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are no change of the published method, and `show` prints both forms with their source."""
    assert main(["train", *SMALL, "--evaluate.every", "0", "--evaluate.problems", "2", "--name", "a"]) == 0
    assert (
        "method.strategy.refinement_prompt_template is auto, here packaged: '{problem}{draft};{problem}'"
        in capsys.readouterr().err
    )
    (run,) = Path("runs").iterdir()
    assert read_recipe(run / "recipe.toml").method.strategy == worded(DraftAndRefine(2), "packaged")
    changed = json.loads((run / "run.json").read_text())["method"]["changed"]
    assert not any("words" in line for line in changed), changed
    assert main(["resume", str(run), "--iterations", "2"]) == 0
    capsys.readouterr()
    assert main(["show", "igrpo"]) == 0
    shown = capsys.readouterr().out
    assert "packaged models: '{problem}{draft};{problem}'" in shown and "Improve on the draft" in shown
    assert re.search(r"strategy\.refinement_prompt_template\s+not found\s+our wording\s+in prose", shown)
