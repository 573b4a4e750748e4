"""Cards that a plan knows by name: published memory and rates, and the parts of them that a run is assumed to reach.

No number here is measured. `groupwise plan --machines 8xa100` uses them; `2x8xa100` are two hosts of eight cards.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import inf
from types import MappingProxyType

from groupwise.core import Usage
from groupwise.planning.machines import MOST_DEVICES, PlannedMachines

COMPUTE_SHARE, READ_SHARE, LINK_SHARE, NETWORK_SHARE = 0.4, 0.75, 0.25, 0.5
"""The parts of published rates that a run is assumed to reach: matrix products, memory, link, network. Not measured."""


@dataclass(frozen=True, slots=True)
class GpuCard:
    """A card by its `specification_source`: 10^9 bytes, 10^12 dense bfloat16 operations and 10^9 bytes per second.

    `link_bandwidth_gb_s` is the rate of NVLink if it connects all cards of a host, else of PCIe, both directions
    together. Without `supports_bfloat16` the operations are those of float16. `network_gbit_s` is the rate of the
    network port that each card of a DGX system has, in 10^9 bits per second and one direction; 0 if we know none.
    """

    name: str
    memory_gb: float
    bfloat16_tflops: float
    memory_bandwidth_gb_s: float
    link_bandwidth_gb_s: float
    specification_source: str
    supports_bfloat16: bool = True
    network_gbit_s: float = 0

    def machines(self, count: int, hosts: int = 1) -> PlannedMachines:
        """`count` of these cards in each of some hosts. `Usage` if no network between hosts is known."""
        if hosts > 1 and not self.network_gbit_s:
            what = f"the network between hosts with {self.name} is not known"
            fix = "describe them in a file with host_count and network_bandwidth_gb_s: --machines FILE.toml"
            raise Usage(what, fix=fix)
        compute = f"{COMPUTE_SHARE:.0%} of {self.bfloat16_tflops:g} TFLOPS"
        shares = f"{compute}, {READ_SHARE:.0%} of {self.memory_bandwidth_gb_s:,g} GB/s"
        half = "" if self.supports_bfloat16 else "; it has no bfloat16, these are float16"
        port = f"{NETWORK_SHARE:.0%} of a port of {self.network_gbit_s:g} Gb/s for each card"
        network = f"; network: {port}, as in NVIDIA's DGX systems" if hosts > 1 else ""
        return PlannedMachines(
            name=self.name,
            device_count=count,
            memory_gib=round(self.memory_gb * 1e9 / (1 << 30), 1),
            tflops=COMPUTE_SHARE * self.bfloat16_tflops,
            memory_bandwidth_gb_s=READ_SHARE * self.memory_bandwidth_gb_s,
            link_bandwidth_gb_s=LINK_SHARE * self.link_bandwidth_gb_s if count > 1 else inf,
            host_count=hosts,
            network_bandwidth_gb_s=NETWORK_SHARE * count * self.network_gbit_s / 8 if hosts > 1 else inf,
            rates_source=f"{shares}, as published in the {self.specification_source}{half}{network}; "
            "counted, not measured",
        )


CARDS: Mapping[str, GpuCard] = MappingProxyType(
    {
        "a10": GpuCard("A10", 24, 125, 600, 64, "NVIDIA A10 data sheet"),
        "a40": GpuCard("A40", 48, 149.7, 696, 64, "NVIDIA A40 data sheet"),
        "a100": GpuCard("A100 SXM 80GB", 80, 312, 2039, 600, "NVIDIA A100 data sheet", network_gbit_s=200),
        "a100-40gb": GpuCard("A100 SXM 40GB", 40, 312, 1555, 600, "NVIDIA A100 data sheet", network_gbit_s=200),
        "a100-pcie": GpuCard("A100 PCIe 80GB", 80, 312, 1935, 64, "NVIDIA A100 data sheet"),
        "a6000": GpuCard("RTX A6000", 48, 154.8, 768, 64, "NVIDIA RTX A6000 data sheet"),
        "h20": GpuCard("H20", 96, 148, 4000, 900, "NVIDIA H20 data sheet"),
        "h100": GpuCard("H100 SXM", 80, 989, 3350, 900, "NVIDIA H100 data sheet", network_gbit_s=400),
        "h100-pcie": GpuCard("H100 PCIe", 80, 756, 2000, 128, "NVIDIA H100 PCIe data sheet"),
        "h200": GpuCard("H200 SXM", 141, 989, 4800, 900, "NVIDIA H200 data sheet", network_gbit_s=400),
        "l4": GpuCard("L4", 24, 121, 300, 64, "NVIDIA L4 data sheet"),
        "l40s": GpuCard("L40S", 48, 362, 864, 64, "NVIDIA L40S data sheet"),
        "rtx3090": GpuCard("RTX 3090", 24, 71, 936, 64, "NVIDIA Ampere GA102 whitepaper"),
        "rtx4090": GpuCard("RTX 4090", 24, 165.2, 1008, 64, "NVIDIA Ada architecture whitepaper"),
        "rtx5090": GpuCard("RTX 5090", 32, 209.5, 1792, 128, "NVIDIA RTX Blackwell architecture whitepaper"),
        "t4": GpuCard("T4", 16, 65, 320, 32, "NVIDIA T4 data sheet", supports_bfloat16=False),
        "v100": GpuCard("V100 SXM 32GB", 32, 125, 900, 300, "NVIDIA V100 data sheet", supports_bfloat16=False),
    }
)
"""The cards by name. A data sheet that states rates with sparsity has twice the dense ones.

Compared with copies of these documents or with pages that cite them:
A100: glennklockwood.com/garden/processors/A100, thundercompute.com/blog/nvidia-a100-specs-full-guide (PCIe).
H100 SXM: glennklockwood.com/garden/processors/h100. H100 PCIe: archive-lib.hpctech.co.jp/gpuproduct/nvidia-h100.html.
H20, H200: willitrunai.com/es/gpus/h20-96gb, lzwjava.github.io/nvidia-h200-gpu-specs-en.
A40: its data sheet. L4, L40S: grokipedia.com/page/NVIDIA_L4_vs_L40S, mullet.se. T4: sysrqmts.com.
RTX A6000: llmperf.net/categories/gpu/Nvidia-A6000-GPUs. V100: developer.nvidia.com/programming-tensor-cores-cuda-9-0,
ozyphus.github.io/gpu-maths.html (memory).
RTX 4090: waredb.com/processor/nvidia-geforce-rtx-4090. RTX 5090: spheron.network/blog/nvidia-rtx-5090-specs, a quarter
of its sparse rate with float16 sums. RTX 3090: holynerdvana.blogspot.com, half of its rate with float16 sums.
A10: baseten.co/blog/nvidia-a10-vs-a10g-for-ml-model-inference (memory); its operations only as the product of
multiprocessors, clock (sysrqmts.com) and the 1,024 operations per clock of the RTX A6000: 72 * 1.695 GHz * 1,024.
The links of V100, RTX 3090 and RTX 5090 were not compared.
Networks: docs.nvidia.com/dgx-basepod/reference-architecture-infrastructure-foundation-enterprise-ai (DGX H100 and H200,
eight ports of 400 Gb/s); copies of the DGX A100 data sheet (eight ports of 200 Gb/s).
"""
COUNTED = re.compile(r"(?:(\d+)\s*x\s*)?(\d+)\s*x\s*(.+)")


def named_machines(text: str) -> PlannedMachines:
    """The machines of a card's name, such as `a100`, `8xH100`, `2x8xH100` or `RTX 4090`. `Usage` for an unknown name.

    >>> named_machines("8xA100").device_count, named_machines("NVIDIA GeForce RTX 4090").memory_gib
    (8, 22.4)
    >>> named_machines("2x8xH100").host_count, named_machines("2x8xH100").network_bandwidth_gb_s
    (2, 200.0)
    """
    counted = COUNTED.fullmatch(text.strip().lower())
    hosts, count, name = counted.groups() if counted else ("1", "1", text.strip().lower())
    hosts, count = int(hosts or 1), int(count)
    keys = {_key(key): key for key in CARDS}
    written = _key(name)
    names = (
        written,
        f"rtx{written}",
        written.removeprefix("rtx"),
        re.sub(r"(16|24|32|40|48|80|96|141)gb.*$", "", written),
    )
    key = next((keys[one] for one in names if one in keys), "")
    if not key:
        near = get_close_matches(written, keys, n=1, cutoff=0.7)
        known = f"the cards are {', '.join(CARDS)}, also as 8xa100 or 2x8xa100"
        fix = f"did you mean {keys[near[0]]}?\n{known}" if near else known
        raise Usage(f"no card is called {name!r}", fix=f"{fix}\nor describe it in a file: --machines FILE.toml")
    if not (hosts and 1 <= hosts * count <= MOST_DEVICES):
        raise Usage(f"{text!r} is {hosts * count} cards", fix=f"use a number of devices from 1 to {MOST_DEVICES}")
    return CARDS[key].machines(count, hosts)


def _key(name: str) -> str:
    """A card's name without marks, maker and family: `NVIDIA GeForce RTX 4090` is `rtx4090`."""
    return re.sub(r"nvidia|geforce|tesla|sxm\d?|[^a-z0-9]", "", name.lower())
