"""`groupwise recipe upgrade FILE`: print a recipe of an earlier version with new names."""

from pathlib import Path

from groupwise.config.toml import read_toml
from groupwise.config.upgrade import upgrade_text
from groupwise.core import visible


def upgrade(file: str) -> int:
    """Print a recipe with new names (see `upgrade_text`). Raises `Usage` for a file that is not TOML."""
    path = Path(file)
    read_toml(path)
    print(visible(upgrade_text(path.read_text(encoding="utf-8")).rstrip("\n"), lines=True))
    return 0
