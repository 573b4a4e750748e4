"""Settings of a fleet of vLLM engines, each in a separate process on this machine."""

from dataclasses import asdict, dataclass
from pathlib import Path

from groupwise.data import Usage
from groupwise.engines.fleet import Fleet
from groupwise.engines.replica import Program, ReplicaSettings
from groupwise.engines.served import Served
from groupwise.engines.server import servable
from groupwise.engines.vllm import VllmSettings
from groupwise.engines.vllm_environment import DEFAULT_PYTHON, check_environment, child_environment
from groupwise.models import Decoder, Experts, Model, Tokenizer, has_adapter

SOCKET = "EngineKind"
__all__ = ["Vllm"]

HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""The sizes of an attention head that vLLM has on CPUs. With another one, it ends at the first request."""
DTYPES = ("float32", "bfloat16")
START = 600.0
"""Seconds that vLLM may take to start. Most of it are imports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vllm(Served):
    """Runs `replicas` vLLM engines on this machine, in the environment of the interpreter `python`.

    Tokens are those of `Native`, up to rounding: its code and random numbers choose them. If `keyed` is false, vLLM's
    sampler chooses them, and only the distribution is that of `Native`. The other settings are those of `Served`.
    `groupwise doctor` prints how to make the environment.
    """

    replicas: int = 1
    python: str = DEFAULT_PYTHON
    keyed: bool = True

    def build(self, model: Model, tokenizer: Tokenizer, *, seed: int, experts: Experts | None) -> Fleet:
        """The fleet; its processes start at the first load. `Usage` for a model that vLLM cannot run here.

        `MissingRequirement` without the environment.
        """
        decoder = servable(model, experts)
        check_model(decoder, sleeps=self.place == "same")
        if self.replicas:
            check_environment(self.python, gpu=next(decoder.parameters()).is_cuda)
        return Served.build(self, model, tokenizer, seed=seed, experts=experts)

    def program(self, settings: ReplicaSettings) -> Program:
        """The program of each replica, in the environment of vLLM."""
        sleeps = self.place == "same"
        spec = VllmSettings(**asdict(settings), keyed=self.keyed, deadline=self.deadline, sleeps=sleeps)
        return vllm_program(spec, self.python)


def vllm_program(spec: VllmSettings, python: str) -> Program:
    """The program of one engine, in an environment that imports this groupwise. It writes to the spec's directory."""
    environment = child_environment(Path(spec.directory), spec.threads)
    if spec.device != "cpu":
        environment["VLLM_USE_V2_MODEL_RUNNER"] = "0"  # `WorkerExtension.use_keys` replaces the first runner's sampler
    return Program(
        settings=spec, module="groupwise.engines.vllm", python=python, environment=environment, seconds=START
    )


def check_model(decoder: Decoder, *, sleeps: bool) -> None:
    """`Usage` with the reason if vLLM cannot run this model here. It `sleeps` on GPUs only."""
    weight, shape = next(decoder.parameters()), decoder.shape
    dtype, reason = str(weight.dtype).removeprefix("torch."), ""
    fix = "use the engine Native: --engine.kind Native"
    on_cpu = weight.device.type == "cpu"
    if sleeps and on_cpu:
        reason = "engine.place is same, the model is on the CPU, and vLLM frees its memory on GPUs only (sleep mode)"
        fix = "use --engine.kind Served, which frees its memory on CPUs, too, or --engine.place apart"
    elif not (sleeps or on_cpu):
        reason = f"the model is on {weight.device}; vLLM was tested on CPUs only"
    elif on_cpu and shape.head_dim not in HEAD_DIMS:
        reason = f"its head_dim is {shape.head_dim}; vLLM has {', '.join(map(str, HEAD_DIMS))}"
    elif has_adapter(decoder):
        reason = "it has an adapter (LoRA); only whole weights were tested"
    elif dtype not in DTYPES:
        reason = f"its dtype is {dtype}; vLLM has {' and '.join(DTYPES)}"
    if reason:
        raise Usage("vLLM cannot run this model", evidence=reason, fix=fix)
