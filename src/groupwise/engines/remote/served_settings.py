"""Settings of a fleet of native engines, each in a separate process on this machine or on another host."""

import asyncio
import secrets
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import ClassVar, Literal

import torch
from torch import nn

from groupwise.core import EngineLost, Usage
from groupwise.data import gap_bound
from groupwise.engines import Native
from groupwise.engines.remote import tls_replica
from groupwise.engines.remote.engine_access import EngineAccess
from groupwise.engines.remote.engine_identity import EngineIdentity
from groupwise.engines.remote.fleet import Fleet
from groupwise.engines.remote.published_weights import published_bytes, published_weights
from groupwise.engines.remote.remote_engine import RemoteEngine
from groupwise.engines.remote.replica import ReplicaProgram, ReplicaSettings, start_replica
from groupwise.engines.remote.replica_devices import (
    check_device_names,
    gpu_count,
    named_devices,
    on_device,
    replica_devices,
)
from groupwise.engines.remote.secret import read_secret
from groupwise.engines.remote.server import servable
from groupwise.engines.remote.shared_device import SharedDeviceFleet
from groupwise.engines.remote.shared_memory_weights import can_seal
from groupwise.engines.remote.tls import TlsAddress
from groupwise.engines.remote.weights_file import WeightsFilesDirectory
from groupwise.engines.remote.weights_probe import WeightsProbe
from groupwise.models import (
    Decoder,
    MixtureOfExpertsSizes,
    Model,
    Tokenizer,
    VisionModel,
    has_adapter,
    weights_device,
    write_fresh,
)
from groupwise.models.lora import adapter_text
from groupwise.models.quantized_linear import is_quantized
from groupwise.models.vision.vision_files import write_architecture

__all__ = ["Served"]

Launch = Callable[[ReplicaProgram, int, float], Awaitable[RemoteEngine]]
"""Starts the program of the replica of this index, and connects to its engine, with a deadline in seconds."""
MOST_REPLICAS, MOST_RESTARTS = 4096, 1_000_000
"""Larger numbers are typing errors: no host can start more processes."""
PAUSE = 0.5
"""Seconds between two attempts to connect to an engine that was there before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequirements:
    """The requirements of a model on its engines besides its shape: dtype and device.

    `device_from_launcher`: a launcher assigns each engine its own device, on a host with the engine's environment.
    `ranks` of the learner have a GPU each on this host, of which `device` is the first. A learner that `gathers_layers`
    has no whole model in its process.
    """

    dtype: str
    device: str
    device_from_launcher: bool = False
    ranks: int = 1
    gathers_layers: bool = False

    @classmethod
    def of(cls, model: Model, *, from_launcher: bool = False, ranks: int = 1) -> "EngineRequirements":
        """The requirements of a model with weights."""
        weight = next(model.parameters())
        return cls(
            dtype=str(weight.dtype).removeprefix("torch."), device=str(weights_device(model)),
            device_from_launcher=from_launcher, ranks=ranks, gathers_layers=weight.is_meta,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Served(Native):
    """Runs `replicas` native engines in child processes, each of `max_num_seqs` sequences; `Native`'s bits on CPUs.

    `addresses` are further engines, which `groupwise serve` started: a socket on this machine, or
    `HOST:PORT#sha256=FINGERPRINT`. A replica that dies, or is silent or idle for `deadline` seconds while it owes an
    answer, is replaced at most `max_restarts` times in ten minutes; its requests are sent again. With `placement =
    "colocated"`, the replicas free their weights and caches while the learner trains, so that both fit on one device.
    `devices` names the GPU of each replica, such as `cuda:2`; without it they get those that the learner leaves.
    Hosts, the secret and the directory for the weights are not the recipe's to choose: `EngineAccess`.
    """

    replicas: int = 2
    addresses: tuple[str, ...] = ()
    deadline: float = 60.0
    max_restarts: int = 3
    placement: Literal["separate", "colocated"] = "separate"
    devices: tuple[str, ...] = ()

    loads_adapters: ClassVar[bool] = True
    """Whether the engines load a base and its adapter (LoRA). Others get the merged weights."""
    takes_quantized_base: ClassVar[bool] = False
    """Whether the base may be in 4 bits. Merged weights do not have the bits of an engine in the trainer's process."""
    maps_memory: ClassVar[bool] = True
    """Whether the engines read weights from sealed memory of this process. Others read a file."""
    loads_from_gpu: ClassVar[bool] = False
    """Whether engines on GPUs load weights from the learner's GPU, without a file."""

    def __post_init__(self) -> None:
        Native.__post_init__(self)
        for name, most in (("replicas", MOST_REPLICAS), ("max_restarts", MOST_RESTARTS)):
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(f"{name} is {getattr(self, name)}\ntake a number from 0 to {most}")
        if not self.replicas + len(self.addresses):
            raise ValueError("replicas is 0, and there are no addresses\ntake engine.replicas = 2")
        if self.placement == "colocated" and self.addresses:
            raise ValueError(
                'engines at addresses cannot free memory of this device\ntake engine.placement = "separate"'
            )
        for address in self.addresses:
            TlsAddress.parse(address)
        check_device_names(self.devices, self.replicas, self.gpus_per_replica)
        if not 0 < self.deadline < float("inf"):
            raise ValueError(f"deadline is {self.deadline}\ntake a number of seconds above 0")

    @property
    def notices(self) -> tuple[str, ...]:
        """A line that names the engines at addresses, for the start of a run; none without them."""
        addresses = ", ".join(text.partition("#")[0] for text in self.addresses)
        return (f"engines: {addresses} get prompts and weights",) if addresses else ()

    def build(
        self, model: Model, tokenizer: Tokenizer, *, seed: int, experts: MixtureOfExpertsSizes | None,
        access: EngineAccess = EngineAccess(),  # noqa: B008
        ranks: int = 1,
    ) -> Fleet:  # fmt: skip
        """The fleet, with replicas on this machine, as the `ranks` of the learner are. Raises the error of `check`."""
        target = EngineRequirements.of(model, ranks=ranks)
        self.check(model, experts, target, access)
        devices = self.replica_devices(target)

        def launch(program: ReplicaProgram, index: int, deadline: float) -> Awaitable[RemoteEngine]:
            return start_replica(on_device(program, devices[index]), index, deadline)

        return self.fleet(
            model, tokenizer, seed=seed, experts=experts, access=access, launch=launch,
            in_memory=self.publishes_in_memory(access, published_bytes(model)),
            on_gpu=self.publishes_on_gpu(access, target) and not is_quantized(model),
        )  # fmt: skip

    def publishes_in_memory(self, access: EngineAccess, size: int) -> bool:
        """Whether weights of `size` bytes go to the engines through sealed memory, and not through a file.

        All engines must be child processes on this host, and the command line names no directory for a file.
        """
        return self.maps_memory and not (access.exchange_directory or self.addresses) and can_seal(size)

    def publishes_on_gpu(self, access: EngineAccess, target: EngineRequirements) -> bool:
        """Whether weights go to the engines from the learner's GPU, and not through a file."""
        return not self.reason_for_file(access, target)

    def reason_for_file(self, access: EngineAccess, target: EngineRequirements) -> str:
        """Why the engines do not load weights from the learner's GPU; empty if they do.

        Each then is on one GPU, and a child process here or on a host to which the command line permits NCCL.
        """
        addresses = [(text.partition("#")[0], TlsAddress.parse(text)) for text in self.addresses]
        others = [name for name, address in addresses if not address or address.host not in access.nccl_hosts]
        reasons = {
            f"engines of the kind {type(self).__name__} load a file": not self.loads_from_gpu,
            "engines of several devices load a file": self.gpus_per_replica > 1,
            "the learner is on a CPU": not target.device.startswith("cuda"),
            "rank 0 of the sharded learner has no whole model: it gathers layers": target.gathers_layers,
            f"the command names {access.exchange_directory} for a file": bool(access.exchange_directory),
            "a launcher starts the engines": target.device_from_launcher,
            f"{', '.join(others)} may get a file only, and all engines load the same": bool(others),
        }
        return next((reason for reason, holds in reasons.items() if holds), "")

    def fleet(
        self, model: Model, tokenizer: Tokenizer, *, seed: int, experts: MixtureOfExpertsSizes | None,
        access: EngineAccess,
        launch: Launch, in_memory: bool = False, on_gpu: bool = False,
    ) -> Fleet:  # fmt: skip
        """The fleet of a model that `check` accepts; at the first load, `launch` starts its replicas."""
        self.check_servable(model, experts)
        secret, merges = self.secret(access), has_adapter(model) and not self.loads_adapters
        addresses = [TlsAddress.parse(text) or Path(text) for text in self.addresses]
        exchange = new_exchange(access)
        if isinstance(model, Decoder):
            write_fresh(model.shape, exchange.path, tokenizer=tokenizer)
        else:
            assert isinstance(model, VisionModel), "no other model is served"
            write_architecture(model, exchange.path, tokenizer=tokenizer)
        dtype, device = str(next(model.parameters()).dtype).removeprefix("torch."), str(weights_device(model))
        settings = ReplicaSettings(
            model_directory=str(exchange.path), dtype=dtype, device=device, threads=torch.get_num_threads(),
            seed=seed, max_num_seqs=self.max_num_seqs, kv_cache_tokens=self.kv_cache_tokens, compiled=model.compiled,
            adapter_json="" if merges else adapter_text(model),
        )  # fmt: skip
        identity = EngineIdentity.of(model, tokenizer, seed=seed, merged=merges)
        program = replace(self.program(settings, access), required_identity=identity)
        met: set[int] = set()
        trainer = secrets.token_hex(16)

        async def start(index: int) -> RemoteEngine:
            if index < self.replicas:
                return await launch(replace(program, log_directory=exchange.engine_log_directory), index, self.deadline)
            patience = self.deadline if index in met else 0.0
            connect = partial(
                RemoteEngine.connect, addresses[index - self.replicas], secret=secret, deadline=self.deadline,
                expected=identity, trainer=trainer,
            )  # fmt: skip
            remote = await reached(connect, patience)
            met.add(index)
            return remote

        kind = SharedDeviceFleet if self.placement == "colocated" else Fleet
        return kind(
            start,
            self.replicas + len(self.addresses),
            exchange=exchange,
            probe=WeightsProbe(model, tokenizer, gap_bound(self.max_logprob_diff, dtype)),
            max_num_seqs=self.max_num_seqs,
            restarts=self.max_restarts,
            addresses=[text.partition("#")[0] for text in self.addresses],
            publish=partial(published_weights, model, merges=merges), in_memory=in_memory, on_gpu=on_gpu,
        )  # fmt: skip

    def check(
        self, model: nn.Module, experts: MixtureOfExpertsSizes | None, target: EngineRequirements,
        access: EngineAccess = EngineAccess(),  # noqa: B008
    ) -> None:  # fmt: skip
        """`Usage` for a model that the engines cannot run, more engines than GPUs for them, a host that the command
        line does not name, or a missing secret. The model needs no weights.

        `Storage` if the directory for the weights cannot be made, or has no room for them.
        """
        self.check_servable(model, experts)
        if not target.device_from_launcher:
            self.replica_devices(target)
        self.secret(access)
        self.check_nccl(model, target, access)
        exchange = new_exchange(access)
        try:
            size = published_bytes(model)
            without_file = self.publishes_in_memory(access, size) or self.publishes_on_gpu(access, target)
            if target.device_from_launcher or not without_file:
                exchange.check_room(size)
        finally:
            exchange.close()

    def check_nccl(self, model: nn.Module, target: EngineRequirements, access: EngineAccess) -> None:
        """`Usage` with the reason if the command line permits NCCL to engines that load a file."""
        if access.nccl_hosts and self.addresses:
            reason = self.reason_for_file(access, target) or ("its base is in 4 bits" if is_quantized(model) else "")
            if reason:
                fix = "drop --engine-nccl: they get a file over TLS, once per host"
                raise Usage("the engines on other hosts cannot get weights by NCCL", evidence=reason, fix=fix)

    def check_servable(self, model: nn.Module, experts: MixtureOfExpertsSizes | None) -> None:
        """`Usage` with the reason if the engines cannot build the model, or its outline, again."""
        servable(model, experts)

    def replica_devices(self, target: EngineRequirements) -> tuple[str, ...]:
        """The device of each replica on this host. `Usage` for more replicas than GPUs for them."""
        if self.devices:
            return named_devices(self.devices, target.device, gpu_count())
        colocated = self.placement == "colocated"
        return replica_devices(
            self.replicas, target.device, gpu_count(), ranks=target.ranks, colocated=colocated,
            size=self.gpus_per_replica,
        )  # fmt: skip

    @property
    def gpus_per_replica(self) -> int:
        """The number of GPUs that an engine computes on, if the learner is on one."""
        return 1

    def secret(self, access: EngineAccess) -> bytes:
        """The secret of the engines at ports; empty if there are none.

        `Usage` if one is on a host that the command line does not name, or if the secret cannot be read.
        """
        ports = [address for text in self.addresses if (address := TlsAddress.parse(text))]
        access.allow(address.host for address in ports)
        return read_secret(access.secret_file) if ports else b""

    def program(self, settings: ReplicaSettings, access: EngineAccess) -> ReplicaProgram:
        """The program of each replica."""
        return ReplicaProgram(settings=settings, remote_module_arguments=(tls_replica.__name__,))


def new_exchange(access: EngineAccess) -> WeightsFilesDirectory:
    """A new directory for the weights of one run. `Storage` if it cannot be made."""
    return WeightsFilesDirectory(Path(access.exchange_directory or tempfile.gettempdir()))


async def reached(connect: Callable[[], Awaitable[RemoteEngine]], patience: float) -> RemoteEngine:
    """Connect to an engine. If it was there before, wait `patience` seconds for its restart."""
    until = monotonic() + patience
    while True:
        try:
            return await connect()
        except EngineLost:
            if monotonic() >= until:
                raise
        await asyncio.sleep(PAUSE)
