"""Which hosts, keys and cache files LLM judges may use. Without options they reach this machine only."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from groupwise.core import Usage, is_host, is_this_machine, user_cache

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CACHE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class JudgeAccess:
    """The hosts and key variables that LLM judges may use, as the command line allows. It never contains a key."""

    keys: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # The message leaves out the text: it may be the key itself.
        if not all(map(_VARIABLE.fullmatch, self.keys)):
            raise Usage("--key needs the name of an environment variable", fix="export NAME=..., then add --key NAME")
        if bad := next((host for host in self.hosts if not is_host(host)), None):
            raise Usage(f"--judge {bad!r} is no host", fix="name the host alone, as in --judge api.example.com")

    def grant(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Check the judge's fields against what the command line allows. `Usage` names the options that it needs."""
        url, key, cache = (fields.get(name, "") for name in ("url", "key", "cache"))
        if not all(isinstance(text, str) for text in (url, key, cache)):
            raise Usage("judge: url, key and cache must be text", fix="write them in quotation marks")
        if key and not _VARIABLE.fullmatch(key):
            raise Usage("judge(key=...) names no environment variable", fix="write its name, and not the key itself")
        host = host_of(url)
        missing = [f"--judge {host}"] if host and host not in self.hosts and not is_this_machine(host) else []
        missing += [f"--key {key}"] if key and key not in self.keys else []
        if missing:
            what = f"the run would send problems and answers{f', and the key in {key},' if key else ''} to {url}"
            raise Usage(what, fix=f"if you trust that server, add {' '.join(missing)} to the command")
        return {**fields, "cache": str(cache_path(cache))} if cache else dict(fields)


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
            f"judge(url={url!r}) is not the URL of a server",
            fix="write the base URL of an OpenAI-compatible server: http://localhost:8000/v1",
        )
    return host


def cache_path(name: str) -> Path:
    """The path of a cache in the user's cache directory; creates the directory. `Usage` unless the name is plain."""
    if not _CACHE.fullmatch(name):
        raise Usage(
            f"judge(cache={name!r}) is not a plain file name",
            fix="write a name without a directory: cache='judge.jsonl'",
        )
    return user_cache("judge") / name
