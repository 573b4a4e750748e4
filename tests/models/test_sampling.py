"""The sampling distribution against an enumerating oracle; no token of probability 0 is drawn."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from groupwise.data import Sampling
from groupwise.models import choose, logprobs, truncated

# Few distinct values, so that ties are frequent.
LOGITS = st.lists(st.integers(-6, 6).map(lambda x: x / 2), min_size=1, max_size=9)
TEMPERATURE = st.sampled_from([0.6, 1.0, 1.3])


def oracle(logits: list[float], s: Sampling) -> list[float]:
    """Probabilities under temperature, then top-k, top-p, min-p, token by token."""
    top = max(logits)
    p = [math.exp((x - top) / s.temperature) for x in logits]
    order = sorted(range(len(p)), key=lambda i: (-p[i], i))
    if s.top_k:
        order = order[: s.top_k]
    mass, reached, kept = sum(p[i] for i in order), 0.0, []
    for i in order:
        if s.top_p < 1 and reached >= s.top_p - 1e-13:
            break
        reached += p[i] / mass
        kept.append(i)
    kept = [i for i in kept if p[i] >= s.min_p * p[kept[0]]]
    return [p[i] / sum(p[k] for k in kept) if i in kept else 0.0 for i in range(len(p))]


@pytest.mark.t(20)
@given(
    LOGITS, TEMPERATURE, st.sampled_from([0, 1, 3, 20]), st.sampled_from([1.0, 0.7, 0.31]), st.sampled_from([0.0, 0.23])
)
def test_truncated_distribution_equals_the_enumerating_oracle(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    logp = truncated(torch.tensor([logits], dtype=torch.float64), sampling).exp()
    assert logp[0].tolist() == pytest.approx(oracle(logits, sampling), abs=1e-12)


@pytest.mark.t(20)
@given(LOGITS, TEMPERATURE)
def test_without_truncation_the_distribution_is_the_full_softmax(logits: list[float], temperature: float) -> None:
    x = torch.tensor([logits], dtype=torch.float64)
    assert torch.equal(truncated(x, Sampling(temperature=temperature)), logprobs(x, temperature))
    assert logprobs(x, temperature).exp().sum().item() == pytest.approx(1, abs=1e-12)


def test_truncations_act_in_their_order() -> None:
    p = torch.tensor([[0.4, 0.3, 0.2, 0.1]], dtype=torch.float64)
    # Of the two that top-k leaves, the first holds 4/7 > 0.5: top-p before top-k would have kept both.
    assert truncated(p.log(), Sampling(top_k=2, top_p=0.5)).exp()[0].tolist() == [1, 0, 0, 0]
    # Temperature first: at T = 1/2 the first holds 16/30, at T = 1 top-p would have kept two.
    assert truncated(p.log(), Sampling(temperature=0.5, top_p=0.5)).exp()[0].tolist() == [1, 0, 0, 0]


def test_ties_are_cut_in_vocabulary_order_and_top_p_stops_when_reached() -> None:
    even = torch.zeros(1, 4, dtype=torch.float64)
    assert truncated(even, Sampling(top_p=0.5)).exp()[0].tolist() == [0.5, 0.5, 0, 0]
    assert truncated(even, Sampling(top_k=1)).exp()[0].tolist() == [1, 0, 0, 0]


@given(LOGITS)
def test_temperature_zero_is_the_first_of_the_largest(logits: list[float]) -> None:
    logp = logprobs(torch.tensor([logits]), 0.0)
    assert choose(logp, torch.tensor([0.999])).item() == logits.index(max(logits))
    assert logp.max() == 0


@given(
    st.lists(st.sampled_from([0.0, 0.0, 1.0, 3.0, 1e-9]), min_size=1, max_size=8).filter(any),
    st.floats(0, 1, exclude_max=True),
)
def test_choose_is_the_inverse_cdf(weights: list[float], u: float) -> None:
    p = [w / sum(weights) for w in weights]
    logp = torch.tensor([p], dtype=torch.float64).log()
    got = int(choose(logp, torch.tensor([u], dtype=torch.float64))[0])
    reached, expected = 0.0, max(i for i, x in enumerate(p) if x)
    for i, x in enumerate(logp.exp()[0].tolist()):
        reached += x
        if reached > u:
            expected = i
            break
    assert got == expected
    assert p[got] > 0


def test_a_sum_that_falls_short_of_one_gives_the_last_possible_token() -> None:
    logp = torch.tensor([[0.25, 0.25, 0.25, 0.0]]).log()  # as float32 rounding leaves it, exaggerated
    assert choose(logp, torch.tensor([0.99])).item() == 2


def test_the_sum_is_taken_in_float64() -> None:
    logp = torch.tensor([[0.5, 2.0**-28, 0.5]]).log()  # the second is lost in a float32 sum
    reached = logp.double().exp().cumsum(-1)
    assert choose(logp, (reached[:, 0] + reached[:, 1]) / 2).item() == 1


def test_rows_do_not_depend_on_each_other() -> None:
    draw = torch.Generator().manual_seed(0)
    logits, u = torch.randn(50, 13, generator=draw), torch.rand(50, generator=draw, dtype=torch.float64)
    together = choose(logprobs(logits, 0.8), u)
    alone = [choose(logprobs(logits[i : i + 1], 0.8), u[i : i + 1]).item() for i in range(50)]
    assert together.tolist() == alone
    assert len(set(alone)) > 5


def test_draws_follow_the_distribution() -> None:
    p = torch.tensor([0.5, 0.0, 0.2, 0.3], dtype=torch.float64)
    u = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    counts = choose(p.log().expand(1000, -1), u).bincount(minlength=4)
    assert counts.tolist() == [500, 0, 200, 300]


def test_half_precision_logits_are_normalised_in_float32() -> None:
    assert logprobs(torch.zeros(1, 3, dtype=torch.bfloat16)).dtype == torch.float32


@pytest.mark.t(20)
@pytest.mark.parametrize("v", [1025, 1536, 5000])
def test_block_search_equals_the_plain_inverse_cdf(v: int) -> None:
    """Equal to the inverse of the whole CDF, also at block edges; no token of probability 0."""
    draw = torch.Generator().manual_seed(v)
    logits = 4 * torch.randn(64, v, generator=draw, dtype=torch.float64)
    logits[:, 400:1020] = -torch.inf  # a whole block and parts of its neighbours
    logits[0, :-1], logits[1, 1:] = -torch.inf, -torch.inf
    logp = logprobs(logits)
    for u in (torch.rand(64, generator=draw, dtype=torch.float64), torch.zeros(64), torch.full((64,), 1 - 2**-53)):
        at, p = choose(logp, u), logp.exp()
        wanted = torch.searchsorted(p.cumsum(-1), u.double()[:, None], right=True)[:, 0]
        last = ((p > 0) * torch.arange(v)).amax(-1)
        assert torch.equal(at, wanted.minimum(last))
        low = choose(logp.float(), u)
        assert (p.gather(1, low[:, None]) > 0).all()
        end = p.cumsum(-1).gather(1, low[:, None])[:, 0]  # in float32, u may be just beyond a token's edge
        assert (end >= u - 1e-5).all() and (end - p.gather(1, low[:, None])[:, 0] <= u + 1e-5).all()
