"""`groupwise serve --engine Vllm`: one vLLM engine in its environment, on one or several GPUs. Ctrl-C ends it."""

import asyncio
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from groupwise.commands.serve_native import ServeOptions
from groupwise.config.resolve_devices import device_of
from groupwise.core import Usage, WorkerLost
from groupwise.engines import EngineAccess, serve_until_signal
from groupwise.engines.remote.replica import ReplicaSettings, command
from groupwise.engines.remote.replica_devices import gpu_count, on_device, served_devices
from groupwise.engines.remote.served_settings import EngineRequirements
from groupwise.engines.vllm.vllm_program import vllm_program
from groupwise.engines.vllm.vllm_python_environment import DEFAULT_PYTHON, check_environment
from groupwise.engines.vllm.vllm_replicas import Vllm, check_model, check_windows, shape_of
from groupwise.models import find_model, has_adapter, read_model

GRACE = 5.0
"""Seconds in which the process must end after SIGTERM."""


def serve_vllm(model: str, options: ServeOptions, python: str) -> int:
    """Serve the model in a directory, as version 0, until a signal ends the process; returns the exit code.

    `python` is the interpreter of vLLM's environment.
    """
    options.check()
    engine = options.engine
    assert isinstance(engine, Vllm), "the command serves a native engine elsewhere"
    directory, device, size = find_model(model).absolute(), device_of(options.device), engine.tensor_parallel_size
    (gpus,) = served_devices(1, device, gpu_count(), size=size)
    loaded = read_model(directory, dtype=getattr(torch, options.dtype), seed=options.seed)
    engine.check_servable(loaded, None)
    if has_adapter(loaded):
        what, fix = f"{model} is an adapter", "merge it first: groupwise merge --help"
        raise Usage(what, evidence="vLLM serves whole weights here", fix=fix)
    target = EngineRequirements(dtype=options.dtype, device=device, device_from_launcher=True)
    check_windows(loaded)
    check_model(shape_of(loaded), target, sleeps=False, size=size)
    python = EngineAccess(python=python).interpreter(DEFAULT_PYTHON)
    check_environment(python, gpu=device != "cpu")
    with tempfile.TemporaryDirectory() as packages:
        settings = ReplicaSettings(
            model_directory=packages, dtype=options.dtype, device=device, threads=options.threads, seed=options.seed,
            max_num_seqs=engine.max_num_seqs, kv_cache_tokens=engine.kv_cache_tokens, compiled=False, adapter_json="",
        )  # fmt: skip
        spec = replace(
            engine.process_settings(settings), model=model, socket=_absolute(options.socket), listen=options.listen,
            tls_key_file=_absolute(options.tls_key_file), secret_file=_absolute(options.secret_file),
            nccl=options.nccl,
        )  # fmt: skip
        program = vllm_program(spec, python)
        program = on_device(replace(program, settings=replace(spec, model_directory=str(directory))), gpus)
        return asyncio.run(
            serve_until_signal(hold(command(program, os.getpid()), program.environment_variables, "vLLM"))
        )


async def hold(words: Sequence[str], environment: Mapping[str, str], name: str) -> None:
    """Run a process until it ends, or this call is cancelled. `WorkerLost` with its name if it ends by itself."""
    # In its own session, Ctrl-C does not reach it.
    process = await asyncio.create_subprocess_exec(*words, env=environment, start_new_session=True)
    try:
        code = await process.wait()
    except asyncio.CancelledError:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), GRACE)
        except TimeoutError:
            process.kill()
        raise
    raise WorkerLost(f"{name} ended", evidence=f"exit code {code}; its last lines are above", fix="groupwise doctor")


def _absolute(path: str) -> str:
    """The absolute path; empty for none."""
    return str(Path(path).absolute()) if path else ""
