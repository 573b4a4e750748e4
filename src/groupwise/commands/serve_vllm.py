"""`groupwise serve --engine Vllm`: one vLLM engine in its environment, on a Unix socket. Ctrl-C ends it."""

import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from groupwise.data import Usage, WorkerLost
from groupwise.engines.replica import command
from groupwise.engines.served import Target
from groupwise.engines.vllm import VllmSettings
from groupwise.engines.vllm_replicas import Vllm, vllm_program
from groupwise.models import find_model, read_model


def serve_vllm(model: str, path: str, *, python: str, dtype: str, seed: int, threads: int) -> int:
    """Serve the model in a directory, as version 0, until the process is interrupted. `python`: vLLM's interpreter."""
    if not path:
        raise Usage("a vLLM engine listens on a socket of this machine only", fix="name --socket FILE")
    kind, directory = Vllm(python=python), find_model(model).absolute()
    loaded = read_model(directory, dtype=getattr(torch, dtype), seed=seed)
    kind.check(loaded, None, Target.of(loaded))
    with tempfile.TemporaryDirectory() as packages:
        spec = VllmSettings(
            directory=packages, dtype=dtype, device="cpu", threads=threads, seed=seed, rows=kind.rows,
            cache_tokens=kind.cache_tokens, compiled=False, adapter="", keyed=kind.keyed, deadline=kind.deadline,
            sleeps=False, socket=str(Path(path).absolute()),
        )  # fmt: skip
        program = vllm_program(spec, python)
        program = replace(program, settings=replace(spec, directory=str(directory)))
        try:
            code = subprocess.run(command(program), env=program.environment, check=False).returncode
        except KeyboardInterrupt:
            return 130
    if code:
        raise WorkerLost("vLLM ended", evidence=f"exit code {code}; its last lines are above", fix="groupwise doctor")
    return 0
