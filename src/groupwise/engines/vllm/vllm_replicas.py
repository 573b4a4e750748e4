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
from groupwise.engines.vllm.vllm_python_environment import DEFAULT_PYTHON, check_environment, check_torchvision
from groupwise.models import Decoder, DecoderShape, MixtureOfExpertsSizes, VisionSizes
from groupwise.models.vision.vision_files import vision_config, vision_sizes

__all__ = ["Vllm"]

HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""The sizes of an attention head that vLLM has on CPUs. With another one, it ends at the first request."""
NEED_TORCHVISION = ("qwen2_5_vl",)
"""Architectures for which vLLM 0.32 imports torchvision, by their `model_type`."""
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
    eager, with a cache of `kv_cache_tokens`. An engine computes on `tensor_parallel_size` GPUs, or processes of a CPU:
    each holds a part of the heads of every layer.
    An adapter (LoRA) is merged into the weights that the engines load.
    The interpreter is a word of the command line, `--engine-python FILE`: it is a program that runs. `groupwise doctor`
    prints how to make its environment.
    """

    replicas: int = 1
    keyed_randomness: bool = True
    gpu_memory_utilization: float | Literal["by_plan"] = "by_plan"
    enforce_eager: bool = False
    batch_invariant: bool = False
    tensor_parallel_size: int = 1

    served_settings: ClassVar[tuple[str, ...]] = (
        "max_num_seqs", "kv_cache_tokens", "deadline", "keyed_randomness", "gpu_memory_utilization", "enforce_eager",
        "batch_invariant", "tensor_parallel_size",
    )  # fmt: skip
    loads_adapters: ClassVar[bool] = False
    takes_quantized_base: ClassVar[bool] = True
    maps_memory: ClassVar[bool] = False
    loads_from_gpu: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.tensor_parallel_size < 1:
            raise ValueError(f"tensor_parallel_size is {self.tensor_parallel_size}\nuse at least 1")
        Served.__post_init__(self)
        share = self.gpu_memory_utilization
        if share != "by_plan" and not 0 < share <= 1:
            raise ValueError(f'gpu_memory_utilization is {share}\ntake a share above 0, at most 1, or "by_plan"')

    @property
    def gpus_per_replica(self) -> int:
        return self.tensor_parallel_size

    def check(
        self, model: nn.Module, experts: MixtureOfExpertsSizes | None, target: EngineRequirements,
        access: EngineAccess = EngineAccess(),  # noqa: B008
    ) -> None:  # fmt: skip
        """`Usage` for a model that vLLM cannot run, and without an interpreter; `MissingRequirement` if that is not
        one of vLLM's environment. Else as `Served`.

        The environment of a placed engine is on another host, and is checked there.
        """
        Served.check(self, model, experts, target, access)
        check_windows(model)
        check_model(shape_of(model), target, sleeps=self.placement == "colocated", size=self.tensor_parallel_size)
        python = access.interpreter(DEFAULT_PYTHON) if self.replicas else ""
        if python and not target.device_from_launcher:
            check_environment(python, gpu=target.device.startswith("cuda"))
            if vision_sizes(model) and vision_config(model).model_type in NEED_TORCHVISION:
                check_torchvision(python)

    def check_servable(self, model: nn.Module, experts: MixtureOfExpertsSizes | None) -> None:
        """As `Served`, but for vision-language models, and for layers in 4 bits, which vLLM gets dequantised."""
        if experts is not None or not (isinstance(model, Decoder) or vision_sizes(model)):
            servable(model, experts)

    def program(self, settings: ReplicaSettings, access: EngineAccess) -> ReplicaProgram:
        """The program of each replica, in the environment of vLLM; `Served`'s where the run starts none."""
        if not self.replicas:
            return Served.program(self, settings, access)
        python = access.interpreter(DEFAULT_PYTHON)
        interpreter = os.path.abspath(python) if os.path.dirname(python) else python
        program = vllm_program(self.process_settings(settings), python)
        return replace(program, remote_module_arguments=(vllm_tls_replica.__name__, interpreter))

    def process_settings(self, settings: ReplicaSettings) -> VllmSettings:
        """The settings of an engine's process."""
        share = self.gpu_memory_utilization
        return VllmSettings(
            **asdict(settings), keyed_randomness=self.keyed_randomness, deadline=self.deadline,
            can_sleep=self.placement == "colocated", enforce_eager=self.enforce_eager,
            batch_invariant=self.batch_invariant, tensor_parallel_size=self.tensor_parallel_size,
            gpu_memory_utilization=OWN_GPU if share == "by_plan" else share,
        )  # fmt: skip


def shape_of(model: nn.Module) -> DecoderShape | VisionSizes:
    """The sizes of a model that `Vllm.check_servable` accepts, or of its outline."""
    shape = model.shape if isinstance(model, Decoder) else vision_sizes(model)
    assert shape is not None, "no other model is served"
    return shape


def check_windows(model: nn.Module) -> None:
    """`Usage` for attention windows in some layers: vLLM has the native families with windows in all layers or none."""
    if isinstance(model, Decoder):
        kinds = set(model.shape.attention_windows)
    else:
        kinds = set(getattr(vision_config(model).text_config, "layer_types", None) or ())
    if len(kinds) > 1:
        fix = "use the engine Native: --engine.kind Native"
        raise Usage("vLLM cannot run this model", evidence="some of its layers have an attention window", fix=fix)


def check_model(shape: DecoderShape | VisionSizes, target: EngineRequirements, *, sleeps: bool, size: int = 1) -> None:
    """`Usage` with the reason if vLLM cannot run a model of this shape on `size` devices. It `sleeps` on GPUs only."""
    tower_heads = shape.tower_heads if isinstance(shape, VisionSizes) else 0
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
    elif shape.heads % size or (shape.kv_heads % size and size % shape.kv_heads):
        reason = f"its {shape.heads} heads and {shape.kv_heads} key-value heads are not shared by {size} devices"
        fix = "use an engine.tensor_parallel_size that divides both"
    elif tower_heads % size:
        reason = f"the {tower_heads} heads of its vision tower are not shared by {size} devices"
        fix = "use an engine.tensor_parallel_size that divides them"
    elif dtype not in DTYPES:
        reason = f"its dtype is {dtype}; vLLM has {' and '.join(DTYPES)}"
    if reason:
        raise Usage("vLLM cannot run this model", evidence=reason, fix=fix)
