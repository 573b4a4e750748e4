"""Ranks that others have started, such as Slurm or torchrun: each process reads its place from its environment."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from groupwise.cluster.processes import Death, Processes
from groupwise.data import Usage

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
AGENT = "TORCHELASTIC_USE_AGENT_STORE"
"""The variable by which torchrun tells that its own process listens at MASTER_PORT."""


@dataclass(frozen=True, slots=True)
class GivenRank:
    """The place of this process among the ranks of a run, and where rank 0 listens.

    >>> GivenRank.read(1, {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "gpu-1", "MASTER_PORT": "7001"})
    GivenRank(rank=0, host='gpu-1', port=7001)
    """

    rank: int
    host: str
    port: int

    @classmethod
    def read(cls, ranks: int, environment: Mapping[str, str] = os.environ) -> "GivenRank":
        """The place of this process. `Usage` for missing or invalid variables, and another number than `ranks`."""
        fix = "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for each rank, as torchrun does"
        if missing := [name for name in VARIABLES if not environment.get(name)]:
            raise Usage(f"cluster.launch is given, and the environment lacks {', '.join(missing)}", fix=fix)
        if environment.get(AGENT) == "True":
            what = "torchrun itself listens at MASTER_PORT, where rank 0 has to"
            raise Usage(what, fix="start the ranks by srun or by hand, or use cluster.launch = 'local'")
        try:
            rank, size, port = (int(environment[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
        except ValueError as error:
            raise Usage("RANK, WORLD_SIZE or MASTER_PORT is no number", evidence=str(error), fix=fix) from error
        if size != ranks:
            what = f"WORLD_SIZE is {size}, and cluster.ranks is {ranks}"
            raise Usage(what, fix=f"start {ranks} processes, or set --cluster.ranks {size}")
        if not (0 <= rank < size and 0 < port < 65536):
            what = f"RANK is {rank} of {size}, and MASTER_PORT is {port}"
            raise Usage(what, fix="RANK is below WORLD_SIZE, and MASTER_PORT from 1 to 65535")
        return cls(rank, environment["MASTER_ADDR"], port)


class GivenProcesses(Processes):
    """Ranks that this run has not started: it can neither see nor end them. A wait for one that died has a deadline."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    @property
    def names(self) -> Sequence[str]:
        """The names of the processes."""
        return self._names

    def deaths(self) -> Mapping[str, Death]:
        """None that is known."""
        return {}

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """They end by themselves, when rank 0 closes their store."""
