"""Files of strangers become pictures in a worker process with bounded time and memory, or typed errors."""

import io
import os
import signal
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from groupwise.core import BadData, MissingRequirement
from groupwise.models import decode_picture, picture_of_pixels, pixels_of_picture
from groupwise.models.flow.latent_pictures import SIGNATURE, chunk
from groupwise.models.line_worker import LineWorker
from groupwise.models.vision import picture_pixels, picture_worker


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def noisy(mode: str = "RGB") -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def png_header(width: int, height: int, data: bytes = b"", depth: int = 8, colour: int = 2) -> bytes:
    """A PNG file with this size in its header."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return SIGNATURE + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
@pytest.mark.parametrize("mode", ["RGB", "L", "1", "P"])
def test_lossless_files_have_the_pixels_of_their_picture(kind: str, mode: str) -> None:
    image = noisy(mode)
    picture = decode_picture(encoded(image, kind, lossless=True) if kind == "WEBP" else encoded(image))
    assert (pixels_of_picture(picture) == np.asarray(image.convert("RGB"))).all()
    assert picture == picture_of_pixels(np.asarray(image.convert("RGB")))


def test_a_photograph_is_upright_and_transparency_is_white() -> None:
    image = Image.new("RGB", (8, 16), (200, 30, 30))
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a right angle
    turned = decode_picture(encoded(image, "JPEG", exif=exif))
    assert (turned.width, turned.height) == (16, 8)
    assert decode_picture(encoded(image, "JPEG")).width == 8
    clear = Image.new("RGBA", (2, 1), (9, 9, 9, 0))
    assert pixels_of_picture(decode_picture(encoded(clear))).tolist() == [[[255] * 3, [255] * 3]]
    cmyk = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    red, green, _ = pixels_of_picture(decode_picture(encoded(cmyk, "JPEG")))[0, 0].tolist()
    assert red > 200 and green < 60


def test_equal_pixels_are_one_picture_whatever_their_file() -> None:
    image = noisy()
    hashes = {decode_picture(encoded(image, "PNG", compress_level=level)).sha256 for level in (0, 9)}
    assert len(hashes) == 1
    wide, tall = (picture_of_pixels(np.zeros(shape, np.uint8)) for shape in ((2, 8, 3), (8, 2, 3)))
    assert wide.sha256 != tall.sha256


SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>'
BOMB = zlib.compress(b"\0" * (1 << 24), 9)
HOSTILE: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "no picture of the formats PNG, JPEG, WEBP"),
    "text": (b"hello" * 100, "no picture of the formats"),
    "SVG": (SVG, "no picture of the formats"),
    "GIF": (encoded(noisy("P"), "GIF"), "no picture of the formats"),
    "BMP": (encoded(noisy(), "BMP"), "no picture of the formats"),
    "TIFF": (encoded(noisy(), "TIFF"), "no picture of the formats"),
    "PostScript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "no picture of the formats"),
    "a bomb": (png_header(60_000, 60_000, BOMB), "60,000 x 60,000 pixels"),
    "a long side": (png_header(1 << 20, 1, BOMB), "1,048,576 x 1 pixels"),
    "more pixels than the bound": (png_header(16_000, 2_000, BOMB), "16,000 x 2,000 pixels"),
    "no pixels": (png_header(0, 5), "a picture cannot be used"),
    "16 bits": (encoded(Image.new("I;16", (4, 4), 40_000)), "the mode I;16"),
    "a truncated PNG": (encoded(noisy())[:60], "a picture cannot be used"),
    "a truncated JPEG": (encoded(noisy(), "JPEG")[:-40], "truncated"),
    "a truncated WebP": (encoded(noisy(), "WEBP")[:-20], "a picture cannot be used"),
    "damaged pixels": (png_header(9, 9, b"no zlib"), "a picture cannot be used"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_other_files_are_refused(name: str) -> None:
    data, why = HOSTILE[name]
    with pytest.raises(BadData) as caught:
        decode_picture(data)
    assert why in str(caught.value) and "do:" in str(caught.value)
    assert decode_picture(encoded(noisy())).width == 9, "the worker goes on"


def test_a_large_file_is_refused_before_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture_pixels, "MOST_BYTES", 10)
    monkeypatch.setattr(picture_pixels, "_DECODER", None)
    with pytest.raises(BadData, match="11 bytes: 10 are the most"):
        decode_picture(b"x" * 11)


def test_a_text_chunk_that_expands_is_bounded() -> None:
    """The memory of a compressed comment, which Pillow expands, stays below its bound, or the picture is refused."""
    text = b"c\0\0" + zlib.compress(b"\0" * (1 << 28), 9)
    good = encoded(noisy())
    data = good[:33] + chunk(b"zTXt", text) + good[33:]
    with pytest.raises(BadData, match="a picture cannot be used"):
        decode_picture(data)


def worker_in(path: Path, body: str) -> LineWorker:
    file = path / "worker.py"
    file.write_text(f"import json, os, sys, time\nprint(flush=True)\nfor line in sys.stdin:\n    {body}\n")
    return LineWorker(file, purpose="pictures", packages="pillow", deadline=0.2)


@pytest.mark.parametrize(
    "body", ["os._exit(3)", "time.sleep(60)", "print('{\"width\":', flush=True, end=''); os._exit(0)"]
)
def test_a_worker_that_dies_or_hangs_is_replaced(body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = worker_in(tmp_path, body)
    monkeypatch.setattr(picture_pixels, "_DECODER", worker)
    for _ in range(2):
        with pytest.raises(BadData, match="its decoder was killed"):
            decode_picture(b"anything")
    assert worker._process is None


@pytest.mark.parametrize(
    "reply", [{"width": 2, "height": 2, "rgb": ""}, {"width": -1, "height": -1, "rgb": "AAAA"}, {"rgb": 7}, {}]
)
def test_a_worker_that_was_taken_over_is_not_believed(
    reply: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = worker_in(tmp_path, f"print(json.dumps({reply!r}), flush=True)")
    monkeypatch.setattr(picture_pixels, "_DECODER", worker)
    with pytest.raises(BadData, match="its decoder failed"):
        decode_picture(b"anything")
    worker.close()


def test_a_worker_without_pillow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "worker.py").write_text("import a_package_that_is_missing\n")
    worker = LineWorker(
        tmp_path / "worker.py", purpose="pictures of data rows cannot be decoded", packages="'groupwise[pictures]'",
        deadline=5.0,
    )  # fmt: skip
    monkeypatch.setattr(picture_pixels, "_DECODER", worker)
    with pytest.raises(MissingRequirement, match=r"cannot be decoded(.|\n)*groupwise\[pictures\]"):
        decode_picture(b"anything")


def test_the_worker_has_its_limits() -> None:
    """Read from the kernel while it runs."""
    decode_picture(encoded(noisy()))
    process = picture_pixels._DECODER._process
    assert process is not None
    limits = Path(f"/proc/{process.pid}/limits").read_text() if os.path.isdir("/proc") else ""
    for name, value in (("Max address space", picture_worker.MEMORY), ("Max file size", 0)):
        line = next((line for line in limits.splitlines() if line.startswith(name)), f"{name} {value}")
        assert line.removeprefix(name).split()[0] == str(value)


def test_the_worker_is_ended_by_its_cpu_time(tmp_path: Path) -> None:
    """The worker's own code, with a picture that never ends and a twentieth of a second for it."""
    (tmp_path / "worker.py").write_text(
        f"import sys, itertools\nsys.path.insert(0, {str(Path(picture_worker.__file__).parent)!r})\n"
        "import picture_worker as worker\nworker.SECONDS = 0.05\n"
        "worker.rgb = lambda data: sum(itertools.repeat(1))\nworker.serve()\n"
    )
    command = [sys.executable, str(tmp_path / "worker.py")]
    ended = subprocess.run(command, input=b'{"data": ""}\n', capture_output=True, timeout=60, check=False)
    assert ended.returncode == -signal.SIGPROF and ended.stdout == b"\n"
