"""Reinforcement-learning post-training of language models. Published methods are values to print and compare.

    import groupwise as gw
    run = gw.train(model="my-model", data=rows, reward=reward, method=gw.gspo(group_size=8), iterations=50)

Its names are those that a script writes (`__all__`, in docs/library.md with a line each), the published methods
(`gw.gspo`, listed by `gw.list_methods()`) and the components of methods (`gw.Clip`, listed by `gw.parts`). All are
imported on first use. Everything else is imported from its room: `from groupwise.data import Segments`.
"""

# pyright: reportUnsupportedDunderAll=false

import os
import sys
from importlib import import_module
from typing import Any

__all__ = [
    "AdamW",
    "Advantage",
    "Agent",
    "Aggregate",
    "BadData",
    "Batch",
    "Cluster",
    "Columns",
    "Combined",
    "Credit",
    "Curriculum",
    "Diverged",
    "Draw",
    "Environment",
    "Evaluate",
    "ExtraTask",
    "Filter",
    "Finish",
    "GroupwiseError",
    "Lora",
    "Machine",
    "Mask",
    "Math",
    "Method",
    "MissingRequirement",
    "Native",
    "Objective",
    "Outcome",
    "Penalty",
    "Permissions",
    "Prompt",
    "Ratio",
    "Recipe",
    "Rollout",
    "Run",
    "Sample",
    "Sampling",
    "Save",
    "Served",
    "Shaping",
    "Strategy",
    "Surrogate",
    "Task",
    "TaskSettings",
    "Usage",
    "Verdict",
    "VerifierSettings",
    "Vllm",
    "WarmStart",
    "Weight",
    "__version__",
    "advantage",
    "aggregate",
    "credit",
    "evaluate",
    "export",
    "filter",
    "list_methods",
    "load_method",
    "mask",
    "parts",
    "penalty",
    "ratio",
    "resume",
    "sample",
    "shaping",
    "strategy",
    "surrogate",
    "train",
    "weight",
]

# MKL chooses kernels by the number of rows; on some processors this changes the bits of a row. In strict mode the bits
# of a row do not depend on the other rows. MKL reads the variable at its first product. A value of the user is kept.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")


def __getattr__(name: str) -> Any:
    from groupwise.core.lazy_imports import home_of, part_names

    if name == "__version__":
        from importlib.metadata import version

        return version("groupwise")
    if name == "parts":
        return part_names()
    room = "" if name.startswith("_") else home_of(name)
    if room and (name in __all__ or _is_method_or_part(name)):
        from groupwise.config.constructor_wrappers import answering

        value = globals()[name] = answering(name, getattr(import_module(room), name))
        return value
    message = f"{__name__} has no attribute {name!r}{_advice(name)}"
    raise AttributeError(message, name=name, obj=sys.modules[__name__])


class _AdviceFinder:
    """Gives `from groupwise import NAME` the message of `gw.NAME`, which that statement drops.

    The statement then asks the finders for a submodule of that name. This finder is the last one, so there is none.
    """

    @staticmethod
    def find_spec(fullname: str, path: object = None, target: object = None) -> None:
        package, _, name = fullname.rpartition(".")
        if package == __name__ and (advice := _advice(name)):
            raise ImportError(f"{package} has no attribute {name!r}{advice}", name=fullname)


sys.meta_path.append(_AdviceFinder)


def _advice(name: str) -> str:
    """What a user writes in place of a name that the package lacks; empty if no name is near it."""
    from groupwise.core.lazy_imports import home_of

    room = "" if name.startswith("_") else home_of(name)
    return _answer_of_trl(name) or (f"; from {room} import {name}" if room else _similar(name))


def _answer_of_trl(name: str) -> str:
    """What a user writes in place of TRL's trainer and its settings; empty for another name."""
    if not name.endswith(("Trainer", "Config")):
        return ""
    from groupwise.config.trl_and_verl_names import DICTIONARY, TRAINERS

    return f": {DICTIONARY}" if name in TRAINERS else ""


def _similar(name: str) -> str:
    """The name of a component or method that a misspelled or earlier one means; empty without one."""
    if name.startswith("_"):
        return ""
    from difflib import get_close_matches

    from groupwise.config.trl_and_verl_names import EARLIER_COMPONENTS
    from groupwise.core.lazy_imports import part_names
    from groupwise.methods.families import method_files

    if name in EARLIER_COMPONENTS:
        return f"; its name here is gw.{EARLIER_COMPONENTS[name]}"
    names = {*__all__, *method_files(), *(part for parts in part_names().values() for part in parts)}
    by_case = {known.lower(): known for known in sorted(names)}
    method = name.removesuffix("Trainer").removesuffix("Config").lower()
    if method in method_files() and method != name.lower():
        return f"; write gw.train(method=gw.{method}(), ...)"
    near = get_close_matches(name.lower(), by_case, n=1, cutoff=0.68)  # below that, gw.fit is gw.sft
    return f"; did you mean gw.{by_case[near[0]]}?" if near else ""


def _is_method_or_part(name: str) -> bool:
    from groupwise.core.lazy_imports import part_names
    from groupwise.methods.families import method_files

    return name in method_files() or any(name in parts for parts in part_names().values())


def __dir__() -> list[str]:
    return __all__
