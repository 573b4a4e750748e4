"""One rank of sharded ranks of which one stops or stays behind: python -m tests.learner.pulse_jobs, then `Case.words`.

Rank 0 writes the lines about its waits and its error to files, and the other ranks write theirs.
"""

import os
import signal
import sys
import time
from dataclasses import astuple, dataclass
from pathlib import Path
from threading import Thread
from typing import Literal, TextIO

import torch

from groupwise.cluster.rank_messages import other_shards, save_shard
from groupwise.cluster.rank_work_thread import wait_line
from groupwise.core import WorkerLost
from groupwise.learner.fsdp import ShardedRanks
from groupwise.learner.rank_pulse import RankPulse
from groupwise.learner.rank_store import join_store
from tests.learner.rank_jobs import LANES, batch, plans, policy_learner, trained
from tests.processes import PATIENCE

DEADLINE = 12.0
"""Seconds of a wait that nobody answers."""
LAYER, SHARDS = "the weights of a layer", "the shards of a checkpoint"
NUMBER = {LAYER: 9, SHARDS: 1}
"""Which exchange of a name it is: the ninth gather is in an optimizer step."""


@dataclass(frozen=True, slots=True)
class Case:
    """A `victim` of `size` ranks stops or stays behind, for good, in the exchange of this name and its `NUMBER`."""

    directory: str
    exchange: str
    how: Literal["stops", "stays"]
    victim: int
    size: int
    port: int

    def words(self, rank: int) -> list[str]:
        """The command's words for a rank."""
        return [*map(str, astuple(self)), str(rank)]

    @property
    def path(self) -> Path:
        return Path(self.directory)


class VictimPulse(RankPulse):
    """The pulse of a rank that stops in an exchange, or stays before it until the file `go` is there."""

    case: Case
    count = 0

    def enter(self, exchange: str) -> None:
        self.count += exchange == self.case.exchange
        chosen = exchange == self.case.exchange and self.count == NUMBER[exchange]
        while chosen and self.case.how == "stays" and not (self.case.path / "go").exists():
            time.sleep(0.01)
        super().enter(exchange)
        if chosen and self.case.how == "stops":
            os.kill(os.getpid(), signal.SIGSTOP)


def train_and_save(ranks: ShardedRanks, case: Case) -> None:
    """Take all optimizer steps, and write a checkpoint twice."""
    learner = policy_learner(ranks, torch.float32)
    trained(learner, b := batch(), plans(b))
    for number in range(2):
        draft = case.path / str(number)
        if ranks.rank == 0:
            draft.mkdir()
            other_shards(ranks).write_shards(draft)
        else:
            assert ranks.receive()
            save_shard(learner, draft)


def write_waits(pulse: RankPulse, lines: TextIO) -> None:
    """Write a line about the present wait five times a second, without end."""
    while True:
        time.sleep(0.2)
        if (wait := pulse.wait_named()) and wait.seconds > 0.2:
            print(wait_line(wait), file=lines)


def main(case: Case, rank: int) -> None:
    torch.set_num_threads(1)
    deadline = DEADLINE if case.how == "stops" else PATIENCE
    store = join_store(case.port, case.size, deadline=PATIENCE)
    pulse = (VictimPulse if rank == case.victim else RankPulse)(store, rank, case.size, deadline)
    if isinstance(pulse, VictimPulse):
        pulse.case = case
    lines = (case.path / f"lines-{rank}.txt").open("w", buffering=1)
    with pulse:
        Thread(target=write_waits, args=(pulse, lines), daemon=True).start()
        ranks = ShardedRanks(store, pulse, LANES, deadline=deadline)
        try:
            train_and_save(ranks, case)
        except WorkerLost as error:
            print(error, file=lines)
            sys.exit(error.code)
        ranks.close()


if __name__ == "__main__":
    directory, exchange, how, *numbers = sys.argv[1:]
    victim, size, port, rank = map(int, numbers)
    assert how in ("stops", "stays")
    main(Case(directory, exchange, how, victim, size, port), rank)
