"""Worker process that decodes pictures of data rows and can be killed. Run by path, never imported.

Each line of standard input is a JSON request with the bytes of a file in base64; each line of standard output is its
reply. A file may be a bomb, be damaged, or exploit its decoder. The kernel limits the memory of the process, and ends
it when a picture exceeds its CPU time. It cannot write files.
"""

import json
import resource
import signal
import sys
from base64 import b64decode, b64encode
from contextlib import suppress
from io import BytesIO
from typing import Any

from PIL import Image, ImageOps, JpegImagePlugin, PngImagePlugin, WebPImagePlugin

FORMATS = ("PNG", "JPEG", "WEBP")
SECONDS, MEMORY = 10.0, 1 << 30
"""Limits of one picture: CPU seconds, and bytes of address space."""
SIDE, PIXELS = 16_384, 1 << 24
"""The most pixels of a side, and of a picture: 4,096 x 4,096. Both are read from its header, before it is decoded."""
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBa", "La", "CMYK", "YCbCr")
"""Modes of 8 bits a channel or fewer. Others, such as 16 bits, lose their light values in a conversion to RGB."""
PLUGINS = (JpegImagePlugin, PngImagePlugin, WebPImagePlugin)
"""Imported before the limits hold; Pillow imports the plugins of other formats only if `formats` names them."""


def rgb(data: bytes) -> Image.Image:
    """The picture as RGB, upright, on white where it is transparent. ValueError for one that is refused."""
    with Image.open(BytesIO(data), formats=FORMATS) as image:
        width, height = image.size
        if max(width, height) > SIDE or width * height > PIXELS:
            raise ValueError(f"it has {width:,} x {height:,} pixels: {PIXELS:,} are the most, and {SIDE:,} on a side")
        if image.mode not in MODES:
            raise ValueError(f"its pixels are of the mode {image.mode}: convert it to RGB with 8 bits a channel")
        image.load()
        upright = ImageOps.exif_transpose(image)
        if "transparency" not in upright.info and upright.mode in ("1", "L", "P", "RGB", "CMYK", "YCbCr"):
            return upright.convert("RGB")
        clear = upright.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", clear.size, (255, 255, 255)), clear).convert("RGB")


def reply(request: dict[str, Any]) -> dict[str, Any]:
    try:
        image = rgb(b64decode(request["data"]))
    except Exception as error:  # a decoder may raise any exception
        if str(error).startswith("cannot identify image file"):
            return {"error": f"it is no picture of the formats {', '.join(FORMATS)}"}
        return {"error": f"{error or type(error).__name__}"[:300]}
    return {"width": image.width, "height": image.height, "rgb": b64encode(image.tobytes()).decode()}


def serve() -> None:
    for signum in (signal.SIGINT, signal.SIGHUP):  # the parent process handles Ctrl-C and a terminal that closes
        signal.signal(signum, signal.SIG_IGN)
    Image.MAX_IMAGE_PIXELS = None  # the bounds above are smaller than Pillow's, and are errors
    Image.preinit()
    for limit, most in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        with suppress(ValueError, OSError):  # some systems lack the first limit
            resource.setrlimit(limit, (most, most))
    print(flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # its signal ends the process
        line = json.dumps(reply(request))
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(line, flush=True)


if __name__ == "__main__":
    serve()
