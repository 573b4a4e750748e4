"""Rollouts, requests and other dataclasses as plain JSON, for other processes and for checkpoints.

The types of the fields say how: bytes are base64, enums are their names, NaN is null, other numbers and texts stay.
"""

import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")
Codec = tuple[Callable[[Any], Any], Callable[[Any], Any]]
"""A function that encodes a value, and the one that decodes it."""


def to_json(value: Any) -> dict[str, Any]:
    """A dataclass as a JSON object. Values of fields of the type `Any` must be JSON values.

    >>> from groupwise.data import Generation, Finish
    >>> to_json(Generation(tokens=(7,), logp=(math.nan,), versions=(2,), finish=Finish.stop, path=(b"a",)))
    {'tokens': [7], 'logp': [None], 'versions': [2], 'finish': 'stop', 'routes': [], 'path': ['YQ=='], 'likeliest': []}
    """
    return _codec(type(value))[0](value)


def from_json(cls: type[T], data: Any) -> T:
    """The value that `to_json` gave, also after `json.dumps` and `json.loads`. Lists are tuples.

    Raises KeyError, TypeError or ValueError for other data. A missing field has its default.

    >>> from groupwise.data import Draw, Prompt
    >>> from_json(Draw, to_json(Draw(3, Prompt("p", (5,), row={"answer": 4}), 8))).prompt.row["answer"]
    4
    """
    return _codec(cls)[1](data)


def _same(value: Any) -> Any:
    return value


SAME: Codec = (_same, _same)


@cache
def _codec(kind: Any) -> Codec:
    """How values of a type are encoded and decoded."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return _optional(*(_codec(one) for one in inner if one is not NoneType))
    if origin is Mapping:
        return _mapping(_codec(inner[1]))
    if origin is tuple and inner[-1] is not ...:
        return _pair([_codec(one) for one in inner])
    if origin in (tuple, list, Sequence):
        return _sequence(_codec(inner[0]), list if origin is list else tuple)
    if is_dataclass(kind):
        return _dataclass(kind)
    if kind is bytes:
        return lambda x: b64encode(x).decode(), partial(b64decode, validate=True)
    if kind is float:
        return lambda x: None if x != x else x, lambda x: math.nan if x is None else x
    if isinstance(kind, type) and issubclass(kind, Enum):
        return lambda x: x.name, lambda x: kind[x]
    return SAME


def _optional(codec: Codec) -> Codec:
    encode, decode = codec
    return lambda x: None if x is None else encode(x), lambda x: None if x is None else decode(x)


def _mapping(codec: Codec) -> Codec:
    encode, decode = codec
    if codec is SAME:
        return dict, dict
    return lambda x: {k: encode(v) for k, v in x.items()}, lambda x: {k: decode(v) for k, v in dict(x).items()}


def _sequence(codec: Codec, made: Callable[[Any], Any]) -> Codec:
    encode, decode = codec
    if codec is SAME:
        return list, made
    return lambda x: list(map(encode, x)), lambda x: made(map(decode, x))


def _pair(codecs: Sequence[Codec]) -> Codec:
    def encode(values: Any) -> list[Any]:
        return [one(x) for (one, _), x in zip(codecs, values, strict=True)]

    return encode, lambda values: tuple(one(x) for (_, one), x in zip(codecs, values, strict=True))


def _dataclass(cls: Any) -> Codec:
    kinds = get_type_hints(cls)
    codecs = {f.name: _codec(kinds[f.name]) for f in fields(cls)}

    def encode(value: Any) -> dict[str, Any]:
        return {name: one(getattr(value, name)) for name, (one, _) in codecs.items()}

    return encode, lambda data: cls(**{name: codecs[name][1](x) for name, x in dict(data).items()})
