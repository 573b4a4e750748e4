"""TLS between hosts: an engine's key, and the address with the fingerprint of its certificate."""

import hashlib
import os
import re
import socket
import ssl
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from groupwise.core import MissingRequirement, Usage
from groupwise.engines.remote.secret import read_private

__all__ = ["EngineTlsKey", "TlsAddress"]

ADDRESS = re.compile(
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:#/\[\]]+):(?P<port>\d{1,5})(?:#sha256=(?P<print>[0-9a-f]{64}))?"
)
BEGIN, END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
EVERY_HOST = ("", "0.0.0.0", "::")
"""Hosts to listen on that mean all interfaces of this machine."""
SECONDS = 60.0
"""The longest wait for the program openssl."""


@dataclass(frozen=True, slots=True)
class TlsAddress:
    """Where an engine listens for other hosts, and the SHA-256 of its certificate.

    >>> address = TlsAddress.parse(f"host:7000#sha256={'0' * 64}")
    >>> address.host, address.port
    ('host', 7000)
    """

    host: str
    port: int
    fingerprint: str

    @classmethod
    def parse(cls, text: str) -> "TlsAddress | None":
        """The address in a text; None for the path of a socket. ValueError for an address without a fingerprint."""
        found = ADDRESS.fullmatch(text)
        if found is None and "#sha256=" not in text:
            return None
        if found is None or found["print"] is None:
            raise ValueError(
                f"the address {text!r} is not HOST:PORT#sha256=FINGERPRINT, with 64 digits\n"
                "copy the address that groupwise serve --listen prints"
            )
        return cls(found["host"].strip("[]"), _port(found["port"]), found["print"])

    def __str__(self) -> str:
        return f"{host_port(self.host, self.port)}#sha256={self.fingerprint}"


def host_port(host: str, port: int) -> str:
    """Host and port in one text.

    >>> host_port("::1", 7000)
    '[::1]:7000'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _port(text: str) -> int:
    if int(text) > 65535:
        raise ValueError(f"{text} is no port\ntake a number below 65536")
    return int(text)


def listener_on(text: str) -> socket.socket:
    """A socket that listens on HOST:PORT; port 0 is a free one. `Usage` if that is not possible."""
    found = ADDRESS.fullmatch(text)
    fix = "name a host of this machine and a free port, such as --listen 0.0.0.0:0"
    if found is None or found["print"]:
        raise Usage(f"cannot listen on {text}: it is not HOST:PORT", fix=fix)
    host = found["host"].strip("[]")
    try:
        family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, _port(found["port"])), family=family, backlog=128)
    except (OSError, ValueError) as error:
        raise Usage(
            f"cannot listen on {text}", evidence=getattr(error, "strerror", None) or str(error), fix=fix
        ) from error
    listener.setblocking(False)
    return listener


def reachable(listener: socket.socket, key: "EngineTlsKey") -> TlsAddress:
    """The address that clients use."""
    host, port = listener.getsockname()[:2]
    return TlsAddress(socket.gethostname() if host in EVERY_HOST else host, port, key.fingerprint)


@dataclass(frozen=True, slots=True)
class EngineTlsKey:
    """The private key of an engine with its self-signed certificate, as PEM text; `fingerprint` is the SHA-256."""

    pem: bytes

    @classmethod
    def new(cls) -> "EngineTlsKey":
        """A new key, by the program openssl. `MissingRequirement` without it."""
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                   "-sha256", "-days", "3650", "-subj", "/CN=groupwise", "-keyout", "-"]  # fmt: skip
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            evidence = (getattr(error, "stderr", None) or b"").decode(errors="replace")[-500:] or str(error)
            fix = "install the program openssl, or name the file of a key that another host made: --key FILE"
            raise MissingRequirement("the program openssl made no key", evidence=evidence, fix=fix) from error
        return cls(done.stdout)

    @classmethod
    def kept(cls, path: Path) -> "EngineTlsKey":
        """The key in a file of mode 600. A new one is written if there is none, once by several hosts that share it."""
        if not path.exists():
            try:
                with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".key-") as file:  # of mode 600
                    file.write(cls.new().pem)
                    file.flush()
                    os.fsync(file.fileno())
                    os.link(file.name, path)
            except FileExistsError:
                pass  # another engine was first
            except OSError as error:
                evidence = error.strerror or str(error)
                raise Usage(f"cannot write the key {path}", evidence=evidence, fix="name another file") from error
        return cls(read_private(path, "the key"))

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the certificate, in hexadecimal digits. `Usage` without one."""
        start, end = self.pem.find(BEGIN), self.pem.find(END)
        try:
            certificate = ssl.PEM_cert_to_DER_cert(self.pem[start : end + len(END)].decode())
        except ValueError as error:
            raise _no_key(str(error)) from error
        return hashlib.sha256(certificate).hexdigest()

    def context(self) -> ssl.SSLContext:
        """The TLS settings of a server with this key. `Usage` for a key that does not fit its certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        with tempfile.NamedTemporaryFile() as file:  # of mode 600: the library reads files only
            file.write(self.pem)
            file.flush()
            try:
                context.load_cert_chain(file.name)
            except (ssl.SSLError, OSError) as error:
                raise _no_key(str(error)) from error
        return context


def _no_key(evidence: str) -> Usage:
    fix = "delete the file, so that a new one is made"
    return Usage("the file of the key has no private key with its certificate", evidence=evidence, fix=fix)


def client_context() -> ssl.SSLContext:
    """The TLS settings of a client. It checks the certificate by its fingerprint alone, with `same_certificate`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def check_certificate(connection: ssl.SSLObject, address: TlsAddress) -> None:
    """`Usage` unless the other side has the certificate of the address; TLS has checked that it has the key."""
    found = hashlib.sha256(connection.getpeercert(binary_form=True) or b"").hexdigest()
    if found != address.fingerprint:
        raise Usage(
            f"{host_port(address.host, address.port)} is not the engine of the address: it has another certificate",
            evidence=f"SHA-256 {found}\nexpected {address.fingerprint}",
            fix="copy the address that groupwise serve printed last; with --key FILE it stays the same",
        )  # fmt: skip
