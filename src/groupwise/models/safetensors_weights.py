"""Read the safetensors files of a model directory; refuse huge headers, NaN and infinity."""

import json
import os
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedIOBase
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from groupwise.core import BadData, open_regular, visible
from groupwise.models.json_fields import short
from groupwise.models.model_json_files import listing, read_json

FRESH = "fresh_weights"
"""The key of config.json that marks a directory without weights: a run creates random ones from its seed."""
MOST_HEADER = 16 << 20
"""Largest header that is parsed, in bytes: some 100,000 tensors. Larger models have several files."""
TYPES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.float16: "F16",
    torch.bfloat16: "BF16", torch.int32: "I32", torch.float32: "F32", torch.float64: "F64", torch.int64: "I64",
}  # fmt: skip
"""The names of dtypes in headers, in the order in which the library sorts tensors, the last ones first."""
FLOATS = ("F64", "F32", "F16", "BF16")
"""The types of tensors that can be trained. Integers and 8-bit numbers would need scales."""


def stored_weights(path: Path) -> list[Path]:
    """model.safetensors, or the shards in model.safetensors.index.json; none for a fresh model. BadData if missing."""
    index = path / "model.safetensors.index.json"
    if (path / "model.safetensors").is_file():
        names = ["model.safetensors"]
    elif index.is_file():
        names = _shards(index)
    elif (path / "config.json").is_file() and read_json(path / "config.json").get(FRESH) is True:
        names = []
    else:
        pickled = sorted(p.name for pattern in ("*.bin", "*.pt", "*.pth") for p in path.glob(pattern))
        raise BadData(
            f"{path} has no model.safetensors" + (", only a pickle checkpoint" if pickled else ""),
            evidence=", ".join(map(visible, pickled)) or listing(path),
            fix="loading a pickle can run code; convert it where you trust it: load with transformers, save_pretrained"
            if pickled
            else "fetch the directory again",
        )
    present = set(os.listdir(path))  # look names up before opening them: a name may be invalid as a file name
    for name in names:
        if name not in present or not (path / name).is_file():
            raise BadData(f"{path} lacks the shard {name}", evidence=listing(path), fix="fetch the directory again")
    return [path / name for name in names]


def _shards(index: Path) -> list[str]:
    """The file names in a safetensors index. BadData unless `weight_map` maps tensors to file names."""
    files = read_json(index).get("weight_map")
    if not isinstance(files, dict) or not files or not all(isinstance(file, str) for file in files.values()):
        evidence, fix = f"weight_map: {short(files)}", "fetch the directory again"
        raise BadData(f"{index} does not map each tensor to a file name", evidence=evidence, fix=fix)
    return sorted(set(files.values()))


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """Type and shape of a stored tensor, from the header."""

    dtype: str
    shape: tuple[int, ...]


def header(file: Path) -> dict[str, TensorHeader]:
    """Type and shape of every tensor in a file, by name. BadData for a damaged file or a header that is too large."""
    with opened(file) as content:
        slices = ((name, content.get_slice(name)) for name in content.keys())  # noqa: SIM118
        return {name: TensorHeader(x.get_dtype(), tuple(x.get_shape())) for name, x in slices}


def metadata(file: Path) -> dict[str, str]:
    """The metadata in a file's header. BadData as for `header`."""
    with opened(file) as content:
        return content.metadata() or {}


def tensors(
    file: Path, names: Collection[str], convert: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> dict[str, Tensor]:
    """Read the named tensors of a file one by one, each converted. BadData for NaN or infinity."""
    with opened(file) as content:
        converted = {name: convert(content.get_tensor(name)) for name in names}
    for name, tensor in converted.items():
        refuse_nonfinite(file, name, tensor)
    return converted


def load_exactly(model: torch.nn.Module, path: Path, convert: Callable[[Tensor], Tensor], kind: str, fix: str) -> None:
    """Give a model the tensors of a directory, each converted. BadData as for `exact_files`."""
    weights = {}
    for file, names in exact_files(model, path, kind, fix).items():
        weights |= tensors(file, names, convert)
    model.load_state_dict(weights, assign=True)


def exact_files(model: torch.nn.Module, path: Path, kind: str, fix: str) -> dict[Path, dict[str, TensorHeader]]:
    """The headers of a directory's files with weights. BadData unless their tensors are exactly the model's.

    `kind` and `fix` are for the error of a directory without weights.
    """
    if not (files := stored_weights(path)):
        raise BadData(f"the {kind} in {path} has no weights", fix=fix)
    headers = {file: header(file) for file in files}
    stored = {name: tuple(x.shape) for names in headers.values() for name, x in names.items()}
    expected = {name: tuple(p.shape) for name, p in model.named_parameters()}
    if stored != expected:
        names = sorted(name for name in stored.keys() | expected.keys() if stored.get(name) != expected.get(name))
        what = f"the tensors in {path} are not those that its config.json describes"
        raise BadData(
            what, evidence=f"missing, unknown or of another shape: {', '.join(names[:4])}", fix="copy it again"
        )
    for file, names in headers.items():
        refuse_types(file, names)
    return headers


def differences(shapes: Mapping[str, tuple[int, ...]], stored: Mapping[str, tuple[int, ...]]) -> str:
    """How stored tensors differ from the expected ones (missing, unexpected, other shape), as text; empty if equal."""
    misshapen = [n for n in shapes if n in stored and stored[n] != shapes[n]]
    kinds = {
        "missing": [n for n in shapes if n not in stored],
        "superfluous": [visible(n) for n in stored if n not in shapes],
        "misshapen": [f"{n} {stored[n]}, expected {shapes[n]}" for n in misshapen],
    }
    lines = [f"{k} ({len(v)}): " + ", ".join(v[:4]) + (", ..." if len(v) > 4 else "") for k, v in kinds.items() if v]
    return "\n".join(lines)


def write_tensors(file: Path, shapes: Mapping[str, tuple[int, ...]], read: Callable[[str], np.ndarray]) -> None:
    """Write a safetensors file of float32 tensors. `read` is called in turn: memory holds one tensor at a time."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * prod(shape)
        entries[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
    with file.open("wb") as content:
        content.write(_header_bytes(json.dumps(entries)))
        for name in shapes:
            content.write(np.ascontiguousarray(read(name), dtype="<f4").data)


def write_stream(
    content: BufferedIOBase,
    outline: Mapping[str, Tensor],
    read: Callable[[str], Tensor],
    metadata: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write tensors with the bytes of `safetensors.torch.save`. `read` is called in turn: one tensor at a time is held.

    `outline` has their dtypes and shapes, and may be on the meta device.
    """
    # The order of the library: wide numbers first, so that each tensor is aligned.
    names = sorted(outline, key=lambda name: (-list(TYPES).index(outline[name].dtype), name))
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in names:
        start, end = end, end + outline[name].nbytes
        place = {"dtype": TYPES[outline[name].dtype], "shape": list(outline[name].shape), "data_offsets": [start, end]}
        entries[name] = place
    content.write(_header_bytes(json.dumps(entries, separators=(",", ":"), ensure_ascii=False)))
    for name in names:
        content.write(read(name).detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)


def _header_bytes(text: str) -> bytes:
    """The length of a header, and the header, with spaces up to a multiple of eight bytes."""
    header = text.encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header


def refuse_types(file: Path, stored: dict[str, TensorHeader]) -> None:
    """BadData that names the tensors whose type is not floating-point."""
    odd = [f"{visible(name)} is {x.dtype}" for name, x in stored.items() if x.dtype not in FLOATS]
    if odd:
        fix = "take the model that it was quantised from: quantised weights need their scales"
        raise BadData(f"{file} has weights that are not floating-point numbers", evidence=_first(odd), fix=fix)


def refuse_nonfinite(file: Path, name: str, tensor: Tensor) -> None:
    """BadData for a tensor with NaN or infinity. One pass without copies: the extremes of a tensor with NaN are NaN."""
    if tensor.numel() and not torch.stack(torch.aminmax(tensor.detach())).isfinite().all():
        finite = torch.isfinite(tensor)
        count = f"{int((~finite).sum())} of {tensor.numel()} numbers of {visible(name)} as {tensor.dtype}"
        fix = "fetch the file again, or take an earlier checkpoint; if they overflow, use a dtype of wider range"
        raise BadData(f"{file} has weights that are NaN or infinite", evidence=count, fix=fix)


def _first(lines: list[str]) -> str:
    return f"{len(lines)}: " + ", ".join(lines[:4]) + ", ..." * (len(lines) > 4)


@contextmanager
def opened(file: Path) -> Iterator[Any]:
    """Open a file of safetensors after checking the size of its header. BadData for a damaged one."""
    again = "fetch the file again"
    try:
        with open_regular(file) as content:
            size = int.from_bytes(content.read(8), "little")
        if MOST_HEADER < size <= file.stat().st_size:
            fix = "split it into several files: save_pretrained of transformers does"
            raise BadData(f"{file} has a header of {size} bytes", evidence=f"the limit is {MOST_HEADER}", fix=fix)
        with safe_open(file, framework="pt") as opened:
            yield opened
    except SafetensorError as error:
        raise BadData(f"{file} is damaged", evidence=visible(str(error)), fix=again) from error
    except OSError as error:
        raise BadData(f"{file} cannot be read", evidence=str(error.strerror), fix=again) from error
