"""What engines in other processes may use beside the recipe: an interpreter, hosts, a secret and a directory."""

from collections.abc import Iterable
from dataclasses import dataclass

from groupwise.core import Usage, is_host, is_this_machine

__all__ = ["EngineAccess"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAccess:
    """What the command line lets engines in other processes use. A recipe names none of it.

    `python` is the interpreter of vLLM's environment. `hosts` are the other machines whose engines get prompts and
    weights; those on `nccl_hosts` may get weights by NCCL, which encrypts nothing. `secret_file` has the secret of
    engines at ports (default: the environment variable GROUPWISE_SECRET). `exchange_directory` is the directory for a
    file of weights that local engines read (default: memory, or the system's directory for temporary files).
    """

    python: str = ""
    hosts: tuple[str, ...] = ()
    nccl_hosts: tuple[str, ...] = ()
    secret_file: str = ""
    exchange_directory: str = ""

    def __post_init__(self) -> None:
        if bad := next((host for host in self.hosts if not is_host(host)), None):
            raise Usage(f"--engine-host {bad!r} is no host", fix="name the host alone, as in --engine-host gpu-1")
        for host in self.nccl_hosts:
            if host not in self.hosts and not is_this_machine(host):
                what = f"--engine-nccl {host}: the command lets no engine on {host} have weights"
                raise Usage(what, fix=f"if you trust this host, add --engine-host {host}")

    def allow(self, hosts: Iterable[str]) -> None:
        """`Usage` for hosts other than this machine that the command line does not name."""
        if others := [host for host in dict.fromkeys(hosts) if not is_this_machine(host) and host not in self.hosts]:
            what = f"the run would send prompts and weights to engines on {', '.join(others)}"
            words = " ".join(f"--engine-host {host}" for host in others)
            raise Usage(what, fix=f"if you trust these hosts, add {words} to the command")

    def interpreter(self, usual: str) -> str:
        """The interpreter of vLLM's environment. `Usage` unless the command line names one, such as the `usual` one."""
        if not self.python:
            what = "the engine Vllm runs in another Python environment, and the command names none"
            raise Usage(what, fix=f"add --engine-python {usual} to the command, or the path of another interpreter")
        return self.python
