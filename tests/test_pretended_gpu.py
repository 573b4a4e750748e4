"""The pretended GPU refuses what CUDA refuses and counts what it says; `varlen_attn` there is exact attention."""

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.varlen import AuxRequest, varlen_attn
from torch.utils._device import _device_constructors

import groupwise
from tests.pretended_gpu import GPU, counted, pretended_gpu

HOME = Path(groupwise.__file__).parent
BRANCH = re.compile(r"""\.type [!=]= "|is_cuda|is_cpu|startswith\("cuda|torch\.cuda\.|not in \("cpu", "cuda"\)""")
BRANCHES = {
    "checks/check_machine.py": 5,
    "cluster/external.py": 1,
    "cluster/ray.py": 1,
    "commands/doctor.py": 2,
    "commands/serve_native.py": 1,
    "config/resolve_devices.py": 2,
    "engines/native/attention_layouts.py": 1,
    "engines/native/paged_batch.py": 1,
    "engines/native/paged_attention_layout.py": 2,
    "engines/native/cuda_step_graphs.py": 3,
    "engines/remote/replica_devices.py": 7,
    "engines/remote/gpu_weights.py": 5,
    "engines/remote/served_settings.py": 1,
    "engines/remote/shared_device.py": 2,
    "engines/remote/sleeping.py": 2,
    "engines/vllm/vllm_engine.py": 3,
    "engines/vllm/vllm_replicas.py": 1,
    "learner/distributed.py": 2,
    "models/decoder/rms_norm.py": 1,
    "models/decoder/prepacked_weights.py": 1,
    "models/decoder/decoder.py": 1,
    "models/decoder/prefix_packing.py": 3,
    "models/device_names.py": 3,
    "models/lora.py": 1,
    "models/quantized_linear.py": 1,
    "planning/run_processes.py": 1,
    "planning/this_machine.py": 2,
    "training/build_run.py": 2,
    "verifiers/classifier_grader.py": 3,
}
"""The lines of the package that depend on the kind of device. A new one needs a test under the pretended GPU."""


def test_branches_by_device_are_few_and_known() -> None:
    lines = {f.relative_to(HOME).as_posix(): f.read_text("utf-8").splitlines() for f in HOME.rglob("*.py")}
    branches = {name: sum(bool(BRANCH.search(line)) for line in text) for name, text in lines.items()}
    assert {name: n for name, n in branches.items() if n} == BRANCHES


def test_nothing_of_it_outlives_the_block() -> None:
    kept = {name: getattr(torch.cuda, name) for name in ("is_available", "device_count", "is_bf16_supported")}
    _device_constructors.cache_clear()
    with pretended_gpu(), torch.device("cpu"):
        assert torch.cuda.is_available() and torch.zeros(2).tolist() == [0, 0]
    assert {name: getattr(torch.cuda, name) for name in kept} == kept
    assert {torch.tensor, torch.as_tensor} <= _device_constructors()
    with pytest.raises(AssertionError, match="device_count"), pytest.MonkeyPatch.context() as outer, pretended_gpu():
        outer.setattr(torch.cuda, "device_count", lambda: 4)  # ends after the block, and restores what it found in it
    torch.cuda.device_count = kept["device_count"]


def test_tensors_of_two_devices_do_not_mix() -> None:
    with pretended_gpu() as device:
        there = torch.ones(3, device=device)
        assert (there + 1).device == device == GPU and (there + 1).tolist() == [2, 2, 2]
        assert there.to("cuda") is there and torch.zeros(2, device="cuda").is_cuda
        with pytest.raises(RuntimeError, match="two devices"):
            _ = there + torch.ones(3)
        with pytest.raises(TypeError, match="NumPy"):
            there.numpy()
        with pytest.raises(RuntimeError, match="generator of the CPU"):
            torch.empty(3, device=device).normal_(generator=torch.Generator())


def test_kernels_waits_and_copies_are_counted() -> None:
    with pretended_gpu() as device:
        host = torch.arange(6.0)
        with counted() as up:
            x = host.to(device)
        assert (up.kernels, up.waits, up.to_device, up.bytes_to_device) == (0, 0, 1, 24)
        with counted() as plain:
            y = (x.view(2, 3)[:, 1:] * 2).double().sum()
        assert (plain.kernels, plain.waits, plain.float64, plain.largest) == (3, 0, 2, 32)
        assert plain.operations == {"mul": 1, "_to_copy": 1, "sum": 1}
        with counted() as outer, counted() as down:
            assert float(y) == 24 and (x.cpu() == host).all() and x.tolist() == host.tolist()
        assert (down.kernels, down.waits, down.to_host, down.bytes_to_host) == (0, 3, 2, 48)
        assert outer == down and sum(down.places.values()) == 3
        with counted() as by_size:
            assert x[x > 3].tolist() == [4, 5] and x[torch.tensor([1])].tolist() == [1]
        assert (by_size.waits, by_size.to_device) == (3, 1)
        with counted() as traced:
            _ = x + 1
        assert traced.trace == [("aten.add.Tensor", (6,))]


def plain_attention(q: Tensor, k: Tensor, v: Tensor, window: int | None) -> tuple[Tensor, Tensor]:
    """Attention of the last tokens of a text, and its log-sum-exp, in plain operations."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    score = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    at = torch.arange(len(k)) - torch.arange(len(k) - len(q), len(k))[:, None]
    hidden = (at > 0) | (at <= -(window or len(k)))
    score = score.masked_fill(hidden, -torch.inf)
    return torch.einsum("hqk,khd->qhd", score.softmax(-1), v), score.logsumexp(-1)


@given(
    rows=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 5)), min_size=1, max_size=3),
    heads=st.sampled_from([(2, 2), (4, 2)]),
    window=st.sampled_from([None, 1, 3]),
)
def test_varlen_attention_is_exact_forward_and_backward(rows, heads, window) -> None:
    draw = torch.Generator().manual_seed(len(rows))
    lengths, totals = [n for n, _ in rows], [n + more for n, more in rows]
    q, k, v, g = (
        torch.randn(n, h, 8, dtype=torch.float64, generator=draw)
        for n, h in zip((sum(lengths), *[sum(totals)] * 2, sum(lengths)), (heads[0], heads[1], heads[1], heads[0]))
    )
    ends = [torch.tensor([0, *x]).cumsum(0).int() for x in (lengths, totals)]
    here = [x.clone().requires_grad_() for x in (q, k, v)]
    parts = [x.split(n) for x, n in zip(here, (lengths, totals, totals))]
    want, lse = zip(*(plain_attention(*row, window) for row in zip(*parts)))
    torch.cat(want).backward(g)
    with pretended_gpu() as device:
        there = [x.to(device).requires_grad_() for x in (q, k, v)]
        cu_q, cu_k = (x.to(device) for x in ends)
        out, total = varlen_attn(
            *there, cu_q, cu_k, max(lengths), max(totals), window_size=(-1 if window is None else window - 1, 0),
            enable_gqa=heads[0] != heads[1], return_aux=AuxRequest(lse=True),
        )  # fmt: skip
        out.backward(g.to(device))
        assert torch.allclose(out.cpu(), torch.cat(want), atol=1e-14)
        assert torch.allclose(total.cpu(), torch.cat(lse, 1), atol=1e-14)
        for x, y in zip(there, here):
            assert x.grad is not None and y.grad is not None and torch.allclose(x.grad.cpu(), y.grad, atol=1e-13)


def test_varlen_attention_refuses_what_the_kernel_refuses() -> None:
    with pretended_gpu() as device:
        q, pages = torch.zeros(2, 2, 8, device=device), torch.zeros(3, 16, 2, 8, device=device)
        ends, used = (torch.tensor(x, dtype=torch.int32, device=device) for x in ([0, 1, 2], [5, 9]))
        table = torch.zeros(2, 1, dtype=torch.int32, device=device)
        with pytest.raises(RuntimeError, match="a multiple of 256 positions"):
            varlen_attn(q, pages, pages, ends, None, 1, 16, seqused_k=used, block_table=table)
        with pytest.raises(RuntimeError, match="row ends are int32"):
            varlen_attn(q, q, q, ends.long(), ends, 1, 1)
        with pytest.raises(RuntimeError, match="max_q is at least"):
            varlen_attn(q, q, q, torch.tensor([0, 2], dtype=torch.int32, device=device), ends[1:], 1, 1)
