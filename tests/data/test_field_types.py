"""Arguments of the wrong type are refused where a user writes them, with the name of the argument."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, Protocol

import numpy as np
import pytest

from groupwise.core import Usage, check_types
from groupwise.data import Outcome


class Socket(Protocol):
    def __call__(self) -> int: ...


@dataclass(frozen=True)
class Part:
    share: float = 0.5


@dataclass(frozen=True)
class Value:
    count: int = 1
    name: str = ""
    ids: tuple[int, ...] = ()
    columns: Mapping[str, Any] = field(default_factory=dict)
    outcome: Outcome | None = None
    kind: Literal["a", "b"] = "a"
    part: Part = Part()
    socket: Socket | None = None
    function: Callable[[], int] = len  # type: ignore[assignment]
    anything: Any = None


FITTING: list[dict[str, Any]] = [
    {"count": np.int64(3)}, {"columns": MappingProxyType({})}, {"outcome": Outcome.wrong}, {"socket": print},
    {"part": print}, {"anything": 3}, {"anything": "x"}, {},
]  # fmt: skip
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"count": "3"}, "count is str; expected a whole number"),
    ({"count": 1.5}, "count is float; expected a whole number"),
    ({"name": 3}, "name is int; expected a string"),
    ({"ids": "12"}, "ids is str; expected a tuple"),
    ({"ids": [1]}, "ids is list; expected a tuple"),
    ({"columns": ()}, "columns is tuple; expected a dict"),
    ({"outcome": True}, "outcome is bool; expected Outcome or None"),
    ({"kind": 1}, "kind is int; expected a string"),
    ({"part": 0.5}, "part is float; expected Part"),
    ({"part": {"share": 0.5}}, "part is dict; expected Part"),
    ({"socket": "print"}, "socket is str; expected Socket or None"),
]


@pytest.mark.parametrize("arguments", FITTING)
def test_a_fitting_value_passes(arguments: dict[str, Any]) -> None:
    check_types(Value(**arguments))


@pytest.mark.parametrize(("arguments", "words"), WRONG)
def test_a_wrong_type_is_named_with_the_expected_one(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(Usage) as caught:
        check_types(Value(**arguments))
    assert caught.value.what == f"Value: {words}" and caught.value.fix.startswith("the arguments are Value(count, name")


SCRIPT = """
import groupwise as gw
for build in (
    lambda: gw.Prompt("p", "2+2=", (5, 6)),
    lambda: gw.Prompt((5, 6), "2+2="),
    lambda: gw.Prompt("p", (5, 6), "2+2=", "4"),
    lambda: gw.Verdict(True),
    lambda: gw.Verdict(gw.Outcome.correct, "0.5"),
    lambda: gw.Sampling(max_tokens="9"),
    lambda: gw.Sampling(stop="x"),
    lambda: gw.gspo(group_size="8"),
    lambda: gw.Method(advantage=gw.centred),
    lambda: gw.AdamW(lr="1e-5"),
    lambda: gw.Lora(target_modules="q_proj"),
    lambda: gw.Recipe(method="grpo"),
    lambda: gw.Recipe(method=gw.grpo(), iterations="5"),
    lambda: gw.Evaluate(every=None),
    lambda: gw.Permissions(use="mine.py"),
    lambda: gw.train(permissions={"use": ["mine.py"]}),
    lambda: gw.evaluate("calculator", permissions=["mine.py"]),
    lambda: gw.train(use=["mine.py"]),
    lambda: gw.train(stop_after="2h"),
    lambda: gw.train(3),
    lambda: gw.train(on_iteration=3),
    lambda: gw.sample("calculator", 3),
):
    try:
        build()
    except gw.Usage as error:
        print(error.what)
"""


def test_values_that_users_build_are_checked_at_once() -> None:
    """In a process without the type checks of the tests."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "Prompt: token_ids is str; expected a tuple",
        "Prompt: id is tuple; expected a string",
        "Prompt: row is str; expected a dict",
        "Verdict: outcome is bool; expected Outcome",
        "Verdict: score is str; expected a number or None",
        "Sampling: max_tokens is str; expected a whole number",
        "Sampling: stop is str; expected a tuple",
        "Method: group_size is str; expected a whole number",
        "Method: advantage is Centred; expected a tuple",
        "AdamW: lr is str; expected a number",
        "Lora: target_modules is str; expected a tuple",
        "Recipe: method is str; expected Method",
        "Recipe: iterations is str; expected a whole number",
        "Evaluate: every is NoneType; expected a whole number",
        "use is one text; expected a list of texts",
        "RunOptions: permissions is dict; expected Permissions",
        "RunOptions: permissions is list; expected Permissions",
        "use is a permission, not a field of a recipe",
        "RunOptions: stop_after_seconds is str; expected a number or None",
        "recipe is int",
        "on_iteration is int",
        "prompt is int",
    ]
