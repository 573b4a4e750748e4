"""Sockets: a part declares its socket by its base class or decorator, and is of no other one."""

import inspect
from dataclasses import make_dataclass
from typing import Any, Protocol

import pytest

import groupwise as gw
from groupwise.config.registry import fits, parts, socket_of
from groupwise.core import part_names
from groupwise.data import Engine, Verifier

SOCKETS = [parts()[name] for name in part_names()]
BASES = [*(s for s in SOCKETS if s is not gw.VerifierSettings), gw.Task, Verifier, gw.Environment, Engine]
DECORATORS = [
    gw.advantage, gw.aggregate, gw.credit, gw.filter, gw.mask, gw.penalty, gw.ratio, gw.shaping, gw.strategy,
    gw.surrogate, gw.weight,
]  # fmt: skip


@pytest.mark.parametrize("socket", BASES, ids=lambda socket: socket.__name__)
def test_a_subclass_without_a_method_of_its_socket_is_refused(socket: type) -> None:
    assert Protocol in socket.__bases__ or socket is Verifier
    with pytest.raises(TypeError, match="abstract method"):
        make_dataclass("Forgetful", [], bases=(socket,), frozen=True, slots=True)()


@pytest.mark.parametrize("socket", SOCKETS, ids=lambda socket: socket.__name__)
def test_a_part_is_of_one_socket(socket: type) -> None:
    for name in part_names()[socket.__name__]:
        assert [other for other in SOCKETS if fits(parts()[name], other)] == [socket], name
        assert not inspect.isabstract(parts()[name])


def test_a_part_is_found_without_an_import_of_its_file() -> None:
    """The parts that the sources name (`gw.parts`) are those whose objects have a socket."""
    found: dict[str, list[str]] = {}
    for name, part in parts().items():
        if (socket := socket_of(part)) and part is not socket:
            found.setdefault(socket.__name__, []).append(name)
    assert {socket: tuple(sorted(names)) for socket, names in found.items()} == part_names()
    assert {"sequence_mean", "token_mean", "unscaled", "Served", "NoisyVerdicts"} <= {
        n for p in gw.parts.values() for n in p
    }


@pytest.mark.parametrize("declare", DECORATORS, ids=lambda declare: declare.__doc__.split()[-1])
def test_a_function_is_of_the_socket_of_its_decorator_and_of_none_without(declare: Any) -> None:
    def declared(*arguments: Any) -> None: ...

    assert [socket for socket in SOCKETS if fits(declared, socket)] == []
    assert declare(declared) is declared
    (socket,) = (socket for socket in SOCKETS if fits(declared, socket))
    assert socket_of(declared) is socket and socket.__name__.lower() in {
        n for n in dir(gw) if getattr(gw, n) is declare
    }


def test_a_users_class_without_a_base_class_is_of_the_sockets_whose_methods_it_has() -> None:
    class Halves:
        def __call__(self, x: Any, batch: Any) -> Any:
            return x / 2

    assert {socket.__name__ for socket in SOCKETS if fits(Halves(), socket)} == {"Shaping", "Advantage", "Credit"}
