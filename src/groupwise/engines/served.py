"""Settings of a fleet of native engines, each in a separate process on this machine."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from groupwise.data import gap_bound
from groupwise.engines.fleet import Fleet
from groupwise.engines.probe import Probe
from groupwise.engines.remote import Remote
from groupwise.engines.replica import Program, ReplicaSettings, start_replica
from groupwise.engines.server import Identity, servable
from groupwise.engines.weights_file import Exchange
from groupwise.models import Experts, Model, Tokenizer, write_fresh
from groupwise.rollout import Native

SOCKET = "EngineKind"
__all__ = ["Served"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served(Native):
    """Runs `replicas` native engines in child processes, at most `rows` sequences in each; same bits as `Native`.

    `addresses` are sockets of further engines, which `groupwise serve` started on this machine. A replica that dies, or
    is silent for `deadline` seconds while it owes an answer, is replaced at most `restarts` times in ten minutes; its
    requests are sent again. `exchange` is the directory for the weights that the replicas read, such as `/dev/shm`
    (default: the system's directory for temporary files).
    """

    replicas: int = 2
    addresses: tuple[str, ...] = ()
    deadline: float = 60.0
    restarts: int = 3
    exchange: str = ""

    def __post_init__(self) -> None:
        Native.__post_init__(self)
        for name, bound in (("replicas", 0), ("restarts", 0)):
            if getattr(self, name) < bound:
                raise ValueError(f"{name} is {getattr(self, name)}\ntake at least {bound}")
        if not self.replicas + len(self.addresses):
            raise ValueError("replicas is 0, and there are no addresses\ntake replicas = 2")
        if not 0 < self.deadline < float("inf"):
            raise ValueError(f"deadline is {self.deadline}\ntake a number of seconds above 0")

    def build(self, model: Model, tokenizer: Tokenizer, *, seed: int, experts: Experts | None) -> Fleet:
        """The fleet; its processes start at the first load. `Usage` for a model that it cannot run."""
        decoder = servable(model, experts)
        exchange = Exchange(Path(self.exchange or tempfile.gettempdir()))
        write_fresh(decoder.shape, exchange.path, tokenizer=tokenizer)
        weight = next(decoder.parameters())
        dtype = str(weight.dtype).removeprefix("torch.")
        settings = ReplicaSettings(
            directory=str(exchange.path), dtype=dtype, device=str(weight.device), threads=torch.get_num_threads(),
            seed=seed, rows=self.rows, cache_tokens=self.cache_tokens, compiled=decoder.compiled,
        )  # fmt: skip
        program = self.program(settings)
        identity = Identity.of(decoder, tokenizer, seed=seed)

        async def start(number: int) -> Remote:
            if number < self.replicas:
                return await start_replica(program, number, self.deadline)
            address = self.addresses[number - self.replicas]
            return await Remote.connect(address, deadline=self.deadline, expected=identity)

        return Fleet(
            start, self.replicas + len(self.addresses), exchange=exchange,
            probe=Probe(decoder, tokenizer, gap_bound(self.max_gap, dtype)), rows=self.rows, restarts=self.restarts,
        )  # fmt: skip

    def program(self, settings: ReplicaSettings) -> Program:
        """The program of each replica."""
        return Program(settings=settings)
