"""Safetensors files: the header first, within bounds, then floating-point tensors without NaN or infinity."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from groupwise.data import BadData, visible

MOST_HEADER = 16 << 20
"""Bytes of the largest header that is parsed: some 100,000 tensors. Larger models are split into several files."""
FLOATS = ("F64", "F32", "F16", "BF16")
"""Types of numbers that are weights as they stand. Integers, truth values and eight bits need scales."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What a header says of one tensor."""

    dtype: str
    shape: tuple[int, ...]


def header(file: Path) -> dict[str, Stored]:
    """Type and shape of every tensor of a file by its name. BadData for a file that is damaged or has too many."""
    with _opened(file) as content:
        slices = ((name, content.get_slice(name)) for name in content.keys())  # noqa: SIM118
        return {name: Stored(x.get_dtype(), tuple(x.get_shape())) for name, x in slices}


def metadata(file: Path) -> dict[str, str]:
    """What else the header says. BadData as for `header`."""
    with _opened(file) as content:
        return content.metadata() or {}


def tensors(
    file: Path, names: Collection[str], convert: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> dict[str, Tensor]:
    """The named tensors of a file, each converted. BadData for one that is no weight: see `refuse_nonsense`."""
    with _opened(file) as content:
        found = {name: convert(content.get_tensor(name)) for name in names}
    for name, tensor in found.items():
        refuse_nonsense(file, name, tensor)
    return found


def refuse_types(file: Path, stored: dict[str, Stored]) -> None:
    """BadData that names the tensors which are not of floating point."""
    odd = [f"{visible(name)} is {x.dtype}" for name, x in stored.items() if x.dtype not in FLOATS]
    if odd:
        fix = "take the model that it was quantised from: such numbers are no weights without their scales"
        raise BadData(f"{file} has weights that are no floating-point numbers", evidence=_first(odd), fix=fix)


def refuse_nonsense(file: Path, name: str, tensor: Tensor) -> None:
    """BadData for a tensor with a NaN or an infinity."""
    finite = torch.isfinite(tensor)
    if not finite.all():
        count = f"{int((~finite).sum())} of {tensor.numel()} numbers of {visible(name)} as {tensor.dtype}"
        fix = "fetch the file again, or take an earlier checkpoint; a dtype of wider range where they overflow"
        raise BadData(f"{file} has weights that are NaN or infinite", evidence=count, fix=fix)


def _first(lines: list[str]) -> str:
    return f"{len(lines)}: " + ", ".join(lines[:4]) + ", ..." * (len(lines) > 4)


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """The file, once its header is known to be of a size that is parsed quickly."""
    again = "fetch the file again"
    try:
        with file.open("rb") as content:
            size = int.from_bytes(content.read(8), "little")
        if MOST_HEADER < size <= file.stat().st_size:
            fix = "split it into several files: save_pretrained of transformers does"
            raise BadData(f"{file} has a header of {size} bytes", evidence=f"at most {MOST_HEADER} are read", fix=fix)
        with safe_open(file, framework="pt") as opened:
            yield opened
    except SafetensorError as error:
        raise BadData(f"{file} is damaged", evidence=visible(str(error)), fix=again) from error
    except OSError as error:
        raise BadData(f"{file} cannot be read", evidence=str(error.strerror), fix=again) from error
