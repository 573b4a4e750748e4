"""No text of a recipe makes `check` or `train` touch a program, a pipe, a host or a file that docs/threats.md omits."""

import json
import subprocess
from pathlib import Path

from tests.docs.test_pages import HOME
from tests.docs.warm_shell import environment


def test_no_field_of_a_recipe_touches_what_the_threat_model_omits(tmp_path: Path) -> None:
    """Each text of each part, verifier and table names a canary in turn: 330 recipes, of which 33 are trained."""
    own = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1", "GROUPWISE_SECRET": "s" * 32}
    own["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path / "cache" / "inductor")  # the compiler cache of the page's table
    own["PYTHONDONTWRITEBYTECODE"] = "1"  # Python's cache of files that are imported for the first time
    (tmp_path / "tests").symlink_to(HOME / "tests")
    child = subprocess.run(
        ["python", "-m", "tests.laws.canaries"], cwd=tmp_path, env={**environment(), **own, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    seen = json.loads(child.stdout)
    assert seen["found"] == [] and not seen["ran"]
    assert seen["unseen"] == [], "these parts were in no recipe"
    assert seen["checked"] > 300 and seen["trained"] > 30
