"""Reinforcement-learning post-training of language models, in which every published method is a value.

    import groupwise as gw
    run = gw.train(model="my-model", data=rows, reward=reward, method=gw.gspo(group_size=8), iterations=50)

The names of `groupwise.api` and of `groupwise.methods` are names of the package. They are imported on first use.
"""

import os
from typing import Any

# MKL chooses kernels by the number of rows; on some processors this changes the bits of a row. In strict mode the bits
# of a row do not depend on the other rows. MKL reads the variable at its first product. A value of the user is kept.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

_ROOMS = ("groupwise.api", "groupwise.methods")


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "__version__":
        from importlib.metadata import version

        return version("groupwise")
    if not name.startswith("_"):
        from groupwise.data.rooms import names_of

        for room in _ROOMS:
            if name in names_of(room):
                return getattr(import_module(room), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    from groupwise.data.rooms import names_of

    return sorted({"__version__", *globals(), *(name for room in _ROOMS for name in names_of(room))})
