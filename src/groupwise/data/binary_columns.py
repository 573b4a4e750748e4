"""Values of one type as tensors, for other processes: dataclasses become a column for each field. Nothing is pickled.

The types of the fields say how. A sequence has the number of its elements and the column of all elements; equal tuples
of integers, such as the prompt of a group, are in it once. Texts are UTF-8. NaN, infinity and -0.0 keep their bits.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from itertools import accumulate, chain, pairwise
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
import torch
from jaxtyping import Int, Shaped
from torch import Tensor

T = TypeVar("T")
Columns = Mapping[str, Tensor]
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)
DTYPES = {int: torch.int64, float: torch.float64, bool: torch.bool}
REPEATED, NARROWED = "*", "~"
"""What `compact` adds to the name of a column: `*N` for N equal elements, `~` for narrow integers."""


def to_columns(kind: Any, values: Sequence[Any], name: str) -> dict[str, Tensor]:
    """The columns of values of a type; each column's name begins with `name`. TypeError for a type without columns.

    >>> {key: x.tolist() for key, x in to_columns(tuple[int, ...], [(7, 8), (), (7, 8)], "ids").items()}
    {'ids.row': [0, 1, 0], 'ids.length': [2, 0], 'ids.item': [7, 8]}
    """
    return dict(_codec(kind).encode(values, name))


def from_columns(kind: Any, columns: Columns, name: str) -> list[Any]:
    """The values that `to_columns` got. Lists are tuples.

    Raises KeyError, TypeError, ValueError or IndexError for other columns.

    >>> from groupwise.data import Finish
    >>> from_columns(Finish | None, to_columns(Finish | None, [Finish.cut, None], "x"), "x")
    [<Finish.cut: 2>, None]
    """
    return _codec(kind).decode(columns, name)


def compact(columns: Columns) -> dict[str, Tensor]:
    """The columns without what their bits repeat: equal elements are one, and integers are as narrow as they fit.

    >>> compact({"x": torch.tensor([5, 5, 5]), "y": torch.tensor([0.5, 1.0])})
    {'x~*3': tensor([5], dtype=torch.int8), 'y': tensor([0.5000, 1.0000])}
    """
    found: dict[str, Tensor] = {}
    for name, x in columns.items():
        if x.dtype == torch.int64:
            name, x = name + NARROWED, _narrow(x)
        if x.ndim == 1 and len(x) > 1 and _is_repeated(x):
            name, x = f"{name}{REPEATED}{len(x)}", x[:1]
        found[name] = x.contiguous()
    return found


def expanded(columns: Columns) -> dict[str, Tensor]:
    """The columns that `compact` got. ValueError for others."""
    found: dict[str, Tensor] = {}
    for name, x in columns.items():
        name, _, count = name.partition(REPEATED)
        if count:
            x = x.repeat(int(count))
        if name.endswith(NARROWED):
            name, x = name.removesuffix(NARROWED), x.long()
        found[name] = x
    return found


def _narrow(x: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """The same integers in the narrowest dtype."""
    if not x.numel():
        return x.to(torch.int8)
    least, most = int(x.min()), int(x.max())
    limits = map(torch.iinfo, INTEGERS)
    return x.to(next(dtype for dtype, limit in zip(INTEGERS, limits) if limit.min <= least and most <= limit.max))


def _is_repeated(x: Shaped[Tensor, " n"]) -> bool:
    """Whether all elements have equal bits."""
    rows = x.contiguous().view(torch.uint8).view(len(x), -1)
    return bool((rows == rows[0]).all())


@dataclass(frozen=True, slots=True)
class _Codec:
    """How values of a type become columns below a name, and are read from them."""

    encode: Callable[[Sequence[Any], str], Iterator[tuple[str, Tensor]]]
    decode: Callable[[Columns, str], list[Any]]


@cache
def _codec(kind: Any) -> _Codec:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is UnionType and len(inner) == 2 and NoneType in inner:
        return _optional(_codec(next(one for one in inner if one is not NoneType)))
    if origin is Mapping and inner[0] is str:
        return _mapping(_codec(inner[1]))
    if origin is tuple and inner == (int, ...):
        return _ids()
    if origin is Sequence or (origin is tuple and inner[-1] is ...):
        return _sequence(_codec(inner[0]))
    if origin is tuple:
        return _fields([(str(i), _codec(one)) for i, one in enumerate(inner)], tuple, lambda x, name: x[int(name)])
    if is_dataclass(kind):
        return _dataclass(kind)
    if kind is str:
        return _texts()
    if kind is bytes:
        return _bytes()
    if kind in DTYPES:
        return _numbers(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum(list(kind))
    raise TypeError(f"values of the type {kind} have no columns")


def _dataclass(cls: Any) -> _Codec:
    kinds, names = get_type_hints(cls), [f.name for f in fields(cls)]
    return _fields([(name, _codec(kinds[name])) for name in names], lambda row: cls(**dict(zip(names, row))), getattr)


def _numbers(kind: type) -> _Codec:
    def encode(values: Sequence[Any], name: str) -> Iterator[tuple[str, Tensor]]:
        yield name, torch.from_numpy(np.fromiter(values, kind, len(values)))

    def decode(columns: Columns, name: str) -> list[Any]:
        if (x := columns[name]).dtype != DTYPES[kind] or x.ndim != 1:
            raise TypeError(f"{name} has the dtype {x.dtype} and {x.ndim} dimensions")
        return x.tolist()

    return _Codec(encode, decode)


def _enum(members: Sequence[Enum]) -> _Codec:
    numbers, index = _numbers(int), {member: i for i, member in enumerate(members)}

    def decode(columns: Columns, name: str) -> list[Any]:
        return _at(members, numbers.decode(columns, name), name)

    return _Codec(lambda values, name: numbers.encode([index[x] for x in values], name), decode)


def _bytes() -> _Codec:
    def encode(values: Sequence[Any], name: str) -> Iterator[tuple[str, Tensor]]:
        yield f"{name}.length", torch.tensor([len(x) for x in values], dtype=torch.int64)
        content = bytearray(b"".join(values))
        yield f"{name}.item", torch.frombuffer(content, dtype=torch.uint8) if content else torch.zeros(0).byte()

    def decode(columns: Columns, name: str) -> list[Any]:
        if (item := columns[f"{name}.item"]).dtype != torch.uint8:
            raise TypeError(f"{name} has the dtype {item.dtype}")
        content = item.numpy().tobytes()
        return [content[start:end] for start, end in _spans(columns[f"{name}.length"], len(content), name)]

    return _Codec(encode, decode)


def _texts() -> _Codec:
    content = _bytes()

    def decode(columns: Columns, name: str) -> list[Any]:
        return [x.decode("utf-8", "surrogatepass") for x in content.decode(columns, name)]

    return _Codec(
        lambda values, name: content.encode([x.encode("utf-8", "surrogatepass") for x in values], name), decode
    )


def _sequence(item: _Codec) -> _Codec:
    def encode(values: Sequence[Any], name: str) -> Iterator[tuple[str, Tensor]]:
        yield f"{name}.length", torch.tensor([len(x) for x in values], dtype=torch.int64)
        yield from item.encode(list(chain.from_iterable(values)), f"{name}.item")

    def decode(columns: Columns, name: str) -> list[Any]:
        items = item.decode(columns, f"{name}.item")
        return [tuple(items[start:end]) for start, end in _spans(columns[f"{name}.length"], len(items), name)]

    return _Codec(encode, decode)


def _ids() -> _Codec:
    """Tuples of integers, equal ones once."""
    distinct, row = _sequence(_numbers(int)), _numbers(int)

    def encode(values: Sequence[Any], name: str) -> Iterator[tuple[str, Tensor]]:
        places: dict[tuple[int, ...], int] = {}
        yield from row.encode([places.setdefault(x, len(places)) for x in values], f"{name}.row")
        yield from distinct.encode(list(places), name)

    def decode(columns: Columns, name: str) -> list[Any]:
        return _at(distinct.decode(columns, name), row.decode(columns, f"{name}.row"), name)

    return _Codec(encode, decode)


def _optional(given: _Codec) -> _Codec:
    present = _numbers(bool)

    def encode(values: Sequence[Any], name: str) -> Iterator[tuple[str, Tensor]]:
        yield from present.encode([x is not None for x in values], f"{name}.present")
        yield from given.encode([x for x in values if x is not None], f"{name}.given")

    def decode(columns: Columns, name: str) -> list[Any]:
        flags, found = present.decode(columns, f"{name}.present"), given.decode(columns, f"{name}.given")
        if sum(flags) != len(found):
            raise ValueError(f"{name} has {len(found)} values for {sum(flags)} places")
        rest = iter(found)
        return [next(rest) if flag else None for flag in flags]

    return _Codec(encode, decode)


def _mapping(value: _Codec) -> _Codec:
    pairs = _sequence(_fields([("key", _texts()), ("value", value)], tuple, lambda x, name: x[name == "value"]))

    def encode(values: Sequence[Any], name: str) -> Iterator[tuple[str, Tensor]]:
        return pairs.encode([tuple(x.items()) for x in values], name)

    return _Codec(encode, lambda columns, name: [dict(x) for x in pairs.decode(columns, name)])


def _fields(
    parts: Sequence[tuple[str, _Codec]], made: Callable[[Sequence[Any]], Any], read: Callable[[Any, str], Any]
) -> _Codec:
    def encode(values: Sequence[Any], name: str) -> Iterator[tuple[str, Tensor]]:
        for part, codec in parts:
            yield from codec.encode([read(x, part) for x in values], f"{name}.{part}")

    def decode(columns: Columns, name: str) -> list[Any]:
        found = [codec.decode(columns, f"{name}.{part}") for part, codec in parts]
        return [made(row) for row in zip(*found, strict=True)]

    return _Codec(encode, decode)


def _at(values: Sequence[T], places: Sequence[int], name: str) -> list[T]:
    """The values at these indices. ValueError or IndexError for others."""
    if min(places, default=0) < 0:
        raise ValueError(f"{name} has a negative index")
    return [values[i] for i in places]


def _spans(lengths: Tensor, size: int, name: str) -> Iterator[tuple[int, int]]:
    """Start and end of each row in `size` elements. ValueError unless the rows are all elements."""
    if lengths.dtype != torch.int64:
        raise TypeError(f"the lengths of {name} have the dtype {lengths.dtype}")
    counts = lengths.tolist()
    if min(counts, default=0) < 0 or sum(counts) != size:
        raise ValueError(f"the rows of {name} have {sum(counts)} elements in all, and there are {size}")
    return pairwise(accumulate(counts, initial=0))
