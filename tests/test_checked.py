"""The annotations of the package are enforced while tests run."""

import ast
import sys
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.advantages import Standardised
from groupwise.data import Segments
from tests import checked
from tests.checked import CACHE, CALLS, EVERY, NAME, Decorated, Loader, check

SOURCE = """
class Plain:
    @property
    def size(self) -> int: ...

def outer():
    def inner(): ...
"""


@check
def scaled(x: Float[Tensor, " n"], by: Float[Tensor, " n"] | float, name: str = "") -> Float[Tensor, " n"]:
    return x[:1] if name == "short" else x * by


@check
@dataclass(frozen=True, slots=True)
class Pair:
    x: Float[Tensor, " n"]
    y: Float[Tensor, " n"]
    weight: float = 1.0


def test_a_dimension_has_one_size_in_a_call_and_another_in_the_next() -> None:
    assert len(scaled(torch.ones(2), torch.ones(2))) == 2 and len(scaled(torch.ones(3), 2)) == 3
    for arguments in ((torch.ones(2), torch.ones(3)), (torch.ones(2, 2), 1.0), (torch.ones(2).int(), 1.0)):
        checked.begin_test()
        with pytest.raises(Exception, match="violates type hint"):
            scaled(*arguments)
    with pytest.raises(Exception, match=r"return .*violates type hint"):
        scaled(torch.ones(2), 1.0, "short")


def test_the_first_calls_within_a_test_are_checked_and_then_every_64th() -> None:
    refused = []
    for call in range(1, 2 * EVERY + 1):
        try:
            scaled(torch.ones(2), 1.0, "short")
        except Exception:
            refused.append(call)
    assert refused == [*range(1, CALLS + 1), EVERY, 2 * EVERY]


def test_a_process_that_relaxes_checks_no_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked, "enforced", True)  # put back after the test
    checked.relax()
    assert len(scaled(torch.ones(2), 1.0, "short")) == 1


def test_the_fields_of_a_dataclass_are_checked_and_an_int_is_a_float() -> None:
    assert Pair(torch.ones(2), torch.ones(2), 1).weight == 1
    for arguments in ((torch.ones(2), torch.ones(3)), (torch.ones(2), torch.ones(2), "1")):
        with pytest.raises(Exception, match="violates type hint"):
            Pair(*arguments)


def test_every_function_and_class_of_a_module_is_decorated() -> None:
    text = ast.unparse(Decorated().visit(ast.parse(SOURCE)))
    assert (
        text.split()
        == (
            f"@{NAME} class Plain: @property @{NAME} def size(self) -> int: ... "
            f"@{NAME} def outer(): @{NAME} def inner(): ..."
        ).split()
    )


def test_the_package_is_checked() -> None:
    with pytest.raises(Exception, match="violates type hint"):
        Segments.of(lengths=torch.tensor([2, 1])).total(torch.ones(2, 2))
    with pytest.raises(Exception, match="violates type hint"):
        Standardised(eps="small")  # pyright: ignore


def test_compiled_modules_lie_beside_the_plain_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    (tmp_path / "one.py").write_text("def f(x: int): ...\n")
    for loader in (Loader, SourceFileLoader, Loader, SourceFileLoader):
        code = loader("one", str(tmp_path / "one.py")).get_code("one")
        assert (NAME in code.co_names) == (loader is Loader)
    names = sorted(path.name for path in (tmp_path / "__pycache__").iterdir())
    assert len(names) == 2 and names[0].endswith(CACHE) and not names[1].endswith(CACHE)
