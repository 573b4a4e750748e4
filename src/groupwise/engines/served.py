"""Settings of a fleet of native engines, each in a process of its own on this machine."""

import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from groupwise.data import Usage, gap_bound
from groupwise.engines.fleet import Fleet
from groupwise.engines.probe import Probe
from groupwise.engines.replica import ReplicaSettings, start_replica
from groupwise.engines.weights_file import Exchange
from groupwise.models import Decoder, Experts, Model, Tokenizer, has_adapter, write_fresh
from groupwise.rollout import Native

SOCKET = "EngineKind"
__all__ = ["Served"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served(Native):
    """Runs `replicas` native engines in child processes, at most `rows` sequences in each; same bits as `Native`.

    A replica that dies, or is silent for `deadline` seconds while it owes an answer, is replaced at most `restarts`
    times in ten minutes; its requests are asked again. `exchange` is the directory for the weights that the replicas
    read, such as `/dev/shm` (default: the system's directory for temporary files).
    """

    replicas: int = 2
    deadline: float = 60.0
    restarts: int = 3
    exchange: str = ""

    def __post_init__(self) -> None:
        Native.__post_init__(self)
        for name, bound in (("replicas", 1), ("restarts", 0)):
            if getattr(self, name) < bound:
                raise ValueError(f"{name} is {getattr(self, name)}\ntake at least {bound}")
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
        return Fleet(
            partial(start_replica, settings, deadline=self.deadline), self.replicas, exchange=exchange,
            probe=Probe(decoder, tokenizer, gap_bound(self.max_gap, dtype)), rows=self.rows, restarts=self.restarts,
        )  # fmt: skip


def servable(model: Model, experts: Experts | None) -> Decoder:
    """The model, if an engine in another process can build it again. `Usage` with the reason if not."""
    reason = ""
    if not isinstance(model, Decoder):
        reason = "the model runs as modules of transformers"
    elif has_adapter(model):
        reason = "the model has an adapter (lora)"
    elif experts is not None:
        reason = 'method.routing.replay is "engine"'
    if reason or not isinstance(model, Decoder):
        fix = "use the engine in this process: --engine.kind Native"
        raise Usage("engines in other processes cannot run this model", evidence=reason, fix=fix)
    return model
