"""Which hosts, keys and cache files LLM judges may use. Without options they reach this machine only."""

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from groupwise.core import Usage, is_host, is_this_machine, user_cache

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CACHE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class JudgeAccess:
    """The hosts and key variables that LLM judges may use, as the command line allows. It never contains a key."""

    key_variables: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # The message leaves out the text: it may be the key itself.
        if not all(map(_VARIABLE.fullmatch, self.key_variables)):
            raise Usage("--key needs the name of an environment variable", fix="export NAME=..., then add --key NAME")
        if bad := next((host for host in self.allowed_hosts if not is_host(host)), None):
            raise Usage(f"--judge {bad!r} is no host", fix="name the host alone, as in --judge api.example.com")

    def grant(self, url: str, key: str, cache: str) -> Path | None:
        """Check a judge's server and key against what the command line allows; returns the file of its cache, if any.

        `Usage` names the options that it needs.
        """
        if key and not _VARIABLE.fullmatch(key):
            raise Usage("the judge's key names no environment variable", fix="write its name, and not the key itself")
        host = host_of(url)
        missing = [f"--judge {host}"] if host and host not in self.allowed_hosts and not is_this_machine(host) else []
        missing += [f"--key {key}"] if key and key not in self.key_variables else []
        if missing:
            what = f"the run would send problems and answers{f', and the key in {key},' if key else ''} to {url}"
            raise Usage(what, fix=f"if you trust that server, add {' '.join(missing)} to the command")
        return cache_path(cache) if cache else None


def host_of(url: str) -> str:
    """The host of a server's base URL; empty for an empty URL. `Usage` for an invalid or unprintable one.

    >>> host_of("http://localhost:8000/v1"), host_of("")
    ('localhost', '')
    """
    if not url:
        return ""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        parts, host = None, ""
    plain = re.fullmatch(r"https?://[!-~]+", url) and not re.search(r"[@?#\\]", url)
    if parts is None or not plain or not is_host(host):
        raise Usage(
            f"the judge's url {url!r} is not the URL of a server",
            fix="write the base URL of an OpenAI-compatible server: http://localhost:8000/v1",
        )
    return host


def cache_path(name: str) -> Path:
    """The path of a cache in the user's cache directory; creates the directory. `Usage` unless the name is plain."""
    if not _CACHE.fullmatch(name):
        raise Usage(
            f"the judge's cache {name!r} is not a plain file name",
            fix="write a name without a directory, such as judge.jsonl",
        )
    return user_cache("judge") / name
