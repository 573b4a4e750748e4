"""Decorators that declare a function as a component of a method: `@mask`, `@aggregate` and their like."""

from collections.abc import Callable
from typing import Any, TypeVar

from groupwise.data.base_classes import (
    Advantage,
    Aggregate,
    Credit,
    Filter,
    Mask,
    Penalty,
    Ratio,
    Shaping,
    Strategy,
    Surrogate,
    Weight,
)

__all__ = [
    "advantage",
    "aggregate",
    "component_of",
    "credit",
    "filter",
    "mask",
    "penalty",
    "ratio",
    "shaping",
    "strategy",
    "surrogate",
    "weight",
]

Function = TypeVar("Function", bound=Callable[..., Any])


def component_of(socket: type) -> Callable[[Function], Function]:
    """A decorator that declares a function as a component of this socket. It sets `function.socket`.

    >>> @component_of(Mask)
    ... def every_token(batch): ...
    >>> every_token.socket.__name__
    'Mask'
    """

    def declare(function: Function) -> Function:
        vars(function)["socket"] = socket
        return function

    declare.__doc__ = f"Declare a function as a component of the socket {socket.__name__}."
    return declare


advantage = component_of(Advantage)
aggregate = component_of(Aggregate)
credit = component_of(Credit)
filter = component_of(Filter)
mask = component_of(Mask)
penalty = component_of(Penalty)
ratio = component_of(Ratio)
shaping = component_of(Shaping)
strategy = component_of(Strategy)
surrogate = component_of(Surrogate)
weight = component_of(Weight)
