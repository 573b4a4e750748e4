"""The machines of a planned run: number and memory of the devices, and their rates, from a TOML file."""

from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Literal

from groupwise.config.recipe import Recipe
from groupwise.config.recipe_errors import HELP
from groupwise.config.recipe_toml import read
from groupwise.config.resolve_devices import AUTO
from groupwise.core import Usage, check_types
from groupwise.planning.send_rounds import send_rounds

SHOWN = "groupwise plan --help shows a machine file"
LARGEST = 1e9
"""The largest memory and the largest rate of a device."""
MOST_DEVICES = 1 << 16
"""The largest number of devices, and of hosts, that is planned."""
LINKS = ("link_bandwidth_gb_s", "network_bandwidth_gb_s")
"""The rates between devices and between hosts. One device needs none, and neither does one host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedLengths:
    """The lengths that the plan assumes, in tokens: answers' lengths are log-normal, cut at `sampling.max_tokens`.

    `prompt` is the longest prompt; 0 means the longest of the recipe's task. `median_answer_tokens` is the median
    length of answers; 0 means a quarter of `sampling.max_tokens`. `spread` is the standard deviation of the logarithm.
    """

    prompt: int = 0
    median_answer_tokens: int = 0
    spread: float = 1.0

    def __post_init__(self) -> None:
        check_types(self)
        if not (self.prompt >= 0 and self.median_answer_tokens >= 0 and 0 <= self.spread <= 4):
            raise ValueError(f"{self}\nprompt and median_answer_tokens are at least 0, spread is from 0 to 4")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMachines:
    """The hosts of a planned run, all equal: devices, memory, and the rates that they reach (below a data sheet's).

    There are `host_count` hosts with `device_count` devices each. `network_bandwidth_gb_s` are 10^9 bytes per second
    that a host sends to the others.

    `tflops` are 10^12 operations of matrix products per second in the recipe's dtype, `memory_bandwidth_gb_s` and
    `link_bandwidth_gb_s` 10^9 bytes per second that a device reads from its memory, and sends to others.
    `decode_step_overhead_ms` are the milliseconds that an engine spends on each decoding step besides; `counted` are
    those of launching the kernels of the model. `rates_source` says where the rates come from; the plan prints it.
    `publish_bandwidth_gb_s` are 10^9 bytes of weights per second that a host of engines receives; `link`: as many as
    the link sends, or between hosts the network. `sampling_time_factor` and `learning_time_factor` are the measured
    seconds over those that the rates give.

    >>> rates = {"tflops": 400, "memory_bandwidth_gb_s": 2500, "link_bandwidth_gb_s": 300, "rates_source": "given"}
    >>> PlannedMachines(name="H100", device_count=8, memory_gib=80, **rates).device_count
    8
    """

    name: str
    device_count: int
    memory_gib: float
    tflops: float
    memory_bandwidth_gb_s: float
    link_bandwidth_gb_s: float = inf
    decode_step_overhead_ms: float | Literal["counted"] = "counted"
    publish_bandwidth_gb_s: float | Literal["link"] = "link"
    sampling_time_factor: float = 1.0
    learning_time_factor: float = 1.0
    device_type: Literal["cuda", "cpu"] = "cuda"
    host_count: int = 1
    network_bandwidth_gb_s: float = inf
    rates_source: str
    assumed_lengths: AssumedLengths = AssumedLengths()

    def __post_init__(self) -> None:
        check_types(self)
        for count, kind in ((self.device_count, "device"), (self.host_count, "host")):
            if not 1 <= count <= MOST_DEVICES:
                raise ValueError(f"{kind}_count is {count}\nuse a number of {kind}s from 1 to {MOST_DEVICES}")
        for name in (
            "memory_gib",
            "tflops",
            "memory_bandwidth_gb_s",
            "sampling_time_factor",
            "learning_time_factor",
            *LINKS,
        ):
            rate, bounded = getattr(self, name), name not in LINKS  # one device has no link
            if not 0 < rate <= (LARGEST if bounded else inf):
                raise ValueError(f"{name} is {rate}\nuse a number above 0, and at most {LARGEST:g}")
        if self.decode_step_overhead_ms != "counted" and not 0 <= self.decode_step_overhead_ms < inf:
            raise ValueError(
                f"decode_step_overhead_ms is {self.decode_step_overhead_ms}\nuse a number of milliseconds of at least 0"
            )
        if self.publish_bandwidth_gb_s != "link" and not 0 < self.publish_bandwidth_gb_s <= LARGEST:
            rate = self.publish_bandwidth_gb_s
            raise ValueError(f"publish_bandwidth_gb_s is {rate}\nuse a number above 0, and at most {LARGEST:g}")
        if self.device_count > 1 and self.link_bandwidth_gb_s == inf:
            raise ValueError(
                f"{self.device_count} devices have no link_bandwidth_gb_s\nadd the rate of the link between them"
            )
        if self.host_count > 1 and self.network_bandwidth_gb_s == inf:
            raise ValueError(
                f"{self.host_count} hosts have no network_bandwidth_gb_s\nadd the rate at which a host sends to others"
            )

    @property
    def all_devices(self) -> int:
        """The number of devices of all hosts."""
        return self.device_count * self.host_count

    @property
    def label(self) -> str:
        """The devices in words: `8 x H100 SXM`, `2 hosts of 8 x H100 SXM`."""
        devices = f"{self.device_count} x {self.name}"
        return devices if self.host_count == 1 else f"{self.host_count} hosts of {devices}"

    def publish_rate(self, hosts: int) -> float:
        """The bytes of weights per second that each of `hosts` of engines receives, in the first round of sending.

        >>> rates = {"tflops": 400, "memory_bandwidth_gb_s": 2500, "rates_source": "given"}
        >>> three = {"host_count": 3, "network_bandwidth_gb_s": 50}
        >>> PlannedMachines(name="H100", device_count=1, memory_gib=80, **three, **rates).publish_rate(2)
        25000000000.0
        """
        if self.publish_bandwidth_gb_s != "link":
            return self.publish_bandwidth_gb_s * 1e9
        return self._sending_rate / send_rounds(hosts)[0]

    def publish_seconds(self, size: int, hosts: int) -> float:
        """Seconds to send `size` bytes of weights to `hosts` of engines, which pass them on.

        Those that one host sends to at a time share its network. A measured rate is that of each of them.
        """
        rounds = send_rounds(hosts)
        if self.publish_bandwidth_gb_s != "link":
            return len(rounds) * size / (self.publish_bandwidth_gb_s * 1e9)
        return sum(rounds) * size / self._sending_rate

    @property
    def _sending_rate(self) -> float:
        """The bytes per second that one host sends to engines, without a measurement."""
        return (self.link_bandwidth_gb_s if self.host_count == 1 else self.network_bandwidth_gb_s) * 1e9

    @property
    def memory(self) -> int:
        """The bytes of memory of one device."""
        return int(self.memory_gib * (1 << 30))


def read_machines(file: str | Path) -> PlannedMachines:
    """Read a machine file. `Usage` with all errors: unknown keys, missing keys, values out of range."""
    try:
        return read(PlannedMachines, Path(file))
    except Usage as error:
        raise Usage(
            error.what, evidence=error.evidence.replace(HELP, SHOWN), fix=error.fix.replace(HELP, SHOWN)
        ) from error


def on_machines(recipe: Recipe, machines: PlannedMachines) -> Recipe:
    """The recipe with the device and dtype that it has on these machines, which may differ from this one."""
    machine = replace(recipe.machine, device=machines.device_type)
    if machine.dtype == AUTO:
        machine = replace(machine, dtype="bfloat16" if machines.device_type == "cuda" else "float32")
    return replace(recipe, machine=machine)
