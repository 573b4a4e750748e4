"""Write requirements.lock with uv: `make lock`, or `python -m tools.lock UV`, where UV is the program.

Each runtime dependency, and what it needs in turn, has the version of constraints.txt and the hashes of all files that
the package index publishes for it. The packages that build Groupwise from source are locked, too.
"""

import subprocess
import sys
import tomllib
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
LOCK = HOME / "requirements.lock"
HEAD = """\
# Groupwise's dependencies on Linux x86_64 with CPython 3.11, with hashes. `make lock` writes this file.
#   pip install --require-hashes -r requirements.lock
#   pip install --no-deps --no-build-isolation .
"""


def locked(uv: str) -> str:
    """The text of the file."""
    build = tomllib.loads((HOME / "pyproject.toml").read_text("utf-8"))["build-system"]["requires"]
    command = [uv, "pip", "compile", "--quiet", "pyproject.toml", "-", "--constraints", "constraints.txt"]
    command += ["--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_28"]
    command += ["--generate-hashes", "--no-annotate", "--no-header"]
    done = subprocess.run(command, cwd=HOME, input="\n".join(build), text=True, stdout=subprocess.PIPE, check=True)
    return HEAD + done.stdout


if __name__ == "__main__":
    LOCK.write_text(locked(sys.argv[1]), encoding="utf-8")
