"""Becomes a vLLM engine for trainers on other hosts, in vLLM's environment, as `tls_replica` is a native one.

    python -m groupwise.engines.vllm.vllm_tls_replica PYTHON SETTINGS HOST

PYTHON is the interpreter of vLLM's environment. It imports this groupwise, which is not installed there.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from groupwise.core import GroupwiseError
from groupwise.engines.remote.replica import command
from groupwise.engines.remote.tls import host_port
from groupwise.engines.remote.weights_file import WeightsFilesDirectory
from groupwise.engines.vllm.vllm_engine import VllmSettings
from groupwise.engines.vllm.vllm_program import vllm_program
from groupwise.engines.vllm.vllm_python_environment import check_environment
from groupwise.models import find_model

Become = Callable[[str, list[str], Mapping[str, str]], Any]
"""Replaces this process by a program, with its arguments and environment."""


def main(python: str, settings: dict[str, Any], host: str, become: Become = os.execvpe) -> None:
    """Replace this process by the engine. Its parent and its environment variables, such as devices, stay."""
    spec = VllmSettings(**settings)
    check_environment(python, gpu=spec.device != "cpu")
    directory = find_model(spec.model_directory, weights=False).absolute()
    exchange, lock = WeightsFilesDirectory(Path(tempfile.gettempdir())).hand_on()
    program = vllm_program(replace(spec, model_directory=str(exchange)), python)  # its package is in there, too
    listen = host_port(host, 0)
    spec = replace(
        spec, model_directory=str(directory), listen=listen, exchange_directory=str(exchange), lock_descriptor=lock
    )
    become(python, command(replace(program, settings=spec), os.getppid()), program.environment_variables)


if __name__ == "__main__":
    try:
        main(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3])
    except GroupwiseError as error:
        sys.exit(f"error: {error}")
