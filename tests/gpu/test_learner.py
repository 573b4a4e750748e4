"""The learner on a CUDA device: attention by `varlen_attn` against masks, and whether a backward repeats its bits."""

import pytest
import torch

from groupwise.data import pack
from groupwise.learner import forward
from groupwise.models import QuantizedLinear
from tests.learner.small import rollouts
from tests.rollout.fakes import decoder

LENGTHS = [[1 + 7 * (i + 5 * group) % 13 for i in range(4)] for group in range(2)]
LARGE = [[300 + 40 * i for i in range(8)] for _ in range(4)]


def gradients(gpu: torch.device, lengths: list[list[int]], dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    """The gradients of the sum of all log-probs, with eight query heads on two key heads."""
    model = decoder(dtype, head_dim=64, heads=8, kv_heads=2, max_positions=4096, spread=0.05).to(gpu)
    logp, _ = forward(model, pack(rollouts(lengths, limit=8192)).to(gpu), temperature=1.0)
    logp.sum().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def test_gradients_are_those_of_float32_with_masks(gpu: torch.device) -> None:
    """Up to the rounding of bfloat16: the largest difference is a few percent of the largest gradient."""
    for half, whole in zip(gradients(gpu, LENGTHS), gradients(gpu, LENGTHS, torch.float32), strict=True):
        assert (half.float() - whole).abs().max() <= 0.05 * whole.abs().max() + 1e-3


@pytest.mark.parametrize("rows", [1, 16, 64, 2048])
def test_a_product_in_4_bits_is_that_of_the_dequantised_weights(gpu: torch.device, rows: int) -> None:
    """The kernels of bitsandbytes for few and for many rows, up to the rounding of bfloat16; and the gradient."""
    pytest.importorskip("bitsandbytes", reason="pip install 'groupwise[quantization]'")
    draw = torch.Generator().manual_seed(1)
    layer = QuantizedLinear.of(torch.randn(1024, 896, generator=draw).to(gpu, torch.bfloat16))
    plain = layer.dequantized(torch.bfloat16)
    x = torch.randn(rows, 896, generator=draw).to(gpu, torch.bfloat16).requires_grad_()
    for product in (layer(x), layer(x.detach())):
        assert (product - x @ plain.T).abs().max() <= 0.02 * (x @ plain.T).abs().max()
    (gradient,) = torch.autograd.grad(layer(x).sum(), x)
    assert (gradient - plain.sum(0)).abs().max() <= 0.02 * plain.sum(0).abs().max()


def test_whether_a_backward_repeats_its_bits_is_written(gpu: torch.device, figures: list[str]) -> None:
    """Twice the same batch of 32 answers, without and with deterministic algorithms: benchmarks/GPU.md."""
    lines = ["Two backward passes of one batch, in bfloat16 with grouped heads:", ""]
    for deterministic in (False, True):
        torch.use_deterministic_algorithms(deterministic)
        try:
            equal = all(map(torch.equal, gradients(gpu, LARGE), gradients(gpu, LARGE)))
            found = "equal bits" if equal else "other bits"
        except RuntimeError as error:  # an operation without a deterministic kernel
            found = f"refused: {str(error).splitlines()[0]}"
        finally:
            torch.use_deterministic_algorithms(False)
        lines.append(f"- {'with' if deterministic else 'without'} deterministic algorithms: {found}")
    figures.append("\n".join(lines))


@pytest.mark.parametrize("lengths", [LENGTHS, LARGE], ids=["short", "long"])
def test_a_forward_repeats_its_bits(gpu: torch.device, lengths: list[list[int]]) -> None:
    model = decoder(torch.bfloat16, head_dim=64, max_positions=4096).to(gpu)
    batch = pack(rollouts(lengths, limit=8192)).to(gpu)
    with torch.no_grad():
        first, again = (forward(model, batch, temperature=1.0)[0] for _ in range(2))
    assert torch.equal(first, again)
