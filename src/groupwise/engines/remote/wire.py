"""The wire between an engine's process and its client: JSON objects, each after its length in four bytes.

A client sends `{"id": 1, "do": VERB, ...}` and receives `{"id": 1, "reply": {...}}` or `{"id": 1, "error": {...}}`. Its
first verb is `hello` with the protocol's number. Texts of prompts and answers never travel, only token ids. A message
with `"bytes": N` is followed by N bytes: a part of a weights file.
"""

import json
import re
from asyncio import IncompleteReadError, StreamReader
from collections.abc import Mapping, Sequence
from typing import Any

from groupwise.core import BadData, EngineLost, GroupwiseError, Storage, Usage, WorkerLost
from groupwise.data import ContextKey, GenerationRequest, Ids, Picture
from groupwise.data.pictures import MOST_PICTURES, hash_of_pictures
from groupwise.data.rollout_json import from_json
from groupwise.models.vision.picture_pixels import MOST_PIXELS

PROTOCOL = 5
"""The number of this protocol. Both sides must have the same."""
LARGEST_REQUEST, LARGEST_REPLY = 96 << 20, 256 << 20
"""Bytes of the longest message in each direction: one with the largest picture is 70 MB. A longer one is refused before
it is read."""
LARGEST_GREETING, LARGEST_PART = 1 << 10, 4 << 20
"""Bytes of the longest message before the engine has answered `hello`, and of the longest part of a weights file."""
MOST_PARTS = 8
"""The most parts of a connection that are unanswered at a time: the window of an upload."""
MOST_RECEIVERS = 4
"""The most hosts that the trainer, or an engine, sends weights to at a time: one connection of TLS in Python does not
fill a network, and a few do. Further ones would only share it, and hosts that have the weights may send them, too."""
MOST_STOPS, LONGEST_STOP = 64, 4096
"""The most stop strings of a request, and the characters of the longest one."""
IDS, KEYS = 1 << 31, 1 << 63
"""Upper bounds of token ids and counts, and of the keys of random numbers."""
ERRORS: Mapping[str, type[GroupwiseError]] = {
    error.__name__: error for error in (BadData, EngineLost, Storage, Usage, WorkerLost)
}
"""The errors that keep their type on the wire. Any other error of an engine arrives as `WorkerLost`."""


class WireError(Exception):
    """The bytes on a connection are not a message of the protocol."""


def encode(message: Mapping[str, Any], part: bytes = b"") -> bytes:
    """The bytes of one message, with the part of a weights file that follows it."""
    data = json.dumps({**message, "bytes": len(part)} if part else message).encode()
    return len(data).to_bytes(4, "big") + data + part


async def read_message(reader: StreamReader, largest: int) -> dict[str, Any] | None:
    """The next message, with the part that follows it as `part`; None at the end of the connection.

    WireError for one that is too long, or no JSON object.
    """
    try:
        size = int.from_bytes(await reader.readexactly(4), "big")
        if size > largest:
            raise WireError(f"a message of {size} bytes: the limit is {largest}")
        message = _object(await reader.readexactly(size))
        length = _part_length(message, largest)
        has_part = length or "part" in message  # a text under that name is dropped
        return {**message, "part": await reader.readexactly(length)} if has_part else message
    except (IncompleteReadError, OSError):
        return None


def _object(data: bytes) -> dict[str, Any]:
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        raise WireError("a message is not JSON") from None
    if not isinstance(message, dict):
        raise WireError("a message is not a JSON object")
    return message


def _part_length(message: Mapping[str, Any], largest: int) -> int:
    """The bytes that follow a message. They count against the limit of messages."""
    try:
        return whole("bytes", message.get("bytes", 0), 0, min(LARGEST_PART, largest) + 1)
    except ValueError as error:
        raise WireError(str(error)) from None


def error_json(error: Exception) -> dict[str, str]:
    """An error as JSON: its type, message, evidence and fix."""
    if isinstance(error, GroupwiseError):
        kind = next((name for name, cls in ERRORS.items() if type(error) is cls), "WorkerLost")
        return {"kind": kind, "what": error.what, "evidence": error.evidence, "fix": error.fix}
    if isinstance(error, ValueError):
        return {"kind": "ValueError", "what": str(error), "evidence": "", "fix": ""}
    evidence = f"{type(error).__name__}: {error}"
    return {"kind": "WorkerLost", "what": "the engine failed", "evidence": evidence, "fix": "run with kind = 'Native'"}


def error_of(data: Any) -> Exception:
    """The error that `error_json` gave. A message without the fields of an error is a `WorkerLost`, too."""
    if not isinstance(data, dict):
        data = {}
    what, evidence, fix = (str(data.get(name, "")) for name in ("what", "evidence", "fix"))
    if data.get("kind") == "ValueError":
        return ValueError(what)
    return ERRORS.get(str(data.get("kind")), WorkerLost)(what, evidence=evidence, fix=fix)


# What a request may contain. The engine continues all requests together: one bad number would end the others.


def generation_request(data: Any) -> GenerationRequest:
    """The request in a message. ValueError for anything that `to_json` of a request does not give."""
    try:
        token_ids(data["context"])
        for name, least in (
            ("limit", 1),
            ("already_generated_count", 0),
            ("num_top_logprobs", 0),
            ("random_purpose", 0),
            ("steps_per_token", 1),
        ):
            whole(name, data[name], least, IDS)
        if data["denoising_steps"] is not None:
            whole("denoising_steps", data["denoising_steps"], 1, IDS)
        stop = data["sampling"]["stop"]
        if not all(isinstance(values, list) for values in (data["stream"], data["previous_actions"], stop)):
            raise ValueError("stream, previous_actions and stop strings of a request are lists")
        for key in (data["draw_id"], *data["stream"]):
            whole("a key of the random numbers", key, 0, KEYS)
        pictures = pictures_of(data["pictures"])
        if pictures and data["content_hash"] != hash_of_pictures(pictures):
            raise ValueError("content_hash of a request is not that of its pictures")
        texts = [data["content_hash"], *stop, *data["previous_actions"]]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("content_hash, stop strings and previous_actions of a request are text")
        if len(stop) > MOST_STOPS or any(len(text) > LONGEST_STOP for text in stop):
            raise ValueError(f"a request has at most {MOST_STOPS} stop strings of {LONGEST_STOP} characters")
        return from_json(GenerationRequest, data)
    except (AttributeError, KeyError, TypeError, Usage) as error:
        raise ValueError(f"not a generation request: {type(error).__name__}: {error}") from None


def pictures_of(values: Any) -> tuple[Picture, ...]:
    """The pictures in a message. ValueError for anything that `to_json` of a picture does not give, and for too many.

    The engine compares their pixels with their hashes when it decodes them.
    """
    if not isinstance(values, list) or len(values) > MOST_PICTURES:
        raise ValueError(f"pictures are a list of at most {MOST_PICTURES}")
    try:
        for value in values:
            width, height = (whole(name, value[name], 1, MOST_PIXELS + 1) for name in ("width", "height"))
            if width * height > MOST_PIXELS or not re.fullmatch("[0-9a-f]{64}", value["sha256"]):
                raise ValueError(f"a picture has at most {MOST_PIXELS} pixels, and a hash")
        return tuple(from_json(Picture, value) for value in values)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not a picture: {type(error).__name__}: {error}") from None


def token_ids(values: Any, below: int = IDS) -> Ids:
    """Token ids below a bound, as a tuple. ValueError for anything else."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise ValueError("token ids are a list of whole numbers")
    return tuple(whole("a token id", value, 0, below) for value in values)


def contexts_of(values: Any) -> list[ContextKey]:
    """The contexts of a `prefill`: pairs of a hash and token ids. ValueError for anything else."""
    if not isinstance(values, list) or not all(isinstance(v, list) and len(v) == 2 for v in values):
        raise ValueError("contexts are a list of pairs of a hash and token ids")
    return [(str(content), token_ids(ids)) for content, ids in values]


def whole(name: str, value: Any, least: int, below: int) -> int:
    """A whole number within its bounds. ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < below:
        raise ValueError(f"{name} is {value!r:.40}: it must be a whole number from {least} to {below - 1}")
    return value


def real(name: str, value: Any, least: float) -> float:
    """A finite number of at least `least`. ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < float("inf"):
        raise ValueError(f"{name} is {value!r:.40}: it must be a number of at least {least}")
    return float(value)
