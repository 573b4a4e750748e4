"""Damaged and malicious GGUF files are refused within bounds."""

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from groupwise.core import BadData
from groupwise.models.decoder import gguf_header
from groupwise.models.decoder.convert_gguf import gguf_config
from groupwise.models.decoder.gguf_header import ARRAY, STRING, read_gguf_header
from tests.models.gguf_files import entry, header, tensor, text

HUGE = 2**63
NUMBER, SMALL = 4, struct.pack("<I", 7)
FAMILY = entry("general.architecture", STRING, text("llama"))
MANY = struct.pack("<IQ", STRING, HUGE)

HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "another format": b"PK\3\4" + bytes(100),
    "magic alone": b"GGUF",
    "version 1": header([], [], version=1),
    "big-endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
    "huge count of tensors": b"GGUF" + struct.pack("<IQQ", 3, HUGE, 0),
    "huge count of metadata": b"GGUF" + struct.pack("<IQQ", 3, 0, HUGE),
    "huge name": header([struct.pack("<Q", HUGE) + b"x"], []),
    "huge text": header([entry("a", STRING, struct.pack("<Q", HUGE))], []),
    "huge array of numbers": header([entry("a", ARRAY, struct.pack("<IQ", 0, HUGE))], []),
    "huge array of texts": header([entry("a", ARRAY, MANY)], []),
    "empty texts without end": header([entry("a", ARRAY, MANY + bytes(8 * 1000))], []),
    "array of arrays": header([entry("a", ARRAY, struct.pack("<IQ", ARRAY, 1))], []),
    "unknown type": header([entry("a", 77, SMALL)], []),
    "repeated key": header([entry("a", NUMBER, SMALL)] * 2, []),
    "not UTF-8": header([struct.pack("<Q", 1) + b"\xff" + struct.pack("<I", NUMBER) + SMALL], []),
    "repeated tensor": header([FAMILY], [tensor("a", (2,))] * 2),
    "many dimensions": header([FAMILY], [text("a") + struct.pack("<I", 2**31)]),
    "no dimension": header([FAMILY], [tensor("a", ())]),
    "alignment 0": header([entry("general.alignment", NUMBER, struct.pack("<I", 0))], []),
    "alignment as text": header([entry("general.alignment", STRING, text("32"))], []),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_header_is_refused_in_little_memory(tmp_path: Path, case: str) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(HOSTILE[case])
    tracemalloc.start()
    try:
        with pytest.raises(BadData) as caught:
            read_gguf_header(file)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert caught.value.fix and all(line.isprintable() for line in str(caught.value).split("\n"))


@pytest.mark.parametrize("cut", [4, 10, 24, 30, 60, 100])
def test_a_truncated_header_is_named(tmp_path: Path, cut: int) -> None:
    file = tmp_path / "m.gguf"
    whole = header([FAMILY, entry("a", ARRAY, struct.pack("<IQ3I", NUMBER, 3, 1, 2, 3))], [tensor("x", (2, 3))])
    assert len(whole) > cut
    file.write_bytes(whole[:cut])
    with pytest.raises(BadData, match="is truncated"):
        read_gguf_header(file)


def test_a_header_is_parsed_up_to_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(header([entry("a", STRING, text("x" * 2000))], []))
    monkeypatch.setattr(gguf_header, "MOST_HEADER", 1000)
    with pytest.raises(BadData, match="has a header of more than 1000 bytes"):
        read_gguf_header(file)


def test_values_and_tensors(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    metadata = [
        FAMILY,
        entry("general.alignment", NUMBER, struct.pack("<I", 64)),
        entry("names", ARRAY, struct.pack("<IQ", STRING, 2) + text("a") + text("ñ")),
        entry("numbers", ARRAY, struct.pack("<IQ3i", 5, 3, -1, 2, 3)),
        entry("flag", 7, b"\1"),
        entry("share", 6, struct.pack("<f", 0.5)),
    ]
    content = header(metadata, [tensor("x", (4, 3), 8, 128)])
    file.write_bytes(content)
    read = read_gguf_header(file)
    assert read.metadata["names"] == ["a", "ñ"] and read.metadata["numbers"].tolist() == [-1, 2, 3]
    assert read.metadata["flag"] is True and read.metadata["share"] == 0.5
    x = read.tensors["x"]
    assert (x.ggml_type, x.shape, x.offset) == (8, (3, 4), -(-len(content) // 64) * 64 + 128)


SIZES = ("block_count", "feed_forward_length", "attention.head_count", "context_length")
NONSENSE: dict[str, Callable[[dict[str, object]], object]] = {
    "no family": lambda m: m.pop("general.architecture"),
    "family a number": lambda m: m.update({"general.architecture": 3}),
    "no width": lambda m: m.pop("llama.embedding_length"),
    "layers 2**31": lambda m: m.update({"llama.block_count": 2**31}),
    "heads as text": lambda m: m.update({"llama.attention.head_count": "x"}),
    "heads of 0": lambda m: m.update({"llama.attention.head_count": 0}),
    "heads by layer": lambda m: m.update({"llama.attention.head_count": [1, 2]}),
    "eps NaN": lambda m: m.update({"llama.attention.layer_norm_rms_epsilon": float("nan")}),
    "end a text": lambda m: m.update({"tokenizer.ggml.eos_token_id": "x"}),
    "no end": lambda m: m.pop("tokenizer.ggml.eos_token_id"),
    "a scale by layer": lambda m: m.update({"llama.attention.scale": [1.0, 2.0]}),
}


@pytest.mark.parametrize("case", NONSENSE)
def test_invalid_metadata_are_refused(tmp_path: Path, case: str) -> None:
    metadata: dict[str, object] = {"general.architecture": "llama", "tokenizer.ggml.eos_token_id": 0}
    metadata |= {f"llama.{name}": 8 for name in SIZES}
    metadata |= {"llama.embedding_length": 64, "llama.attention.layer_norm_rms_epsilon": 1e-5}
    read = gguf_header.GgufHeader(metadata, {"token_embd.weight": gguf_header.GgufTensor(0, (40, 8), 0)})
    file = tmp_path / "m.gguf"
    assert gguf_config(file, read)["vocab_size"] == 40
    NONSENSE[case](metadata)
    with pytest.raises(BadData):
        gguf_config(file, read)
