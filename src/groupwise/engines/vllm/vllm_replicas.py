"""Settings of a fleet of vLLM engines, each in a separate process, in the environment of vLLM."""

import os
from dataclasses import asdict, dataclass, replace
from typing import ClassVar, Literal

from torch import nn

from groupwise.core import Usage
from groupwise.engines.remote.engine_access import EngineAccess
from groupwise.engines.remote.replica import ReplicaProgram, ReplicaSettings
from groupwise.engines.remote.served_settings import EngineRequirements, Served
from groupwise.engines.remote.server import servable
from groupwise.engines.vllm import vllm_tls_replica
from groupwise.engines.vllm.vllm_engine import VllmSettings
from groupwise.engines.vllm.vllm_program import vllm_program
from groupwise.engines.vllm.vllm_python_environment import DEFAULT_PYTHON, check_environment
from groupwise.models import DecoderShape, MixtureOfExpertsSizes

__all__ = ["Vllm"]

HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""The sizes of an attention head that vLLM has on CPUs. With another one, it ends at the first request."""
DTYPES = ("float32", "bfloat16")
OWN_GPU = 0.9
"""The share of its GPU's memory that an engine takes if nothing else is on it. The rest is for CUDA's own memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vllm(Served):
    """Runs `replicas` vLLM engines in the environment of an interpreter, on the host of each engine.

    Tokens are as with `Native`, up to rounding: its code and random numbers choose them. If `keyed_randomness` is
    false, vLLM's sampler chooses them, and only the distribution is as with `Native`. The other settings are as for
    `Served`.
    On a GPU, vLLM runs CUDA graphs unless `enforce_eager`, and takes the share `gpu_memory_utilization` of the GPU's
    memory for its weights and cache: by default 0.9 of a separate GPU, and less what the plan predicts for the
    learner on the same one (`engine_share`). `batch_invariant` is vLLM's own, for cards that have it. On a CPU it is
    eager, with a cache of `kv_cache_tokens`.
    An adapter (LoRA) is merged into the weights that the engines load.
    The interpreter is a word of the command line, `--engine-python FILE`: it is a program that runs. `groupwise doctor`
    prints how to make its environment.
    """

    replicas: int = 1
    keyed_randomness: bool = True
    gpu_memory_utilization: float | Literal["by_plan"] = "by_plan"
    enforce_eager: bool = False
    batch_invariant: bool = False

    loads_adapters: ClassVar[bool] = False
    loads_from_memory: ClassVar[bool] = False
    loads_from_gpu: ClassVar[bool] = True

    def __post_init__(self) -> None:
        Served.__post_init__(self)
        share = self.gpu_memory_utilization
        if share != "by_plan" and not 0 < share <= 1:
            raise ValueError(f'gpu_memory_utilization is {share}\ntake a share above 0, at most 1, or "by_plan"')

    def check(
        self, model: nn.Module, experts: MixtureOfExpertsSizes | None, target: EngineRequirements,
        access: EngineAccess = EngineAccess(),  # noqa: B008
    ) -> None:  # fmt: skip
        """`Usage` for a model that vLLM cannot run, and without an interpreter; `MissingRequirement` if that is not
        one of vLLM's environment. Else as `Served`.

        The environment of a placed engine is on another host, and is checked there.
        """
        Served.check(self, model, experts, target, access)
        check_model(servable(model, experts).shape, target, sleeps=self.placement == "colocated")
        python = access.interpreter(DEFAULT_PYTHON) if self.replicas else ""
        if python and not target.device_from_launcher:
            check_environment(python, gpu=target.device.startswith("cuda"))

    def program(self, settings: ReplicaSettings, access: EngineAccess) -> ReplicaProgram:
        """The program of each replica, in the environment of vLLM."""
        sleeps = self.placement == "colocated"
        share = self.gpu_memory_utilization
        spec = VllmSettings(
            **asdict(settings), keyed_randomness=self.keyed_randomness, deadline=self.deadline, can_sleep=sleeps,
            enforce_eager=self.enforce_eager, batch_invariant=self.batch_invariant,
            gpu_memory_utilization=OWN_GPU if share == "by_plan" else share,
        )  # fmt: skip
        python = access.interpreter(DEFAULT_PYTHON)
        interpreter = os.path.abspath(python) if os.path.dirname(python) else python
        return replace(vllm_program(spec, python), remote_module_arguments=(vllm_tls_replica.__name__, interpreter))


def check_model(shape: DecoderShape, target: EngineRequirements, *, sleeps: bool) -> None:
    """`Usage` with the reason if vLLM cannot run a model of this shape. It `sleeps` on GPUs only."""
    dtype, reason = target.dtype, ""
    fix = "use the engine Native: --engine.kind Native"
    on_cpu = target.device.partition(":")[0] == "cpu"
    if sleeps and on_cpu:
        reason = (
            "engine.placement is colocated, the model is on the CPU, and vLLM frees memory on GPUs only (sleep mode)"
        )
        fix = "use --engine.kind Served, which frees its memory on CPUs, too, or --engine.placement separate"
    elif on_cpu and shape.head_dim not in HEAD_DIMS:
        reason = f"its head_dim is {shape.head_dim}; vLLM has {', '.join(map(str, HEAD_DIMS))}"
    elif dtype not in DTYPES:
        reason = f"its dtype is {dtype}; vLLM has {' and '.join(DTYPES)}"
    if reason:
        raise Usage("vLLM cannot run this model", evidence=reason, fix=fix)
