"""Make the environment of vLLM, unless it is there: python -m tools.vllm_environment [.venv-vllm]."""

import shlex
import subprocess
import sys

from groupwise.core import MissingRequirement
from groupwise.engines.vllm.vllm_python_environment import (
    PINS,
    check_environment,
    check_torchvision,
    installation,
    torchvision_installation,
)


def main(directory: str = ".venv-vllm") -> None:
    """Run the commands that `groupwise doctor` prints, with this interpreter, and check the result."""
    python = f"{directory}/bin/python"
    try:
        check_environment(python)
    except MissingRequirement:
        for line in installation(directory).splitlines():
            print(line, flush=True)
            words = shlex.split(line)
            subprocess.run([sys.executable, *words[1:]] if words[0] == "python" else words, check=True)
        check_environment(python)
    try:
        check_torchvision(python)
    except MissingRequirement:
        line = torchvision_installation(python, PINS["torch"])
        print(line, flush=True)
        if subprocess.run(shlex.split(line), check=False).returncode:
            print("no index of pip has this build: tests of Qwen2.5-VL are skipped", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
