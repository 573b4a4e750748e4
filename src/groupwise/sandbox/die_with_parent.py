"""A program that the kernel ends with its parent, from its first moment on: it imports nothing before.

    python -m groupwise.sandbox.die_with_parent PARENT ARGUMENT...

This program becomes a Python process with these arguments. A process that imports torch first could be stopped
meanwhile, and would then outlive its parent.
"""

import os
import sys
from collections.abc import Sequence

from groupwise.sandbox.worker_pool import end_with_parent

_NAME = __spec__.name


def bound_command(python: str, parent: int, arguments: Sequence[str]) -> list[str]:
    """The command of a Python process that ends with the process `parent`, which starts it."""
    # -P: no module in the working directory shadows a package.
    return [python, "-P", "-m", _NAME, str(parent), *arguments]


def main(parent: int, arguments: Sequence[str]) -> None:
    """Replace this process by one with these arguments."""
    end_with_parent(parent)
    os.execv(sys.executable, [sys.executable, *arguments])


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
