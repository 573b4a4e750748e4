"""Two hosts on this machine: namespaces of the kernel, and a cable between them that delays, loses and is cut.

A host has its own network, process ids, name, /etc/hosts and /dev/shm. Its files are those of this machine, as in a
cluster with a shared file system. The cable is a thread of this process between two TUN devices, since not every kernel
has netem. It needs root and the programs ip, nsenter, setpriv and unshare.
"""

import fcntl
import os
import random
import select
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

NEW_DEVICE, POINT_TO_POINT, PLAIN_PACKETS = 0x400454CA, 0x0001, 0x1000
"""TUNSETIFF, IFF_TUN and IFF_NO_PI of linux/if_tun.h."""
LARGEST_PACKET = 65_536
LOCALHOST = {"localhost": "127.0.0.1"}
LONGEST = 300.0
"""Seconds until a test gives up on a command: a passing test never waits so long."""
LOOK = 0.2
"""Seconds between looks for the end of a cable."""
BOOT = """
set -e
echo "$1" > /proc/sys/kernel/hostname
mount --bind "$2" /etc/hosts
mount -t tmpfs tmpfs /dev/shm
ip link set lo up
echo ready
exec sleep infinity
"""
"""The first process of a host, which has all others. If it is killed, the kernel kills those, as a power loss does."""


def obstacle() -> str:
    """Why this machine cannot pretend hosts; empty if it can."""
    if os.geteuid():
        return "hosts need root, for namespaces"
    missing = [name for name in ("ip", "unshare", "nsenter", "setpriv") if not shutil.which(name)]
    missing += [] if Path("/dev/net/tun").exists() else ["/dev/net/tun"]
    return f"hosts need {' and '.join(missing)}" if missing else ""


@dataclass(frozen=True, slots=True)
class HostProcess:
    """A process of a host: its id on this machine, its words, and its environment."""

    pid: int
    words: Sequence[str]
    environment: Mapping[str, str]


class Command:
    """A command that was started on a host. Its output is in a file, which a test may read while it runs."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.process, self.log = process, log

    @property
    def output(self) -> str:
        """All lines so far."""
        return self.log.read_text(errors="replace").replace("\r", "\n")

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.process.poll() is not None

    def wait_for(self, text: str) -> None:
        """Wait until the output has a text. AssertionError with the output if the command ends without it."""
        end = time.monotonic() + LONGEST
        while text not in self.output:
            assert not self.ended or text in self.output, self.output
            assert time.monotonic() < end, f"{text!r} is not in: {self.output}"
            time.sleep(0.02)

    def wait(self) -> int:
        """Its exit code, once it has ended. AssertionError with the output if it does not end."""
        try:
            return self.process.wait(LONGEST)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end: {self.output}") from None


class Host:
    """A host, as a context: at its end, all its processes are killed."""

    def __init__(self, name: str, address: str, logs: Path) -> None:
        self.name, self.address, self._logs, self._count = name, address, logs, 0
        self.names = logs / f"hosts-{name}"
        self.names.touch()
        spaces = ["--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        boot = ["bash", "-c", BOOT, "boot", name, str(self.names)]
        words = ["setpriv", "--pdeathsig", "KILL", "unshare", *spaces, *boot]
        self._boot = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self._boot.stdout and self._boot.stdout.readline() == "ready\n", f"host {name} did not start"
        children = Path(f"/proc/{self._boot.pid}/task/{self._boot.pid}/children").read_text()
        self.pid = int(children.split()[0])

    def __enter__(self) -> "Host":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.power_off()

    def power_off(self) -> None:
        """End all processes of the host at once. What their connections still send is on the cable: cut it before."""
        self._boot.kill()
        self._boot.wait()
        assert self._boot.stdout
        self._boot.stdout.close()

    def words(self, command: Sequence[str], directory: Path) -> list[str]:
        """The command of this machine that runs a command on the host, in a directory."""
        spaces = ["--net", "--uts", "--ipc", "--mount", "--pid", f"--wdns={directory}"]
        return ["nsenter", f"--target={self.pid}", *spaces, "--", *command]

    def run(self, *command: str) -> None:
        """Run a short command of the system on the host."""
        subprocess.run(self.words(command, Path("/")), check=True, capture_output=True)

    def start(self, *command: str, directory: Path, environment: Mapping[str, str] | None = None) -> Command:
        """Start a command. This interpreter's directory is the first of its PATH."""
        self._count += 1
        log = self._logs / f"{self.name}-{self._count}.log"
        with log.open("wb") as output:
            return Command(self._popen(command, directory, environment or {}, subprocess.DEVNULL, output), log)

    def shell(self, directory: Path) -> "Shell":
        """A shell on the host, which keeps its variables between commands."""
        self._count += 1
        log = self._logs / f"{self.name}-{self._count}.log"
        with log.open("wb") as output:
            process = self._popen(["bash"], directory, {}, subprocess.PIPE, output)
        return Shell(process, log)

    def processes(self) -> Iterator[HostProcess]:
        """The processes of the host that run."""
        space = os.readlink(f"/proc/{self.pid}/ns/pid")
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it ends meanwhile
                if os.readlink(folder / "ns/pid") == space:
                    words = (folder / "cmdline").read_text().split("\0")[:-1]
                    pairs = (folder / "environ").read_text().split("\0")[:-1]
                    yield HostProcess(int(folder.name), words, dict(pair.split("=", 1) for pair in pairs))

    def rank(self, number: int) -> int:
        """The process id of a rank. AssertionError if the host does not have it."""
        return self._one(f"rank {number}", lambda process: process.environment.get("RANK") == str(number))

    def agent(self) -> int:
        """The process id of torchrun. AssertionError if the host does not have it."""
        return self._one("torchrun", lambda process: "torch.distributed.run" in process.words)

    def _one(self, what: str, fits: Callable[[HostProcess], bool]) -> int:
        found = [process.pid for process in self.processes() if fits(process)]
        assert found, f"host {self.name} has no {what}"
        return min(found)

    def _popen(
        self, command: Sequence[str], directory: Path, environment: Mapping[str, str], source: int, output: IO[bytes]
    ) -> "subprocess.Popen[bytes]":
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        variables = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **environment}
        words = self.words(command, directory)
        return subprocess.Popen(words, env=variables, stdin=source, stdout=output, stderr=subprocess.STDOUT)


class Shell(Command):
    """A bash on a host."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        super().__init__(process, log)
        self._lines = 0

    def begin(self, text: str) -> str:
        """Start lines of bash, and return the line that is printed with their exit code once they have ended."""
        assert self.process.stdin
        self._lines += 1
        mark = f"\nlines {self._lines} ended with "
        self.process.stdin.write(f"{text}\nprintf '\\nlines {self._lines} ended with %d \\n' $?\n".encode())
        self.process.stdin.flush()
        return mark

    def end(self, mark: str) -> None:
        """Wait for lines that were begun. AssertionError unless their exit code is 0."""
        self.wait_for(mark)
        assert self.output.partition(mark)[2].startswith("0 "), self.output

    def run(self, text: str) -> None:
        """Run lines of bash. AssertionError unless their exit code is 0."""
        self.end(self.begin(text))


class Cable:
    """The cable between two hosts, as a context. Each packet is `delay` seconds under way, and a share `loss` is lost.

    Cut, it carries nothing in either direction, and both hosts notice only that.
    """

    def __init__(self, hosts: Sequence[Host], *, delay: float = 0.0, loss: float = 0.0) -> None:
        self.delay, self.loss, self.is_cut = delay, loss, False
        self.carried = self.lost = 0
        self._random = random.Random(0)
        self._ends = [self._end(host) for host in hosts]
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._carry)

    def __enter__(self) -> "Cable":
        self._thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._closed.set()
        self._thread.join()
        for end in self._ends:
            os.close(end)

    def cut(self) -> None:
        """Carry nothing from now on, nor what is under way."""
        self.is_cut = True

    def mend(self) -> None:
        """Carry packets again."""
        self.is_cut = False

    @staticmethod
    def _end(host: Host) -> int:
        """A network device of a host, whose packets this process reads and writes."""
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        name = f"{host.name}{os.getpid()}"
        fcntl.ioctl(device, NEW_DEVICE, struct.pack("16sH22x", name.encode(), POINT_TO_POINT | PLAIN_PACKETS))
        subprocess.run(["ip", "link", "set", name, "netns", str(host.pid)], check=True)
        host.run("ip", "link", "set", name, "name", "eth0")
        host.run("ip", "addr", "add", f"{host.address}/24", "dev", "eth0")
        host.run("ip", "link", "set", "eth0", "up")
        return device

    def _carry(self) -> None:
        """Read packets at both ends, and write each at the other one when its time has come."""
        first, second = self._ends
        other = {first: second, second: first}
        open_ends, under_way = {first, second}, deque[tuple[float, int, bytes]]()
        while not self._closed.is_set():
            wait = max(0.0, under_way[0][0] - time.monotonic()) if under_way else LOOK
            for end in select.select([*open_ends], [], [], wait)[0]:
                try:
                    packet = os.read(end, LARGEST_PACKET)
                except BlockingIOError:
                    continue
                except OSError:  # its host is off
                    open_ends.discard(end)
                    continue
                if self.is_cut or self._random.random() < self.loss:
                    self.lost += 1
                else:
                    under_way.append((time.monotonic() + self.delay, other[end], packet))
            while under_way and under_way[0][0] <= time.monotonic():
                _, end, packet = under_way.popleft()
                with suppress(OSError):  # its host is off
                    self.carried += 0 if self.is_cut else bool(os.write(end, packet))


@contextmanager
def two_hosts(
    logs: Path, *, delay: float = 0.0, loss: float = 0.0, own_address: str = "127.0.1.1"
) -> Iterator[tuple[Host, Host, Cable]]:
    """The hosts `a` and `b`, and their cable. `logs` is a directory for the output of their commands.

    A host has its own name at `own_address` of its loopback, as on Debian; without one, at its address on the cable.
    """
    addresses = {"a": "10.77.0.1", "b": "10.77.0.2"}
    logs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        a, b = (stack.enter_context(Host(name, address, logs)) for name, address in addresses.items())
        for host in (a, b):
            own = {host.name: own_address} if own_address else {}
            host.names.write_text("".join(f"{ip} {name}\n" for name, ip in {**LOCALHOST, **addresses, **own}.items()))
        yield a, b, stack.enter_context(Cable([a, b], delay=delay, loss=loss))
