"""Reinforcement-learning post-training of language models. Published methods are values to print and compare.

    import groupwise as gw
    run = gw.train(model="my-model", data=rows, reward=reward, method=gw.gspo(group_size=8), iterations=50)

Every public name of every room is a name of the package, such as `gw.train`, `gw.gspo` or `gw.Clip`. It is imported on
first use.
"""

import os
from typing import Any

# MKL chooses kernels by the number of rows; on some processors this changes the bits of a row. In strict mode the bits
# of a row do not depend on the other rows. MKL reads the variable at its first product. A value of the user is kept.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("groupwise")
    if not name.startswith("_"):
        from importlib import import_module

        from groupwise.core.lazy_imports import home_of

        if room := home_of(name):
            return getattr(import_module(room), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    from groupwise.core.lazy_imports import ROOMS, names_of

    return sorted({"__version__", *globals(), *(name for room in ROOMS for name in names_of(f"groupwise.{room}"))})
