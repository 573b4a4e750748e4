"""Laws of every objective: it equals a loop over tokens, and the microbatches of a step add up to it."""

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from groupwise.data import ENVIRONMENT, TEMPLATE, Batch, Logp, Rollout, pack, unsplit_unit
from groupwise.methods import SoftGate
from groupwise.objective import (
    KL,
    Clip,
    ClippedWeight,
    Objective,
    UnclippedSurrogate,
    budget_mean,
    policy_gradient,
    sequence_mean,
    sequence_product,
    sequence_ratio,
    sequence_ratio_per_token,
    sequence_sum,
    token_mean,
)
from tests.laws.batches import cuts, rollouts, step_of, steps
from tests.laws.objectives import OBJECTIVES, ONE_ADVANTAGE
from tests.laws.oracle import oracle

ALL = pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)


def gradient(loss: Tensor, leaf: Tensor) -> Tensor:
    return torch.autograd.grad(loss, leaf, allow_unused=True)[0]


def close(a: Tensor, b: Any, at: float = 1e-12) -> None:
    torch.testing.assert_close(a, torch.as_tensor(b, dtype=torch.float64), rtol=at, atol=at)


@pytest.mark.t(1)
@ALL
@settings(max_examples=30)
@given(data=st.data())
def test_equals_a_loop_over_tokens(objective: Objective, data: st.DataObject) -> None:
    per_token = objective not in [OBJECTIVES[name] for name in ONE_ADVANTAGE] and data.draw(st.booleans())
    step = data.draw(steps(per_token=per_token))
    loss = objective(objective.prepare(step))
    value, slope = oracle(objective, step)
    close(loss.detach(), value)
    close(gradient(loss, step.logp), slope)


@pytest.mark.t(1)
@pytest.mark.t(4)
@ALL
@settings(max_examples=12)
@given(data=st.data())
def test_microbatches_on_any_ranks_add_up_to_the_step(objective: Objective, data: st.DataObject) -> None:
    step = objective.prepare(data.draw(steps()))
    whole = objective(step)
    dealt = data.draw(cuts(len(step)))
    ranks = [sum(objective(step.take(microbatch)) for microbatch in microbatches) for microbatches in dealt]
    total = sum(ranks)
    assert isinstance(total, Tensor)
    close(total.detach(), whole.detach())
    close(gradient(total, step.logp), gradient(whole, step.logp))


@pytest.mark.t(1)
@ALL
def test_24_rows_5_of_them_masked_in_any_cut(objective: Objective) -> None:
    """Microbatches x ranks x orders, with rows that are masked whole."""
    lengths = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 18, 20, 23, 26, 29, 32, 35, 38, 40]
    layout = [lengths[i::6] for i in range(6)]
    full = step_of(layout, limit=64)
    masked = torch.zeros(24, dtype=torch.bool)
    masked[[0, 5, 11, 17, 22]] = True
    step = full.keep(~full.sequences.spread(masked))
    assert step.sequences.live == 19
    value, slope = oracle(objective, step)
    prepared = objective.prepare(step)
    for ranks in (1, 2, 4):
        for microbatches in (1, 2, 3, 8):
            order = np.random.default_rng(0).permutation(24)
            parts = [part for rank in range(ranks) for part in np.array_split(order[rank::ranks], microbatches)]
            total = sum(objective(prepared.take(part.tolist())) for part in parts)
            assert isinstance(total, Tensor)
            close(total.detach(), value)
            close(gradient(total, step.logp), slope, 1e-10)


@pytest.mark.t(3)
@pytest.mark.parametrize("aggregate", [token_mean, sequence_mean, OBJECTIVES["grpo by group"].aggregate])
@settings(max_examples=30)
@given(step=steps())
def test_divisors_are_those_of_the_step_and_not_of_the_iteration(aggregate: Any, step: Batch) -> None:
    """The shares of each step sum to 1, whether it is a half or the whole of an iteration."""
    half = step.take(range(0, len(step), 2))
    for batch in (step, half):
        total = float(aggregate(batch).sum())
        assert total == pytest.approx(1.0 if batch.tokens else 0.0, abs=1e-12)


@pytest.mark.t(6)
@ALL
def test_a_microbatch_without_tokens_contributes_0(objective: Objective) -> None:
    step = objective.prepare(step_of([[2, 0, 3], [0, 0]]))
    for empty in ([], [1], [3, 4]):
        loss = objective(step.take(empty))
        assert loss.item() == 0
        close(gradient(loss, step.logp), [0.0] * step.tokens)
    close(objective(step.take([0, 2])).detach(), objective(step).detach())


@pytest.mark.t(6)
@ALL
@pytest.mark.parametrize("layout", [[[0]], [[0, 0], [0]]])
def test_a_step_without_a_token_gives_0(objective: Objective, layout: list[list[int]]) -> None:
    step = objective.prepare(step_of(layout))
    assert objective(step).item() == 0
    assert step.loss_share.shape == step.weight.shape == (0,)


@pytest.mark.t(13)
@ALL
def test_nan_in_masked_tokens_changes_neither_loss_nor_gradient(objective: Objective) -> None:
    """Before `keep`, masked tokens have NaN, Inf or huge numbers in every column."""
    step = step_of([[3, 5, 2], [4, 1]], seed=3)
    mask = torch.arange(step.tokens) % 3 != 1
    for filler in (torch.nan, torch.inf, -torch.inf, 1e30):
        columns = {
            c: torch.where(mask, getattr(step, c).detach(), filler) for c in ("logp_old", "logp_engine", "advantage")
        }
        leaf = torch.where(mask, step.logp.detach(), filler).requires_grad_()
        reference = {Logp("reference"): torch.where(mask, step[Logp("reference")], filler)}
        dirty = step.having(logp=leaf, measures=reference, **columns).keep(mask)
        loss = objective(objective.prepare(dirty))
        value, slope = oracle(objective, step.keep(mask))
        close(loss.detach(), value)
        actual = gradient(loss, leaf)
        close(actual[mask], slope)
        assert (actual[~mask] == 0).all()


def padded(rollout: Rollout, *, left: int, right: int, filler: float) -> Rollout:
    """The rollout with padding: other ids and log-probs around the sampled tokens."""

    def pad(sample: Any) -> Any:
        tokens = (99,) * left + sample.tokens + (98,) * right
        origin = (TEMPLATE,) * left + sample.origin + (ENVIRONMENT,) * right
        return replace(sample, tokens=tokens, origin=origin, logp=(filler,) * left + sample.logp + (filler,) * right)

    return replace(rollout, samples=tuple(pad(s) for s in rollout.samples))


@pytest.mark.t(1)
@pytest.mark.t(7)
@pytest.mark.t(13)
@pytest.mark.t(15)
@ALL
@pytest.mark.parametrize("left, right", [(4, 0), (0, 4), (2, 3), (50, 0), (0, 500)])
def test_padding_changes_neither_loss_nor_gradient(objective: Objective, left: int, right: int) -> None:
    plain_rollouts = rollouts([[3, 5, 0], [4, 1]], seed=5)
    plain = step_of([[3, 5, 0], [4, 1]], seed=5)
    for filler in (float("nan"), float("inf"), -3.0):
        packed = pack([padded(f, left=left, right=right, filler=filler) for f in plain_rollouts])
        assert torch.equal(packed.logp_engine, pack(plain_rollouts).logp_engine)
        assert torch.equal(packed.sequences.index, plain.sequences.index)
        columns = {c: getattr(plain, c) for c in ("logp", "logp_old", "logp_engine", "advantage", "measures")}
        loss = objective(objective.prepare(packed.having(**columns)))
        expected = objective(objective.prepare(plain))
        assert torch.equal(loss, expected)
        assert torch.equal(gradient(loss, plain.logp), gradient(expected, plain.logp))


@pytest.mark.t(10)
@ALL
@settings(max_examples=15)
@given(data=st.data())
def test_the_order_of_samples_does_not_matter(objective: Objective, data: st.DataObject) -> None:
    step = data.draw(steps())
    permuted = step.take(data.draw(st.permutations(range(len(step)))))
    first, second = objective(objective.prepare(step)), objective(objective.prepare(permuted))
    close(second.detach(), first.detach())
    close(gradient(second, step.logp), gradient(first, step.logp))


SAME_AS_REINFORCE = {
    "grpo": (Objective(surrogate=Clip(), aggregate=sequence_mean), sequence_mean),
    "dapo": (OBJECTIVES["dapo"], token_mean),
    "dr_grpo": (OBJECTIVES["dr_grpo"], budget_mean),
    "gspo": (OBJECTIVES["gspo"], sequence_mean),
    "gspo_token": (Objective(surrogate=Clip(ratio=sequence_ratio_per_token), aggregate=sequence_mean), sequence_mean),
    "cispo": (OBJECTIVES["cispo"], token_mean),
    "gmpo": (OBJECTIVES["gmpo"], sequence_mean),
    "holder below": (OBJECTIVES["holder below"], sequence_mean),
    "sapo": (OBJECTIVES["sapo"], sequence_mean),
    "unclipped": (Objective(surrogate=UnclippedSurrogate(), aggregate=sequence_sum), sequence_sum),
    "rloo": (Objective(surrogate=Clip(ratio=sequence_product), aggregate=sequence_mean), sequence_sum),
}
"""Objective, and the aggregate of its REINFORCE. `rloo`'s ratio is a product over tokens, so tokens are summed."""


@pytest.mark.t(16)
@pytest.mark.parametrize("name", SAME_AS_REINFORCE)
@settings(max_examples=30)
@given(data=st.data())
def test_at_equal_policies_every_gradient_is_reinforce(name: str, data: st.DataObject) -> None:
    objective, aggregate = SAME_AS_REINFORCE[name]
    step = data.draw(steps(per_token=name in ("grpo", "dapo", "dr_grpo", "cispo", "sapo", "unclipped", "gspo_token")))
    if name == "rloo":
        step = step.take(
            (step.sequences.lengths > 0).nonzero().squeeze(1)
        )  # one aggregate counts live answers, the other drawn ones
    step = step.having(logp_old=step.logp.detach())
    if hasattr(objective.surrogate, "ratio"):
        assert (objective.surrogate.ratio(step) == 1).all()
    if hasattr(objective.surrogate, "clipped"):
        assert not any(side.any() for side in objective.surrogate.clipped(step))
    plain = Objective(surrogate=policy_gradient, aggregate=aggregate)
    actual = gradient(objective(objective.prepare(step)), step.logp)
    close(actual, gradient(plain(plain.prepare(step)), step.logp))


@pytest.mark.t(16)
@settings(max_examples=30)
@given(step=steps())
def test_at_equal_policies_the_value_is_the_mean_advantage(step: Batch) -> None:
    """It is 0 for centred advantages and equal weights, so only the gradient is informative."""
    objective = Objective(surrogate=Clip(), aggregate=sequence_mean)
    step = step.having(logp_old=step.logp.detach())
    mean = (sequence_mean(step) * step.advantage).sum()
    close(objective(objective.prepare(step)).detach(), -mean)


@pytest.mark.t(18)
@settings(max_examples=30)
@given(step=steps())
def test_gspo_token_with_one_advantage_a_sequence_is_gspo(step: Batch) -> None:
    one, other = (
        Objective(surrogate=Clip(0.03, 0.04, ratio=r), aggregate=sequence_mean)
        for r in (sequence_ratio, sequence_ratio_per_token)
    )
    first, second = one(one.prepare(step)), other(other.prepare(step))
    close(second.detach(), first.detach())
    close(gradient(second, step.logp), gradient(first, step.logp))


def constants(value: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], float]]:
    """Every number in an objective, with its path."""
    if isinstance(value, tuple):
        return [c for i, v in enumerate(value) for c in constants(v, (*path, str(i)))]
    if is_dataclass(value):
        return [c for f in fields(value) for c in constants(getattr(value, f.name), (*path, f.name))]
    return [(path, float(value))] if isinstance(value, int | float) else []


def with_constant(value: Any, path: tuple[str, ...], to: float) -> Any:
    if not path:
        return to
    if isinstance(value, tuple):
        i = int(path[0])
        return (*value[:i], with_constant(value[i], path[1:], to), *value[i + 1 :])
    return replace(value, **{path[0]: with_constant(getattr(value, path[0]), path[1:], to)})


CONSTANTS = [(name, path, x) for name, o in OBJECTIVES.items() for path, x in constants(o)]


@pytest.mark.t(19)
@pytest.mark.parametrize("name, path, x", CONSTANTS, ids=[f"{n}: {'.'.join(p)}" for n, p, _ in CONSTANTS])
def test_every_constant_changes_the_gradient(name: str, path: tuple[str, ...], x: float) -> None:
    step = step_of([[3, 5, 2], [4, 1, 5, 5], [3, 3]] * 20, seed=11, spread=0.7)
    before = OBJECTIVES[name]
    to = 0.1 if x == float("inf") else 0.3 if x == 0 else x / 2 if x < 1 else x * 1.3
    changed = with_constant(before, path, to)
    first, second = (gradient(o(o.prepare(step)), step.logp) for o in (before, changed))
    assert not torch.allclose(first, second, rtol=1e-6, atol=1e-9)


@pytest.mark.t(8)
@settings(max_examples=30)
@given(step=steps())
def test_budget_mean_counts_a_row_twice_when_it_is_twice_as_long(step: Batch) -> None:
    """Doubling one row, token by token, doubles its contribution and not the others'."""
    objective = OBJECTIVES["dr_grpo"]
    lengths = step.sequences.lengths.tolist()
    row = max(range(len(step)), key=lengths.__getitem__)

    def by_row(batch: Batch) -> Tensor:
        return batch.sequences.total(batch.loss_share * objective.surrogate(batch))

    once = by_row(objective.prepare(step))
    both = [i for i, s in enumerate(step.sequences.index.tolist()) for _ in range(2 if s == row else 1)]
    columns = {
        c: getattr(step, c)[both]
        for c in ("index_in_sample", "logp", "logp_old", "logp_engine", "staleness", "advantage")
    }
    longer = replace(
        step, sequences=type(step.sequences)(step.sequences.index[both], len(step)), measures={}, **columns
    )
    twice = by_row(objective.prepare(longer))
    factor = torch.ones(len(step), dtype=torch.float64)
    factor[row] = 2
    close(twice.detach(), (once * factor).detach())


@pytest.mark.parametrize("aggregate", [token_mean, budget_mean, sequence_sum])
@pytest.mark.parametrize("ratio", [sequence_ratio, sequence_ratio_per_token, sequence_product])
@pytest.mark.parametrize(
    "wrap", [lambda r: Clip(ratio=r), lambda r: ClippedWeight(ratio=r), lambda r: SoftGate(ratio=r)]
)
def test_a_sequence_ratio_refuses_a_token_weighting_aggregate(aggregate: Any, ratio: Any, wrap: Any) -> None:
    with pytest.raises(ValueError, match=r"(?s)sequence's length.*sequence_mean or group_mean"):
        Objective(surrogate=wrap(ratio), aggregate=aggregate)


@dataclass(frozen=True)
class ByLength:
    """A user's aggregate that weighs sequences."""

    equal_weight_unit: ClassVar[str] = "sequences"

    def __call__(self, step: Batch) -> Tensor:
        return sequence_mean(step)


def test_a_users_aggregate_with_weighs_sequences_accepts_a_sequence_ratio() -> None:
    Objective(surrogate=Clip(ratio=sequence_ratio), aggregate=ByLength())

    def mine(step: Batch) -> Tensor:
        return sequence_mean(step)

    with pytest.raises(ValueError, match="mine would weigh"):
        Objective(surrogate=Clip(ratio=sequence_ratio), aggregate=mine)
    mine.equal_weight_unit = "sequences"  # type: ignore[attr-defined]
    Objective(surrogate=Clip(ratio=sequence_ratio), aggregate=mine)


@dataclass(frozen=True)
class Gate:
    """A user's surrogate that couples a sequence and has one ratio per token."""

    unsplit_unit: ClassVar[str] = "sequence"

    def __call__(self, microbatch: Batch) -> Tensor:
        return microbatch.logp * microbatch.sequences.spread(microbatch.sequences.mean(microbatch.advantage))


def test_coupling_a_sequence_does_not_imply_one_ratio_per_sequence() -> None:
    assert unsplit_unit(Objective(surrogate=Gate(), aggregate=token_mean)) == "sequence"


def test_a_wrong_output_shape_names_the_part() -> None:
    def per_sample(b: Batch) -> Tensor:
        return b.sequences.mean(b.logp)

    step = step_of([[1, 1, 3]])
    for objective in (Objective(surrogate=per_sample), Objective(penalties=(per_sample,))):
        with pytest.raises(ValueError, match="per_sample returned the shape"):
            objective(objective.prepare(step))
    for objective in (Objective(weights=(per_sample,)), Objective(aggregate=per_sample)):
        with pytest.raises(ValueError, match="per_sample returned the shape"):
            objective.prepare(step)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_is_a_value(name: str) -> None:
    objective = OBJECTIVES[name]
    assert replace(objective) == objective and hash(replace(objective)) == hash(objective)


def test_float32_log_probs_with_float64_constants() -> None:
    step = step_of([[3, 2]])
    half = step.having(logp=step.logp.detach().float().requires_grad_(), logp_old=step.logp_old.float())
    objective = Objective(penalties=(KL(0),), aggregate=sequence_mean)
    loss = objective(objective.prepare(half))
    assert loss.dtype == torch.float64 and gradient(loss, half.logp).dtype == torch.float32
    torch.testing.assert_close(loss, objective(objective.prepare(step)), rtol=1e-5, atol=1e-6)
