"""An engine in another process whose end token is none of the model's, so that each sample has its forced length.

    python -m benchmarks.trl_comparison.endless_engine SETTINGS PARENT

It is the program of a replica (`groupwise.engines.remote.replica`), but for the check that end tokens are in the
vocabulary.
"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.trl_comparison.paths import HOME

import groupwise.models
from groupwise.engines import Served
from groupwise.engines.remote.engine_access import EngineAccess
from groupwise.engines.remote.replica import ReplicaProgram, ReplicaSettings, main
from groupwise.models import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Endless(Served):
    """`Served` with this program."""

    def program(self, settings: ReplicaSettings, access: EngineAccess) -> ReplicaProgram:
        path = os.pathsep.join([str(HOME), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path}
        return ReplicaProgram(settings=settings, module=__spec__.name, environment_variables=environment)


def read_unchecked(path: Path | str) -> Tokenizer:
    """The tokenizer of a model directory, with any end tokens."""
    ends = json.loads((Path(path) / "config.json").read_text())["eos_token_id"]
    return Tokenizer((Path(path) / "tokenizer.json").read_bytes(), frozenset(ends))


if __name__ == "__main__":
    groupwise.models.read_tokenizer = read_unchecked
    main(json.loads(sys.argv[1]), int(sys.argv[2]))
