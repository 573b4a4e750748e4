"""Ranks that others have started, such as Slurm or torchrun: each process reads its rank from its environment."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from groupwise.cluster.processes import NamedProcesses, ProcessEnd
from groupwise.core import Usage
from groupwise.learner.distributed import START
from groupwise.learner.rank_pulse import STORE, RankPulse, Store
from groupwise.learner.rank_store import host_store, join_start, join_store, late_for_start, prefix_store

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
LOCAL = "LOCAL_RANK"
"""The variable with the number of a rank among those on its host. It is needed on hosts with several GPUs."""
AGENT = "TORCHELASTIC_USE_AGENT_STORE"
"""The variable by which torchrun tells that its own process, the agent, listens at MASTER_PORT."""
RUN = "groupwise/run"
"""The key in the agent's store with the run directory of an earlier start."""
START_COUNT = "groupwise/starts"
"""The key in the agent's store that counts the starts of rank 0.

TORCHELASTIC_RESTART_COUNT does not: each host counts failures of its ranks alone there.
"""


@dataclass(frozen=True, slots=True)
class ExternalRank:
    """The rank of this process in a run, and the address of the ranks' store.

    The store is in rank 0, or with torchrun in its `agent`, which starts all ranks again if one fails.

    >>> ExternalRank.read(1, {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "gpu-1", "MASTER_PORT": "7001"})
    ExternalRank(rank=0, store_host='gpu-1', store_port=7001, agent=False)
    """

    rank: int
    store_host: str
    store_port: int
    agent: bool = False

    @classmethod
    def read(cls, ranks: int, environment: Mapping[str, str] = os.environ) -> "ExternalRank":
        """The rank of this process. `Usage` for missing or invalid variables, and another number than `ranks`."""
        fix = "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for each rank, as torchrun does"
        if missing := [name for name in VARIABLES if not environment.get(name)]:
            raise Usage(f"cluster.launch is external, and the environment lacks {', '.join(missing)}", fix=fix)
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
        return cls(rank, environment["MASTER_ADDR"], port, has_agent(environment))

    def device(self, name: str, gpus: int, environment: Mapping[str, str] = os.environ) -> str:
        """The device of this rank: of several GPUs that it sees, that of its number LOCAL_RANK on its host.

        `Usage` without the variable. `name` is the recipe's device, which rank 0 has.

        >>> ExternalRank(3, "gpu-1", 7001).device("cuda", 8, {"LOCAL_RANK": "1"})
        'cuda:1'
        """
        if not (self.rank and name.startswith("cuda")):
            return name
        if gpus == 1:
            return "cuda:0"
        if not (local := environment.get(LOCAL, "")).isdecimal():
            what = f"rank {self.rank} sees {gpus} GPUs, and {LOCAL} does not say which is its own"
            fix = f"set {LOCAL} to its number on its host, as torchrun does, or CUDA_VISIBLE_DEVICES to its GPU"
            raise Usage(what, fix=fix)
        return f"cuda:{local}"

    def store(self, size: int, deadline: float) -> Store:
        """The store in which the ranks meet, with keys of this start alone.

        `WorkerLost` if it does not answer within `deadline` seconds; `Usage` if rank 0 cannot host it.
        """
        if not self.agent:
            return self._joined(size, deadline) if self.rank else host_store(size, self.store_host, self.store_port)
        agent = self._joined(size, deadline)
        return prefix_store(agent, f"groupwise/{self._start(agent, size, deadline)}")

    def _start(self, agent: Store, size: int, deadline: float) -> int:
        """The number of this start of all ranks. Rank 0 counts it, and waits for the others."""
        if self.rank:
            return join_start(agent, self.rank, deadline)
        start = agent.add(START_COUNT, 1)
        others = ExternalProcesses([f"rank {rank}" for rank in range(1, size)])
        others.wait_for(lambda: [f"rank {r}" for r in late_for_start(agent, size, start)], START.total_seconds())
        return start

    def record_run(self, run: Path, size: int, deadline: float) -> None:
        """Write the run's directory to the agent's store, for `recorded_run` after a restart."""
        if self.agent:
            self._joined(size, deadline).set(RUN, str(run.absolute()))

    def recorded_run(self, size: int, deadline: float) -> Path | None:
        """The run of an earlier start by this torchrun; None at the first start, and if rank 0 had not begun one."""
        if not self.agent:
            return None
        store = self._joined(size, deadline)
        return Path(store.get(RUN).decode()) if store.check([RUN]) else None

    def _joined(self, size: int, deadline: float) -> Store:
        return join_store(self.store_port, size, deadline=deadline, host=self.store_host)


def has_agent(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether torchrun started this process."""
    return environment.get(AGENT) == "True"


class ExternalProcesses(NamedProcesses):
    """Ranks that this run has not started, and cannot end: it sees their pulses alone."""

    def __init__(self, names: Sequence[str], pulse: RankPulse | None = None) -> None:
        self._names, self._pulse = names, pulse

    @property
    def names(self) -> Sequence[str]:
        """The names of the processes."""
        return self._names

    @property
    def remedy(self) -> str:
        return "start it with the same command, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and with its RANK"

    def deaths(self) -> Mapping[str, ProcessEnd]:
        """The ranks that give no sign of life, or their store.

        A rank looks at the others only while it waits in an exchange. So before the first one, none is found here.
        """
        if not self._pulse:
            return {}
        if self._pulse.store_silent():
            line = "its process has ended or is stopped, its host is down, or the network to it is cut"
            return {STORE: ProcessEnd(0, [line], "it gives no sign of life")}
        lines = {rank: self._pulse.describe(rank) for rank in self._pulse.silent()}
        return {f"rank {rank}": ProcessEnd(0, [line], "it gives no sign of life") for rank, line in lines.items()}

    def printed(self) -> Mapping[str, Sequence[str]]:
        """None that is known."""
        return {}

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """They end by themselves, when rank 0 tells them, or closes their store."""
