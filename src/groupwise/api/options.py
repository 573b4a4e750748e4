"""The options of a call that starts or continues a run, such as its directory. The recipe does not contain them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from groupwise.config.user_code import Permissions
from groupwise.core import check_types


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How a call or command starts or continues a run: where it writes, when it stops, which changes it accepts.

    `stop_after_seconds` is the time in seconds after which the run is saved and ends. `command_line` is the call or the
    command line that a start records. A start puts its directory into `out`, by the `name` or the recipe's. A
    continuation with `strict_checkpoints` fails at a damaged checkpoint, with `accept_changes` accepts a changed
    reward, recipe, tokenizer or template, with `iterations` extends the run, and with `ranks`, `shard` and `launch`
    continues on another number of processes, with whole or sharded weights, and with another launcher. `Usage` for a
    value of the wrong type.
    """

    permissions: Permissions = Permissions()  # noqa: RUF009
    stop_after_seconds: float | None = None
    out: str | Path = "runs"
    name: str | None = None
    command_line: str = ""
    strict_checkpoints: bool = False
    accept_changes: bool = False
    iterations: int | None = None
    ranks: int | None = None
    shard: Literal["none", "full"] | None = None
    launch: Literal["local", "external", "ray"] | None = None

    def __post_init__(self) -> None:
        check_types(self)
