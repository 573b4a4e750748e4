"""The secret that a trainer and its engines on other hosts share, and how each proves to the other that it has it.

The server sends a random challenge, the client its own challenge with a proof, and the server its proof. A proof is an
HMAC of both challenges and the server's fingerprint. So the secret itself never travels, and a proof that was made for
one server or one connection is worth nothing on another one.
"""

import hmac
import os
import re
import secrets
import stat
from asyncio import StreamReader, StreamWriter
from pathlib import Path

from groupwise.core import EngineLost, Usage, open_regular
from groupwise.engines.remote.wire import LARGEST_GREETING, WireError, encode, error_json, error_of, read_message

__all__ = ["read_secret"]

VARIABLE = "GROUPWISE_SECRET"
"""The environment variable that has the secret if no file is named."""
LEAST = 32
"""The characters of the shortest secret: proofs of a shorter one could be guessed."""
MAKE = "python -c 'import secrets; print(secrets.token_hex(32))' > secret && chmod 600 secret"
NAMED = f"--engine-secret FILE in the trainer, --secret-file FILE in groupwise serve, or {VARIABLE} with its content"
HEXADECIMAL = re.compile("[0-9a-f]{64}")
"""A challenge or a proof."""
LARGEST = 1 << 16
"""The most bytes that are read from a file with a secret or a key."""


def read_secret(file: str) -> bytes:
    """The secret in a file that only its owner can read, or else in GROUPWISE_SECRET. `Usage` without one."""
    if file:
        secret = read_private(Path(file), "the secret").strip()
    else:
        secret = os.environ.get(VARIABLE, "").strip().encode()
    if not secret:
        what = f"{file} is empty" if file else "engines on other hosts need a secret, and there is none"
        raise Usage(what, fix=f"make one: {MAKE}; then name it: {NAMED}")
    if len(secret) < LEAST:
        what = f"the secret has {len(secret)} characters: it needs {LEAST}"
        raise Usage(what, fix=f"make another one, the same on all hosts: {MAKE}")
    return secret


def read_private(path: Path, what: str) -> bytes:
    """The content of a file. `Usage` if other users may read or write it."""
    try:
        with open_regular(path, LARGEST) as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise Usage(f"other users can open {path}, which has {what}", evidence=f"its mode is {mode:o}",
                            fix=f"chmod 600 {path}")  # fmt: skip
            return file.read(LARGEST)
    except OSError as error:
        reason = error.strerror or str(error)
        raise Usage(f"{what} in {path} cannot be read", evidence=reason, fix="check the path") from error


async def admit(reader: StreamReader, writer: StreamWriter, secret: bytes, fingerprint: str) -> bool:
    """Whether the client of this connection has the secret. If not, it gets an error and nothing else."""
    ours = secrets.token_hex(32)
    writer.write(encode({"challenge": ours}))
    message = await read_message(reader, LARGEST_GREETING)
    if message is None:
        return False
    theirs, proof = _texts(message, "challenge", "proof")
    if not hmac.compare_digest(proof.encode(), _proof(secret, "client", fingerprint, ours, theirs).encode()):
        error = Usage("the secret of the engine is another one", fix="use the same secret on both sides")
        writer.write(encode({"id": None, "error": error_json(error)}))
        return False
    writer.write(encode({"proof": _proof(secret, "server", fingerprint, ours, theirs)}))
    return True


async def prove(reader: StreamReader, writer: StreamWriter, secret: bytes, fingerprint: str, name: str) -> None:
    """Prove to the engine `name` that we have the secret. `Usage` if it has another one."""
    wrong = Usage(f"{name} has another secret", fix="use the same secret on both sides")
    try:
        theirs = _texts(await answer(reader), "challenge")[0]
        ours = secrets.token_hex(32)
        proof = _proof(secret, "client", fingerprint, theirs, ours)
        writer.write(encode({"challenge": ours, "proof": proof}))
        message = await answer(reader)
        if message.get("error") is not None:
            raise wrong from error_of(message["error"])
        found, expected = _texts(message, "proof")[0], _proof(secret, "server", fingerprint, theirs, ours)
    except WireError as error:
        raise EngineLost(f"no engine listens on {name}", evidence=str(error)) from error
    if not hmac.compare_digest(found.encode(), expected.encode()):
        raise wrong


async def answer(reader: StreamReader) -> dict[str, object]:
    """The next message of the engine. ConnectionAbortedError if it closes the connection."""
    message = await read_message(reader, LARGEST_GREETING)
    if message is None:
        raise ConnectionAbortedError("before a proof")
    return message


def _proof(secret: bytes, side: str, fingerprint: str, server: str, client: str) -> str:
    """What only `side` can compute who has the secret."""
    text = "\n".join(("groupwise engine", side, fingerprint, server, client))
    return hmac.new(secret, text.encode(), "sha256").hexdigest()


def _texts(message: dict[str, object], *names: str) -> list[str]:
    """The texts of these fields, of 64 hexadecimal digits each. WireError for anything else."""
    texts = [text for name in names if isinstance(text := message.get(name), str) and HEXADECIMAL.fullmatch(text)]
    if len(texts) != len(names):
        raise WireError(f"a message has no {' and '.join(names)}")
    return texts
