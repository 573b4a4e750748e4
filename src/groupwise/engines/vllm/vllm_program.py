"""The program of a vLLM engine, in the environment of vLLM."""

from pathlib import Path

from groupwise.engines.remote.gpu_weights import LOOPBACK
from groupwise.engines.remote.replica import ReplicaProgram
from groupwise.engines.vllm.vllm_engine import VllmSettings
from groupwise.engines.vllm.vllm_python_environment import child_environment

START = 600.0
"""Seconds that vLLM may take to start. Most of it are imports."""


def vllm_program(spec: VllmSettings, python: str) -> ReplicaProgram:
    """The program of one engine, in an environment that imports this groupwise. It writes to the spec's directory."""
    environment = child_environment(Path(spec.model_directory), spec.threads)
    if spec.device != "cpu":
        environment = environment if spec.nccl else {**LOOPBACK, **environment}
        environment["VLLM_BATCH_INVARIANT"] = str(int(spec.batch_invariant))
        environment["VLLM_USE_V2_MODEL_RUNNER"] = "0"  # `WorkerExtension.use_keys` replaces the first runner's sampler
    module = VllmSettings.__module__
    return ReplicaProgram(
        settings=spec, module=module, python=python, environment_variables=environment, start_seconds=START
    )
