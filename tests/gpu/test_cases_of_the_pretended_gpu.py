"""Cases of the pretended GPU on a real one, up to its rounding: packed attention, decoding, sampling of rows."""

from functools import partial

import pytest
import torch

from groupwise.data import Sampling, pack
from groupwise.engines.native.row_sampling import largest_needed, row_bounds, row_logprobs, row_truncated, row_uniforms
from groupwise.learner import forward
from groupwise.models import truncated, uniform
from tests.learner.small import rollouts
from tests.rollout.fakes import decoder, engine, generate, prompt_of, request

near = partial(pytest.approx, rel=1e-7, abs=1e-9)
LENGTHS = [[1 + 7 * (i + 5 * group) % 13 for i in range(4)] for group in range(2)]


@pytest.mark.parametrize("windows", [(), (5, None)])
def test_log_probs_of_a_packed_batch_are_the_cpus(gpu: torch.device, windows: tuple[int | None, ...]) -> None:
    batch = pack(rollouts(LENGTHS))
    here, _ = forward(decoder(attention_windows=windows), batch, temperature=1.0)
    there, _ = forward(decoder(attention_windows=windows).to(gpu), batch.to(gpu), temperature=1.0)
    assert there.tolist() == near(here.tolist())


@pytest.mark.parametrize(("windows", "head_dim"), [((), 64), ((5, None), 8)])
def test_samples_without_pages_are_the_cpus(gpu: torch.device, windows: tuple, head_dim: int) -> None:
    asks = [request(i // 3, context=prompt_of(i // 3, 1 + 60 * (i // 3)), stream=(i,), limit=5 + i) for i in range(9)]
    here = generate(engine(decoder(attention_windows=windows, head_dim=head_dim), max_num_seqs=7), asks)
    there = generate(engine(decoder(attention_windows=windows, head_dim=head_dim).to(gpu), max_num_seqs=7), asks)
    assert [g.tokens for g in there] == [g.tokens for g in here]
    assert [g.logp for g in there] == [near(g.logp) for g in here]


def test_row_sampling_is_the_cpus(gpu: torch.device) -> None:
    samplings = [Sampling(), Sampling(temperature=0.0), Sampling(top_p=0.8), Sampling(min_p=0.05)]
    logits = torch.randn(4, 5000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    bounds = torch.from_numpy(row_bounds(samplings, 5000)).to(gpu)
    most = largest_needed(samplings, 5000)
    assert most == 5000, "top-p without top-k needs all"
    logp = row_truncated(row_logprobs(logits.to(gpu), bounds[0], greedy=True), bounds[1:], most).cpu()
    for i, sampling in enumerate(samplings):
        assert torch.allclose(logp[i : i + 1].exp(), truncated(logits[i : i + 1], sampling).exp(), atol=1e-12)
    one = torch.ones(1, dtype=torch.long, device=gpu)
    assert row_uniforms(7, 0 * one, 3 * one, one, 0 * one, 5)[:, 0].tolist() == uniform((7, 0), 3, 1, range(5)).tolist()
